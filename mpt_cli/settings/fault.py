"""The schema of `fault`: what goes wrong on purpose, and which of its combinations make sense."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, List, Optional

from mpt_cli.errors import Problem
from mpt_cli.settings.key import key

if TYPE_CHECKING:
    from mpt_cli.settings.schema import Settings


@dataclass
class Fault:
    """What goes wrong on purpose, to rehearse how a run deals with it. Steps count from 1, skipped ones included."""

    kind: str = key("none", "what numbers become: overflow (inf), nan, or zero (gradients that vanish)",
                    choices=("none", "overflow", "nan", "zero"))
    place: str = key("backward", "backward: all gradients, with a loss that is in order; forward: the loss; data: the "
                     "first example of the batch", choices=("backward", "forward", "data"))
    at_steps: List[int] = key([], "steps at which it happens", at_least=1)
    every_steps: Optional[int] = key(None, "it happens at every multiple of this too", at_least=1)
    until_step: Optional[int] = key(None, "the last step at which it may happen, null = the last of the run",
                                    at_least=1)
    above_scale: Optional[float] = key(None, "it happens only while the loss scale is above this, as a real overflow "
                                       "does; null = at any scale", above=0)
    replica: Optional[int] = key(None, "only on this device of those a batch is split over, from 0; null = on all",
                                 at_least=0)
    slow_storage_seconds: float = key(0.0, "seconds that reading each batch of training data takes longer",
                                      at_least=0)


def check_fault(settings: "Settings") -> Iterator[Problem]:
    """A fault that would never happen, or not where it was asked for."""
    fault = settings.fault
    is_timed = bool(fault.at_steps) or fault.every_steps is not None
    if fault.kind == "none":
        for name in ("at_steps", "every_steps", "until_step", "above_scale", "replica"):
            if getattr(fault, name) not in (None, []):
                rule = "must be left out with fault.kind=none: nothing goes wrong then."
                yield Problem(f"fault.{name}", rule, getattr(fault, name), "Use fault.kind=overflow, nan or zero.")
    elif not is_timed:
        rule = f"must be given with fault.kind={fault.kind}, or fault.every_steps: otherwise it never happens."
        yield Problem("fault.at_steps", rule, fault.at_steps)
    if fault.kind == "zero" and fault.place == "data":
        yield Problem("fault.place", "must be backward or forward with fault.kind=zero.", fault.place)
    if fault.slow_storage_seconds and settings.trainer.feed == "resident":
        rule = "must be stream or auto with fault.slow_storage_seconds: resident data is read once."
        yield Problem("trainer.feed", rule, settings.trainer.feed)


def check_fault_replica(settings: "Settings") -> Iterator[Problem]:
    fault, distribute = settings.fault, settings.distribute
    if fault.replica is None:
        return
    if distribute.name == "none" or (distribute.devices is not None and fault.replica >= distribute.devices):
        rule = f"must be one of the devices a batch is split over (distribute={distribute.name})."
        yield Problem("fault.replica", rule, fault.replica, "Leave it out, or use distribute.devices.")
    elif distribute.name == "data_parallel" and fault.place != "data":
        rule = "must be left out with distribute=data_parallel unless fault.place=data: there is one loss for all."
        yield Problem("fault.replica", rule, fault.replica)
