"""Going on with an earlier run: which one, whether the settings allow it, and whether anything is left to do."""

import json
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from mpt_cli.errors import ConfigError, DataError, Problem
from mpt_cli.runs.directory import RunDirectory, default_parent
from mpt_cli.runs.summary import read_summary
from mpt_cli.settings import load_settings
from mpt_cli.settings.schema import Settings
from mpt_cli.telemetry.records import Summary
from mpt_cli.training.checkpoint import Checkpoint

# What decides the variables, the examples or their order can't change in the middle of a run.
FIXED = (
    "seed", "model.", "data.", "backend.name", "distribute.", "optimizer.name", "optimizer.use_ema",
    "optimizer.gradient_accumulation_steps", "trainer.batch_size", "trainer.shuffle", "trainer.drop_remainder",
)  # fmt: skip
UNIMPORTANT = ("run_dir", "resume", "recipe", "description", "requires", "expect.", "logger.", "backend.compile_cache")
# The numbers of `loss_scale` that a run which goes on in this mode uses.
SCALE_NUMBERS = {
    "none": (),
    "fixed": ("initial_scale",),
    "dynamic": ("growth_steps", "growth_factor", "backoff_factor", "min_scale", "max_scale", "hysteresis"),
    "logmax": ("log_max", "beta1", "beta2", "deviations", "min_scale", "max_scale"),
}


def find_run(settings: Settings) -> RunDirectory | None:
    """The run that `resume` means: the directory it names, or with `auto` the one to go on with, None if there is none.

    `auto` looks at `run_dir` where it is given, else at the newest directory of the recipe, whose settings must fit and
    which must not have finished. DataError when a named directory is no run.
    """
    if settings.resume is None:
        return None
    if settings.resume != "auto":
        return RunDirectory.open(settings.resume)
    if settings.run_dir is not None:
        return _in_run_dir(RunDirectory(Path(settings.run_dir).expanduser()))
    for path in sorted(default_parent(settings.recipe).glob("*"), reverse=True):
        if _holds_a_run(path):
            run = RunDirectory(path)
            if not _is_finished(run) and not forbidden_changes(stored_settings(run), settings):
                return run
    return None


def stored_settings(run: RunDirectory) -> Settings:
    """The settings the run was made with."""
    return load_settings([f"conf={run.config_yaml}"])


def changes(before: Settings, now: Settings) -> dict[str, tuple[Any, Any]]:
    """Keys whose values differ and matter, with the value before and now."""
    if now.seed is None:
        now = replace(now, seed=before.seed)  # the one that was drawn
    old, new = _flat(asdict(before)), _flat(asdict(now))
    return {
        key: (old.get(key), new.get(key))
        for key in sorted(old.keys() | new.keys())
        if old.get(key) != new.get(key) and not key.startswith(UNIMPORTANT)
    }


def forbidden_changes(before: Settings, now: Settings) -> list[Problem]:
    """A problem for each changed key that a run can't be resumed under."""
    return [
        Problem(key, "can't change in the middle of a run.", new, f"The run was started with {old!r}; give that, or "
                "start a new run.")
        for key, (old, new) in changes(before, now).items()
        if key.startswith(FIXED)
    ]  # fmt: skip


def check_resumable(run: RunDirectory, settings: Settings) -> dict[str, tuple[Any, Any]]:
    """The allowed changes against the run's own settings; ConfigError with all that are not allowed."""
    before = stored_settings(run)
    problems = forbidden_changes(before, settings)
    if problems:
        raise ConfigError(problems)
    return changes(before, settings)


def without_effect(changed: Iterable[str], mode: str, mode_before: str | None) -> list[str]:
    """Of the changed keys, the numbers of `loss_scale` that a run which goes on in `mode` does not use.

    A scale that moves goes on from where it was; only where it begins anew does it begin at `initial_scale`.

    >>> without_effect(["loss_scale.initial_scale", "loss_scale.max_scale", "seed"], "dynamic", "dynamic")
    ['loss_scale.initial_scale']
    >>> without_effect(["loss_scale.initial_scale", "loss_scale.max_scale", "seed"], "fixed", "dynamic")
    ['loss_scale.max_scale']
    """
    begins = mode not in ("none", mode_before)
    used = {*SCALE_NUMBERS[mode], *(("initial_scale",) if begins else ())}
    unused = {"initial_scale"}.union(*SCALE_NUMBERS.values()) - used
    return [key for key in changed if key in {f"loss_scale.{name}" for name in unused}]


def change_notes(changed: dict[str, tuple[Any, Any]], idle: Iterable[str], mode: str) -> list[str]:
    """A sentence for each changed key, with what is to be expected of the `idle` ones."""
    notes = []
    for key, (old, new) in changed.items():
        moved = f"{key} was {old!r}, is {new!r}"
        goes_on = key == "loss_scale.initial_scale" and mode != "none"
        reason = f"{mode} scaling goes on from the scale it had" if goes_on else f"{mode} scaling does not use it"
        notes.append(f"without effect: {moved}; {reason}" if key in idle else f"changed since: {moved}")
    return notes


def past_attempts(run: RunDirectory) -> list[dict[str, Any]]:
    """What environment.json tells of the attempts so far, oldest first."""
    try:
        return list(json.loads(run.environment_json.read_text()).get("attempts", []))
    except (OSError, ValueError):
        return []


def finished_summary(run: RunDirectory, settings: Settings) -> Summary | None:
    """The summary of a finished run that `settings` ask nothing more of, as it stands; None where work is left."""
    try:
        found = read_summary(run.summary_json)
    except DataError:
        return None
    trainer = settings.trainer
    whole = found["epochs_completed"] >= trainer.epochs
    is_done = whole or (trainer.max_steps is not None and found["steps_seen"] >= trainer.max_steps)
    if found["status"] != "finished" or not is_done or check_resumable(run, settings):
        return None
    return Summary(**{name: value for name, value in found.items() if name in Summary.__dataclass_fields__})


def check_checkpoints(run: RunDirectory, found: Checkpoint | None) -> None:
    """DataError when the run had checkpoints and they are gone: beginning again must be the user's choice."""
    if found is None and any(attempt.get("from_step") for attempt in past_attempts(run)):
        raise DataError(
            f"the checkpoints of {run.path} are gone, and it had some. Put them back, or start again in another "
            "run_dir."
        )


def _in_run_dir(run: RunDirectory) -> RunDirectory | None:
    if _holds_a_run(run.path):
        return run
    if run.path.is_dir():
        run.clear_unstarted()
    return None


def _holds_a_run(path: Path) -> bool:
    return RunDirectory(path).config_yaml.is_file()


def _is_finished(run: RunDirectory) -> bool:
    try:
        return bool(read_summary(run.summary_json)["status"] == "finished")
    except DataError:
        return False


def _flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        if isinstance(value, dict):
            flat.update(_flat(value, f"{prefix}{name}."))
        else:
            flat[f"{prefix}{name}"] = value
    return flat
