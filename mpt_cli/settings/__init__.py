"""Settings of a run: schema, strict load, round trip.

The two functions come with Hydra, so they are imported on first use: the rest of the room (schema, listings,
completion) starts without it.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mpt_cli.settings.load import load_settings, resolved_yaml

__all__ = ["load_settings", "resolved_yaml"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from mpt_cli.settings import load

    return getattr(load, name)
