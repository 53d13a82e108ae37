"""An earlier run gone through again up to a step: its own model, batches and loss scale just before that step."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mpt_cli.data.load import load_data
from mpt_cli.diagnose.course import Course
from mpt_cli.diagnose.overflowed_steps import Overflow
from mpt_cli.errors import DataError
from mpt_cli.runs.directory import RunDirectory
from mpt_cli.settings.schema import Settings
from mpt_cli.training.assembly import Assembly, assemble
from mpt_cli.training.backend import Platform
from mpt_cli.training.checkpoint import Checkpoint, CheckpointStore
from mpt_cli.training.state import restore_state


@dataclass(frozen=True)
class Replayed:
    """A run just before the step of `overflow`, gone on with from `from_step` (0: its beginning)."""

    run: RunDirectory
    overflow: Overflow
    parts: Assembly
    course: Course
    from_step: int


def replay(
    run: RunDirectory, settings: Settings, platform: Platform, overflow: Overflow, say: Callable[[str], None]
) -> Replayed:
    """Build the run again, take up its newest checkpoint before the overflow, and train up to the step before it."""
    assert settings.seed is not None
    parts = assemble(settings, platform, load_data(settings.data, settings.seed))
    checkpoint = CheckpointStore(run.checkpoints, say=say).newest(before=overflow.step)
    _check_data(run, checkpoint, parts.data.fingerprint)
    course = Course(parts)
    if checkpoint is not None:
        restore_state(parts.model, checkpoint.arrays)
        course = _course_at(parts, checkpoint)
    origin = f"from the checkpoint of step {course.step}" if checkpoint else "from its beginning"
    say(f"{run.path}: training again {origin} up to step {overflow.step}")
    from_step = course.step
    course.train_to(overflow.step - 1)
    return Replayed(run, overflow, parts, course, from_step)


def _course_at(parts: Assembly, checkpoint: Checkpoint) -> Course:
    progress = checkpoint.position["progress"]
    within = progress["step_in_epoch"]
    epoch = progress["epoch"] if within else progress["epochs_completed"] + 1
    return Course(parts, checkpoint.step, epoch, within)


def _check_data(run: RunDirectory, checkpoint: Checkpoint | None, now: str) -> None:
    before = checkpoint.position["dataset"] if checkpoint else _environment(run).get("dataset_fingerprint", now)
    if before != now:
        raise DataError(f"{run.path} was trained on other data (fingerprint {str(before)[:12]}…, now {now[:12]}…). "
                        "Bring back the data of then.")  # fmt: skip


def _environment(run: RunDirectory) -> dict[str, Any]:
    try:
        return dict(json.loads(run.environment_json.read_text()))
    except (OSError, ValueError):
        return {}
