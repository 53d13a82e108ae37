"""The only reader of YAML: it notes the place of each key and bounds size, depth and aliases, so that a mistake, or a
file that is no recipe, gets a message at once.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from mpt_cli import redaction
from mpt_cli.errors import ConfigError, SourcePlace, config_error, first_line, summarise_error
from mpt_cli.files import read_file

Tree = dict[str, Any]  # the sections of a recipe, with their keys
MOST_BYTES = 2**20  # of a YAML file
MOST_YAML_VALUES = 10_000  # values of a YAML file, with aliases expanded; the longest shipped recipe has 60
DEEPEST = 50  # depth of nested lists and mappings
MOST_JOBS = 10_000  # jobs of a sweep
MOST_PROBLEMS = 50  # problems in one message; `--json` lists all


def read_yaml_text(path: Path) -> str:
    """Return the text of a YAML file; ConfigError if it can't be read or is too large."""
    try:
        return read_file(path, MOST_BYTES)
    except (OSError, UnicodeDecodeError) as error:
        raise config_error("conf", f"{path} cannot be read: {error}.") from error


def load_yaml(path: Path) -> Any:
    """Return the content of a YAML file; ConfigError as from `parse_yaml`, or if it can't be read."""
    return parse_yaml(read_yaml_text(path), path)


def load_mapping(path: Path, may_be_empty: bool = False) -> Tree:
    """Return the keys of a recipe or a group file as written; ConfigError if it must have keys and has none."""
    content = load_yaml(path)
    if not isinstance(content, dict):
        raise config_error("conf", f"{path} must hold keys and values at its top level.")
    if not content and not may_be_empty:
        remedy = "`model: {name: mlp}` is the shortest recipe, all else by default; mpt copy gives one to edit."
        raise config_error("conf", f"{path} must hold keys. It is empty, or all of it is comments.", None, remedy)
    return {str(name): value for name, value in content.items()}


def parse_yaml(text: str, file: str | Path) -> Any:
    """Return the content of YAML from `file` as OmegaConf reads it: a key given twice is an error, 1e-3 is a number.

    ConfigError if it holds anything but texts, numbers, truth values, nulls, lists and mappings, or too many of them.
    """
    import yaml
    from omegaconf import OmegaConf
    from omegaconf._utils import get_yaml_loader  # `OmegaConf.load` gives no places, and expands every alias
    from omegaconf.errors import OmegaConfBaseException

    try:
        loader = get_yaml_loader()(text)
        root = loader.get_single_node()
        if isinstance(root, yaml.ScalarNode):
            raise _yaml_error(text, file, "must hold keys and values at its top level.", root)
        _check_nodes(root, text, file)
        content = {} if root is None else loader.construct_document(root)
        repr(content)  # ValueError for a number of thousands of digits: no message could show it
        return OmegaConf.to_container(OmegaConf.create(content), resolve=False)
    except yaml.YAMLError as error:
        raise _syntax_error(error, text, file) from error
    except RecursionError as error:
        raise _yaml_error(text, file, "is nested too deep.") from error
    except OmegaConfBaseException as error:
        key = error.full_key or "conf"
        place = _source_places(text, file).get(tuple(key.split(".")))
        rule = f"cannot be read: {first_line(error).rstrip('.')}."
        raise config_error(key, rule, str(file), place=place) from error
    except (ValueError, LookupError) as error:  # of a text that is not what its tag says
        raise _yaml_error(text, file, f"cannot be read: {summarise_error(error)}.") from error


# What the parser says; the likely cause; whether it lies where the parser began to read, not where it stopped.
_CAUSES = (
    (r"character '\\t'", "this line is indented with a tab; YAML needs spaces", False),
    ("quoted scalar.*(stream|document)", "the quote that opens here is never closed", True),
    ("expected ',' or", "the bracket that opens here is never closed, or a comma is missing in it", True),
    ("<block", "the indentation of this line matches no line above", False),
    ("expected ':'", "a key needs a colon and a space behind it", True),
    (
        "mapping values",
        "put a text with a colon and a space in it in quotes; or this line is indented too deep, or the key above "
        "lacks its colon and space",
        False,
    ),
    (
        "cannot start any|undefined alias|for the tag|alphabetic",
        "a text that begins with this character needs quotes",
        False,
    ),
)


def _syntax_error(error: Any, text: str, file: str | Path) -> ConfigError:
    """Return the likely cause with its place, and what the parser says."""
    if (mark := getattr(error, "problem_mark", None)) is None:  # a character that no YAML may hold
        before, said = text[: error.position], f"{error.reason}: {text[error.position]!r}"
        mark = SimpleNamespace(line=before.count("\n"), column=len(before.rpartition("\n")[2]))
    else:
        said = ", ".join(filter(None, [error.context, error.problem]))
        found = ((words, is_at_start) for pattern, words, is_at_start in _CAUSES if re.search(pattern, said))
        cause, is_at_start = next(found, ("", False))
        mark = error.context_mark if is_at_start else mark
        said = f"{cause}. The parser says: {said}" if cause else said
    return _yaml_error(text, file, f"is not valid YAML: {said}.", SimpleNamespace(start_mark=mark, end_mark=mark))


def _yaml_error(text: str, file: str | Path, rule: str, node: Any = None) -> ConfigError:
    place = node and _place(file, text.rstrip().split("\n"), node.start_mark, node.end_mark)
    return config_error("conf", f"{file} {rule}", place=place)


def _check_nodes(root: Any, text: str, file: str | Path) -> None:
    """Raise ConfigError for a document too large for a recipe, before its values are built. An alias counts as the
    nodes that it stands for, so that a few lines can't become billions of values; one within itself is too deep.
    """
    for count, (path, name, _) in enumerate(_entries(root, ())):
        if len(path) > DEEPEST or count >= MOST_YAML_VALUES:
            limits = f"{MOST_YAML_VALUES:,} values, and {DEEPEST} lists and mappings within each other"
            raise _yaml_error(text, file, f"must hold at most {limits}.", name)


def places_of(file: Path) -> dict[tuple[str, ...], SourcePlace]:
    """Return the place of each key and list entry of a YAML file, by its path of names."""
    return _source_places(read_yaml_text(file), file)


def _source_places(text: str, file: str | Path) -> dict[tuple[str, ...], SourcePlace]:
    """Return the places in a text that `parse_yaml` could read."""
    import yaml

    lines, root = text.rstrip().split("\n"), yaml.compose(text, Loader=yaml.SafeLoader)
    return {
        path: _place(
            file,
            lines,
            name.start_mark,
            name.end_mark if part.end_mark.line > name.end_mark.line else part.end_mark,
        )
        for path, name, part in _entries(root, ())
    }


def _entries(node: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any, Any]]:
    """Yield every key and list entry under a node: its path of names, the node of its name (for a list entry, the
    entry) and the node of its value."""
    import yaml

    if isinstance(node, yaml.MappingNode):
        held = [(str(name.value), name, part) for name, part in node.value]
    elif isinstance(node, yaml.SequenceNode):
        held = [(str(number), part, part) for number, part in enumerate(node.value)]
    else:
        return
    for name, first, part in held:
        inner = (*path, name)
        yield inner, first, part
        yield from _entries(part, inner)


def _place(file: str | Path, lines: list[str], start: Any, end: Any) -> SourcePlace:
    """Return the place from `start` to `end`, or to the end of the first line.

    The line of text, which messages print, is left out if it may hold a secret.
    """
    line = min(start.line, len(lines) - 1)
    text, first = lines[line], start.column if line == start.line else len(lines[line])
    last = end.column if end.line == start.line else len(text)
    has_secret = any(map(redaction.is_secret_name, re.findall(r"[\w-]+", text)))
    return SourcePlace(str(file), line + 1, first + 1, "" if has_secret else text, max(1, last - first))
