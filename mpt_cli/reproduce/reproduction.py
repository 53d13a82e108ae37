"""Recipes and earlier runs run again, each in a process of its own, and held against what was expected of them."""

import math
import secrets
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mpt_cli.data.builtin import missing_keras_files
from mpt_cli.errors import BAD_DATA, ConfigError, DataError, Problem
from mpt_cli.jobs.executor import Command, LocalExecutor, mpt_command
from mpt_cli.jobs.queue import Ending, Limits, Queue
from mpt_cli.runs.directory import DEFAULT_PARENT, RunDirectory, make_empty, read_json, read_summary
from mpt_cli.runs.expectations import ExpectationCheck, check_expectations
from mpt_cli.runs.machine import nvidia_gpus
from mpt_cli.runs.provenance import environment_differences, format_attempts, thread_variables
from mpt_cli.runs.resume import stored_settings
from mpt_cli.settings import load_settings
from mpt_cli.settings.limits import expanded
from mpt_cli.settings.overrides import format_override
from mpt_cli.settings.schema import Settings
from mpt_cli.settings.search_path import find_recipe, recipe_paths
from mpt_cli.settings.variants import KerasDataset
from mpt_cli.signals import raise_for


@dataclass(frozen=True)
class FinishedProcess:
    """How it ended. `exit_code` is negative for a signal; `words` are what it said last."""

    run: RunDirectory
    exit_code: int
    words: str

    @property
    def summary(self) -> dict[str, Any] | None:
        """The content of its summary.json; None where it didn't come to one.

        One that tells another exit code is that of another run, or of an attempt before.
        """
        try:
            found = read_summary(self.run.summary_json)
        except DataError:
            return None
        return found if found.get("exit_code") == self.exit_code else None

    @property
    def environment(self) -> dict[str, Any]:
        """The content of its environment.json, empty where there is none."""
        try:
            return read_json(self.run.environment_json)
        except DataError:
            return {}


def run_command(
    verb: str, overrides: list[str], run: RunDirectory, log: Path, environment: Mapping[str, str] | None = None
) -> Command[RunDirectory]:
    """`mpt VERB overrides…` on the run directory, quietly; what it has to say goes to `log`."""
    return Command(log.stem, mpt_command(verb, "--quiet", *overrides), run, log, environment=environment or {})


def read_finished(command: Command[RunDirectory], ending: Ending) -> FinishedProcess:
    """What became of it; one that could not be started failed for want of a file or of memory."""
    if ending.exit_code is None:
        return FinishedProcess(command.subject, BAD_DATA, ending.note)
    lines = command.log.read_text(encoding="utf-8", errors="replace").splitlines() if command.log else []
    own = [line for line in lines if line.startswith("mpt ")]
    return FinishedProcess(command.subject, ending.exit_code, "\n".join(own or lines[-1:]))


# What has to be the same again in a repeated run; speed and memory needn't be.
_EXACT = ("status", "exit_code", "verdict", "epochs_completed", "steps_seen", "applied_steps", "skipped_steps",
          "final_loss_scale", "min_loss_scale", "max_loss_scale")  # fmt: skip


@dataclass(frozen=True)
class ReproduceTarget:
    """What to run and what to expect. `environment` is that of the run to repeat, `recipe` the file of a recipe."""

    name: str
    words: list[str]
    expect: dict[str, Any]
    environment: dict[str, Any] | None = None
    recipe: Path | None = None


def find_target(word: str, overrides: list[str], rtol: float) -> ReproduceTarget:
    """The target a word names; `rtol` is how far a metric may be from that of an earlier run, relative to it.

    ConfigError where the word names nothing, its configuration is wrong or nothing is expected of it.
    """
    if names_run(word):
        return _of_run(RunDirectory.open(word), overrides, rtol)
    words = [f"conf={word}", *overrides]
    return _of_recipe(word, words, load_settings(words))


def names_run(word: str) -> bool:
    """Whether the word means a run directory; the name of a shipped recipe never does, whatever folder lies about."""
    return word not in recipe_paths() and expanded(word).is_dir()


def _of_recipe(word: str, words: list[str], settings: Settings) -> ReproduceTarget:
    if not settings.expect:
        remedy = "Write one, or reproduce a run directory, which is held against its own summary."
        raise ConfigError(Problem("expect", f"{word} has no expect: block to be held against.", None, remedy))
    return ReproduceTarget(word, words, settings.expect, recipe=find_recipe(word))


def all_targets(overrides: list[str]) -> tuple[list[ReproduceTarget], dict[str, str]]:
    """Every shipped recipe that can run here, and those left out with the reason."""
    left_out: dict[str, str] = {}
    targets = []
    for name in recipe_paths():
        words = [f"conf={name}", *overrides]
        settings = load_settings(words)
        reason = _left_out_reason(settings)
        if reason:
            left_out[name] = reason
        else:
            targets.append(_of_recipe(name, words, settings))
    return targets, left_out


def expected_of(summary: dict[str, Any], rtol: float) -> dict[str, Any]:
    """The expectations that a run's own summary makes: counters exact, metrics within `rtol`."""
    metrics = {name: _within_rtol(value, rtol) for name, value in summary["metrics"].items()}
    return {**{name: summary[name] for name in _EXACT if name in summary}, **metrics}


def _of_run(run: RunDirectory, overrides: list[str], rtol: float) -> ReproduceTarget:
    expect = expected_of(read_summary(run.summary_json), rtol)
    words = [f"conf={run.config_yaml}", *overrides]
    if load_settings(words).trainer.jit_compile == "auto":  # as earlier versions wrote it: what it came to then
        words.append(format_override("trainer.jit_compile", str(stored_settings(run).trainer.jit_compile).lower()))
    return ReproduceTarget(run.path.name, words, expect, environment=read_json(run.environment_json))


def _within_rtol(value: Any, rtol: float) -> Any:
    if isinstance(value, str) or not math.isfinite(value):  # a summary holds nan as text, which must be equal
        return value
    return {"value": value, "tolerance": rtol * abs(value)} if rtol else value


def _left_out_reason(settings: Settings) -> str | None:
    reasons: Iterable[str | None] = (_unmet_requirement(need, settings) for need in settings.requires)
    return "; ".join(reason for reason in reasons if reason) or None


def _unmet_requirement(need: str, settings: Settings) -> str | None:
    if need == "gpu":
        return None if nvidia_gpus() else "needs a GPU, and this machine has none"
    files = missing_keras_files(settings.data.dataset) if isinstance(settings.data, KerasDataset) else []
    return f"needs a network for its data: there is no {files[0]}; give its name to try" if files else None


@dataclass(frozen=True)
class Reproduction:
    """A target and how it went: a check per expectation, and what is another environment than that of the first run."""

    target: ReproduceTarget
    child: FinishedProcess
    checks: list[ExpectationCheck]
    differences: list[str]

    @property
    def passed(self) -> bool:
        return all(check.passed for check in self.checks)

    @property
    def remarks(self) -> list[str]:
        """What else may keep the run from coming out as it did."""
        line = format_attempts(self.target.environment or {})
        return [line] if line else []

    def as_dict(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "name": self.target.name,
            "passed": self.passed,
            "run_dir": str(self.child.run.path),
            "exit_code": self.child.exit_code,
            "checks": [vars(check) for check in self.checks],
            "environment_differences": self.differences,
            "remarks": self.remarks,
        }


def create_output_folder(path: str | None) -> Path:
    """A folder for the runs: `path`, or runs/reproduce/<time>-<id>. DataError where it holds anything or can't be made.

    An earlier run in it would keep that of the same name from beginning.
    """
    chosen = expanded(path) if path is not None else _default_output_folder()
    make_empty(chosen, "--output", exist_ok=path is not None)  # two never share a drawn name
    return chosen


def _default_output_folder() -> Path:
    return Path(DEFAULT_PARENT) / "reproduce" / f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"


def reproduce(
    targets: list[ReproduceTarget], folder: Path, jobs: int, tell: Callable[[Reproduction], None]
) -> list[Reproduction]:
    """Run every target in a process of its own, `jobs` at a time, under `folder`; `tell` hears of each.

    After Ctrl-C no run is begun, and what it broke off is not judged.
    """
    results: dict[str, Reproduction] = {}

    def record(command: Command[RunDirectory], ending: Ending) -> None:
        if ending.cause is None:
            results[command.name] = _judge(by_name[command.name], read_finished(command, ending))
            tell(results[command.name])

    with tempfile.TemporaryDirectory() as logs, LocalExecutor() as executor:
        commands = [_target_command(number, target, folder, Path(logs)) for number, target in enumerate(targets, 1)]
        by_name = {command.name: target for command, target in zip(commands, targets, strict=True)}
        stopped_by = Queue(Limits(workers=jobs), executor, record).run(commands)
    raise_for(stopped_by)
    return [results[command.name] for command in commands]


def _target_command(number: int, target: ReproduceTarget, folder: Path, logs: Path) -> Command[RunDirectory]:
    run = RunDirectory(folder / f"{number}-{Path(target.name).stem}")  # unique also where a recipe is given twice
    overrides = [*target.words, format_override("run_dir", str(run.path))]
    threads = thread_variables(target.environment or {})
    return run_command("train", overrides, run, logs / f"{run.path.name}.log", threads)


def _judge(target: ReproduceTarget, child: FinishedProcess) -> Reproduction:
    summary = child.summary
    if summary is None:
        checks = [ExpectationCheck("run", "a summary", f"exit code {child.exit_code}", False)]
    else:
        expect = {"exit_code": 0, **target.expect}  # a run that fails reproduces nothing, unless that is expected
        checks = check_expectations(summary, expect)
        if "exit_code" not in target.expect and checks[0].passed:
            checks = checks[1:]
    differences = environment_differences(target.environment, child.environment) if target.environment else []
    return Reproduction(target, child, checks, differences)
