"""Combinations within the optimizer: clipping, moving average, schedule."""

from collections.abc import Iterator
from itertools import pairwise

from mpt_cli.errors import Problem
from mpt_cli.settings.optimizers import OptimizerSettings, Schedule
from mpt_cli.settings.schema import Settings

_OWNERS = {
    "warmup_steps": ("constant", "cosine"),
    "decay_steps": ("cosine", "exponential"),
    "final_factor": ("cosine",),
    "decay_rate": ("exponential",),
    "staircase": ("exponential",),
    "boundaries": ("piecewise",),
    "values": ("piecewise",),
}
_NEEDED = {"exponential": ("decay_steps", "decay_rate"), "piecewise": ("boundaries", "values")}
_CLIPPING = ("clipnorm", "clipvalue", "global_clipnorm")


def check_clipping(settings: Settings) -> Iterator[Problem]:
    """Keras takes at most one way of clipping."""
    given = [name for name in _CLIPPING if getattr(settings.optimizer, name) is not None]
    if len(given) > 1:
        rule = f"must be the only way of clipping; optimizer.{' and optimizer.'.join(given[:-1])} is given too."
        yield Problem(f"optimizer.{given[-1]}", rule, getattr(settings.optimizer, given[-1]), "Keep one of them.")


def check_clipping_on_replicas(settings: Settings) -> Iterator[Problem]:
    """Each of N replicas may keep gradients as large as the limit, so that their sum is up to N times that."""
    if settings.distribute.name != "mirrored":
        return
    for name in _CLIPPING:
        value = getattr(settings.optimizer, name)
        if value is not None:
            rule = "must be null with distribute=mirrored: Keras clips on each replica, before gradients are added up."
            remedy = "Use backend=jax distribute=data_parallel, or distribute=none."
            yield Problem(f"optimizer.{name}", rule, value, remedy)


def check_ema(settings: Settings) -> Iterator[Problem]:
    optimizer = settings.optimizer
    if optimizer.use_ema:
        return
    for name in ("ema_momentum", "ema_overwrite_frequency"):
        if getattr(optimizer, name) != getattr(OptimizerSettings, name):
            rule = "must be left out when optimizer.use_ema is false: nothing uses it."
            yield Problem(f"optimizer.{name}", rule, getattr(optimizer, name), "Set optimizer.use_ema=true.")


def check_ema_in_float8(settings: Settings) -> Iterator[Problem]:
    """Keras keeps None as the average of float8 statistics; on TensorFlow it never looks before it assigns one."""
    optimizer = settings.optimizer
    if not (settings.policy.float8 and optimizer.use_ema):
        return
    why = "Keras has no averages of float8 statistics and fails as it looks for them."
    if settings.backend.name == "tensorflow":
        rule = f"must be false with policy.float8=true and backend=tensorflow: {why}"
        yield Problem("optimizer.use_ema", rule, True, f"Use backend=jax, or policy={settings.policy.name}.")
    elif optimizer.ema_overwrite_frequency is not None:
        rule = f"must be null with policy.float8=true: {why}"
        remedy = "Leave it out: the averages become weights after the last step."
        yield Problem("optimizer.ema_overwrite_frequency", rule, optimizer.ema_overwrite_frequency, remedy)


def check_schedule(settings: Settings) -> Iterator[Problem]:
    schedule = settings.optimizer.schedule
    yield from _check_foreign_keys(schedule)
    missing = [name for name in _NEEDED.get(schedule.name, ()) if getattr(schedule, name) is None]
    for name in missing:
        yield Problem(f"optimizer.schedule.{name}", f"must be given with optimizer.schedule.name={schedule.name}.")
    if schedule.name == "piecewise" and not missing:
        yield from _check_pieces(schedule.boundaries or [], schedule.values or [])


def _check_foreign_keys(schedule: Schedule) -> Iterator[Problem]:
    for name, owners in _OWNERS.items():
        value = getattr(schedule, name)
        if schedule.name not in owners and value != getattr(Schedule, name):
            rule = f"must be left out with optimizer.schedule.name={schedule.name}: nothing uses it."
            remedy = f"It belongs to optimizer.schedule.name={' or '.join(owners)}."
            yield Problem(f"optimizer.schedule.{name}", rule, value, remedy)


def _check_pieces(boundaries: list[int], values: list[float]) -> Iterator[Problem]:
    if not all(before < after for before, after in pairwise(boundaries)):
        yield Problem("optimizer.schedule.boundaries", "must rise from entry to entry.", boundaries)
    if len(values) != len(boundaries) + 1:
        rule = f"must have {len(boundaries) + 1} entries, one more than optimizer.schedule.boundaries."
        yield Problem("optimizer.schedule.values", rule, values)
