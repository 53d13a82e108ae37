"""A diagnosis looks at one device, which sees the whole batch."""

from collections.abc import Callable
from dataclasses import replace

from mpt_cli.settings.schema import Settings
from mpt_cli.training.distribution import undistributed


def on_one_device(settings: Settings, say: Callable[[str], None]) -> Settings:
    """`settings` without distribution, said where there was one; and without a model to be saved."""
    if settings.distribute.name != "none":
        say(f"distribute={settings.distribute.name} is left out: one device sees the whole batch")
    trainer = replace(settings.trainer, save_model=False)
    return replace(undistributed(settings), trainer=trainer)
