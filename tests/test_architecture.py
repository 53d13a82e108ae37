"""Rooms import only from the rooms before them, and no module imports itself in a circle."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "mpt_cli"
ROOMS = ("errors", "plugins", "precision", "settings", "data", "models", "telemetry", "training", "runs", "jobs",
         "report", "reproduce", "sweep", "compare", "diagnose", "job", "evaluation", "export", "verbs", "cli",
         "__main__")  # fmt: skip
LIBRARIES_OF_THEIR_OWN = {"precision": {"settings", "errors"}}


def room_of(module: str) -> str:
    return module.split(".")[1] if "." in module else module


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path, inside_functions: bool) -> set[str]:
    """Modules of the package that `path` imports, absolute names only (a test below forbids relative ones)."""
    tree = ast.parse(path.read_text())
    skipped: set[ast.AST] = set()
    for node in ast.walk(tree):
        is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        is_type_check = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        if (is_function and not inside_functions) or is_type_check:
            skipped.update(ast.walk(node))
    found = set()
    for node in ast.walk(tree):
        if node in skipped:
            continue
        if isinstance(node, ast.ImportFrom) and node.module:
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
    return {name for name in found if name.startswith("mpt_cli.")}


MODULES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def known(name: str) -> str | None:
    """The module that an imported name is, or is in."""
    return name if name in MODULES else name.rpartition(".")[0] if name.rpartition(".")[0] in MODULES else None


@pytest.mark.parametrize("module", [name for name in MODULES if "." in name])
def test_rooms_import_only_from_rooms_before_them(module):
    room = room_of(module)
    for name in imports(MODULES[module], inside_functions=True):
        other = room_of(name)
        if other == "__version__":
            continue
        assert ROOMS.index(other) <= ROOMS.index(room), f"{module} imports {name}"
        assert other not in LIBRARIES_OF_THEIR_OWN.get(room, set()), f"{module} must stand on its own"


def test_there_is_no_import_cycle():
    graph = {name: {known(i) for i in imports(path, inside_functions=False)} - {None, name}
             for name, path in MODULES.items()}  # fmt: skip
    done: set[str] = set()

    def visit(module: str, above: tuple[str, ...]) -> None:
        assert module not in above, " -> ".join([*above, module])
        if module not in done:
            for other in graph[module]:
                visit(other, (*above, module))
            done.add(module)

    for module in graph:
        visit(module, ())


def test_no_relative_imports():
    for module, path in MODULES.items():
        for node in ast.walk(ast.parse(path.read_text())):
            assert not (isinstance(node, ast.ImportFrom) and node.level), module
