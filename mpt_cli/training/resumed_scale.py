"""The loss scale a run goes on with at a checkpoint, where its settings or a rollback may have changed it since."""

from collections.abc import Sequence

import numpy as np

from mpt_cli.telemetry.records import Event
from mpt_cli.training.assembly import Assembly
from mpt_cli.training.checkpoint import Checkpoint
from mpt_cli.training.state import SCALE


def saved_scale(checkpoint: Checkpoint) -> float:
    """The loss scale after the step of `checkpoint`."""
    return float(checkpoint.arrays[f"{SCALE}scale"])


def scale_at(parts: Assembly, checkpoint: Checkpoint, rollbacks: Sequence[Event]) -> float:
    """A fixed scale is that of the settings, lowered by all rollbacks so far, as the learning rate is.

    One that moves goes on from where it was, within its present limits, lowered by the rollbacks to this very step.
    """
    settings, mode = parts.settings.loss_scale, parts.scaling.mode
    if mode == "none":
        return 1.0
    is_fixed = mode == "fixed"
    scale = settings.initial_scale
    if not is_fixed and mode == checkpoint.position["scaling_mode"]:
        scale = min(max(saved_scale(checkpoint), settings.min_scale), settings.max_scale)
    lowered = sum(
        (event.cause or "").startswith("loss_scale.")
        and (event.step == checkpoint.step or (is_fixed and event.step < checkpoint.step))
        for event in rollbacks
    )
    lower = scale * parts.settings.trainer.rollback_scale_factor**lowered
    return float(np.float32(max(lower, min(scale, settings.min_scale))))


def restore_scale(parts: Assembly, checkpoint: Checkpoint, rollbacks: Sequence[Event]) -> float:
    """Set the scale, the steps to its growth and the overflows before its fall; returns the scale."""
    optimizer, settings = parts.optimizer, parts.settings.loss_scale
    scale = scale_at(parts, checkpoint, rollbacks)
    assert optimizer.scale_state is not None
    optimizer.scale_state.scale.assign(scale)
    if parts.scaling.mode == "dynamic" == checkpoint.position["scaling_mode"]:
        optimizer.dynamic_growth_steps = settings.growth_steps
        more = settings.hysteresis - checkpoint.position.get("hysteresis", settings.hysteresis)
        left = int(checkpoint.arrays[f"{SCALE}hysteresis_left"]) + more
        optimizer.scale_state.by_name["hysteresis_left"].assign(max(left, 0))
    return scale
