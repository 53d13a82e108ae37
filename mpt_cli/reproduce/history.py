"""What recipes came to, run after run: a line of JSON for each in a file that only grows, and what has drifted against
those before it on the same kind of machine.

The rule: a figure has drifted that lies outside the range which, by the last LAST passed runs, the next one leaves in
CHANCE of the cases, by Student's t (mean ± t · deviation · √(1 + 1/n)); fewer than FEWEST tell nothing. Figures are the
metrics, the peak memory, and the speed as examples per round of a reference loop, which this process runs before and
after each run, so that a machine that is slower today is no drift of the recipe. Runs of less than SHORTEST_SECONDS
have no such speed: beside eight busy processes on two cores, that of digits_mlp came out up to 13 times apart in six
runs of 2.5 s and 20 times in six of 9 s, against 5 times in five of 35 s.
"""

import json
import math
import os
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from mpt_cli.errors import DataError
from mpt_cli.redaction import without_secrets
from mpt_cli.reproduce.reproduction import Reproduction
from mpt_cli.runs.directory import take_lock
from mpt_cli.runs.provenance import ENVIRONMENT, environment_differences
from mpt_cli.settings.limits import read_file
from mpt_cli.sweep.paired import t_quantile
from mpt_cli.telemetry.format import format_number, strict_json
from mpt_cli.telemetry.records import misfit

LAST = 10
FEWEST = 3
CHANCE = 0.01  # that a figure is called drifted and only varies as before
VERSION = 1
SPEED = "relative_speed"
SHORTEST_SECONDS = 20.0
MOST_NAMED = 3  # lines that can't be read; what has changed since
_RESOLUTION = 2.0**-20  # a few roundings of a sum in float32
_ENTRY = {
    "history_version": int, "recipe": str, "words": list[str], "kind": str, "passed": bool, "figures": dict[str, float],
    **{name: ENVIRONMENT[name] for name in ("versions", "machine")},
}  # fmt: skip
_KEPT = ("mpt", "python", "versions", "backend", "jit_compile", "policy", "devices", "git")  # of environment.json
_OF_THE_MACHINE = ("os", "cpu", "cpu_precision_features", "usable_cores", "memory_bytes", "gpus")
Entry = dict[str, Any]


@dataclass(frozen=True)
class Drift:
    """A figure outside the range that those before it make likely."""

    figure: str
    value: float
    low: float
    high: float

    def __str__(self) -> str:
        texts = [format_number(number) for number in (self.value, self.low, self.high)]
        if len(set(texts)) < len(texts):  # of runs that came to the same, a last digit is a drift
            texts = [f"{number:.9g}" for number in (self.value, self.low, self.high)]
        value, low, high = texts
        return f"{self.figure} {value}, not within {low} … {high}"


@dataclass(frozen=True)
class Judgement:
    """What the history says of a run: against how many before it, what drifted, and what has changed since the last."""

    known: int
    drifts: list[Drift] = field(default_factory=list)
    changes: list[str] = field(default_factory=list)
    remark: str = ""  # on a figure that is not judged

    def line(self, name: str) -> str:
        return f"{name}: {self._verdict()}{f' ({self.remark})' if self.remark else ''}"

    def _verdict(self) -> str:
        if self.known < FEWEST:
            return f"{self.known} passed before it on this kind of machine; a drift is told from {FEWEST} on"
        against = f"against the last {self.known} that passed on this kind of machine"
        if not self.drifts:
            return f"nothing drifted {against}"
        more = f" and {len(self.changes) - MOST_NAMED} more" if len(self.changes) > MOST_NAMED else ""
        since = f"; since then {', '.join(self.changes[:MOST_NAMED])}{more}" if self.changes else ""
        return f"DRIFTED {against}: {'; '.join(map(str, self.drifts))}{since}"

    def as_dict(self) -> dict[str, Any]:
        """For `--json`."""
        drifts = [vars(each) for each in self.drifts]
        return {"runs_before": self.known, "drifts": drifts, "changes": self.changes, "remark": self.remark}


def likely_range(values: Sequence[float]) -> tuple[float, float]:
    """In which the next of these lies in all but CHANCE of the cases; of equal ones, a few roundings wide.

    >>> [round(edge, 3) for edge in likely_range([0.95, 0.96, 0.94])]
    [0.835, 1.065]
    """
    mean, count = statistics.fmean(values), len(values)
    half = t_quantile(1 - CHANCE / 2, count - 1) * statistics.stdev(values) * math.sqrt(1 + 1 / count)
    half = max(half, _RESOLUTION * abs(mean))
    return mean - half, mean + half


def judge(entry: Entry, before: Iterable[Entry]) -> Judgement:
    """Holds the entry against the last that passed of the same recipe, words and kind of machine."""
    this = _what_ran(entry)
    alike = [each for each in before if each["passed"] and _what_ran(each) == this][-LAST:]
    remark = "" if is_long(entry) else f"no {SPEED}: of less than {SHORTEST_SECONDS:g} s it is noise"
    if len(alike) < FEWEST:
        return Judgement(len(alike), remark=remark)
    drifts = []
    for name, text in entry["figures"].items():
        known = [float(each["figures"][name]) for each in alike
                 if name in each["figures"] and (name != SPEED or is_long(each))]  # fmt: skip
        if len(known) < FEWEST or not all(map(math.isfinite, known)):
            continue
        value, (low, high) = float(text), likely_range(known)
        if not low <= value <= high:  # nan has drifted
            drifts.append(Drift(name, value, low, high))
    changes = environment_differences(alike[-1], entry) if drifts else []
    return Judgement(len(alike), drifts, changes, remark)


def is_long(entry: Mapping[str, Any]) -> bool:
    """Whether a run, by its summary or its entry, was long enough for its speed to mean something."""
    seconds = entry.get("seconds")
    return isinstance(seconds, int | float) and seconds >= SHORTEST_SECONDS


def _what_ran(entry: Entry) -> tuple[str, list[str], str]:
    """Recipe, words and kind of machine, whichever way the recipe's place was written.

    >>> _what_ran({"recipe": "./a/b.yaml", "words": ["conf=./a/b.yaml", "seed=1"], "kind": "CPU"})
    ('a/b.yaml', ['conf=a/b.yaml', 'seed=1'], 'CPU')
    """
    words = [f"conf={_from_here(word[5:])}" if word.startswith("conf=") else word for word in entry["words"]]
    return _from_here(entry["recipe"]), words, entry["kind"]


def _from_here(place: str) -> str:
    return os.path.relpath(place) if os.sep in place else place


def read_entries(text: str) -> tuple[list[Entry], list[str]]:
    """The entries, and what is wrong with each line that is none."""
    entries, faults = list[Entry](), list[str]()
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            faults.append(f"line {number} is no JSON")
            continue
        fault = misfit(_ENTRY, found, [*_ENTRY]) if isinstance(found, dict) else "it is no object"
        if fault is None and found["history_version"] != VERSION:
            fault = f"history_version must be {VERSION}"
        if fault:
            faults.append(f"line {number} is no entry of a history: {fault}")
        else:
            entries.append(found)
    return entries, faults


def reference_rate(seconds: float = 0.2) -> float:
    """Rounds per second of a loop that never changes: a product of 256 by 256 in float32 and its tanh."""
    inputs, weights = np.random.default_rng(0).random((2, 256, 256), dtype=np.float32)
    np.tanh(inputs @ weights)  # the first wakes threads
    count, begun = 0, time.perf_counter()
    while (spent := time.perf_counter() - begun) < seconds:
        np.tanh(inputs @ weights)
        count += 1
    return count / spent


class History:
    """The file of a history, in which each run of a recipe becomes a line as it ends; `jobs` run at a time. Where a
    `drift_fails`, what has drifted did not pass, and what comes after is not held against it.

    Two processes may add to one file: each line is one write, behind a lock. Lines that are no entries stay in it.
    """

    def __init__(self, path: Path, jobs: int, drift_fails: bool = False) -> None:
        """DataError where the file can't be read or written, before the runs take their time."""
        self.path, self._jobs, self._drift_fails = path, jobs, drift_fails
        self.findings: dict[Path, Judgement] = {}  # by run directory
        self.fault = ""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            is_new = not path.exists()
            text = "" if is_new else read_file(path, None, "backslashreplace")
            path.open("ab").close()
            if is_new:
                path.unlink()
        except OSError as error:
            raise DataError(f"{path} can't be read and written: {error.strerror}. Give another --history.") from error
        self.unread = read_entries(text)[1]
        self._rate = reference_rate()

    def note(self, result: Reproduction) -> None:
        """Adds the run, where it is of a recipe; a file that can't be written any more is told by `fault`."""
        if result.target.recipe is None:
            return
        before, self._rate = self._rate, reference_rate()
        entry = entry_of(result, (before + self._rate) / 2, self._jobs)
        try:
            self.findings[result.child.run.path] = self._append(entry)
        except OSError as error:
            self.fault = f"{self.path} can't be written: {error.strerror}. Its last runs are not in it."

    def _append(self, entry: Entry) -> Judgement:
        """Returns what is to be said of it beside what was there before."""
        with self.path.open("ab") as file:
            take_lock(file, wait=True)  # where there are no locks, a line is one write all the same
            text = read_file(self.path, None, "backslashreplace")
            found = judge(entry, read_entries(text)[0])
            passed = entry["passed"] and not (self._drift_fails and found.drifts)
            start = "" if not text or text.endswith("\n") else "\n"  # a line that was broken off stays one of its own
            os.write(file.fileno(), f"{start}{strict_json({**entry, 'passed': passed})}\n".encode())
            os.fsync(file.fileno())
        return found

    def lines(self, results: Sequence[Reproduction]) -> list[str]:
        """What is to be said of the file and of each run."""
        more = f", and {len(self.unread) - MOST_NAMED} more lines" if len(self.unread) > MOST_NAMED else ""
        said = [f"{self.path}: {'; '.join(self.unread[:MOST_NAMED])}{more}; kept and not read"] if self.unread else []
        for result in results:
            finding = self.findings.get(result.child.run.path)
            if finding is not None:
                said.append(finding.line(result.target.name))
            elif result.target.recipe is None:
                said.append(f"{result.target.name}: not in the history, which is of recipes")
        return said


def entry_of(result: Reproduction, rate: float, jobs: int) -> Entry:
    """The line of a run; `rate` is that of the reference loop around it."""
    summary, environment = result.child.summary or {}, result.child.environment
    speed, memory = summary.get("examples_per_second"), summary.get("peak_memory_bytes")
    figures = {**summary.get("metrics", {}), **({SPEED: float(speed) / rate} if speed and is_long(summary) else {}),
               **({"peak_memory_bytes": memory} if memory else {})}  # fmt: skip
    machine = environment.get("machine") or {}
    return {
        "history_version": VERSION,  # of these fields
        "recipe": result.target.name,  # as it was named, with [seed=N] where it runs with several
        "words": [without_secrets(word) for word in result.target.words],  # of its command line
        "ended_at": datetime.now(UTC).isoformat(timespec="seconds"),  # in UTC
        "passed": result.passed,  # whether every expectation was met, with --fail-on-drift without a drift
        "attempt": result.attempts,  # 2 and more: one of --retries
        "exit_code": result.child.exit_code,  # of the run
        # what may drift: the metrics, `peak_memory_bytes`, and `relative_speed` of a run of 20 s and more
        "figures": figures,
        "examples_per_second": speed,  # as in summary.json
        "reference_rate": rate,  # rounds of the reference loop per second, around the run
        "seconds": summary.get("seconds"),  # as in summary.json
        "kind": kind_of(environment, jobs),  # of machine: only runs of the same kind are held against each other
        # os, cpu, cpu_precision_features, usable_cores, memory_bytes, gpus
        "machine": {name: machine.get(name) for name in _OF_THE_MACHINE},
        # of packages; as in environment.json, and so are, where it has them, mpt, python, backend, jit_compile, policy,
        # devices and git
        "versions": {},
        **{name: environment[name] for name in _KEPT if name in environment},
    }


def kind_of(environment: Mapping[str, Any], jobs: int) -> str:
    """Machines on which a recipe should come to the same, as far as it ever does, whatever the versions.

    A virtual machine may call CPUs of several generations by one name; their instructions tell them apart.

    >>> machine = {"cpu": "EPYC", "cpu_precision_features": ["f16c", "avx2"], "usable_cores": 2, "gpus": []}
    >>> kind_of({"machine": machine, "backend": "jax 0.10.0, keras 3.15.1", "devices": ["CPU"]}, 1)
    'EPYC with f16c avx2, 2 cores, jax on CPU, 1 at a time'
    """
    machine = environment.get("machine") or {}
    gpus = [gpu["name"] for gpu in machine.get("gpus") or []]
    devices = " and ".join(environment.get("devices") or "?")
    backend = f"{str(environment.get('backend')).partition(' ')[0]} on {devices}"
    cores = f"{machine.get('usable_cores')} cores"
    features = machine.get("cpu_precision_features")
    cpu = f"{machine.get('cpu')} with {' '.join(features)}" if features else str(machine.get("cpu"))
    return ", ".join([cpu, cores, *gpus, backend, f"{jobs} at a time"])
