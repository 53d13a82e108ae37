"""A search by Optuna: the space given by overrides, a study in a journal file of the sweep directory, the jobs that it
proposes one by one, and the results passed back to it. Imports optuna, an extra.

The study minimizes: an objective that should rise is passed negated.
"""

import math
import random
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import optuna
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState

from mpt_cli.errors import ConfigError, Problem, Say, config_error, raise_problems
from mpt_cli.jobs.local_processes import Running
from mpt_cli.report.history import metric_by_epoch
from mpt_cli.settings.load import load_settings
from mpt_cli.settings.schema import find_key
from mpt_cli.sweep.directory import FINISHED, NOT_ENDED, SEED, JobResult, SweepDirectory, read_job
from mpt_cli.sweep.job_list import (
    Job,
    Search,
    SweepPlan,
    check_here,
    check_objective,
    choose_objective,
    job_name,
    wanted_gpus,
)
from mpt_cli.sweep.overrides import load_each, override_key, read_grid, read_interval, values_of
from mpt_cli.training.progress import MONITORED

STUDY_NAME = "mpt"
JOB = "job"  # the attribute of a trial that says which job it became
MOST_ASKED = 100  # proposals in a row without a new combination, after which a search gives up
PRUNING_SECONDS = 1.0  # between two looks of a pruner at the epochs of running jobs


@dataclass(frozen=True)
class Space:
    """The keys that are searched, and the words that stay as they are."""

    axes: dict[str, CategoricalDistribution | FloatDistribution | IntDistribution] = field(default_factory=dict)
    fixed: list[str] = field(default_factory=list)

    def words(self, overrides: Mapping[str, str]) -> list[str]:
        return [*self.fixed, *(f"{key}={text}" for key, text in overrides.items())]

    @property
    def edges(self) -> Iterator[list[str]]:
        """Return overrides that contain each choice and each end of an interval."""
        ends = {
            key: [*map(_text, axis.choices if isinstance(axis, CategoricalDistribution) else (axis.low, axis.high))]
            for key, axis in self.axes.items()
        }
        for index in range(max(map(len, ends.values()), default=0)):
            yield self.words({key: texts[min(index, len(texts) - 1)] for key, texts in ends.items()})


def _text(value: object) -> str:
    """Return a value as a word has it, with six digits that a person can read and type."""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def read_space(words: Sequence[str]) -> Space:
    """Return the space that the words span. ConfigError with all that can't be searched."""
    space, problems = Space(), list[Problem]()
    for word in words:
        key, interval = override_key(word), read_interval(word)
        if key in space.axes:
            problems.append(Problem(key, "must be given once in a search."))
        if interval is not None:
            low, high, is_log = interval.start or 0, interval.end or 0, "log" in interval.tags
            known = find_key(key)
            is_whole = known is not None and int in known.options and float not in known.options
            if is_whole and math.isfinite(high - low):
                low, high = math.ceil(low), math.floor(high)
            if not 0.0 < high - low < math.inf or (is_log and low <= 0) or interval.tags - {"log"}:
                rule = "must be interval(SMALLER,LARGER), both > 0 on a log scale; its only tag is log."
                problems.append(Problem(key, rule, word.partition("=")[2]))
                low, high = 1, 2
            if isinstance(low, int) and isinstance(high, int):
                space.axes[key] = IntDistribution(low, high, log=is_log)
            else:
                space.axes[key] = FloatDistribution(low, high, log=is_log)
            continue
        grid = read_grid([word])
        problems += grid.problems
        found = [each for axis in grid.axes for each in axis]
        if grid.varied:
            space.axes[key] = CategoricalDistribution([values_of([each])[key] for each in found])
        else:
            space.fixed.extend(found)
    if SEED in space.axes:
        remedy = "Give one seed; then sweep the best values in a grid with several seeds."
        problems.append(Problem(SEED, "must not be searched: a search would choose a lucky seed.", None, remedy))
    raise_problems(problems)
    return space


def plan_search(words: Sequence[str], search: Search, objective: str | None, is_here: bool, say: Say) -> SweepPlan:
    """Return the plan of a search, without jobs. Check the edges of the space; jobs check what is inside."""
    space = read_space(words)
    settings = load_each([*space.edges] or [space.fixed])
    if not space.axes:
        remedy = "For example 'optimizer.learning_rate=tag(log,interval(1e-4,1e-1))'."
        raise config_error("--trials", "must have something to vary.", None, remedy)
    check_objective(objective, settings)
    if is_here:
        check_here(settings[:1], say)
    return SweepPlan([*space.axes], [], settings[0].recipe, replace(search, words=[*words]))


class OptunaStudy:
    """Proposes values and learns from their results, of which lower is better."""

    def __init__(self, journal: Path, search: Search) -> None:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self.space, self._search = read_space(search.words), search
        storage = JournalStorage(JournalFileBackend(str(journal)))
        self._study = optuna.create_study(
            storage=storage, study_name=STUDY_NAME, load_if_exists=True, pruner=_pruner(search.pruner)
        )

    @property
    def trials(self) -> list[FrozenTrial]:
        return self._study.get_trials(deepcopy=False)

    def propose(self, job: int) -> dict[str, str] | None:
        """Return values for this job, as texts, that no earlier job had; None if MOST_ASKED proposals were all old."""
        tried = [_texts(trial) for trial in self.trials if JOB in trial.user_attrs]
        for _ in range(MOST_ASKED):
            seed = random.Random(f"{self._search.sampler_seed} {len(self.trials)}").getrandbits(32)
            # one for each trial, so that a resumed search proposes what an unbroken one would
            self._study.sampler = _sampler(self._search.sampler, seed)
            trial = self._study.ask({**self.space.axes})
            if (texts := _texts(trial)) not in tried:
                trial.set_user_attr(JOB, job)
                return texts
            self._study.tell(trial, state=TrialState.FAIL)
        return None

    def tell(self, job: int, value: float) -> None:
        """Tell the study what a job reached. A value that is not finite is a failure; a failed job that was repeated is
        a new trial.
        """
        trial = self.trial_of(job)
        if not math.isfinite(value):
            self.end(trial, TrialState.FAIL)
        elif trial.state == TrialState.RUNNING:
            self._study.tell(trial.number, value)
        elif trial.state == TrialState.FAIL:
            self._study.add_trial(
                optuna.create_trial(
                    params=trial.params, distributions=trial.distributions, value=value, user_attrs={JOB: job}
                )
            )

    def is_behind(self, job: int, course: Sequence[float]) -> bool:
        """Return whether the pruner would end a running job that had these values at the ends of its epochs."""
        found = self.trial_of(job)
        if found.state != TrialState.RUNNING:
            return False
        trial = optuna.trial.Trial(self._study, found._trial_id)
        for epoch, value in enumerate(course, 1):
            if epoch not in found.intermediate_values:
                trial.report(value, epoch)
        return trial.should_prune()

    def end(self, trial: FrozenTrial, state: TrialState) -> None:
        """Tell the study that a trial ended without a value, unless it was told a result."""
        if trial.state == TrialState.RUNNING:
            self._study.tell(trial.number, state=state)

    def trial_of(self, job: int) -> FrozenTrial:
        """Return the latest trial of this job."""
        return next(trial for trial in reversed(self.trials) if trial.user_attrs.get(JOB) == job)


def _texts(trial: FrozenTrial | optuna.trial.Trial) -> dict[str, str]:
    return {key: _text(value) for key, value in trial.params.items()}


def _sampler(name: str, seed: int) -> optuna.samplers.BaseSampler:
    """Return a new sampler for each proposal: everything it uses is in the study."""
    if name == "random":
        return optuna.samplers.RandomSampler(seed=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        # counts running trials as bad, so that parallel ones spread out
        return optuna.samplers.TPESampler(seed=seed, constant_liar=True)


def _pruner(name: str | None) -> optuna.pruners.BasePruner:
    """Return a pruner; `asha` is what Optuna calls successive halving, which it does asynchronously."""
    pruners = {
        "median": optuna.pruners.MedianPruner(n_startup_trials=3),
        "asha": optuna.pruners.SuccessiveHalvingPruner(),
        "hyperband": optuna.pruners.HyperbandPruner(),
    }
    return pruners.get(name or "", optuna.pruners.NopPruner())


@dataclass
class SearchJobs:
    """The jobs of a search: makes one after another, and tells the study each result. `plan` is the current plan of the
    sweep, written again with each new job; new jobs get the environment of `shared`.
    """

    sweep: SweepDirectory
    plan: SweepPlan
    search: Search
    shared: dict[str, str]
    say: Say
    looked_at: float = -math.inf

    def __post_init__(self) -> None:
        self.study = OptunaStudy(self.sweep.study, self.search)

    def new_jobs(self) -> Iterator[Job]:
        """Make jobs until there are as many as wanted, or no new combination of values comes up."""
        while self.plan.missing:
            number = len(self.plan.jobs) + 1
            overrides = self.study.propose(number)
            if overrides is None:
                self.say(
                    f"no new combination came up in {MOST_ASKED} proposals: {self.plan.missing} of "
                    f"{self.plan.wanted} trials were not made. Widen the space, or ask for fewer trials."
                )
                return
            words, gpus = self.study.space.words(overrides), 1
            with suppress(ConfigError):  # a configuration in which two keys don't agree fails when it runs
                gpus = wanted_gpus(load_settings(words))
            job = Job(number, job_name(number, overrides), overrides, words, gpus, self.shared)
            self.plan.jobs.append(job)
            self.sweep.write_plan(self.plan)
            yield job

    def tell_ended_jobs(self) -> None:
        """Tell the study the results of jobs that ended unobserved; drop proposals that became no job."""
        for trial in self.study.trials:
            number = trial.user_attrs.get(JOB, math.inf)
            if number > len(self.plan.jobs):
                self.study.end(trial, TrialState.FAIL)
            elif trial.state == TrialState.RUNNING:
                self.tell(read_job(self.sweep, self.plan.jobs[number - 1]))

    def prune(self, running: Sequence[Running]) -> None:
        """Stop those that are behind."""
        if self.search.pruner is None or time.monotonic() - self.looked_at < PRUNING_SECONDS:
            return
        self.looked_at = time.monotonic()
        names = [self.plan.facts["objective"]] if self.plan.facts["objective"] else MONITORED
        for child in running:
            job = child.command.subject
            objectives, lines = (choose_objective(name, []) for name in names), self.sweep.run(job).metrics_jsonl
            courses = ([*map(each.sort_key, metric_by_epoch(lines, each.name))] for each in objectives)
            if self.study.is_behind(job.number, next(filter(None, courses), [])):
                child.stop("pruner")

    def tell(self, result: JobResult) -> None:
        """Tell the study what a job reached, unless it was interrupted: that one continues when the search does."""
        number = result.job.number
        if result.status == FINISHED:
            objective = choose_objective(self.plan.facts["objective"], [result.summary])
            self.study.tell(number, objective.sort_key(objective.value(result.summary)))
        elif result.status not in NOT_ENDED:
            self.study.end(self.study.trial_of(number), TrialState.PRUNED if result.is_good else TrialState.FAIL)
