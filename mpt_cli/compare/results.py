"""What came of a comparison, read from its directory alone: each configuration beside its baseline."""

import statistics
from dataclasses import dataclass, field
from typing import Any

from mpt_cli.compare.directory import CompareDirectory
from mpt_cli.compare.noise import NOISY_SHARE
from mpt_cli.compare.plan import Setup, read_setups, read_workers, without_seed
from mpt_cli.compare.quality import Quality, compare_quality
from mpt_cli.compare.speed import SpeedUp, StepTime, speed_up, step_time
from mpt_cli.errors import DataError
from mpt_cli.report.story import as_number
from mpt_cli.sweep.objective import Objective, choose_objective
from mpt_cli.sweep.plan import Plan
from mpt_cli.sweep.ranking import SEED
from mpt_cli.sweep.results import FINISHED, JobResult, read_job

_PRECISION_KEYS = ("policy", "loss_scale")


@dataclass
class Entry:
    """One configuration: its jobs by seed, and what they came to. `label` is of the keys that are compared."""

    setup: Setup
    label: str
    jobs: dict[str, JobResult]
    times: dict[str, StepTime] = field(default_factory=dict)
    footprint: dict[str, Any] = field(default_factory=dict)
    baseline: "Entry | None" = None  # None for a baseline itself
    quality: Quality | None = None
    speed: SpeedUp | None = None
    is_disturbed: bool = False  # no round in which both it and its baseline had the cores to themselves

    @property
    def finished(self) -> dict[str, JobResult]:
        return {seed: job for seed, job in self.jobs.items() if job.status == FINISHED}

    @property
    def failed(self) -> list[JobResult]:
        return [job for job in self.jobs.values() if job.status != FINISHED]

    @property
    def step_seconds(self) -> float | None:
        """The median over the seeds."""
        return statistics.median(time.seconds for time in self.times.values()) if self.times else None

    def mean(self, group: str, name: str) -> float | None:
        """Of a metric over the jobs that finished; `group` is metrics or best_metrics."""
        found = [as_number(job.summary.get(group, {}).get(name)) for job in self.finished.values()]
        values = [value for value in found if value is not None]
        return statistics.fmean(values) if values else None

    def most(self, name: str) -> float | None:
        """The highest of a field of the summaries."""
        return max((value for job in self.jobs.values() if (value := job.number(name)) is not None), default=None)


@dataclass(frozen=True)
class Comparison:
    """A whole comparison as it stands on disk."""

    place: CompareDirectory
    plan: Plan
    objective: Objective
    entries: list[Entry]
    facts: dict[str, Any]
    devices: dict[str, Any]
    noise: dict[str, float]

    @property
    def results(self) -> list[JobResult]:
        return [job for entry in self.entries for job in entry.jobs.values()]

    @property
    def seeds(self) -> int:
        return max(len(entry.jobs) for entry in self.entries)

    @property
    def workers(self) -> int:
        return read_workers(self.facts)

    @property
    def compared(self) -> list[Entry]:
        """All but the baselines."""
        return [entry for entry in self.entries if entry.baseline is not None]

    @property
    def noisy_jobs(self) -> dict[str, float]:
        """Jobs beside which other programs kept the cores busy, with the share those had."""
        return {name: share for name, share in self.noise.items() if share > NOISY_SHARE}

    def device(self, entry: Entry) -> dict[str, Any]:
        """What `examine` says of the device that the configuration ran on."""
        return dict(self.devices.get(entry.footprint.get("backend", ""), {}))


def read_comparison(place: CompareDirectory, objective: str | None = None) -> Comparison:
    """Everything from the directory; DataError where its plan is damaged, ConfigError for an unknown objective."""
    plan, facts = place.read_plan()
    try:
        setups = read_setups(facts)
    except (KeyError, TypeError) as error:
        raise DataError(f"{place.plan_json} is damaged: {error}.") from error
    results = [read_job(place, job) for job in plan.jobs]
    finished = [result.summary for result in results if result.status == FINISHED]
    chosen = choose_objective(objective or facts.get("objective"), finished)
    extra = place.read_extra(place.footprints_json)
    entries = [_entry(setup, results, extra.get("runs", {})) for setup in setups]
    noise = place.read_extra(place.noise_json).get("others_share", {})
    for entry in entries:
        entry.baseline = _baseline(entry, entries)
        if entry.baseline is not None:
            _hold_against(entry, entry.baseline, chosen, facts.get("tolerance"))
            _time_against(entry, entry.baseline, noise)
    return Comparison(place, plan, chosen, entries, facts, extra.get("devices", {}), noise)


def _entry(setup: Setup, results: list[JobResult], footprints: dict[str, Any]) -> Entry:
    own = [result for result in results if without_seed(result.job) == setup.overrides]
    jobs = {result.job.overrides.get(SEED, ""): result for result in own}
    label = ", ".join(value if key == "policy" else f"{key.removesuffix('.name')} {value}"
                      for key, value in setup.overrides.items())  # fmt: skip
    times = {
        seed: time for seed, job in jobs.items() if job.status == FINISHED
        and (time := step_time(job.run_dir / "metrics.jsonl", job.number("examples_per_second"), setup.batch_size))
    }  # fmt: skip
    found: dict[str, Any] = next((footprints[job.job.name] for job in own if job.job.name in footprints), {})
    return Entry(setup, label or setup.policy, jobs, times, found)


def _baseline(entry: Entry, entries: list[Entry]) -> Entry | None:
    """float32 among those that differ in nothing but the precision, else the first of them; None for itself."""
    group = [other for other in entries if _others(other) == _others(entry)]
    found = next((other for other in group if other.setup.policy == "float32"), group[0])
    return None if found is entry else found


def _hold_against(entry: Entry, baseline: Entry, objective: Objective, tolerance: float | None) -> None:
    shared = [seed for seed in entry.finished if seed in baseline.finished]
    values = [(objective.value(baseline.jobs[seed].summary), objective.value(entry.jobs[seed].summary))
              for seed in shared]  # fmt: skip
    pairs = [(base, other) for base, other in values if base is not None and other is not None]
    entry.quality = compare_quality(objective, pairs, tolerance)


def _time_against(entry: Entry, baseline: Entry, noise: dict[str, float]) -> None:
    """From the rounds that nothing disturbed, where there are any."""
    timed = [seed for seed in entry.times if seed in baseline.times]
    quiet = [seed for seed in timed if not any(noise.get(own.jobs[seed].job.name, 0.0) > NOISY_SHARE
                                               for own in (entry, baseline))]  # fmt: skip
    entry.is_disturbed = bool(timed) and not quiet
    entry.speed = speed_up([(baseline.times[seed], entry.times[seed]) for seed in quiet or timed])


def _others(entry: Entry) -> dict[str, str]:
    """What is varied beside the precision: each backend has a baseline of its own."""
    return {key: value for key, value in entry.setup.overrides.items()
            if key.partition(".")[0] not in _PRECISION_KEYS}  # fmt: skip
