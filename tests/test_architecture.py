"""Rooms import only from the rooms before them, and no module imports itself in a circle."""

import ast
import re
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "mpt_cli"
ROOMS = (
    "version",
    "redaction",
    "errors",
    "files",
    "plugins",
    "signals",
    "machine",
    "precision",
    "settings",
    "user_code",
    "data",
    "models",
    "telemetry",
    "engine",
    "samples",
    "training",
    "runs",
    "jobs",
    "doctor",
    "report",
    "sweep",
    "reproduce",
    "compare",
    "diagnose",
    "plan",
    "training_run",
    "trained_model",
    "python_api",
    "step_recording",
    "recorder_callback",
    "script",
    "verbs",
    "cli",
    "__main__",
)
STARTS_PROCESSES = re.compile(
    r"subprocess|multiprocessing|pty|concurrent\.futures\.ProcessPool|os\.(exec|fork|spawn|posix_spawn|system|popen)"
)
WATCH_A_SCRIPTS_PROCESSES = ("mpt_cli.signals", "mpt_cli.verbs.run")
ASKS_A_PROGRAM = {"mpt_cli.machine": "nvidia-smi", "mpt_cli.runs.provenance": "git"}  # runs stands above jobs
LIBRARIES_OF_THEIR_OWN = {"precision": {"settings", "errors"}}


def room_of(module: str):
    return module.split(".")[1] if "." in module else module


def module_name(path: Path):
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path, inside_functions: bool):
    """Modules of the package that `path` imports, absolute names only."""
    tree = TREES[path]
    skipped: set[ast.AST] = set()
    for node in ast.walk(tree):
        assert not (isinstance(node, ast.ImportFrom) and node.level), path
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
TREES = {path: ast.parse(path.read_text()) for path in MODULES.values()}


def known(name: str):
    """The module that an imported name is, or is in."""
    return name if name in MODULES else name.rpartition(".")[0] if name.rpartition(".")[0] in MODULES else None


def test_rooms_import_only_from_rooms_before_them():
    for module in (name for name in MODULES if "." in name):
        room = room_of(module)
        for name in imports(MODULES[module], inside_functions=True):
            other = room_of(name)
            assert ROOMS.index(other) <= ROOMS.index(room), f"{module} imports {name}"
            assert other not in LIBRARIES_OF_THEIR_OWN.get(room, set()), f"{module} must stand on its own"


@pytest.mark.slow
def test_there_is_no_import_cycle():
    graph = {
        name: {known(i) for i in imports(path, inside_functions=True)} - {None, name} for name, path in MODULES.items()
    }
    done: set[str] = set()

    def visit(module: str, above: tuple[str, ...]):
        assert module not in above, " -> ".join([*above, module])
        if module not in done:
            for other in graph[module]:
                visit(other, (*above, module))
            done.add(module)

    for module in graph:
        visit(module, ())


def names_of_modules(path: Path):
    """What `path` imports, and the attributes of modules that it uses, dotted; also inside functions."""
    found = set()
    for node in ast.walk(TREES[path]):
        if isinstance(node, ast.ImportFrom):
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            found.add(f"{node.value.id}.{node.attr}")
    return found


def test_processes_are_started_in_one_room():
    for module, path in MODULES.items():
        if room_of(module) == "jobs":
            continue
        found = {name.partition(".")[0] for name in names_of_modules(path) if STARTS_PROCESSES.match(name)}
        found -= {"multiprocessing"} if module in WATCH_A_SCRIPTS_PROCESSES else set()
        assert found == ({"subprocess"} if module in ASKS_A_PROGRAM else set()), module  # which it would see
        assert ASKS_A_PROGRAM.get(module, "") in path.read_text()
