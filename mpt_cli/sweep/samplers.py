"""How the values of a sweep's jobs are chosen: all combinations of a grid, or one job after another by Optuna, an
extra, which is imported when a search begins.
"""

import importlib.util
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpt_cli.errors import ConfigError, Problem, install_command
from mpt_cli.jobs.executor import Command
from mpt_cli.jobs.launchers import recorded_launcher
from mpt_cli.jobs.queue import Ending, Observer
from mpt_cli.settings.search_path import shell_command
from mpt_cli.sweep import ONLY_OF_A_NEW_SEARCH, SAMPLERS
from mpt_cli.sweep.block import first_seed, read_block
from mpt_cli.sweep.directory import FINISHED, JobResult, SweepDirectory, read_job
from mpt_cli.sweep.overrides import check_space, read_space
from mpt_cli.sweep.plan import (
    Job,
    SweepPlan,
    check_files,
    check_objective,
    choose_objectives,
    decides_metrics,
    duplicate_lines,
    job_count,
    make_plan,
    plan_dict,
    plan_lines,
)

if TYPE_CHECKING:
    from mpt_cli.sweep.run import Options

_SAID_ANEW = ("seed", "sweep_dir")  # by the command of a search with more seeds
MOST_ASKED = 100  # proposals in a row without a new combination, after which a search gives up


@dataclass(frozen=True)
class SearchOptions:
    """What a command line says of a search; None where it says nothing."""

    trials: int | None = None
    sampler: str | None = None
    sampler_seed: int | None = None
    pruner: str | None = None


@dataclass
class Sampler(Observer[Job], ABC):
    """Where the jobs of a sweep come from while it runs, and who is told how each ended. `plan` is that of the sweep as
    it stands.
    """

    sweep: SweepDirectory
    plan: SweepPlan

    @abstractmethod
    def example(self, left: Sequence[Job]) -> Sequence[Job]:
        """Jobs that want as much of the machine as those that will run; `left` are those known so far."""

    @abstractmethod
    def format_count(self, count: int) -> str:
        """So many jobs, in the words of this sampler."""

    def remarks(self) -> list[str]:
        """What is to be said before the first job starts."""
        return []

    def catch_up(self) -> None:
        """Hear what became of jobs that ended while nobody could tell it."""

    def new_jobs(self) -> Iterable[Job]:
        """After those known so far: each is asked for when there is room for it."""
        return ()

    def tell(self, result: JobResult) -> None:
        """How a job ended."""

    def why_fewer(self, wanted: int) -> str:
        """Why fewer jobs than wanted were made, where nobody stopped the sweep; empty where they were all made."""
        return ""

    def ended(self, command: Command[Job], ending: Ending) -> None:
        self.tell(read_job(self.sweep, command.subject))


@dataclass
class GridSampler(Sampler):
    """All combinations are jobs from the first. How one ends changes nothing, unless none can be ranked by the
    `objective`: what a model of the user's reports is known once it has run.
    """

    objective: str | None = None
    _is_settled: bool = False

    def catch_up(self) -> None:
        self._check_reported()

    def tell(self, result: JobResult) -> None:
        if result.status == FINISHED:
            self._check_reported()

    def _check_reported(self) -> None:
        """ConfigError, once, where none of those that finished reports the objective, nor can one of the others, which
        differ from them in nothing that decides it.
        """
        if self._is_settled or self.objective is None:
            return
        finished = [result for job in self.plan.jobs if (result := read_job(self.sweep, job)).status == FINISHED]
        self._is_settled = {_kind(job) for job in self.plan.jobs} == {_kind(result.job) for result in finished}
        try:
            choose_objectives(self.objective, [result.summary for result in finished])
            self._is_settled = bool(finished)
        except ConfigError as error:
            if self._is_settled:
                again = shell_command(self.sweep.verb, "--resume", self.sweep.path, "--objective", "NAME")
                remedy = f"`{again}` goes on with another."
                raise ConfigError([replace(each, remedy=f"{each.remedy} {remedy}".strip()) for each in error.problems]
                                  ) from None  # fmt: skip

    def example(self, left: Sequence[Job]) -> Sequence[Job]:
        return left

    def format_count(self, count: int) -> str:
        return job_count(count)

    def remarks(self) -> list[str]:
        return duplicate_lines(self.plan)


def _kind(job: Job) -> tuple[tuple[str, str], ...]:
    """Jobs of one kind report the same numbers."""
    return tuple((key, value) for key, value in job.overrides.items() if decides_metrics(key))


class SamplerSettings(ABC):
    """A kind of sampler with its settings, as they are chosen by words and kept in sweep.json."""

    @abstractmethod
    def check(self) -> None:
        """ConfigError where it can't be used here."""

    @abstractmethod
    def make_plan(self, overrides: Sequence[str], options: "Options", say: Callable[[str], None]) -> SweepPlan:
        """The jobs that are known before the first starts. ConfigError with all that is wrong of any configuration."""

    @abstractmethod
    def dry_run(self, overrides: Sequence[str], options: "Options") -> tuple[dict[str, Any], list[str]]:
        """What --dry-run shows, for --json and as lines."""

    @abstractmethod
    def facts(self, overrides: Sequence[str]) -> dict[str, Any]:
        """What sweep.json holds of it."""

    @abstractmethod
    def open(self, sweep: SweepDirectory, options: "Options") -> Sampler:
        """The sampler of this sweep, as it stands on disk."""

    @abstractmethod
    def more_seeds(self, sweep: SweepDirectory, seeds: str) -> list[str | Path]:
        """The words of `mpt sweep` that run what it varies with these seeds."""


@dataclass(frozen=True)
class GridSettings(SamplerSettings):
    """Every combination of the values given."""

    def check(self) -> None:
        """It is always there."""

    def make_plan(
        self, overrides: Sequence[str], options: "Options", say: Callable[[str], None] = lambda sentence: None
    ) -> SweepPlan:
        return make_plan(overrides, say, options.launcher.is_here, options.objective, read_block(overrides))

    def dry_run(self, overrides: Sequence[str], options: "Options") -> tuple[dict[str, Any], list[str]]:
        plan = self.make_plan(overrides, options)
        return plan_dict(plan), plan_lines(plan)

    def facts(self, overrides: Sequence[str]) -> dict[str, Any]:
        return {}

    def open(self, sweep: SweepDirectory, options: "Options") -> Sampler:
        plan, facts = sweep.read_plan()
        return GridSampler(sweep, plan, options.objective or facts.get("objective"))

    def more_seeds(self, sweep: SweepDirectory, seeds: str) -> list[str | Path]:
        return ["--resume", sweep.path, seeds]


@dataclass(frozen=True)
class SearchSettings(SamplerSettings):
    """`trials` points, each with values that Optuna chooses by what came before; `pruner` ends those that are behind.

    `words` are those that span the space; with the same `sampler_seed` one job at a time repeats the search. With
    several seeds a trial is as many jobs, and what it came to is their mean.
    """

    trials: int
    sampler: str = "tpe"
    sampler_seed: int = 0
    words: list[str] = field(default_factory=list)
    pruner: str | None = None
    seeds: int = 1  # runs of each trial

    def check(self) -> None:
        if importlib.util.find_spec("optuna") is None:
            raise ConfigError(Problem("--trials", "optuna is not installed.", None, install_command("optuna")))
        missing = [name for name in SAMPLERS.get(self.sampler, ()) if importlib.util.find_spec(name) is None]
        if missing:
            rule = f"{self.sampler} needs {' and '.join(missing)}, not installed here."
            raise ConfigError(Problem("--sampler", rule, None, f"pip install {' '.join(missing)}"))

    def make_plan(self, overrides: Sequence[str], options: "Options", say: Callable[[str], None]) -> SweepPlan:
        """The edges of the space are checked; the configurations inside it by the jobs themselves."""
        space = read_space(words_of_search(overrides))
        settings, *others = check_space(space)
        if "," in (options.objective or "") and self.sampler == "cmaes":
            remedy = "Take nsgaii, tpe or gp."
            raise ConfigError(Problem("--sampler", "cmaes is for one objective.", options.objective, remedy))
        if "," in (options.objective or "") and self.pruner:
            raise ConfigError(Problem("--pruner", "must be left out with several objectives.", self.pruner))
        if space.seeds and self.pruner:
            rule = "must be left out with several seeds: what a trial came to is known when all of them have run."
            raise ConfigError(Problem("--pruner", rule, self.pruner))
        key = read_block(overrides).key_of_objective(options.objective)
        check_objective(options.objective, [settings, *others], key)
        if options.launcher.is_here:
            check_files([settings])
        return SweepPlan([*space.keys, *(["seed"] if space.seeds else [])], [], settings.recipe)

    def dry_run(self, overrides: Sequence[str], options: "Options") -> tuple[dict[str, Any], list[str]]:
        self.make_plan(overrides, options, lambda sentence: None)
        space = read_space(words_of_search(overrides))
        width = max(map(len, space.keys))
        lines = [f"{dimension.key:<{width}}  {dimension}" for dimension in space.dimensions]
        seeds = f", each with seeds {', '.join(space.seeds)}" if space.seeds else ""
        lines.append(f"{self.trials} trials, {self.sampler}{f', {self.pruner}' if self.pruner else ''}{seeds}")
        return {"search": lines}, lines

    def facts(self, overrides: Sequence[str]) -> dict[str, Any]:
        words = words_of_search(overrides)
        return {
            # of a search: trials, sampler, sampler_seed, words, pruner, and seeds, how many runs a trial has
            "search": asdict(replace(self, words=words, seeds=len(read_space(words).seeds) or 1)),
        }

    def open(self, sweep: SweepDirectory, options: "Options") -> Sampler:
        from mpt_cli.sweep.optuna_sampler import open_search

        return open_search(self, sweep, options)

    def more_seeds(self, sweep: SweepDirectory, seeds: str) -> list[str | Path]:
        """A search of its own: what a trial came to is then the mean of its seeds, by which others are chosen."""
        facts = sweep.read_plan()[1]
        own = [word for word in facts["command_line"][2:] if word.lstrip("+~").partition("=")[0] not in _SAID_ANEW]
        said = {"--trials": self.trials, "--sampler": self.sampler, "--sampler-seed": self.sampler_seed,
                "--pruner": self.pruner and "none", "--objective": facts.get("objective")}  # fmt: skip
        options = [text for name, value in said.items() if value is not None for text in (name, str(value))]
        return [*own, seeds, *options, *recorded_launcher(facts).words]


def words_of_search(overrides: Sequence[str]) -> list[str]:
    """Those that span the space: the recipe's with the command line's. ConfigError where the recipe has a grid."""
    block = read_block(overrides)
    if block.of_a_grid:
        rule = f"must be left out with {' and '.join(block.of_a_grid)} of a recipe's sweep: block."
        raise ConfigError(Problem("--trials", rule, None, "A search has its keys in search.space, or as words."))
    return block.words_of_search(overrides, first_seed(overrides) if block.seeds else 0)


def choose_kind(overrides: Sequence[str], given: SearchOptions | None = None) -> SamplerSettings:
    """A search where the command line or the recipe's block says of how many trials, else a grid."""
    block = read_block(overrides)
    own = {name: value for name, value in asdict(given or SearchOptions()).items() if value is not None}
    said = {**(block.search or {}), **own}
    problems = []
    if block.search is not None and "trials" not in said:
        problems.append(Problem("sweep.search.trials", "must be given, or --trials N."))
    elif "trials" not in said:
        problems = [Problem(f"--{name.replace('_', '-')}", ONLY_OF_A_NEW_SEARCH, value) for name, value in own.items()]
    if problems:
        raise ConfigError(problems)
    if said.get("pruner") == "none":
        said["pruner"] = None
    return SearchSettings(**said) if said else GridSettings()


def settings_from_facts(facts: dict[str, Any]) -> SamplerSettings:
    """The kind of sampler that a sweep was started with, from its sweep.json."""
    if "search" not in facts:
        return GridSettings()
    search = facts["search"]
    return SearchSettings(**{name: search[name] for name in SearchSettings.__dataclass_fields__ if name in search})
