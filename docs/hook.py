"""What MkDocs asks while it builds the site: the reference is filled in here, from the package itself.

A page says where: `<!-- generated: keys -->` stands for what the function `keys` below returns. A public name without a
docstring ends the build.
"""

import ast
import inspect
import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import griffe
from mkdocs.exceptions import PluginError

from mpt_cli.cli import EXIT_CODE_HELP
from mpt_cli.jobs.local_processes import Ending
from mpt_cli.settings.key_type import REQUIRED, Key, format_range, format_type
from mpt_cli.settings.schema import VARIANTS, FloatPolicy, choosing_key, key_versions, sections
from mpt_cli.sweep.directory import SweepDirectory
from mpt_cli.sweep.job_list import plan_dict
from mpt_cli.sweep.report import configuration_dict, job_dict, results_dict
from mpt_cli.sweep.run import plan_facts
from mpt_cli.telemetry import record_types
from mpt_cli.verbs import verb_parser
from mpt_cli.verbs.arguments import LISTED_VERBS
from mpt_cli.verbs.run import is_run_key

ROOT = Path(__file__).parents[1]
RECORDS = {
    "metrics.jsonl": record_types.Snapshot,
    "gradients": record_types.GradientSample,
    "events.jsonl": record_types.Event,
    "layers.jsonl": record_types.LayerSample,
    "summary.json": record_types.Summary,
    "ending": Ending,
}
CONTENTS: dict[str, list[Callable[..., Any]]] = {
    "sweep.json": [plan_facts, SweepDirectory.write_plan, plan_dict],
    "results.json": [results_dict],
    "configuration": [configuration_dict],
    "job": [job_dict],
}
KERAS_CALLS = r"_|on_|set_model$|call$|compute_output_spec$|get_config$"
_MARK = re.compile(r"^<!-- generated: (\w+) ?(\S*) -->$", re.M)
EXTENDED = [  # what a package of its own derives from
    ("mpt_cli.precision.scale_rules", "ScaleRule"),
]


def on_page_markdown(markdown: str, **_: Any) -> str:
    """MkDocs's hook: the page with what is generated in place of the marks."""
    return _MARK.sub(lambda mark: GENERATED[mark[1]](*filter(None, [mark[2]])), markdown)


def keys() -> str:
    """A table for each section of the settings, and for the variants of one what they have beside the others."""
    versions = key_versions()
    parts = ["## The recipe itself", *_table(key for key in versions if "." not in key.path)]
    for section, cls in sections().items():
        of_section = [key for key in versions if key.path.startswith(f"{section}.")]
        parts += [f"## {section}", (inspect.getdoc(cls) or "").partition("\n")[0]]
        parts += _variant_tables(section, of_section) if section in VARIANTS else _table(of_section)
    return "\n".join(parts)


def run_keys() -> str:
    """Those that `mpt run` takes, once each, with what it does where they are left out."""
    taken = {key.path: key for key in reversed(key_versions()) if is_run_key(key.path)}
    taken["policy.name"] = replace(
        taken["policy.name"],
        default="mixed_float16",
        type=FloatPolicy,
        meaning="dtype policy that is set before the script begins",
    )
    taken["backend.name"] = replace(
        taken["backend.name"], default=None, meaning="Keras backend; null = as Keras chooses without mpt"
    )
    return "\n".join(_table(taken[path] for path in reversed(taken)))


def _variant_tables(section: str, versions: list[Key]) -> list[str]:
    """What all variants have, then what only some have, or have with another default."""
    choosing = f"{section}.{choosing_key(section)}"
    everywhere = [key for key in versions if set(VARIANTS[section]) <= set(key.variants)]
    names = ", ".join(f"`{name}`" for name in VARIANTS[section])
    parts = ["", f"`{choosing}` (or the group, `{section}=NAME`) is one of {names}.", *_table(everywhere)]
    rest: dict[tuple[str, ...], list[Key]] = {}
    for key in versions:
        if key not in everywhere and key.path != choosing:
            rest.setdefault(key.variants, []).append(key)
    for variants, own in rest.items():
        parts += [f"### {section}: {', '.join(variants)}", *_table(own)]
    return parts


def _table(found: Iterable[Key]) -> list[str]:
    usual_first = sorted(found, key=lambda key: key.advanced)
    meanings = {key.path: _cell("advanced: " * key.advanced + key.meaning) for key in usual_first}
    rows = [f"| `{key.path}` | {_code_or_words(key)} | {_default(key)} | {meanings[key.path]} |" for key in usual_first]
    return ["", "| key | takes | default | meaning |", "|---|---|---|---|", *rows, ""]


def _code_or_words(key: Key) -> str:
    if key.choices:
        words = ", ".join(f"`{_yaml(choice)}`" for choice in key.choices)
        words = words if not key.is_mapping else f"a mapping to {words}"
    else:
        words = " ".join(filter(None, [format_type(key), format_range(key)]))
    return _cell(f"{words}, or `null`" if key.is_optional else words)


def _default(key: Key) -> str:
    return "must be given" if key.default == REQUIRED else f"`{_yaml(key.default)}`"


def _yaml(value: Any) -> str:
    words = {None: "null", True: "true", False: "false", "": '""'}
    return words[value] if isinstance(value, str | bool | None) and value in words else str(value)


def _cell(text: str) -> str:
    return re.sub(r"\s+", " ", text).replace("|", "\\|").replace("<", "&lt;").replace("**", "\\*\\*")


def verbs() -> str:
    """What `mpt VERB --help-all` prints, of each verb."""
    os.environ["COLUMNS"] = "100"  # which argparse wraps at
    helps = {verb: verb_parser(verb).format_help(is_whole=True).rstrip() for verb in LISTED_VERBS}
    return "\n".join(f"## mpt {verb}\n\n```text\n{text}\n```\n" for verb, text in helps.items())


def exit_codes() -> str:
    """As the last lines of `mpt --help` have them."""
    told = re.findall(r"(\d+) ([^,]+)", re.sub(r"\s+", " ", EXIT_CODE_HELP))
    return "\n".join(["| code | meaning |", "|---|---|", *(f"| {code} | {words} |" for code, words in told)])


def record(file: str) -> str:
    """The fields of one of the files in a run directory: those of the dataclass that is written there."""
    cls = RECORDS[file]
    said = _comments(cls)
    rows = [f"| `{each.name}` | {_type(each.type)} | {said.get(each.name, '')} |" for each in fields(cls)]
    text = re.sub(r"(?m)^ +", "", (inspect.getdoc(cls) or "").replace("<", "&lt;"))
    return "\n".join([text, "", "| field | type | |", "|---|---|---|", *rows])


def content(name: str) -> str:
    """The fields of what functions put together for a file: those that have a comment there."""
    said = {field: text for function in CONTENTS[name] for field, text in _comments(function, _IN_A_DICT).items()}
    rows = [f"| `{field}` | {text} |" for field, text in said.items() if text]
    return "\n".join(["", "| field | |", "|---|---|", *rows])


def _type(hint: Any) -> str:
    plain = isinstance(hint, type) and not getattr(hint, "__args__", None)
    return f"`{hint.__name__ if plain else re.sub(r'(?:[a-z_]+[.])+', '', str(hint))}`"


_IN_A_CLASS, _IN_A_DICT = r"    (\w+): [^#]*(?:# (.*))?$", r" {8,12}\"(\w+)\": [^#]*(?:# (.*))?$"


def _comments(source: type | Callable[..., Any], field: str = _IN_A_CLASS) -> dict[str, str]:
    """What stands behind each field of a dataclass, or of a dictionary in a function, or above it, as a comment."""
    found, above = dict[str, str](), list[str]()
    for line in inspect.getsource(source).splitlines():
        if comment := re.match(r" {4,12}# (.*)", line):
            above.append(comment[1])
            continue
        if declared := re.match(field, line):
            found[declared[1]] = _cell(declared[2] or " ".join(above))
        above = []
    return found


def file(path: str) -> str:
    """A file of the repository, as code."""
    return f"```{path.rpartition('.')[2]}\n{(ROOT / path).read_text(encoding='utf-8').rstrip()}\n```"


def python(package: str) -> str:
    """Every public name of a package for mkdocstrings, classes first, and its constants with their values; PluginError
    where a name, or a method of a class, has no docstring."""
    tree = package_tree()
    public = EXTENDED if package == "extended" else _public(package)
    found = [tree[home.partition(".")[2]].members.get(name) for home, name in public]
    objects = sorted(filter(None, found), key=lambda each: (not each.is_class, each.name.lower()))
    described = [each for each in objects if not each.is_attribute]
    bare = [part.path for each in described for part in (each, *_parts(tree, each)) if part.docstring is None]
    if bare:
        raise PluginError(f"public names without a docstring: {', '.join(bare)}")
    parts = [f"::: {each.path}\n    options:\n      heading: {each.name}" for each in described]
    names = {f"`{name}`" for _, name in public if name.isupper()}
    return "\n\n".join([*parts, *([f"Constants: {', '.join(sorted(names))}."] if names else [])])


@cache
def package_tree() -> Any:
    """The package as its source says it, imported nowhere."""
    return griffe.load("mpt_cli", search_paths=[str(ROOT)])


def _public(package: str) -> list[tuple[str, str]]:
    """The module and the name of each public name: what the package's `__init__` imports, also lazily. It is read and
    not imported, so that no Keras is needed, and no name is taken for the room it shares its name with."""
    text = (ROOT / package.replace(".", "/") / "__init__.py").read_text(encoding="utf-8")
    imports = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom)]
    ours = [(node.module, alias.name) for node in imports for alias in node.names if node.module]
    return [(home, name) for home, name in ours if f'    "{name}",' in text]


def _parts(tree: Any, found: Any) -> Iterator[Any]:
    """The methods and properties that a class declares itself; not those of a base with words of its own, nor the
    hooks that Keras calls."""
    if not found.is_class:
        return
    bases = [
        tree[str(base.canonical_path).partition(".")[2]]
        for base in found.bases
        if str(getattr(base, "canonical_path", "")).startswith("mpt_cli.")
    ]
    told = {name for base in bases for name, part in base.members.items() if part.is_function}
    for name, part in found.members.items():
        is_called = not part.is_alias and (part.is_function or "property" in part.labels)
        if is_called and name not in told and not re.match(KERAS_CALLS, name):
            yield part


class AsMarkdown(griffe.Extension):
    """Docstrings as Markdown has to have them, which would read `2.0**10` as bold."""

    def on_object(self, *, obj: Any, **_: Any) -> None:
        """Griffe's hook: puts a fence around the lines from one with `>>>` to the next empty one, and takes ** of words
        that are no code as it stands."""
        if obj.docstring is not None:
            fenced = r"\1```pycon\n\g<0>\n\1```"
            text = re.sub(r"(?m)^( *)>>> .*(?:\n\1.*\S.*)*", fenced, obj.docstring.value)
            parts = re.split(r"(```.*?```|`[^`\n]*`)", text, flags=re.S)  # code at the odd places
            parts[::2] = [part.replace("**", r"\*\*") for part in parts[::2]]
            obj.docstring.value = "".join(parts)


GENERATED: dict[str, Callable[..., str]] = {
    "keys": keys,
    "run_keys": run_keys,
    "verbs": verbs,
    "exit_codes": exit_codes,
    "record": record,
    "content": content,
    "python": python,
    "file": file,
}
