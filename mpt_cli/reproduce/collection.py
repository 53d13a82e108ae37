"""Collect what `mpt reproduce` runs: recipes by name, file, folder, pattern and tag, and earlier runs, all read before
the first one starts. A recipe that can't be read is reported as an error; the others run.
"""

import fnmatch
import glob
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mpt_cli.data.paths import check_run_present
from mpt_cli.errors import ConfigError, DataError, Problem, config_error, raise_problems
from mpt_cli.files import JsonObject
from mpt_cli.machine import nvidia_gpus
from mpt_cli.runs.directory import RunDirectory, read_json, read_summary
from mpt_cli.runs.expectations import check_names
from mpt_cli.runs.provenance import ENVIRONMENT
from mpt_cli.settings.checks import imported_objects
from mpt_cli.settings.load import load_settings, missing_backend, placed
from mpt_cli.settings.overrides import resume_command
from mpt_cli.settings.python_references import file_of
from mpt_cli.settings.search_path import (
    expanded,
    explicit_path,
    find_recipe,
    recipe_paths,
)
from mpt_cli.training.run_from_settings import check_repeatable
from mpt_cli.user_code import missing_problem

# What has to be the same again in a repeated run. Speed and memory needn't be, nor the verdict: it rests on samples,
# and after which steps a short run has time for one depends on its speed.
_EXACT = (
    "status",
    "exit_code",
    "epochs_completed",
    "steps_seen",
    "applied_steps",
    "skipped_steps",
    "final_loss_scale",
    "min_loss_scale",
    "max_loss_scale",
)
FINGERPRINT = "weights_fingerprint"


@dataclass(frozen=True)
class ReproduceTarget:
    """What to run and what to expect. `environment` is that of the run to repeat, `recipe` the file of a recipe,
    `missing` says why it can't run here, `options` are those that decide the result,
    `code` is a remark on functions that lie outside of the current folder.
    """

    name: str
    words: list[str]
    expect: JsonObject
    environment: JsonObject | None = None
    recipe: Path | None = None
    tags: tuple[str, ...] = ()
    seed: int | None = None
    missing: str = ""
    options: Sequence[str] = ()
    code: str = ""


@dataclass(frozen=True)
class Unreadable:
    """A request that can't be run, with the reason."""

    name: str
    problems: list[Problem]

    def __str__(self) -> str:
        return "\n".join(replace(each, key=f"{self.name}: {each.key}").shown for each in self.problems)


@dataclass
class Collection:
    """The collected targets: what runs, what can't, what is left out and why, and words of -k that match nothing."""

    targets: list[ReproduceTarget] = field(default_factory=list)
    errors: list[Unreadable] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    unmatched: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Selection:
    """The arguments of a command line. `keywords` is the expression of -k; `rtol` the relative tolerance of metrics
    beside those of an earlier run; `options` the words that decide a result."""

    names: Sequence[str] = ()
    changes: Sequence[str] = ()
    takes_all: bool = False
    rtol: float = 0.0
    keywords: str = ""
    options: Sequence[str] = ()


def collect(request: Selection) -> Collection:
    """Collect everything that the words name, including what patterns and folders contain, each once."""
    found = Collection()
    requested = [_Requested(name, is_named=False) for name in recipe_paths()] if request.takes_all else []
    for word in request.names:
        expanded_word = [*_expand(word)]
        requested += expanded_word
        if not expanded_word:
            found.errors.append(Unreadable(word, [Problem("NAME", "must match at least one recipe.", word)]))
    for each in requested:
        _add(found, each, request)
    once: dict[Path, ReproduceTarget] = {}
    for target in found.targets:
        once.setdefault((target.recipe or Path(target.words[0])).resolve(), target)
    found.targets = [replace(target, options=request.options) for target in once.values()]
    return _choose(found, request.keywords)


def _choose(found: Collection, keywords: str) -> Collection:
    """Return the requests that -k chooses, and what can't be read, whose tags nobody knows; ConfigError if there are
    none, or it is no expression.
    """
    names = [word for target in found.targets for word in (target.name, *target.tags)]
    names += [error.name for error in found.errors]
    try:
        chosen = [target for target in found.targets if _matches(keywords, [target.name, *target.tags])]
    except SyntaxError:
        raise config_error("-k", "must be words with and, or, not and parentheses.", keywords) from None
    found.left_out |= {target.name: "is deselected by -k" for target in found.targets if target not in chosen}
    found.targets = chosen
    if names and not (chosen or found.errors):
        listed = f"There are {', '.join(dict.fromkeys(names))}."
        raise config_error("-k", "must be part of a name or tag.", keywords, listed)
    wanted = re.sub(r"(?i)\bnot(\s+[^\s()]+|\s*\(.*?\))", "", keywords)  # nothing is wrong if no name has the others
    found.unmatched = [word for word in _keywords(wanted) if not (word in _OPERATORS or _matches(word, names))]
    return found


@dataclass(frozen=True)
class _Requested:
    """A requested recipe or run. `is_named` says that a word names it, rather than a pattern or a folder."""

    name: str
    is_run: bool = False
    is_named: bool = True


def _expand(word: str) -> Iterator[_Requested]:
    """Yield the recipes in a folder and those that a pattern matches; any other word stands for itself.

    The name of a recipe never means a run, even if a folder has that name. A folder without a run and without YAML is
    treated as a run, so that the error says what it lacks.
    """
    path = expanded(word)
    if word in recipe_paths():
        yield _Requested(word)
    elif path.is_dir():
        files = [
            Path(file) for file in glob.glob(f"{glob.escape(str(path))}/**/*.y*ml", recursive=True)
        ]  # not those under a dot
        if not files or _is_run_file(RunDirectory(path).config_yaml):
            yield _Requested(word, is_run=True)
            return
        for file in sorted(files):
            if "conf" not in file.relative_to(path).parts and not _is_run_file(file):
                yield _Requested(explicit_path(file), is_named=False)
    elif _is_run_file(path):
        yield _Requested(explicit_path(path.parent), is_run=True)
    elif any(sign in word for sign in "*?["):
        yield from (_Requested(name, is_named=False) for name in fnmatch.filter(recipe_paths(), word))
        for match in sorted(glob.glob(str(path), recursive=True)):
            yield from (replace(each, is_named=False) for each in _expand(explicit_path(Path(match))))
    else:
        yield _Requested(word)


def _add(found: Collection, requested: _Requested, request: Selection) -> None:
    """Add what was requested to the targets, to what is left out, or to the errors."""
    name = requested.name
    try:
        target, reason = _read(requested, request)
    except (ConfigError, DataError) as error:
        problems = error.problems if isinstance(error, ConfigError) else [Problem("run", str(error))]
        found.errors.append(Unreadable(name, problems))
        return
    if reason and not requested.is_named:
        found.left_out[name] = reason
    else:
        found.targets.append(target)


def _read(requested: _Requested, request: Selection) -> tuple[ReproduceTarget, str]:
    """Return the target, and why it is left out unless it was named."""
    name = requested.name
    if requested.is_run:
        return _run_target(RunDirectory.open(name), request), ""
    words = [f"conf={name}", *request.changes]
    settings = load_settings(words)
    with placed(words):
        raise_problems(check_names(settings))
        check_run_present(settings)
    lacking = "" if settings.expect else "has no expect: block"
    if lacking and requested.is_named:
        remedy = "Write one; a run directory is compared with its own summary."
        raise config_error("expect", f"{name} {lacking} to compare with.", None, remedy)
    target = ReproduceTarget(
        name,
        words,
        settings.expect,
        recipe=find_recipe(name),
        tags=tuple(settings.tags),
        seed=settings.seed,
        missing=missing_backend(settings),
    )
    needs = [_unmet_requirement(need) for need in settings.requires]
    return target, "; ".join(filter(None, [*needs, target.missing])) or lacking


def _is_run_file(file: Path) -> bool:
    """Return whether the file is the configuration of a run.

    Such a run is compared with its own summary, not with the expect: block of its recipe.
    """
    run = RunDirectory(file.parent)
    return file == run.config_yaml and (run.summary_json.is_file() or run.environment_json.is_file())


def expectations_from(summary: JsonObject, rtol: float) -> JsonObject:
    """Return expectations from the summary of a run: exact counters, metrics within `rtol`, and the weights bit for bit
    if `rtol` is 0.
    """
    metrics = {name: _within_rtol(value, rtol) for name, value in summary["metrics"].items()}
    exact = [*_EXACT, *([] if rtol or summary.get(FINGERPRINT) is None else [FINGERPRINT])]
    return {**{name: summary[name] for name in exact if name in summary}, **metrics}


def _run_target(run: RunDirectory, request: Selection) -> ReproduceTarget:
    words = [f"conf={run.config_yaml}", *request.changes]
    settings = load_settings(words)
    check_repeatable(settings, str(run.path))
    here, named = Path.cwd(), imported_objects(settings)
    raise_problems(
        problem
        if file_of(name, here)
        else replace(problem, remedy=f"For code of this checkout, add {key}=PATH/TO/{Path(name).name} to the command.")
        for key, name in named
        if ".py:" in name and (problem := missing_problem(name, key))
    )
    files = {str(file) for _, name in named if (file := file_of(name, here)) and not file.is_relative_to(here)}
    if run.is_unfinished:
        status = run.ending.get("status")
        reason = f"was {status}" if status else "still trains, or was killed"
        raise config_error(
            "run", f"has no end to compare with: it {reason}.", None, f"To finish it: {resume_command(run.path)}"
        )
    expect = expectations_from(read_summary(run.summary_json), request.rtol)
    environment = read_json(run.environment_json, ENVIRONMENT)
    return ReproduceTarget(
        str(run.path),
        words,
        expect,
        environment=environment,
        missing=missing_backend(settings),
        code=f"it ran the code of {', '.join(sorted(files))}, which is not in the current folder" if files else "",
    )


def _within_rtol(value: Any, rtol: float) -> Any:
    if isinstance(value, str) or not math.isfinite(value):  # a summary holds nan as text, which must be equal
        return value
    return {"value": value, "atol": rtol * abs(value)} if rtol else value


def _unmet_requirement(need: str) -> str:
    if need == "gpu":
        return "" if nvidia_gpus() else "needs a GPU, and this machine has none"
    return "may have to download its data; give its name to try"


_OPERATORS = ("and", "or", "not", "(", ")")


def _keywords(expression: str) -> list[str]:
    return re.findall(r"[()]|[^\s()]+", expression.lower())


def _matches(expression: str, names: Sequence[str]) -> bool:
    """Return whether -k chooses something with these names.

    SyntaxError for what is no expression.

    >>> _matches("digits and not (cnn or gpu)", ["digits_mlp"]), _matches("cnn", ["MLP"]), _matches("", ["x"])
    (True, False, True)
    """
    joined = "\n".join(names).lower()
    # nothing else is evaluated
    told = [word if word in _OPERATORS else str(word in joined) for word in _keywords(expression)]
    return bool(eval(" ".join(told) or "True", {}))
