"""What a sweep runs and ranks by: its jobs, each checked and named, and the objective they must be able to report."""

import math
import re
import secrets
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from mpt_cli.data.paths import check_run_present
from mpt_cli.errors import ConfigError, DataError, Problem, did_you_mean
from mpt_cli.runs.expectations import reportable
from mpt_cli.settings import load_settings
from mpt_cli.settings.checks import check_combinations, object_keys
from mpt_cli.settings.key import BadValue, read_number, read_value
from mpt_cli.settings.limits import MOST_JOBS
from mpt_cli.settings.load import interpolations
from mpt_cli.settings.overrides import parse_override
from mpt_cli.settings.schema import Settings, find_key
from mpt_cli.settings.search_path import CONFIG_DIR, shell_command
from mpt_cli.sweep.block import Block, Point, check_known, first_seed
from mpt_cli.sweep.overrides import Grid, Words, read_grid
from mpt_cli.training.program import check_repeatable
from mpt_cli.training.progress import MONITORED, falls


@dataclass(frozen=True)
class Objective:
    """`name` is a metric, or a field of summary.json, dotted where it is inside one (best_metrics.val_accuracy)."""

    name: str
    falls: bool

    @property
    def direction(self) -> str:
        return "min" if self.falls else "max"

    def value(self, summary: Mapping[str, Any]) -> float | None:
        """The value a run reached; None where it has no such number, and nan stays nan."""
        found = summary.get("metrics", {}).get(self.name, summary.get(self.name))
        holder, _, leaf = self.name.partition(".")
        if found is None and isinstance(summary.get(holder), Mapping):
            found = summary[holder].get(leaf)
        try:
            return None if found is None or isinstance(found, bool) else float(found)
        except (TypeError, ValueError):
            return None

    def sort_key(self, value: float | None) -> float:
        """Ascending order puts the best first, nan and no value last."""
        if value is None or math.isnan(value):
            return math.inf
        return value if self.falls else -value


def choose_objective(word: str | None, summaries: Iterable[Mapping[str, Any]]) -> Objective:
    """`NAME`, `NAME:min` or `NAME:max`; by default the first usual metric that most runs have.

    ConfigError for a name that no run has; without any run, the name is taken as it is.
    """
    known = [set(_names(summary)) for summary in summaries]
    if word is None:
        counts = {name: sum(name in names for names in known) for name in MONITORED}
        return _read(max(counts, key=lambda name: counts[name]))
    objective = _read(word)
    if known and not any(objective.name in names for names in known):
        everything = sorted(set().union(*known))
        listed = f"They have {', '.join(name for name in everything if not name.startswith('metrics.'))}."
        remedy = f"{did_you_mean(objective.name, everything)} {listed}".strip()
        raise ConfigError(Problem("--objective", "must be a number that the jobs report.", objective.name, remedy))
    return objective


def choose_objectives(word: str | None, summaries: Iterable[Mapping[str, Any]]) -> list[Objective]:
    """Those that `word` names with commas between them, the first of which ranks; else the usual one."""
    known = list(summaries)
    found = [choose_objective(each, known) for each in (word.split(",") if word else [None])]
    if len({each.name for each in found}) < len(found):
        raise ConfigError(Problem("--objective", "must name each objective once.", word))
    return found


def objective_word(objectives: Sequence[Objective]) -> str:
    """What `choose_objectives` reads as these."""
    return ",".join(f"{each.name}:{each.direction}" for each in objectives)


def check_objective(word: str | None, settings: Sequence[Settings], key: str = "--objective") -> None:
    """ConfigError for a name that no run of these settings can have, before any has begun; `key` is where it was said.

    With a model of the user's only its form is checked: what that reports is known once it has run.
    """
    summaries = [summary for each in settings if (summary := reportable(each)) is not None]
    try:
        choose_objectives(word, summaries if len(summaries) == len(settings) else [])
    except ConfigError as error:
        raise ConfigError([replace(problem, key=key) for problem in error.problems]) from None


def check_objective_of_block(block: Block, settings: Settings) -> None:
    """As `check_objective`, for a recipe alone, `settings` being its own: its form where the block varies what decides
    which numbers there are.
    """
    is_one = not any(map(decides_metrics, [*block.varied, *block.space]))
    check_objective(block.objective, [settings] if is_one else [], "sweep.objectives")


_OF_ANY_METRICS = ("seed", "policy", "loss_scale", "optimizer", "backend", "distribute", "logger", "phases", "trainer")
_OF_THE_METRICS = ("trainer", "trainer.loss", "trainer.metrics", "trainer.weighted_metrics", "trainer.callbacks")


def decides_metrics(key: str) -> bool:
    """Whether jobs that differ in this key may report other numbers: not where it only says how a model is trained.

    >>> decides_metrics("model.builder"), decides_metrics("trainer.loss"), decides_metrics("trainer.epochs")
    (True, True, False)
    """
    parts = key.split(".")
    return parts[0] not in _OF_ANY_METRICS or ".".join(parts[:2]) in _OF_THE_METRICS


def _read(word: str) -> Objective:
    if "," in word:
        raise ConfigError(Problem("--objective", "must be one here; several are for `mpt sweep`.", word))
    name, colon, direction = word.rpartition(":")
    if not colon:
        return Objective(word, falls(word))
    if direction not in ("min", "max"):
        raise ConfigError(Problem("--objective", "must end in :min or :max, or in neither.", word))
    return Objective(name, direction == "min")


def _names(summary: Mapping[str, Any]) -> Iterable[str]:
    for section, value in summary.items():
        if isinstance(value, Mapping):
            yield from (f"{section}.{name}" for name in value)
            if section == "metrics":
                yield from value
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield section


_NAME_LENGTH = 80
# One thread adds up in another order than several, and val_loss differed in the fourth digit; of the other variables
# none changed a bit.
_OF_THE_RESULT = "TF_NUM_INTRAOP_THREADS"
_PLAIN_NUMBER = re.compile(r"([a-z_]+(?:\.[a-z_]+)*)=(-?\d[\d.]{0,9}(?:e-?\d{1,2})?|2\*\*-?\d{1,3})")


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

    @property
    def command(self) -> str:
        """What runs it again outside the sweep, to the same bits where the job was deterministic."""
        return self.with_variables(shell_command("train", *self.words), _OF_THE_RESULT, CONFIG_DIR)

    def with_variables(self, command: str, *names: str) -> str:
        """The command behind those of the job's variables that these are, as a shell takes them."""
        kept = [f"{name}={shlex.quote(value)}" for name, value in self.environment.items() if name in names]
        return " ".join([*kept, command])


@dataclass(frozen=True)
class SweepPlan:
    """What a sweep will run. `duplicates` are (overrides, number of the same job).

    `trials` is how many jobs a search is to have (several for a trial with several seeds), of which only those begun
    are in `jobs`; 0 where these are all.
    """

    varied: list[str]
    jobs: list[Job]
    recipe: str
    duplicates: list[tuple[dict[str, str], int]] = field(default_factory=list)
    trials: int = 0

    @property
    def missing(self) -> int:
        return max(0, self.trials - len(self.jobs))


def make_plan(
    words: Sequence[str], tell: Callable[[str], None] = lambda sentence: None, is_here: bool = True,
    objective: str | None = None, block: Block | None = None,
) -> SweepPlan:  # fmt: skip
    """The jobs in Hydra's order, the last key varied fastest; ConfigError with the problems of all at once.

    Where the jobs run on this machine (`is_here`) their files must be on it, else DataError; `objective` must be one
    they can report. `block` is what the recipe varies beside the words.
    """
    grid = read_grid(words)
    spanned = (block or Block()).with_words(grid, first_seed(words) if block and block.seeds else 0)
    count = spanned.most_points
    problems = grid.problems + check_known(spanned)
    if count > MOST_JOBS:
        problems.append(Problem("sweep", f"must be at most {MOST_JOBS:,} jobs.", f"{count:,}"))
    if problems:
        raise ConfigError(problems + ([] if count > MOST_JOBS else _problems_of_the_rest(grid)))
    if count >= 100:
        tell(f"checking {count:,} configurations")
    points = list(spanned.points())
    if not points:
        raise ConfigError(Problem("sweep.exclude", "must leave at least one job."))
    loaded = _load_all([list(point.words) for point in points])
    key = (block or Block()).key_of_objective(objective)
    check_objective(objective, [settings for _, settings in loaded], key)
    if is_here:
        check_files([settings for _, settings in loaded])
    return _distinct(spanned.varied, points, loaded)


def grow_plan(plan: SweepPlan, more: SweepPlan) -> SweepPlan:
    """The plan with those jobs of `more` whose configuration none of its own has."""
    load = SettingsLoader()
    known = {_configuration(load(job.words)) for job in plan.jobs}
    varied = joint_keys([plan, more])
    old = [replace(job, overrides=overrides_of(job, varied)) for job in plan.jobs]
    new: list[Job] = []
    for job in more.jobs:
        if _configuration(load(job.words)) not in known:
            number, overrides = len(old) + len(new) + 1, overrides_of(job, varied)
            new.append(replace(job, number=number, name=job_name(number, overrides), overrides=overrides))
    return replace(plan, varied=varied, jobs=[*old, *new])


def joint_keys(plans: Sequence[SweepPlan]) -> list[str]:
    """What these plans vary, each of them or only taken together."""
    jobs = [job for plan in plans for job in plan.jobs]
    return list(dict.fromkeys([*(key for plan in plans for key in plan.varied), *_differing(jobs)]))


def _differing(jobs: Sequence[Job]) -> list[str]:
    """The keys that the words of these jobs give differently, or not all of them."""
    given = [_given_by(job) for job in jobs]
    keys = dict.fromkeys(key for each in given for key in each)
    return [key for key in keys if len({each.get(key) for each in given}) > 1]


def _given_by(job: Job) -> dict[str, str]:
    return {word.partition("=")[0].lstrip("+"): word.partition("=")[2] for word in job.words}


def overrides_of(job: Job, varied: Sequence[str]) -> dict[str, str]:
    """Those of the varied keys that the job gives: what was the same for all may differ now."""
    given = _given_by(job)
    return {key: job.overrides.get(key, given.get(key, "")) for key in varied if key in job.overrides or key in given}


def _configuration(settings: Settings) -> str:
    return repr(asdict(settings))


def check_files(settings: Sequence[Settings]) -> None:
    """DataError with what is not there of the data and models of the jobs, ConfigError where a function is missing;
    what several jobs name is looked for once.
    """
    numbers: dict[str, list[int]] = {}
    for number, each in enumerate(settings, 1):
        numbers.setdefault(repr((each.data, each.model, *object_keys(each))), []).append(number)
    problems, is_of_data = list[Problem](), True
    for of_one in numbers.values():
        try:
            check_repeatable(settings[of_one[0] - 1])
            check_run_present(settings[of_one[0] - 1])
        except ConfigError as error:
            is_of_data = False
            problems += [_with_jobs(problem, of_one, len(settings)) for problem in error.problems]
        except DataError as error:
            key, _, rule = str(error).partition(": ")
            problems.append(_with_jobs(Problem(key, rule), of_one, len(settings)))
    if problems:
        raise DataError("\n  ".join(map(str, problems))) if is_of_data else ConfigError(problems)


def _problems_of_the_rest(grid: Grid) -> list[Problem]:
    """What else is wrong, besides words that can't be swept."""
    known = {problem.key for problem in grid.problems}
    sound = [assignment for assignment in grid.assignments if assignment.words and assignment.key not in known]
    try:
        _load_all([list(point.words) for point in Block().with_words(Grid(sound)).points()])
    except ConfigError as error:
        return error.problems
    return []


def _load_all(jobs: list[list[str]]) -> list[tuple[list[str], Settings]]:
    loaded: list[tuple[list[str], Settings]] = []
    met: dict[str, tuple[Problem, list[int]]] = {}
    load = SettingsLoader()
    for number, words in enumerate(jobs, 1):
        try:
            loaded.append(_with_seed(words, load(words)))
        except ConfigError as error:
            for problem in error.problems:
                met.setdefault(str(problem), (problem, []))[1].append(number)
    if met:
        raise ConfigError([_with_jobs(problem, numbers, len(jobs)) for problem, numbers in met.values()])
    return loaded


class SettingsLoader:
    """Loads the settings of jobs. Hydra takes 0.1 s to compose those of one; where jobs differ in plain numbers alone,
    two that differ in a key were composed and differ in nothing else, and no interpolation names it, others have their
    own number under that key.
    """

    def __init__(self) -> None:
        self._first: dict[Words, Settings] = {}
        self._independent: dict[Words, set[str]] = {}  # keys of which an interpolation makes no other
        self._interpolations: dict[Words, str] = {}

    def __call__(self, words: Sequence[str]) -> Settings:
        """ConfigError with the problems of these words."""
        found = {word: match for word in words if (match := _PLAIN_NUMBER.fullmatch(word))}
        alike = tuple(found[word][1] if word in found else word for word in words)
        first = self._first.get(alike)
        changed = {} if first is None else _read_numbers(first, [match.groups() for match in found.values()])
        if first is None or changed is None or _given_twice(words):
            settings = load_settings([*words])
            if self._first.setdefault(alike, settings) is settings:
                self._interpolations[alike] = " ".join(interpolations([*words]))
            return settings
        expected, independent = _with_values(first, changed), self._independent.setdefault(alike, set())
        if changed.keys() <= independent and not check_combinations(expected, set()):
            return expected
        settings = load_settings([*words])
        if settings == expected:
            independent.update(key for key in changed if key.rpartition(".")[2] not in self._interpolations[alike])
        return settings


def _given_twice(words: Sequence[str]) -> bool:
    keys = [word.partition("=")[0].lstrip("+~") for word in words]
    return len(set(keys)) < len(keys)


def _read_numbers(settings: Settings, numbers: Iterable[Sequence[str]]) -> dict[str, Any] | None:
    """The keys that get another number than they have, with that; None where one is not of the same type, or wrong."""
    changed = {}
    for path, text in numbers:
        key, known = find_key(path), cast(Any, settings)
        for name in path.split("."):
            known = getattr(known, name, None)
        if key is None:  # inside of a mapping of the user's
            return None
        try:
            value = read_value(key, parse_override(f"{path}={text}").value())
        except BadValue:
            return None
        if type(value) is not type(known):
            return None
        if value != known:
            changed[path] = value
    return changed


def _with_values(settings: Settings, values: Mapping[str, Any]) -> Settings:
    for path, value in values.items():
        settings = with_value(settings, path.split("."), value)
    return settings


def with_value(section: Any, path: Sequence[str], value: Any) -> Any:
    """The settings, or a section of theirs, with another value under the key at `path`.

    >>> with_value(Settings(), ["optimizer", "learning_rate"], 0.5).optimizer.learning_rate
    0.5
    """
    name, *inside = path
    return replace(section, **{name: with_value(getattr(section, name), inside, value) if inside else value})


def _with_jobs(problem: Problem, numbers: list[int], count: int) -> Problem:
    """The problem, and in which jobs it is, where it isn't in all of them."""
    if len(numbers) == count:
        return problem
    listed = ", ".join(map(str, numbers[:8])) + (", …" if len(numbers) > 8 else "")
    where = f"(job{'s' if len(numbers) > 1 else ''} {listed} of {count})"
    return replace(problem, remedy=f"{problem.remedy} {where}".strip())


def _with_seed(words: list[str], settings: Settings) -> tuple[list[str], Settings]:
    """A seed of null is drawn here, so that the command on record repeats the job."""
    if settings.seed is not None:
        return words, settings
    seed = secrets.randbelow(2**32)
    return [*words, f"seed={seed}"], replace(settings, seed=seed)


def _distinct(varied: list[str], points: Sequence[Point], loaded: list[tuple[list[str], Settings]]) -> SweepPlan:
    jobs: list[Job] = []
    duplicates: list[tuple[dict[str, str], int]] = []
    first: dict[str, int] = {}
    for (words, settings), point in zip(loaded, points, strict=True):
        overrides = {key: point.values[key] for key in varied if key in point.values}
        number = first.setdefault(_configuration(settings), len(jobs) + 1)
        if number <= len(jobs):
            duplicates.append((overrides, number))
        else:
            jobs.append(Job(number, job_name(number, overrides), overrides, words, wanted_gpus(settings)))
    recipes = {settings.recipe for _, settings in loaded}
    recipe = recipes.pop() if len(recipes) == 1 else "several"
    return SweepPlan(varied, jobs, recipe, duplicates)


def plan_dict(plan: SweepPlan) -> dict[str, Any]:
    """The jobs for --json, each with its command."""
    return {
        # those known so far: number, name, overrides (of the varied keys), words, gpus (at most), environment (its
        # share of the cores), command
        "jobs": [{**asdict(job), "command": job.command} for job in plan.jobs],
    }


def plan_lines(plan: SweepPlan) -> list[str]:
    """The jobs with their overrides, as --dry-run lists them."""
    lines = [f"{job.name}  {' '.join(f'{key}={value}' for key, value in job.overrides.items())}".rstrip()
             for job in plan.jobs]  # fmt: skip
    return [*lines, *duplicate_lines(plan), job_count(len(plan.jobs))]


def duplicate_lines(plan: SweepPlan) -> list[str]:
    return [f"left out: {' '.join(f'{key}={value}' for key, value in overrides.items())} is the same as job {number}"
            for overrides, number in plan.duplicates]  # fmt: skip


def job_count(count: int) -> str:
    return f"{count} job{'s' if count != 1 else ''}"


def wanted_gpus(settings: Settings) -> int:
    if settings.backend.device == "cpu":
        return 0
    wanted = settings.distribute
    if wanted.name == "none":
        return 1
    return (wanted.device_count or 1_000) * (wanted.processes or 1)  # null: all there are


def job_name(number: int, overrides: dict[str, str]) -> str:
    """What it varies, cut to a length that is fit for a folder; a seed stays whole.

    >>> job_name(7, {"description": "a" * 100, "seed": "12"})[-12:]
    'aaaa_seed-12'
    """
    parts = {key: f"{key.rpartition('.')[2]}-{_plain(key, value)}" for key, value in overrides.items()}
    name = f"{number:03d}-{'_'.join(parts.values()) or 'only'}"
    if len(name) > _NAME_LENGTH and "seed" in parts:
        seed = parts.pop("seed")
        head = f"{number:03d}-{'_'.join(parts.values())}"[: _NAME_LENGTH - len(seed) - 1]
        name = f"{head.rstrip('-_.')}_{seed}"
    return name[:_NAME_LENGTH].rstrip("-_.")


def _plain(key: str, value: str) -> str:
    """The value as part of a file name: 2**15 as 32768, a path as its last part."""
    number = read_number(value) if "**" in value else None
    text = f"{number:.6g}" if isinstance(number, float) else str(number) if number is not None else value
    last = Path(text).stem if key == "conf" else text
    return re.sub(r"[^\w.+-]+", "_", last).strip("_")
