"""Run recipes and earlier runs again, each in a process, and compare the results with what was expected; and check that
a killed and resumed run ends as an unbroken one, bit for bit.
"""

import hashlib
import random
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count, zip_longest
from pathlib import Path
from signal import SIGKILL
from typing import Any

from mpt_cli.errors import BAD_CONFIG, BAD_DATA, MISMATCH, OK, TERMINATED, DataError, config_error
from mpt_cli.files import JsonObject
from mpt_cli.jobs.local_processes import Command, Ending, Limits, LocalExecutor, module_command
from mpt_cli.jobs.queue import Queue, run_one
from mpt_cli.reproduce.collection import FINGERPRINT, ReproduceTarget
from mpt_cli.runs.directory import RunDirectory, numbered_path, read_lines, read_summary
from mpt_cli.runs.expectations import ExpectationCheck, check_expectations
from mpt_cli.runs.provenance import (
    code_differences,
    collect_environment,
    environment_differences,
    known_environment,
    recorded_cores,
    thread_variables,
)
from mpt_cli.settings.overrides import format_override
from mpt_cli.signals import raise_for, signal_name
from mpt_cli.telemetry.record_types import FORWARD_PASS
from mpt_cli.training.checkpoint import CheckpointStore

CAUSES_IN_DATA = (
    "usual causes: random numbers drawn without the run's seed (mpt fills a loader's parameter `seed`), hash() or the "
    "order of a set, the order in which files are listed, the time, threads that race, a file or cache that an earlier "
    "attempt left"
)
CAUSES_IN_TRAINING = (
    "usual causes: random numbers that a fixed `seed` does not set, in the model, its training or a stream (only its "
    "first batch is compared), hash() or the order of a set, the time, threads that race, a file or cache that an "
    "earlier attempt left, or a GPU that adds in another order"
)


@dataclass(frozen=True)
class FinishedProcess:
    """The end of a process. `exit_code` is negative for a signal; `words` are its last message; `seconds` is how long
    it ran; `timeout` says that its timeout ended it, if so.
    """

    run: RunDirectory
    exit_code: int
    words: str
    seconds: float
    timeout: str = ""

    @cached_property
    def summary(self) -> JsonObject | None:
        """Return the content of its summary.json; None where it wrote none."""
        return self.run.summary_for(self.exit_code) or None

    @cached_property  # before a later attempt makes the directory
    def run_dir(self) -> str:
        """Return the run directory; empty where there is none."""
        return str(self.run.path) if self.run.path.is_dir() else ""

    @property
    def code(self) -> int:
        """Return the exit code as in the table of exit codes."""
        return TERMINATED if self.exit_code < 0 else self.exit_code

    @property
    def environment(self) -> JsonObject:
        return known_environment(self.run)

    @property
    def data(self) -> str:
        """Return the fingerprint of its data; empty where it is not known."""
        return str(self.environment.get("dataset_fingerprint", ""))

    @property
    def crash(self) -> str:
        """Return why the run can't be compared; empty unless it crashed or left no summary."""
        if self.timeout:
            return self.timeout
        if self.summary is not None and self.summary["status"] != "failed":
            return ""
        if self.exit_code == OK:
            return "ended with exit code 0 before the run was over"
        return signal_name(-self.exit_code) if self.exit_code < 0 else f"the run's exit code {self.exit_code}"

    @property
    def crash_sentence(self) -> str:
        """Return `crash` with the message of the run."""
        reason = self.words.partition("\n")[0].removeprefix("mpt train: ").removeprefix("mpt: ")
        begun = "did not finish" if self.run_dir else "did not run"
        return ": ".join(filter(None, [begun, self.crash, reason]))


def command_in(
    verb: str, overrides: list[str], run: RunDirectory, log: Path, as_in: JsonObject | None = None
) -> Command:
    """Return `mpt VERB overrides…` on the run directory, quiet, with its output in `log`.

    It gets as many threads and cores as the run of the environment.json `as_in` had, because sums depend on them.
    """
    words, facts = module_command("mpt_cli", verb, "--quiet", *overrides), as_in or {}
    return Command(log.stem, words, run, log, environment=thread_variables(facts), cores=recorded_cores(facts))


def read_finished(command: Command, ending: Ending) -> FinishedProcess:
    """Return how the process ended; one that could not be started counts as failed by a missing file or memory."""
    if ending.exit_code is None:
        return FinishedProcess(command.subject, BAD_DATA, ending.note, 0.0)
    timeout = (
        f"ended after {ending.seconds:.3g} s (--timeout, and the time it needed to end)"
        if ending.cause == "timeout"
        else ""
    )
    lines = command.log.read_text(encoding="utf-8", errors="replace").splitlines() if command.log else []
    # with a traceback below it
    own = next((index for index, line in enumerate(lines) if line.startswith(("mpt ", "mpt:"))), -1)
    return FinishedProcess(command.subject, ending.exit_code, "\n".join(lines[own:]), ending.seconds, timeout)


@dataclass(frozen=True)
class Reproduction:
    """The result of a target: its checks, and how its environment differs from that of the first run."""

    target: ReproduceTarget
    child: FinishedProcess
    earlier: tuple["Reproduction", ...] = ()  # the attempts before this one, which failed

    @property
    def crash(self) -> str:
        """Return why there is nothing to compare; empty for a crash that the recipe expects (`exit_code`)."""
        is_expected = self.child.summary is not None and self.target.expect.get("exit_code", OK) != OK
        return "" if is_expected else self.child.crash

    @cached_property
    def checks(self) -> list[ExpectationCheck]:
        if self.crash:
            return [ExpectationCheck("run", "a finished run", self.crash, False)]
        expect = {"exit_code": 0, **self.target.expect}  # a run that fails reproduces nothing, unless that is expected
        checks = check_expectations(self.child.summary or {}, expect)
        return checks[1:] if "exit_code" not in self.target.expect and checks[0].passed else checks

    @cached_property
    def differences(self) -> list[str]:
        """Return what changed since the first run of a run directory; of one that never started, only in code."""
        first, here = self.target.environment, self.child.environment
        if first and not here:
            return code_differences(first, collect_environment({}))
        return environment_differences(first, here) if first else []

    @property
    def attempts(self) -> int:
        return len(self.earlier) + 1

    @property
    def failure(self) -> str:
        """Return why it failed, in a line; empty where it passed."""
        missed = [
            f"{check.name} {check.got_text}, expected {check.expected}" for check in self.checks if not check.passed
        ]
        return self.child.crash_sentence if self.crash else "; ".join(missed)

    @property
    def passed(self) -> bool:
        return all(check.passed for check in self.checks)

    @property
    def exit_code(self) -> int:
        """Return 0 if it passed, 5 if the results differ, else the exit code of the failed run, with 3 instead of 2,
        which stands for recipes that can't be read.
        """
        if not self.crash:
            return OK if self.passed else MISMATCH
        return BAD_DATA if self.child.code in (OK, BAD_CONFIG) else self.child.code

    @cached_property
    def unlike(self) -> str:
        """Return what differed between attempts, with usual causes; empty where nothing did."""
        weights = {(each.child.summary or {}).get(FINGERPRINT) for each in self.ended}
        if len({each.child.data for each in (*self.earlier, self)} - {""}) > 1:
            return f"the data was different from attempt to attempt; {CAUSES_IN_DATA}"
        if len(weights) > 1:
            return f"attempts gave different values; {CAUSES_IN_TRAINING}"
        results = ([check.got for check in each.checks if check.name not in TIME_DEPENDENT] for each in self.ended)
        if len(set(map(repr, results))) > 1:
            return "attempts gave the same weights, but other values: metrics or validation data are not repeatable"
        return ""

    @property
    def ended(self) -> list["Reproduction"]:
        """Return the attempts that have a result."""
        return [each for each in (*self.earlier, self) if not each.crash]

    @property
    def is_flaky(self) -> bool:
        """Return whether it passed, though not at the first attempt."""
        return self.passed and self.attempts > 1

    def as_dict(self) -> JsonObject:
        """Return the entry of `--json`."""
        return {
            "name": self.target.name,
            "passed": self.passed,
            "flaky": self.is_flaky,
            "attempts": self.attempts,
            "failures": [each.failure for each in (*self.earlier, self) if each.failure],
            "seed": self.target.seed,
            "run_dir": self.child.run_dir or None,
            "exit_code": self.child.code,
            "code": self.target.code,
            "checks": [vars(check) for check in self.checks],
            "environment_differences": self.differences,
        }


@dataclass
class Outcomes:
    """The commands and the results so far, by the number of the target."""

    commands: dict[int, Command] = field(default_factory=dict)
    results: dict[int, Reproduction] = field(default_factory=dict)


def reproduce(
    targets: Sequence[ReproduceTarget],
    folder: Path,
    limits: Limits,
    retries: int,
    outcomes: Outcomes,
    tell_start: Callable[[str, Path], None],
    tell: Callable[[Reproduction], None],
) -> None:
    """Run every target in its own process under `folder`; put each result into `outcomes` and `tell` it. `tell_start`
    gets the name and the run directory of what starts.

    Those that may pass run again up to `retries` times. After Ctrl-C none is started, and an interrupted one has no
    result.
    """

    def record(command: Command, ending: Ending) -> None:
        if ending.cause in (None, "timeout"):
            number = next(number for number, each in outcomes.commands.items() if each is command)
            before = results.get(number)
            earlier = (*before.earlier, before) if before else ()
            results[number] = Reproduction(left[number], read_finished(command, ending), earlier)
            tell(results[number])

    def commands(logs: str) -> Iterator[Command]:  # the queue takes one when it starts it
        for number, target in left.items():
            run = _new_folder(folder / f"{number}-{Path(target.name).stem}")  # unique where two recipes have one name
            words, log = [*target.words, format_override("run_dir", str(run.path))], Path(logs, f"{run.path.name}.log")
            command = outcomes.commands[number] = command_in("train", words, run, log, target.environment)
            tell_start(target.name, run.path)
            yield command

    left, results = dict(enumerate(targets, 1)), outcomes.results
    for _ in range(retries + 1):
        with tempfile.TemporaryDirectory() as logs:
            raise_for(Queue(limits, LocalExecutor(), record).run(commands(logs)))
        left = {
            number: result.target
            for number, result in sorted(results.items())
            if not all(check.passed or check.unreported for check in result.checks)
        }


def _new_folder(path: Path) -> RunDirectory:
    """Return a folder that is not there yet, with a number if need be: those of earlier attempts and calls stay."""
    paths = (numbered_path(path, "", number) for number in count(1))
    return RunDirectory(next(each for each in paths if not each.exists()))


# What depends on the clock and the machine, and which attempt wrote a line.
# Samples are taken only where they cost little time, so what rests on them depends on the clock too.
TIME_DEPENDENT = {
    "seconds",
    "examples_per_second",
    "peak_memory_bytes",
    "attempt",
    "run_dir",
    "gradients",
    "verdict",
    "explanation",
}


Facts = Iterator[tuple[str, Any]]


def recorded(run: RunDirectory) -> Facts:
    """Yield the compared events and metrics of a run, each with its name, by step: causes before their consequences."""
    lines = [(line, path.name) for path in (run.events_jsonl, run.metrics_jsonl) for line in read_lines(path)]
    for line, file in sorted(lines, key=lambda pair: int(pair[0]["step"])):
        # in ever fewer steps of an attempt
        looked_for = {"variable", "layer", "fault"} if line.get("cause") == FORWARD_PASS else set()
        for name in sorted(line.keys() - TIME_DEPENDENT - looked_for):
            if not name.startswith("gradient_"):
                yield f"{name} at step {line['step']} ({file})", line[name]


def _facts(run: RunDirectory) -> Facts:
    """Yield every compared fact of a run: every event (the scale sequence), every line of metrics, every variable of
    the last checkpoint, bit by bit, and the summary; not what depends on the clock. DataError when a checkpoint is
    missing or damaged.
    """
    yield from recorded(run)

    def refuse(sentence: str) -> None:
        raise DataError(f"{run.path}: {sentence}")

    checkpoint = CheckpointStore(run.checkpoints, 1, refuse).newest()
    if checkpoint is None:
        raise DataError(f"{run.path} has no checkpoint to compare.")
    yield "the step of the last checkpoint", checkpoint.step
    for name, array in sorted(checkpoint.arrays.items()):
        yield f"variable {name} at step {checkpoint.step}", hashlib.sha256(array.tobytes()).hexdigest()
    summary = read_summary(run.summary_json)
    for name in sorted(summary.keys() - TIME_DEPENDENT):
        yield f"{name} in {run.summary_json.name}", summary[name]


def first_difference(
    one: RunDirectory, other: RunDirectory, facts: Callable[[RunDirectory], Facts] = _facts
) -> str | None:
    """Return which of their facts first differs, as a sentence about `other`; None when they are identical."""
    for mine, its in zip_longest(facts(one), facts(other), fillvalue=("nothing more", None)):
        if mine[0] != its[0]:
            return f"it has {its[0]} where the other has {mine[0]}"
        if mine != its:
            return f"{its[0]} is {its[1]} instead of {mine[1]}"
    return None


@dataclass(frozen=True)
class ResumeProof:
    """`difference` is None where both runs are identical, bit by bit; else it says where they first differ."""

    steps: int
    killed_at: int
    resumed_from: int
    difference: str | None


def verify_resume(words: list[str], folder: Path, step: int | None) -> ResumeProof:
    """Run once unbroken, and once killed at `step` (None: a random one) and resumed; compare everything.

    The killed run saves a checkpoint two thirds of the way to the kill, so that steps are lost and done again.
    ConfigError if the run is too short or `step` isn't in it; DataError if a run fails by itself.
    """
    whole, killed = _new_folder(folder / "whole"), _new_folder(folder / "killed")
    unknown = "nothing can be said of the resume: two runs of this recipe with one seed"
    with tempfile.TemporaryDirectory() as scratch:

        def run(verb: str, overrides: list[str], directory: RunDirectory) -> FinishedProcess:
            own = [*overrides, format_override("run_dir", str(directory.path))]
            command = command_in(verb, own, directory, Path(scratch, directory.path.name))
            return read_finished(command, run_one(command, LocalExecutor()))

        unbroken = _check_succeeded(run("train", words, whole))
        steps = int((unbroken.summary or {})["steps_seen"])
        at = random.randrange(1, max(2, steps)) if step is None else step
        if not 1 <= at < steps:
            raise config_error("--at", f"must be a step of the run before its last, {steps}.", at)
        own = [*words, f"trainer.checkpoint_every_steps={max(1, at * 2 // 3)}"]
        child = run("__killed", [f"--at={at}", *own], killed)
        if child.exit_code != -SIGKILL:
            raise DataError(f"the run could not be killed at step {at}: {child.words or child.exit_code}")
        if unbroken.data != child.data:
            raise DataError(f"{unknown} got different data (dataset_fingerprint); {CAUSES_IN_DATA}")
        resumed = _check_succeeded(run("train", [*own, "resume=auto"], killed))
        difference = first_difference(whole, killed)
        if difference:
            _check_succeeded(run("train", words, again := _new_folder(folder / "again")))
            if unlike := first_difference(whole, again):
                raise DataError(f"{unknown} differ without a kill: {unlike}; {CAUSES_IN_TRAINING}")
    return ResumeProof(steps, at, resumed.environment["attempts"][-1]["from_step"], difference)


def _check_succeeded(child: FinishedProcess) -> FinishedProcess:
    summary = child.summary
    if summary is None or summary["status"] not in ("finished", "stopped"):
        raise DataError(f"the run in {child.run.path} failed: {child.words}")
    return child
