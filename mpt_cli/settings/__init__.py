"""Settings of a run: schema, strict load, round trip.

The two functions come with Hydra, so they are imported on first use: the rest of the room (schema, listings,
completion) starts without it.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mpt_cli.settings.load import load_settings, resolved_yaml

__all__ = ["load_settings", "resolved_yaml"]


<<<<<<< HEAD
def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from mpt_cli.settings import load

    return getattr(load, name)
=======
def load_settings(overrides: list[str]) -> "Settings":
    """The settings for `conf=NAME_OR_PATH key=value …`; ConfigError with every problem, see `settings.load`."""
    from mpt_cli.settings.load import load_settings as load

    return load(overrides)


def resolved_yaml(settings: "Settings") -> str:
    """YAML that loads back to the same settings, see `settings.dump`."""
    from mpt_cli.settings.load import resolved_yaml as dump

    return dump(settings)
>>>>>>> origin/main
