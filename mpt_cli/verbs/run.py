"""`run`: an unchanged Keras script under a policy, with loss scaling, record, health rules and verdict."""

import os
import re
import runpy
import signal
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import takewhile
from multiprocessing import spawn, util
from multiprocessing.context import ForkServerProcess, SpawnProcess
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import mpt_cli
from mpt_cli.errors import NUMERICAL, OK, TERMINATED, DataError, MptError, Problem, config_error, raise_problems
from mpt_cli.runs.directory import RunDirectory
from mpt_cli.settings.schema import RECORDED_TRAINER_KEYS, Settings, acts_on_record
from mpt_cli.signals import Terminated, at_forced_end, heard_by_script
from mpt_cli.user_code import describe_layer, failed_layer, user_frames
from mpt_cli.verbs import say

if TYPE_CHECKING:
    from mpt_cli.script import ScriptRun

SINGLE_KEYS = ("policy", "policy.name", "run_dir", "backend", "backend.name", "seed")
STRICT, ALLOW_UNCHECKED = "--fail-on-verdict", "--allow-unchecked"  # anywhere before the script
SCRIPT_RAISED = 1  # as Python ends for an exception that nobody caught


def run_run(arguments: Namespace) -> int:
    module = ["-m", *arguments.module] if arguments.module is not None else []
    overrides, rest = split_script([*arguments.words, *module])
    strict = arguments.fail_on_verdict or STRICT in overrides
    allows_unchecked = arguments.allow_unchecked or ALLOW_UNCHECKED in overrides
    overrides = [word for word in overrides if word not in (STRICT, ALLOW_UNCHECKED)]
    settings, name = script_settings(overrides), target_name(rest)
    title = script_title(rest)
    _warn_of_no_record(settings, title)
    if keys := [word for word in rest[1:] if "=" in word and is_run_key(word.partition("=")[0])]:  # or the script's own
        say(f"mpt run: {' '.join(keys)}: given to the script; keys of mpt stand before its name.", sys.stderr)
    _choose_backend(settings.backend.name)
    is_module = rest[0] == "-m"
    again = [word for word in overrides if not word.startswith("run_dir=")]  # whose directory is there then
    options = [STRICT] * strict + [ALLOW_UNCHECKED] * allows_unchecked
    script = ScriptCommand(settings, title, ("run", *options, *again, *rest), tuple(overrides))

    def run() -> None:
        with _as_main_module(
            [name, *rest[1 + is_module :]], Path(name).resolve().parent if not is_module else Path.cwd()
        ):
            if is_module:
                runpy.run_module(name, run_name="__main__", alter_sys=True)
            else:
                runpy.run_path(os.path.abspath(name), run_name="__main__")

    seen, error = run_script(script, run)
    code = _script_exit_code(error, settings.policy.name)
    _print_notes(seen)
    if isinstance(error, (MptError, KeyboardInterrupt)):  # the former is mpt's, about what the script asked for
        raise error
    return code or (seen.exit_code if seen else OK) or (_judge_strictly(seen, allows_unchecked) if strict else OK)


def _warn_of_no_record(settings: Settings, title: str) -> None:
    """Print before the script begins, not at its first step, that nothing can be recorded in this place; DataError
    if the user asked for this `run_dir`."""
    try:
        RunDirectory.create(settings.run_dir, title).discard()
    except DataError as error:
        if settings.run_dir is not None:
            raise
        say(f"mpt run: the script runs, but nothing of it can be recorded: {error}", sys.stderr)


@dataclass(frozen=True)
class ScriptCommand:
    """A script or module, its name in runs, and the words after `mpt` that run it again, overrides among them."""

    settings: Settings
    title: str
    command: tuple[str, ...]
    overrides: tuple[str, ...]


def run_script(script: ScriptCommand, run: Callable[[], None]) -> tuple["ScriptRun | None", BaseException | None]:
    """Call `run` and wrap Keras when it is imported. Return what was recorded (None if Keras was not imported) and the
    exception (SystemExit included).
    """
    from mpt_cli.engine.backend import set_import_variables

    settings, folder, process = script.settings, Path.cwd(), os.getpid()
    backend = os.environ.get("KERAS_BACKEND")
    set_import_variables(replace(settings, backend=replace(settings.backend, name=backend or "tensorflow")))
    found: list[ScriptRun] = []
    error: BaseException | None = None
    with ExitStack() as stack:

        def attach(keras: Any) -> None:
            from mpt_cli.script import ScriptRun, watched

            is_seeded = any(word.startswith("seed=") for word in script.overrides)
            own = settings if os.getpid() == process else _of_process(settings)
            found.append(ScriptRun(own, script.title, script.command, folder, is_seeded))
            stack.enter_context(watched(found[0]))
            if backend is not None and (chosen := keras.backend.backend()) != backend:
                found[0].note(f"the script sets its own backend, {chosen}, which is used")

        def end_loops(error: BaseException | None) -> None:
            for seen in found:
                seen.end_loops(error)

        def end_forked() -> None:
            for seen in found:
                if seen.process != process:  # Keras was imported there
                    seen.end_loops(None)
                    _print_notes(seen)

        # called while this function holds it, at the end of each process that `multiprocessing` forks
        util.register_after_fork(end_forked, lambda action: util.Finalize(None, action, exitpriority=0))
        stack.enter_context(_spawning(script, folder))
        try:
            with heard_by_script(), at_forced_end(lambda end: end_loops(end.error)), mpt_cli.on_keras(attach):
                run()
        except (Exception, SystemExit, KeyboardInterrupt) as raised:
            error = raised
        end_loops(None if isinstance(error, SystemExit) else error)
    return (found[0] if found else None), error


@contextmanager
def _spawning(script: ScriptCommand, folder: Path) -> Iterator[None]:
    """Run processes that `multiprocessing` spawns under the same settings, each in its own run directories. Those of
    its fork server, which differ in nothing that they see, are spawned too."""
    words = [word for word in script.overrides if not word.startswith("run_dir=")]
    if script.settings.run_dir is not None:
        words.append(f"run_dir={folder / script.settings.run_dir}")
    command_line, of_server = spawn.get_command_line, vars(ForkServerProcess)["_Popen"]

    def other(**given: Any) -> list[str]:
        line: list[str] = command_line(**given)
        call = f"run_spawned({words!r}, {script.title!r}, {script.command!r}, {given!r})"
        line[line.index("-c") + 1] = f"from mpt_cli.verbs.run import run_spawned; {call}"
        return line

    spawn.get_command_line = other
    ForkServerProcess._Popen = vars(SpawnProcess)["_Popen"]  # type: ignore[method-assign]
    try:
        yield
    finally:
        spawn.get_command_line = command_line
        ForkServerProcess._Popen = of_server  # type: ignore[method-assign]


def run_spawned(words: list[str], title: str, command: tuple[str, ...], given: dict[str, Any]) -> NoReturn:
    """Run a process that `multiprocessing` spawned; `given` is what its parent passed on."""
    settings = _of_process(script_settings(words))
    script = ScriptCommand(settings, title, command, tuple(words))
    seen, error = run_script(script, lambda: spawn.spawn_main(**given))
    _print_notes(seen)
    if (
        isinstance(error, Terminated) or getattr(error, "code", None) == TERMINATED
    ):  # as `Pool.terminate` ends a process without us
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)
    assert error is not None  # spawn_main ends with SystemExit
    raise error


def _of_process(settings: Settings) -> Settings:
    """Return the settings with a run directory of this process."""
    if settings.run_dir is None:
        return settings
    return replace(settings, run_dir=f"{settings.run_dir}-process-{os.getpid()}")


@contextmanager
def _as_main_module(words: list[str], folder: Path) -> Iterator[None]:
    """Set `sys.argv` and `sys.path` as Python does for a script or a module."""
    argv, path = sys.argv, list(sys.path)
    sys.argv = words
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.argv, sys.path[:] = argv, path


def _print_notes(seen: "ScriptRun | None") -> None:
    for sentence in seen.sentences() if seen else []:
        say(f"mpt run: {sentence}", sys.stderr)


def _judge_strictly(seen: "ScriptRun | None", allow_unchecked: bool) -> int:
    """Return the exit code that --fail-on-verdict asks for, and print the reason."""
    reason = "there is no verdict, because no training of the script was recorded to its end"
    if seen is not None and seen.ended_runs:
        reason = seen.why_not_good(allow_unchecked)
    if reason:
        say(f"mpt run: --fail-on-verdict: {reason}", sys.stderr)
    return NUMERICAL if reason else OK


def _choose_backend(name: str) -> None:
    """Make Keras import this backend ("auto": the only installed one); ConfigError if it can't."""
    from mpt_cli.engine.backend import check_installed
    from mpt_cli.settings.load import installed_backend

    if name == "auto":
        name = installed_backend()
        if "KERAS_BACKEND" in os.environ or name == "tensorflow":
            return
    check_installed(name)
    keras = sys.modules.get("keras")
    if keras is not None and (loaded := keras.backend.backend()) != name:
        raise config_error(
            "backend.name", f"Keras is loaded with backend {loaded} already.", name, "Start a new process."
        )
    os.environ["KERAS_BACKEND"] = name


def split_script(words: list[str]) -> tuple[list[str], list[str]]:
    """Return the overrides before the script, and the script with its arguments.

    >>> split_script(["policy=mixed_float16", "train.py", "--rate=3"])
    (['policy=mixed_float16'], ['train.py', '--rate=3'])
    """
    overrides = [
        *takewhile(lambda word: word in (STRICT, ALLOW_UNCHECKED) or ("=" in word and not word.startswith("-")), words)
    ]
    rest = words[len(overrides) :]
    return overrides, rest[rest[:1] == ["--"] :]


def target_name(rest: list[str]) -> str:
    if not rest or rest == ["-m"]:
        raise config_error("script", "must be given: mpt run [key=value …] script.py args …, or -m module.")
    if rest[0] == "-m":
        return rest[1]
    if rest[0].endswith(".ipynb"):
        raise DataError(f"{rest[0]} is a notebook: `jupyter nbconvert --to script` makes a script of it.")
    if not Path(rest[0]).is_file():
        raise DataError(f"there is no script {rest[0]}.")
    return rest[0]


def script_title(rest: list[str]) -> str:
    """Return the name under which runs of a script or module are stored; raises as `target_name` does."""
    name = target_name(rest)
    return name.rpartition(".")[2] if rest[0] == "-m" else Path(name).stem


def script_settings(overrides: list[str]) -> Settings:
    """Return the settings for these overrides; ConfigError for keys that only the script can decide."""
    from mpt_cli.settings.checks import check_combinations
    from mpt_cli.settings.load import compose, read_files
    from mpt_cli.settings.overrides import parse_overrides
    from mpt_cli.settings.recipes import GroupChoice

    given = parse_overrides(overrides)
    given.choices.setdefault("policy", GroupChoice("policy", "mixed_float16", "policy"))
    composition = compose(read_files(given, is_script=True), given)
    own = {p.key: p for word in overrides if (p := _script_key_problem(word)) is not None}
    others = [p for p in composition.problems if p.key not in own or "." not in p.remedy]  # no key that is refused
    told = {problem.key for problem in others}
    settings, problems = composition.settings, [*(p for key, p in own.items() if key not in told), *others]
    if settings.policy.is_auto:
        problems.append(
            Problem(
                "policy.name",
                "needs a built model to choose from its layers; a script builds its model under one policy.",
                settings.policy.name,
                "Use mixed_float16, or mpt.fit(policy='auto_float16') in the script.",
            )
        )
    problems += check_combinations(settings, {problem.key for problem in problems})
    raise_problems(problems)
    return settings


def is_run_key(path: str) -> bool:
    """Return whether `mpt run` accepts this key; model, data and training are decided by the script."""
    return path in SINGLE_KEYS or acts_on_record(path)


def _script_key_problem(word: str) -> Problem | None:
    path, _, value = word.partition("=")
    if is_run_key(path):
        return None
    known = [*SINGLE_KEYS, "loss_scale.…", "logger.…", *(f"trainer.{name}" for name in RECORDED_TRAINER_KEYS)]
    inside = "Words of the script stand after its name; in it, a layer takes dtype='float32'."
    remedy = f"mpt run takes {', '.join(known)}. {inside}"
    return Problem(path, "must be set in the script itself.", value, remedy)


def _script_exit_code(error: BaseException | None, policy: str) -> int:
    """Return the exit code that the script would have had by itself.

    Its exception is printed as Python prints it, through a hook that the script may have set, followed by a hint where
    half precision may be the cause.
    """
    if error is None or isinstance(error, (MptError, KeyboardInterrupt)):
        return OK
    if isinstance(error, SystemExit):
        if isinstance(error.code, str):
            print(error.code, file=sys.stderr)
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    frames = user_frames(error)
    sys.excepthook(type(error), error.with_traceback(frames), frames)
    if policy != "float32" and re.search("float16|half", f"{error}{error.__cause__}{error.__context__}"):
        layer = failed_layer(error)
        cure = "dtype='float32' there keeps it out, keras.ops.cast gives what it mixes one dtype"
        where = " If the loss mixes dtypes, make the output layers with dtype='float32'."
        where = where if layer is None else f" It broke in {describe_layer(layer)}; {cure}."
        say(
            f"mpt run: the dtype policy {policy} comes from mpt, not the script.{where} policy=float32 runs the script "
            "as it is.",
            sys.stderr,
        )
    return SCRIPT_RAISED
