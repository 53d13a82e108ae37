"""Samplers of Optuna: a study in a journal file of the sweep directory, the jobs it proposes one by one, and their
results told to it. Imports optuna, an extra.
"""

import math
import random
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from mpt_cli.errors import ConfigError, Problem
from mpt_cli.jobs.queue import Running
from mpt_cli.sweep.directory import (
    FINISHED,
    GOOD,
    INTERRUPTED,
    NOT_RUN,
    JobResult,
    SweepDirectory,
    mean_of,
    read_job,
    wanted_runs,
)
from mpt_cli.sweep.median_stopping import EpochWatch
from mpt_cli.sweep.overrides import Dimension, Space, Span, Value, check_space, read_space
from mpt_cli.sweep.plan import Job, Objective, choose_objectives, job_name, make_plan, objective_word, wanted_gpus
from mpt_cli.sweep.samplers import MOST_ASKED, Sampler, SearchSettings

if TYPE_CHECKING:
    from mpt_cli.sweep.run import Options

STUDY_NAME = "mpt"
_JOB = "job"  # the attribute of a trial that says which job it became
NSGAII_POPULATION = 12  # Optuna's 50 would leave a search of tens of trials random
_MOST_COMBINATIONS = 10_000  # that are looked through for one that has not been tried


class OptunaStudy:
    """Proposes values and is told what came of them.

    `objectives` give the study its directions. Where none is known before the first job has ended, the study
    minimizes, and an objective that should rise is told negated.
    """

    def __init__(
        self, journal: Path, space: Space, search: SearchSettings, objectives: Sequence[Objective] = ()
    ) -> None:  # fmt: skip
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._space, self._search = space, search
        self._distributions = {dimension.key: _distribution(dimension) for dimension in space.dimensions}
        self._storage = JournalStorage(JournalFileBackend(str(journal)))
        self._pruner = _pruner(search.pruner)
        self._study = optuna.create_study(
            storage=self._storage, study_name=STUDY_NAME, load_if_exists=True,
            directions=["minimize" if each.falls else "maximize" for each in objectives] or ["minimize"],
        )  # fmt: skip
        if objectives and len(objectives) != len(self._study.directions):
            rule = f"must be as many as the search began with: {len(self._study.directions)}."
            raise ConfigError(Problem("--objective", rule, ",".join(each.name for each in objectives)))

    @property
    def trials(self) -> list[FrozenTrial]:
        return self._study.get_trials(deepcopy=False)

    def running_jobs(self) -> dict[int, int | None]:
        """Job by the number of each trial that nothing was told of; None for one that became no job."""
        running = [trial for trial in self.trials if trial.state == TrialState.RUNNING]
        return {trial.number: trial.user_attrs.get(_JOB) for trial in running}

    def propose(self, job: int) -> dict[str, Value] | None:
        """Values for this job that no job before had; None where MOST_ASKED proposals, or all there are, had none."""
        trial = self._new_trial()
        if trial is None:
            return None
        trial.set_user_attr(_JOB, job)
        return dict(trial.params)

    @property
    def is_exhausted(self) -> bool:
        """Whether all combinations have been tried; not where they are too many to list."""
        return self._untried() == []

    def tell(self, job: int, objectives: Sequence[Objective], values: Sequence[float | None]) -> None:
        """What a job reached. A number that is none is a failure; a failed job that was repeated is a trial anew."""
        known = [value for value in values if value is not None and math.isfinite(value)]
        if len(known) < len(values):
            self.tell_failure(self._trial(job).number)
            return
        told = [_told(*each) for each in zip(self._study.directions, objectives, known, strict=True)]
        trial = self._trial(job)
        if trial.state == TrialState.RUNNING:
            self._study.tell(trial.number, told)
        elif trial.state == TrialState.FAIL:
            self._study.add_trial(optuna.create_trial(
                params=trial.params, distributions=trial.distributions, values=told, user_attrs={_JOB: job}
            ))  # fmt: skip

    def is_behind(self, job: int, objective: Objective, course: Sequence[float]) -> bool:
        """Whether the pruner would end a running job that had these values at the ends of its epochs."""
        trial = self._trial(job)
        if trial.state != TrialState.RUNNING:
            return False
        for epoch, value in enumerate(course, 1):
            if epoch not in trial.intermediate_values:
                told = _told(self._study.directions[0], objective, value)
                self._storage.set_trial_intermediate_value(self._storage_id(trial), epoch, told)
        return bool(course) and self._pruner.prune(self._study, self._trial(job))

    def tell_pruned(self, job: int) -> None:
        trial = self._trial(job)
        if trial.state == TrialState.RUNNING:
            self._study.tell(trial.number, state=TrialState.PRUNED)

    def tell_failure(self, trial_number: int) -> None:
        if self.trials[trial_number].state == TrialState.RUNNING:
            self._study.tell(trial_number, state=TrialState.FAIL)

    def trial_of(self, job: int) -> int:
        return self._trial(job).number

    def _storage_id(self, trial: FrozenTrial) -> int:
        study = self._storage.get_study_id_from_name(STUDY_NAME)
        return self._storage.get_trial_id_from_study_id_trial_number(study, trial.number)

    def _trial(self, job: int) -> FrozenTrial:
        """The latest of this job."""
        return next(trial for trial in reversed(self.trials) if trial.user_attrs.get(_JOB) == job)

    def _new_trial(self) -> optuna.Trial | None:
        """A proposal that repeats an earlier one is void; where all can be listed, the next is one of the others."""
        tried = self._tried()
        for _ in range(MOST_ASKED):
            trial = self._ask()
            if self._words(trial.params) not in tried:
                return trial
            self.tell_failure(trial.number)
            untried = self._untried()
            if untried == []:
                return None
            if untried is not None:
                self._study.enqueue_trial(random.Random(self._seed()).choice(untried))
        return None

    def _ask(self) -> optuna.Trial:
        self._study.sampler = _sampler(self._search.sampler, self._seed())
        return self._study.ask(self._distributions)

    def _seed(self) -> int:
        """One for each trial, so that a search that is resumed goes on as if it had not been interrupted."""
        return random.Random(f"{self._search.sampler_seed} {len(self.trials)}").getrandbits(32)

    def _words(self, values: dict[str, Value]) -> tuple[str, ...]:
        """What a job is given: values that differ in what is not written are the same to it."""
        return tuple(self._space.overrides(values).values())

    def _tried(self) -> set[tuple[str, ...]]:
        return {self._words(trial.params) for trial in self.trials if _JOB in trial.user_attrs}

    def _untried(self) -> list[dict[str, Value]] | None:
        """None where the combinations can't be listed."""
        known = [dimension.values for dimension in self._space.dimensions]
        counted = [values for values in known if values is not None]
        if len(counted) < len(known) or math.prod(map(len, counted)) > _MOST_COMBINATIONS:
            return None
        combinations = [dict(zip(self._space.keys, values, strict=True)) for values in product(*counted)]
        tried = self._tried()
        return [combination for combination in combinations if self._words(combination) not in tried]


def _told(direction: StudyDirection, objective: Objective, value: float) -> float:
    return value if (direction == StudyDirection.MAXIMIZE) != objective.falls else -value


def _distribution(dimension: Dimension) -> BaseDistribution:
    if not isinstance(dimension, Span):
        return CategoricalDistribution(dimension.values)
    if dimension.is_whole:
        low, high = int(dimension.low), int(dimension.high)
        return IntDistribution(low, high, log=dimension.is_log, step=int(dimension.step or 1))
    return FloatDistribution(dimension.low, dimension.high, log=dimension.is_log, step=dimension.step)


def _sampler(name: str, seed: int) -> optuna.samplers.BaseSampler:
    """A new one for each proposal: all that it goes by stands in the study."""
    samplers = optuna.samplers
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        builders: dict[str, Callable[[], optuna.samplers.BaseSampler]] = {
            # counts the trials that are running as bad ones, so that several at a time don't crowd in one place
            "tpe": lambda: samplers.TPESampler(seed=seed, constant_liar=True),
            "random": lambda: samplers.RandomSampler(seed=seed),
            "gp": lambda: samplers.GPSampler(seed=seed),
            "cmaes": lambda: samplers.CmaEsSampler(seed=seed, warn_independent_sampling=False),
            "nsgaii": lambda: samplers.NSGAIISampler(seed=seed, population_size=NSGAII_POPULATION),
        }
        return builders[name]()


def _pruner(name: str | None) -> optuna.pruners.BasePruner:
    """`asha` is what Optuna calls successive halving, which it does asynchronously."""
    builders: dict[str, Callable[[], optuna.pruners.BasePruner]] = {
        "median": lambda: optuna.pruners.MedianPruner(n_startup_trials=3),
        "asha": optuna.pruners.SuccessiveHalvingPruner,
        "hyperband": optuna.pruners.HyperbandPruner,
    }
    return optuna.pruners.NopPruner() if name is None else builders[name]()


def open_search(search: SearchSettings, sweep: SweepDirectory, options: "Options") -> "OptunaSampler":
    """The study in the directory, and the jobs it led to so far."""
    plan, facts = sweep.read_plan()
    space = read_space(search.words)
    first = Job(0, "", {}, search.words, wanted_gpus(check_space(space)[0]))
    count = sum(result.status not in GOOD for result in (read_job(sweep, job) for job in plan.jobs)) + plan.missing
    shared = options.environment_of_jobs(options.limits([first], most=max(count, 1)).workers)
    named = facts["objective"]
    study = OptunaStudy(sweep.study, space, search, choose_objectives(named, []) if named else ())
    return OptunaSampler(sweep, plan, facts, space, study, replace(first, environment=shared))


@dataclass
class OptunaSampler(Sampler):
    """`facts` are those of sweep.json, which is written again with each new job.

    `template` is a job whose environment and number of GPUs the new ones get.
    """

    facts: dict[str, Any]
    space: Space
    study: OptunaStudy
    template: Job

    def __post_init__(self) -> None:
        self._watch = EpochWatch(self.sweep)

    def example(self, left: Sequence[Job]) -> Sequence[Job]:
        return [self.template]

    def format_count(self, count: int) -> str:
        seeds = len(self.space.seeds)
        return f"{count} runs, {seeds} for the seeds of each trial" if seeds else f"{count} trials"

    def tick(self, running: Sequence[Running[Job]]) -> None:
        search = self.facts["search"]
        if search.get("pruner") is None:
            return
        if word := search.get("objective") or self.facts["objective"]:
            self._watch.objective = choose_objectives(word, [])[0]
        for child, course in self._watch.look(running):
            objective, number = self._watch.objective, child.command.subject.number
            if objective and self.study.is_behind(number, objective, [value for _, value in course]):
                child.stop("pruner")

    def why_fewer(self, wanted: int) -> str:
        if len(self.plan.jobs) >= wanted:
            return ""
        if not self.plan.missing:
            return f"all {self.plan.trials // self._runs} combinations have been tried"
        missing, of_all = self.plan.missing // self._runs, wanted // self._runs
        made = f"{missing} of {of_all} trials were not made. Widen the space, or ask for fewer trials."
        return f"no new combination came up in {MOST_ASKED} proposals: {made}"

    def new_jobs(self) -> Iterator[Job]:
        """Until there are as many as wanted, or no combination of values is left, or no new one came up."""
        while self.plan.missing:
            number = len(self.plan.jobs) + 1
            values = self.study.propose(number)
            if values is None:
                if self.study.is_exhausted:
                    self._settle_for(len(self.plan.jobs) // self._runs)
                return
            overrides = self.space.overrides(values)
            seeds = [{"seed": seed} for seed in self.space.seeds] or [{}]
            jobs = [self._job(number + place, {**overrides, **seed}) for place, seed in enumerate(seeds)]
            self.plan.jobs.extend(jobs)
            self.sweep.write_plan(self.plan, self.facts)
            yield from jobs

    def catch_up(self) -> None:
        """Tell what became of jobs that ended without anyone to tell it; a proposal that became no job is void."""
        jobs = {job.number: job for job in self.plan.jobs}
        for trial, job in self.study.running_jobs().items():
            if job is None or job not in jobs:
                self.study.tell_failure(trial)
            else:
                self.tell(read_job(self.sweep, jobs[job]))

    def tell(self, result: JobResult) -> None:
        """What the trial of this job came to, once all its seeds have ended. One that was interrupted is not told: it
        goes on when the search is resumed.
        """
        first = (result.job.number - 1) // self._runs * self._runs
        results = [read_job(self.sweep, job) for job in self.plan.jobs[first : first + self._runs]]
        statuses, number = {each.status for each in results}, first + 1
        if statuses & {INTERRUPTED, NOT_RUN}:
            return
        if statuses == {FINISHED}:
            objectives = self._objectives(result)
            self.study.tell(number, objectives, [mean_of(results, each) for each in objectives])
        elif statuses <= {*GOOD}:
            self.study.tell_pruned(number)
        else:  # the mean of the other seeds would be of easier ones
            self.study.tell_failure(self.study.trial_of(number))

    @property
    def _runs(self) -> int:
        """Of each trial."""
        return len(self.space.seeds) or 1

    def _objectives(self, result: JobResult) -> list[Objective]:
        """Those of the sweep; where none was named, the first usual one that the first job had."""
        search = self.facts["search"]
        if search.get("objective") is None:
            chosen = choose_objectives(self.facts["objective"], [result.summary])
            search["objective"] = objective_word(chosen)
            self.sweep.write_plan(self.plan, self.facts)
        return choose_objectives(search["objective"], [])

    def _settle_for(self, trials: int) -> None:
        self.facts["search"]["trials"] = trials
        self.plan = replace(self.plan, trials=wanted_runs(self.facts))
        self.sweep.write_plan(self.plan, self.facts)

    def _job(self, number: int, overrides: dict[str, str]) -> Job:
        """Its configuration is not checked again but by the job itself, which fails where two keys don't agree."""
        words = self.space.words(overrides)
        try:
            own = make_plan(words, is_here=False).jobs[0]
        except ConfigError:
            own = replace(self.template, words=words)
        return replace(own, number=number, name=job_name(number, overrides), overrides=overrides,
                       environment=self.template.environment)  # fmt: skip
