"""A script by its name, and what its text says of the calls that `mpt run` changes; nothing of it is run."""

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mpt_cli.errors import DataError
from mpt_cli.settings.schema import Settings


@dataclass(frozen=True)
class ScriptTarget:
    """A script by its path, or a module by its name, and the words after it."""

    name: str
    arguments: tuple[str, ...] = ()
    is_module: bool = False

    @property
    def title(self) -> str:
        """The script's name, for its runs."""
        return self.name.rpartition(".")[2] if self.is_module else Path(self.name).stem

    @property
    def folder(self) -> Path:
        """Where Python looks first for what it imports."""
        path = Path(self.name)
        return Path() if self.is_module else path.resolve().parent if path.is_symlink() else path.parent

    def file(self) -> Path:
        """The file that is run; DataError where there is none of a module."""
        if not self.is_module:
            return Path(self.name)
        parts = self.name.split(".")
        for folder in (self.folder, *map(Path, sys.path)):
            for path in (folder.joinpath(*parts, "__main__.py"), folder.joinpath(*parts[:-1], f"{parts[-1]}.py")):
                if path.is_file():
                    return path
        raise DataError(f"there is no module {self.name} in {Path.cwd()} or on Python's path.")


@dataclass(frozen=True)
class SourceFile:
    """A file of the script's own, as far as it can be read."""

    path: Path
    tree: ast.Module

    def imported(self, folder: Path) -> Iterator[Path]:
        """The files under `folder` that it imports, wherever in it that stands."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    yield from _files_of(folder, alias.name.split("."))
            elif isinstance(node, ast.ImportFrom):
                parents = self.path.parents
                start = folder if not node.level else parents[min(node.level, len(parents)) - 1]
                module = node.module.split(".") if node.module else []
                for alias in node.names:
                    yield from _files_of(start, [*module, alias.name])

    def calls(self) -> list[tuple[int, str, str]]:
        """Line, object and name of each call, in the order of the text."""
        found = [(node.lineno, *_names(node.func)) for node in ast.walk(self.tree) if isinstance(node, ast.Call)]
        return sorted(call for call in found if call[2])


def _files_of(folder: Path, parts: list[str]) -> Iterator[Path]:
    """Of a module and the packages that it lies in."""
    for count in range(1, len(parts) + 1):
        stem = folder.joinpath(*parts[:count])
        for path in (stem / "__init__.py", stem.with_name(f"{stem.name}.py")):
            if path.is_file():
                yield path


def _names(function: ast.expr) -> tuple[str, str]:
    if isinstance(function, ast.Name):
        return "", function.id
    if not isinstance(function, ast.Attribute):
        return "", ""
    holder = function.value
    inner = holder.id if isinstance(holder, ast.Name) else holder.attr if isinstance(holder, ast.Attribute) else ""
    return inner, function.attr


def plan_of(target: ScriptTarget, settings: Settings, backend: str | None = None) -> list[str]:
    """What `mpt run` would do to which calls of the script and of the files beside it that it imports.

    `backend` is the one asked for, None where Keras chooses. DataError where there is no such module.
    """
    under = f"dtype policy {settings.policy.name}" + (f", Keras on {backend}" if backend else "")
    lines, waiting, seen = [f"before {target.name} begins: {under}"], [target.file()], set[Path]()
    while waiting:
        path = waiting.pop(0)
        if path in seen:
            continue
        seen.add(path)
        try:
            source = SourceFile(path, ast.parse(path.read_bytes()))
        except (OSError, SyntaxError, ValueError) as error:
            lines.append(f"{path}: can't be read: {error}")
            continue
        except (RecursionError, MemoryError):  # the latter is what Python's parser raises
            lines.append(f"{path}: can't be read: it is nested too deeply")
            continue
        waiting += source.imported(target.folder)
        found = [(f"{path}:{line}: {name}", _change(holder, name, settings, backend))
                 for line, holder, name in source.calls()]  # fmt: skip
        lines += dict.fromkeys(f"{where}: {what}" for where, what in found if what)
    if len(lines) == 1:
        lines.append(f"no call that is changed stands in {', '.join(map(str, sorted(seen)))}; what it imports from "
                     "elsewhere is seen only while it runs")  # fmt: skip
    return lines


def _change(holder: str, name: str, settings: Settings, backend: str | None) -> str:
    """What becomes of a call; empty where nothing does."""
    on_jax = backend == "jax"
    if name == "fit" and holder in ("mpt", "mpt_cli"):
        return "as it is: it has a record of its own"
    if name == "compile" and holder in ("", "re", "regex"):
        return ""
    if name == "apply" and "opt" not in holder.lower():
        return ""
    skips = "skips what is not finite, and a run directory has its steps"
    changes = {
        "set_global_policy": "its own dtype policy, which it has",
        "set_dtype_policy": "its own dtype policy, which it has",
        "LossScaleOptimizer": "its own loss scaling, which a model that is compiled with it or its loop has",
        "compile": f"its optimizer scales its loss (loss_scale={settings.loss_scale.mode})",
        "fit": "is recorded, where it is that of a Keras model",
        "train_on_batch": "its loss is scaled" + (", but no run directory has its steps" if on_jax else ""),
        "GradientTape": "it takes no gradients of Keras on JAX" if on_jax else "gradients of the scaled loss, divided "
                        "again",
        "apply_gradients": LEFT_ALONE if on_jax else skips, "apply": LEFT_ALONE if on_jax else skips,
        "stateless_apply": LEFT_ALONE,
    }  # fmt: skip
    return changes.get(name, "")


LEFT_ALONE = "in a loop of its own neither scaled nor recorded on JAX"
