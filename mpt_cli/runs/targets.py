"""What can be reproduced: a shipped recipe, a recipe file, an earlier run."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mpt_cli.data.keras_sets import missing_files
from mpt_cli.errors import ConfigError, Problem
from mpt_cli.runs.directory import RunDirectory
from mpt_cli.runs.machine import nvidia_gpus
from mpt_cli.runs.summary import read_json, read_summary
from mpt_cli.settings import load_settings
from mpt_cli.settings.data import KerasDataset
from mpt_cli.settings.locate import find_recipe, recipe_paths
from mpt_cli.settings.schema import Settings

# What has to be the same again in a repeated run; speed and memory needn't be.
_EXACT = ("status", "exit_code", "verdict", "epochs_completed", "steps_seen", "applied_steps", "skipped_steps",
          "final_loss_scale", "min_loss_scale", "max_loss_scale")  # fmt: skip


@dataclass(frozen=True)
class Target:
    """What to run and what to expect. `environment` is that of the run to repeat, `recipe` the file of a recipe."""

    name: str
    words: list[str]
    expect: dict[str, Any]
    environment: dict[str, Any] | None = None
    recipe: Path | None = None


def find_target(word: str, overrides: list[str], rtol: float) -> Target:
    """The target a word names; `rtol` is how far a metric may be from that of an earlier run, relative to it.

    ConfigError where the word names nothing, its configuration is wrong or nothing is expected of it.
    """
    if names_run(word):
        return _of_run(RunDirectory.open(word), overrides, rtol)
    words = [f"conf={word}", *overrides]
    return _of_recipe(word, words, load_settings(words))


def names_run(word: str) -> bool:
    """Whether the word means a run directory; the name of a shipped recipe never does, whatever folder lies about."""
    return word not in recipe_paths() and Path(word).expanduser().is_dir()


def _of_recipe(word: str, words: list[str], settings: Settings) -> Target:
    if not settings.expect:
        remedy = "Write one, or reproduce a run directory, which is held against its own summary."
        raise ConfigError(Problem("expect", f"{word} has no expect: block to be held against.", None, remedy))
    return Target(word, words, settings.expect, recipe=find_recipe(word))


def all_targets(overrides: list[str]) -> tuple[list[Target], dict[str, str]]:
    """Every shipped recipe that can run here, and those left out with the reason."""
    left_out: dict[str, str] = {}
    targets = []
    for name in recipe_paths():
        words = [f"conf={name}", *overrides]
        settings = load_settings(words)
        reason = _why_not_here(settings)
        if reason:
            left_out[name] = reason
        else:
            targets.append(_of_recipe(name, words, settings))
    return targets, left_out


def expected_of(summary: dict[str, Any], rtol: float) -> dict[str, Any]:
    """The expectations that a run's own summary makes: counters exact, metrics within `rtol`."""
    metrics = {name: _near(value, rtol) for name, value in summary["metrics"].items()}
    return {**{name: summary[name] for name in _EXACT if name in summary}, **metrics}


def _of_run(run: RunDirectory, overrides: list[str], rtol: float) -> Target:
    expect = expected_of(read_summary(run.summary_json), rtol)
    words = [f"conf={run.config_yaml}", *overrides]
    load_settings(words)
    return Target(run.path.name, words, expect, environment=read_json(run.environment_json))


def _near(value: Any, rtol: float) -> Any:
    if isinstance(value, str) or not math.isfinite(value):  # a summary holds nan as text, which must be equal
        return value
    return {"value": value, "tolerance": rtol * abs(value)} if rtol else value


def _why_not_here(settings: Settings) -> str | None:
    reasons: Iterable[str | None] = (_reason(need, settings) for need in settings.requires)
    return "; ".join(reason for reason in reasons if reason) or None


def _reason(need: str, settings: Settings) -> str | None:
    if need == "gpu":
        return None if nvidia_gpus() else "needs a GPU, and this machine has none"
    files = missing_files(settings.data.dataset) if isinstance(settings.data, KerasDataset) else []
    return f"needs a network for its data: there is no {files[0]}; give its name to try" if files else None
