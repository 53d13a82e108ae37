"""Overrides in Hydra's own grammar, after the verb: `conf=…`, group choices and `key=value`, read and written."""

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, List

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, Override, Quote, QuotedString, Sweep
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf

from mpt_cli.errors import Problem, first_line
from mpt_cli.settings.limits import word_problem
from mpt_cli.settings.recipes import IMPLIED_CHOICES, GroupChoice, add_choice, merge_keys, names_custom_optimizer
from mpt_cli.settings.schema import CHOOSING_KEYS, find_key, unknown_key_problem
from mpt_cli.settings.search_path import conf_override, group_names, is_project_group, recipe_paths, recipe_remedy

_PLAIN = re.compile(r"(?!null$)[\w./+-]+", re.ASCII | re.IGNORECASE)


def parse_override(text: str) -> Override:
    """Return the override. Where its key takes text, numbers and truth values are the text that was written. Names in a
    mapping may stand in quotes.

    Raises HydraException for what Hydra can't read.

    >>> parse_override("run_dir=2024_11_21").value(), parse_override("seed=2024_11_21").value()
    ('2024_11_21', 20241121)
    >>> parse_override("policy.overrides={'conv(1)*': float32}").value()
    {'conv(1)*': 'float32'}
    """
    parser = OverridesParser.create()
    try:
        override = parser.parse_override(text)
    except ValueError as error:
        raise HydraException("it has a number of thousands of digits") from error
    except HydraException:
        if (plain := _names_unquoted(text)) == text:
            raise
        return parse_override(plain)
    key = find_key(override.key_or_group)
    takes_text = key is not None and key.options in ((str,), (List[str],))
    is_plain = takes_text and not set("('\"") & set(text)
    return parser.parse_override(_NO_TEXT.sub(r'"\1"', text)) if is_plain else override


# a number or truth value, alone or in a list
_NO_TEXT = re.compile(r"(?<=[=\[,])([-+.]?\d[\w.+-]*|[-+]?inf|nan|true|false)(?=[,\]]|$)", re.IGNORECASE)


def _with_quotes(text: str) -> str:
    """Return the override with its value in quotes."""
    key, _, value = text.partition("=")
    return '{}="{}"'.format(key, value.replace('"', '\\"'))


def format_override(key: str, text: str) -> str:
    """Return the override that sets `key` to `text`, in quotes where Hydra would read something else.

    >>> format_override("run_dir", "runs/1"), format_override("run_dir", "my run")
    ('run_dir=runs/1', 'run_dir="my run"')
    """
    if _PLAIN.fullmatch(text):
        return f"{key}={text}"
    return f"{key}={QuotedString(escape_interpolation(text), Quote.double).with_quotes()}"


def without_quotes(text: str) -> str:
    """Return the text without quotes around all of it."""
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"" else text


def _names_unquoted(text: str) -> str:
    """Return the text with the names of a mapping escaped, not quoted: Hydra's grammar quotes values alone."""

    def escaped(found: "re.Match[str]") -> str:
        return found[1] + re.sub(r"[\\()\[\]{}:=,]", r"\\\g<0>", found[3]) + found[4]

    return re.sub(r"""([{,]\s*)(['"])([^'"]+)\2(\s*:)""", escaped, text)


def misplaced_values_rule(override: Override) -> str | None:
    """Return what must hold of where values are listed, where it does not: Hydra's functions inside of a list do
    nothing.

    >>> misplaced_values_rule(parse_override("seed=range(3)")) is None
    True
    >>> misplaced_values_rule(parse_override("seed=[range(3)]"))
    'must have range(), choice() and interval() around all of it, not inside of a list or of each other.'
    """
    value = override.value()
    inner = list(vars(value).values()) if isinstance(value, Sweep | Glob) else value
    if not _has_sweep(inner):
        return None
    return "must have range(), choice() and interval() around all of it, not inside of a list or of each other."


def _has_sweep(value: Any) -> bool:
    if isinstance(value, dict | list):
        return any(map(_has_sweep, value.values() if isinstance(value, dict) else value))
    return isinstance(value, Sweep | Glob)


_GRAMMAR_SIGNS = set(",()[]{}'\"$\\")


@dataclass
class ParsedOverrides:
    """A command line, sorted. `overrides` of keys are in the order given; `project_groups` are choices of groups that
    the project alone has.
    """

    conf: str | None = None
    project_groups: dict[str, str] = field(default_factory=dict)
    choices: dict[str, GroupChoice] = field(default_factory=dict)
    overrides: list[Override] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)


def parse_overrides(overrides: list[str]) -> ParsedOverrides:
    """Sort them into recipe, choices and overrides; what fits nowhere becomes a problem."""
    parsed = ParsedOverrides()
    for text in overrides:
        if (problem := word_problem(text)) is not None:
            parsed.problems.append(problem)
        elif (conf := recipe_named(text)) is not None and parsed.conf is not None:
            rule = f"must be given once; conf={parsed.conf} was given before."
            parsed.problems.append(Problem("conf", rule, conf))
        elif conf is not None:
            parsed.conf = conf
        elif (override := _parse(text, parsed.problems)) is not None:
            _take_override(override, parsed)
    _add_implied(parsed)
    return parsed


def recipe_named(word: str) -> str | None:
    """Return what stands after `conf=`, None for another word: it says where groups are looked for before the other
    overrides can be read.

    >>> recipe_named("seed=1"), recipe_named("conf='mine.yaml'")
    (None, 'mine.yaml')
    """
    return without_quotes(word.removeprefix("conf=")) if word.startswith("conf=") else None


def keys_given(overrides: Sequence[str]) -> list[str]:
    """Return the keys and groups that a command line sets or takes back; other words on it are left out.

    >>> keys_given(["mpt", "train", "conf=digits_mlp", "+trainer.max_steps=3", "~seed"])
    ['conf', 'trainer.max_steps', 'seed']
    """
    given = [text for text in overrides if "=" in text or text.startswith("~")]
    return [text.lstrip("+~").partition("=")[0] for text in given]


def _parse(text: str, problems: list[Problem]) -> Override | None:
    try:
        return parse_override(text)
    except HydraException as error:
        quoted = _quote_plain_text(text)
        if quoted:
            return parse_override(quoted)
        problems.append(_syntax_problem(text, error))
        return None


def _quote_plain_text(text: str) -> str | None:
    """Return the override with its value in quotes where the key takes text and nothing in it belongs to Hydra's
    grammar.

    Paths with letters like ß or with a second `=` would otherwise need quotes within quotes.
    """
    name, _, value = text.partition("=")
    key = find_key(name.lstrip("+"))
    is_plain = key is not None and {str, Any} & {*key.options} and not _GRAMMAR_SIGNS & set(value)
    return _with_quotes(text) if is_plain and "=" in text else None


def _syntax_problem(text: str, error: HydraException) -> Problem:
    key, equals, value = text.partition("=")
    if not equals:
        return Problem(text, "must be of the form key=value.", None, _no_value_remedy(text))
    if unknown := unknown_key_problem(key.lstrip("+"), value):
        return unknown
    if "^" in value:
        return Problem(key, "cannot be read.", value, f"Write a power as {value.replace('^', '**')}.")
    reason = first_line(error)
    quoted = _with_quotes(text)
    remedy = f"Text with special signs is written '{quoted}'." if len(quoted) < 200 else ""
    return Problem(key, f"cannot be read: {reason}.", value, remedy)


def _no_value_remedy(text: str) -> str:
    if text in recipe_paths():
        return f"Write conf={text}."
    if Path(text).is_file():
        return f"Write {shlex.quote(conf_override(Path(text)))}."
    own = Path(text) / "config.yaml"
    if own.is_file():
        return f"It is the directory of a run; write {shlex.quote(conf_override(own))} for its configuration."
    return "" if "." in text or find_key(text) else recipe_remedy(text)


def _take_override(override: Override, result: ParsedOverrides) -> None:
    key, line = override.key_or_group, str(override.input_line)
    if not key:
        result.problems.append(Problem(line, "must be of the form key=value."))
    elif override.package is not None:
        result.problems.append(Problem(key, "must be given without @package.", line))
    elif rule := misplaced_values_rule(override):
        result.problems.append(Problem(key, rule, line.partition("=")[2]))
    elif override.is_sweep_override():
        values = line.partition("=")[2]
        result.problems.append(Problem(key, "must be one value here.", values, "`mpt sweep` tries several."))
    elif override.is_delete():
        _take_deletion(override, result)
    elif (group := CHOOSING_KEYS.get(key, key)) in group_names():
        _take_choice(GroupChoice(group, override.value(), key), result)
    elif hydra := hydra_problem(key, line):
        result.problems.append(hydra)
    elif find_key(key) is None and is_project_group(key):
        result.project_groups[key] = str(override.value())
    elif problem := unknown_key_problem(key, override.value(), result.problems):
        result.problems.append(problem)
    else:
        result.overrides.append(override)


def _take_choice(choice: GroupChoice, result: ParsedOverrides) -> None:
    if names_custom_optimizer(choice.written, choice.name):
        result.overrides.append(parse_override(format_override("optimizer.object", str(choice.name))))
    else:
        add_choice(choice, result.choices, result.problems)


def apply_override(tree: DictConfig, override: Override) -> None:
    """Set or take away one key, as Hydra does; but a mapping that is given as {} is empty. ValueError or an error of
    OmegaConf's where that can't be.
    """
    key, value = override.key_or_group, override.value()
    if not override.is_delete():
        below = OmegaConf.select(tree, key) if isinstance(value, dict) else None
        if isinstance(below, DictConfig):
            value = merge_keys(OmegaConf.to_container(below), value) if value else {}
        OmegaConf.update(tree, key, value, merge=False, force_add=True)
        return
    holder, _, name = key.rpartition(".")
    section = OmegaConf.select(tree, holder) if holder else tree
    if not isinstance(section, DictConfig) or name not in section or value not in (None, section[name]):
        raise ValueError(f"Could not delete from config. '{key}' does not exist")
    del section[name]


_HYDRA_WORDS = {  # what Hydra calls it, and the word that does it here
    "hydra.run.dir": "Write run_dir=DIR.",
    "hydra.sweep.dir": "Write sweep_dir=DIR, with `mpt sweep`.",
    "hydra.sweep.subdir": "Each job of a sweep has a folder of its own, named by what it varies.",
    "hydra.sweeper.n_trials": "Write `mpt sweep … --trials N`.",
    "hydra.sweeper": "`mpt sweep` takes values with commas; `--trials N --sampler tpe` searches.",
    "hydra.launcher.n_jobs": "Write `mpt sweep … -j N`.",
    "hydra.launcher": "Write `mpt sweep … --launcher submitit launcher.KEY=VALUE`.",
    "hydra.job.name": "Write recipe=NAME, which names the folder under runs/.",
    "hydra.job.env_set": "Set them before the command: NAME=VALUE mpt train …",
    "hydra.job.chdir": "A run stays in the folder it was started in; run_dir=DIR says where it writes.",
    "hydra.searchpath": "Write --config-dir DIR, or hydra.searchpath in the recipe.",
    "hydra.mode": "`mpt sweep` runs several jobs, `mpt train` one.",
    "hydra.verbose": "All that a run has to say stands in its console.log.",
    "hydra.output_subdir": "The configuration of a run stands in its config.yaml.",
}


def hydra_problem(key: str, line: str) -> Problem | None:
    """Return what to write instead of a setting of Hydra's own; None for any other word.

    >>> str(hydra_problem("hydra.run.dir", "hydra.run.dir=x"))
    "hydra.run.dir: there are no settings of Hydra's own. Received: 'hydra.run.dir=x'. Write run_dir=DIR."
    """
    path = key.replace("/", ".")
    if path.partition(".")[0] != "hydra":
        return None
    best = max((word for word in _HYDRA_WORDS if f"{path}.".startswith(f"{word}.")), key=len, default="")
    remedy = _HYDRA_WORDS.get(best, "`mpt list keys` shows what can be set.")
    return Problem(key, "there are no settings of Hydra's own.", line, remedy)


def _take_deletion(override: Override, result: ParsedOverrides) -> None:
    key, line = override.key_or_group, str(override.input_line)
    if key in group_names():
        remedy = f"Choose another, as in {key}=…; ~KEY takes back one key."
        result.problems.append(Problem(line, "a group cannot be taken away.", None, remedy))
    elif problem := unknown_key_problem(key, {}):
        result.problems.append(replace(problem, received=None))
    else:
        result.overrides.append(override)


def _add_implied(result: ParsedOverrides) -> None:
    given = [override.key_or_group for override in result.overrides if not override.is_delete()]
    for path, name in IMPLIED_CHOICES.items():
        if path in given:
            group = path.partition(".")[0]
            result.choices.setdefault(group, GroupChoice(group, name, path))


def escape_interpolation(text: str) -> str:
    """Write it as OmegaConf reads back this very text, where a "${" in it would else begin an interpolation.

    >>> print(escape_interpolation("a${b}"), escape_interpolation("\\\\${"), escape_interpolation("\\\\n$"))
    a\\${b} \\\\\\${ \\n$
    """
    return re.sub(r"(\\*)\$\{", lambda found: 2 * found[1] + "\\${", text)
