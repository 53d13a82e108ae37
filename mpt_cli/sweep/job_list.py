"""What a sweep runs and ranks by: its jobs, each checked and named, and the objective they must be able to report."""

import importlib.util
import math
import re
import secrets
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from itertools import chain
from pathlib import Path

from mpt_cli.data.paths import check_run_present
from mpt_cli.errors import ConfigError, Problem, Say, config_error, did_you_mean, install_command, raise_problems
from mpt_cli.files import JsonObject
from mpt_cli.runs.expectations import known_values, reportable
from mpt_cli.runs.provenance import flatten
from mpt_cli.settings.key_type import read_number
from mpt_cli.settings.load import missing_backend
from mpt_cli.settings.schema import Settings
from mpt_cli.settings.search_path import CONFIG_DIR, shell_command
from mpt_cli.settings.yaml_reader import MOST_JOBS
from mpt_cli.sweep.overrides import (
    Grid,
    each_once,
    load_each,
    override_key,
    read_grid,
    short_key,
    varied_keys,
    varied_values,
)
from mpt_cli.sweep.paired import FEWEST_SEEDS, count_seeds, needed_size
from mpt_cli.telemetry.record_types import as_number
from mpt_cli.training.progress import MONITORED, falls, tells_direction
from mpt_cli.training.run_from_settings import check_repeatable


@dataclass(frozen=True)
class Objective:
    """`name` is a metric, or a field of summary.json, dotted where it is inside one (best_metrics.val_accuracy)."""

    name: str
    falls: bool

    @property
    def direction(self) -> str:
        return "min" if self.falls else "max"

    def value(self, summary: JsonObject) -> float | None:
        """Return the value a run reached; None where it has no such number, and nan stays nan."""
        return as_number(known_values(summary).get(self.name))

    def sort_key(self, value: float | None) -> float:
        """Return a key for sorting: the best comes first, nan and no value last."""
        if value is None or math.isnan(value):
            return math.inf
        return value if self.falls else -value


def choose_objective(word: str | None, summaries: Iterable[JsonObject]) -> Objective:
    """Return the objective for `NAME`, `NAME:min` or `NAME:max`; by default the first usual metric that most runs have,
    or, if none has one, another whose name tells its direction.

    ConfigError for a name that no run has, or that does not tell its direction; without any run, the name is taken as
    it is.
    """
    known = [
        {name for name, value in known_values(summary).items() if as_number(value) is not None} for summary in summaries
    ]
    found = set[str]().union(*known)
    if word is None:
        others = (name.removeprefix("best_metrics.") for name in found if name.startswith("best_metrics."))
        words = (
            [name for name in MONITORED if name in found] or sorted(others, reverse=True) or MONITORED
        )  # val_… before most
        word = max(words, key=lambda name: sum(name in names for names in known))
        return Objective(word, falls(word))
    name, colon, direction = word.rpartition(":")
    if colon and direction not in ("min", "max"):
        raise config_error("--objective", "must end in :min or :max, or in neither.", word)
    objective = Objective(name, direction == "min") if colon else Objective(word, falls(word))
    if known and objective.name not in found:
        everything = sorted(name for name in found if not name.startswith("metrics."))
        remedy = did_you_mean(objective.name, everything) or f"They have {', '.join(everything)}."
        raise config_error("--objective", "must be a number that the jobs report.", objective.name, remedy)
    if not (colon or tells_direction(word)):
        rule = "must end in :min or :max: the name does not tell whether lower or higher is better."
        raise config_error("--objective", rule, word, did_you_mean(word, MONITORED))
    return objective


def check_objective(word: str | None, settings: Sequence[Settings]) -> None:
    """Raise ConfigError for a name that no run of these settings can have.

    With the user's own model only the form of the name is checked: its metrics are known once it has run.
    """
    distinct = {(id(each.model), id(each.trainer)): each for each in settings}.values()  # which many have in common
    summaries = [*map(reportable, distinct)]
    choose_objective(word, [] if None in summaries else filter(None, summaries))


# One thread of TensorFlow or XLA adds up in another order than several, and val_loss differed in the fourth digit; of
# the other variables none changed a bit.
_RESULT_VARIABLES = ("TF_NUM_INTRAOP_THREADS", "NPROC")


@dataclass(frozen=True)
class Job:
    """One run of the sweep. `overrides` are the varied keys with their values, `gpus` how many it wants at most.

    `environment` is its share of the machine's cores. It stays the job's own, also when a sweep is resumed with another
    number of jobs at a time.
    """

    number: int
    name: str
    overrides: dict[str, str]
    words: list[str]
    gpus: int = 1
    environment: dict[str, str] = field(default_factory=dict)
    verb: str = "train"  # or run, of a script

    @property
    def without_seed(self) -> dict[str, str]:
        """Return the overrides that set its configuration apart from the others."""
        return {key: value for key, value in self.overrides.items() if key != "seed"}

    @property
    def command(self) -> str:
        """Return the command that runs it outside the sweep, to the same bits where the job was deterministic."""
        kept = [name for name in (*_RESULT_VARIABLES, CONFIG_DIR) if name in self.environment]
        variables = [f"{name}={shlex.quote(self.environment[name])}" for name in kept]
        return " ".join([*variables, shell_command(self.verb, *self.words)])


@dataclass(frozen=True)
class Search:
    """A search of `trials` jobs, whose values Optuna chooses from earlier results; `pruner` ends jobs that lag behind.

    `words` are the overrides that span the space; with one job at a time, the same `sampler_seed` repeats the search.
    """

    trials: int
    sampler: str = "tpe"
    sampler_seed: int = 0
    pruner: str | None = None
    words: list[str] = field(default_factory=list)

    def check(self) -> None:
        """Raise ConfigError where it can't be run here."""
        if importlib.util.find_spec("optuna") is None:
            raise config_error("--trials", "optuna is not installed.", None, install_command("optuna"))


@dataclass(frozen=True)
class SweepPlan:
    """The plan of a sweep: its jobs, or for a `search` the jobs that have begun.

    `facts` is the rest of its file: how and where the sweep was started.
    """

    varied: list[str]
    jobs: list[Job]
    recipe: str
    search: Search | None = None
    unlike: list[str] = field(default_factory=list)  # of loss, length and data: see unlike_keys
    facts: JsonObject = field(default_factory=dict)

    @property
    def wanted(self) -> int:
        """Return how many jobs there will be in all."""
        return self.search.trials if self.search else len(self.jobs)

    @property
    def missing(self) -> int:
        return max(0, self.wanted - len(self.jobs))


def make_plan(
    words: Sequence[str],
    objective: str | None = None,
    is_here: bool = True,
    say: Say = lambda sentence: None,
    before: Sequence[Job] = (),
) -> SweepPlan:
    """Return the jobs in Hydra's order, the last key varied fastest, after the jobs `before`, and each configuration
    once; ConfigError with the problems of all.

    `objective` must be one that the jobs can report. If they run on this machine (`is_here`), their files must be on
    it, else DataError. A null seed is drawn here, so that the recorded command repeats the job.
    """
    grid = read_grid(words)
    if grid.count > MOST_JOBS:
        raise_problems([*grid.problems, Problem("sweep", f"must be at most {MOST_JOBS:,} jobs.", f"{grid.count:,}")])
    wrong = {problem.key for problem in grid.problems}
    points = [*Grid([axis for axis in grid.axes if override_key(axis[0]) not in wrong]).combinations]
    loaded = load_each(points, grid.problems)
    check_objective(objective, loaded)
    if is_here:
        check_here(loaded, say)
    varied = varied_keys([*(job.words for job in before), *points])
    jobs = [replace(job, overrides=varied_values(job.words, varied)) for job in before]
    earlier = load_each(job.words for job in before)
    known = {*map(repr, earlier)}
    for point, settings in zip(points, loaded, strict=True):
        if repr(settings) in known and settings.seed is not None:
            continue
        known.add(repr(settings))
        drawn = [f"seed={secrets.randbelow(2**32)}"] if settings.seed is None else []
        number, overrides = len(jobs) + 1, varied_values(point, varied)
        jobs.append(Job(number, job_name(number, overrides), overrides, [*point, *drawn], wanted_gpus(settings)))
    if left_out := len(before) + len(points) - len(jobs):
        say(f"{job_count(left_out)} left out: given twice, or in the sweep already")
    if any(len(job.overrides) < len(varied) for job in jobs):
        jobs = _named_alike(jobs, points, varied)
    recipes = {settings.recipe for settings in loaded}
    recipe = recipes.pop() if len(recipes) == 1 else "several"
    return SweepPlan(varied, jobs, recipe, unlike=unlike_keys([*earlier, *loaded]))


def _named_alike(jobs: Sequence[Job], points: Iterable[Sequence[str]], varied: Sequence[str]) -> list[Job]:
    """Return the jobs with the values that `points` of the same settings give to the keys that a job does not give: its
    recipe has them.
    """
    given = [*points, *(job.words for job in jobs)]
    of_one_seed = load_each([*(word for word in words if override_key(word) != "seed"), "seed=0"] for words in given)
    kinds, known = [*map(repr, of_one_seed)], dict[str, dict[str, str]]()
    for kind, words in zip(kinds, given, strict=True):
        known.setdefault(kind, {}).update(
            {key: text for key, text in varied_values(words, varied).items() if key != "seed"}
        )
    return [
        replace(job, overrides={key: own[key] for key in varied if key in (own := known[kind] | job.overrides)})
        for kind, job in zip(kinds[-len(jobs) :], jobs, strict=True)
    ]


LOSS_KEYS = ("recipe", "trainer.loss")  # of jobs whose losses can't be compared
_COMPARED_KEYS = (
    *LOSS_KEYS,
    "trainer.epochs",
    "trainer.max_steps",
    "trainer.steps_per_epoch",
    "trainer.validation_steps",
    "data.",
)


def unlike_keys(jobs: Iterable[Settings]) -> list[str]:
    """Return the keys of loss, length and data that differ between the jobs, not those that only repeat the seed."""
    distinct = {repr((each.recipe, each.trainer, each.data)): each for each in jobs}  # of thousands
    rows = [flatten(asdict(each)) for each in distinct.values()]
    return [
        key
        for key in dict.fromkeys(chain(*rows))
        if key.startswith(_COMPARED_KEYS)
        and len({repr(value) for row in rows if (value := row.get(key)) != row["seed"]}) > 1
    ]


def check_here(settings: Sequence[Settings], say: Say) -> None:
    """Raise ConfigError for functions of the jobs that do not exist, else DataError for a missing file. Print a missing
    backend.
    """
    of_backends = {each.backend.name: each for each in settings}.values()
    for line in filter(None, map(missing_backend, of_backends)):
        say(line)
    problems = list[Problem]()
    for check in (check_repeatable, check_run_present):
        for each in settings:
            try:
                check(each)
            except ConfigError as error:
                problems += error.problems
        raise_problems(each_once(problems))


def plan_dict(plan: SweepPlan) -> JsonObject:
    """Return the jobs for --json, each with its command, and the search."""
    return {
        # the jobs known so far: number, name, overrides (of the varied keys), words, gpus (at most), environment (with
        # its share of the cores), command
        "jobs": [{**asdict(job), "command": job.command} for job in plan.jobs],
        # for a search: trials, sampler, sampler_seed, pruner and words; else null
        "search": None if plan.search is None else asdict(plan.search),
    }


def plan_lines(plan: SweepPlan, left: Sequence[Job]) -> list[str]:
    """Return the lines of --dry-run: the jobs that are left with their overrides, and the overrides of a search that
    makes more.
    """
    lines = [" ".join([f"{job.name} ", *map("=".join, job.overrides.items())]).rstrip() for job in left]
    if (search := plan.search) is None:
        return [*lines, job_count(len(left)), *filter(None, [seeds_sentence(plan.jobs)])]
    words = search.words if plan.missing else []
    return [*lines, *words, f"{len(left) + plan.missing} trials, {search.sampler}"]


def seeds_sentence(jobs: Sequence[Job]) -> str:
    """Return a sentence on what the seeds of these jobs can show; empty for fewer than two configurations."""
    found: dict[tuple[tuple[str, str], ...], set[str | None]] = {}
    for job in jobs:
        found.setdefault(tuple(job.without_seed.items()), set()).add(job.overrides.get("seed"))
    seeds = [*found.values()]
    if len(seeds) < 2:
        return ""
    if not (common := len(set.intersection(*seeds))):
        return "No seed is common to all configurations: only those that share seeds are compared with each other."
    most = max(map(len, seeds))
    counts = sorted({FEWEST_SEEDS, 5, 10, most} - {1, 2})
    sizes = ", ".join(f"{needed_size(count, len(seeds) - 1):.1f} with {count}" for count in counts)
    range_of = f"{common} to " if common < most else ""
    return (
        f"{len(seeds)} configurations with {range_of}{count_seeds(most)}. To tell two apart, the mean "
        "of their differences, one for each seed, must be at least this many times their standard deviation: "
        f"{sizes} seeds, if no job fails. Fewer than {FEWEST_SEEDS} seeds can't tell them apart."
    )


def job_count(count: int) -> str:
    return f"{count} job{'s' if count != 1 else ''}"


def wanted_gpus(settings: Settings) -> int:
    if settings.backend.device == "cpu":
        return 0
    wanted = settings.distribute
    if wanted.name == "none":
        return 1
    return wanted.devices or 1_000  # null: all there are


def job_name(number: int, overrides: dict[str, str]) -> str:
    """Return a folder name from the varied values of a job, cut to a valid length.

    >>> job_name(7, {"loss_scale.initial_scale": "2**15", "seed": "12"})
    '007-initial_scale-32768_seed-12'
    """
    parts = [f"{short_key(key)}-{_plain(key, value)}" for key, value in overrides.items()]
    return f"{number:03d}-{'_'.join(parts) or 'only'}"[:150].rstrip("-_.")


@cache
def _plain(key: str, value: str) -> str:
    """Return the value as part of a file name: 2**15 as 32768, a path as its last part."""
    number = read_number(value) if "**" in value else None
    text = value if number is None else f"{number:.10g}"
    last = Path(text).stem if key == "conf" else text
    return re.sub(r"[^\w.+-]+", "_", last).strip("_")
