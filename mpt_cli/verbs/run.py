"""`run`: an unchanged Keras script under a policy, with loss scaling, record, health rules and verdict."""

import argparse
import importlib.util
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from mpt_cli.errors import NUMERICAL, OK, ConfigError, DataError, MptError, Problem
from mpt_cli.settings.references import user_frames
from mpt_cli.settings.schema import RECORDED_TRAINER_KEYS, Settings
from mpt_cli.verbs import say

if TYPE_CHECKING:
    from mpt_cli.script import ScriptRun

SECTIONS = ("policy", "loss_scale", "logger")
SINGLE_KEYS = ("run_dir", "backend", "backend.name")
STRICT, ALLOW_UNCHECKED = "--fail-on-verdict", "--allow-unchecked"  # anywhere before the script
SCRIPT_RAISED = 1  # as Python ends for an exception that nobody caught


def run_run(arguments: argparse.Namespace) -> int:
    overrides, rest = _split([*arguments.words, *(["-m", *arguments.module] if arguments.module is not None else [])])
    strict = arguments.fail_on_verdict or STRICT in overrides
    allows_unchecked = arguments.allow_unchecked or ALLOW_UNCHECKED in overrides
    overrides = [word for word in overrides if word not in (STRICT, ALLOW_UNCHECKED)]
    settings, name = _settings(overrides), _target_name(rest)
    named = settings.backend.name
    asked = any(word.startswith(("backend=", "backend.name=")) for word in overrides) and named != "auto"
    backend = named if asked else _backend_without_tensorflow()
    if backend is not None:
        _choose_backend(backend)
    from mpt_cli.engine.backend import keras_import, set_import_variables

    chosen = backend or os.environ.get("KERAS_BACKEND")
    on_it = replace(settings, backend=replace(settings.backend, name=chosen or settings.backend.name))
    set_import_variables(on_it)
    with keras_import(chosen or "the backend that it chooses"):
        import keras  # noqa: F401
    from mpt_cli.script import ScriptTarget, run_script

    target = ScriptTarget(name, tuple(rest[2:] if rest[0] == "-m" else rest[1:]), rest[0] == "-m")
    again = [word for word in overrides if not word.startswith("run_dir=")]  # whose directory is there then
    options = [STRICT] * strict + [ALLOW_UNCHECKED] * allows_unchecked
    seen, error = run_script(target, settings, ["run", *options, *again, *rest])
    code = _code_of(error)
    for sentence in seen.sentences():
        say(f"mpt run: {sentence}", sys.stderr)
    if isinstance(error, (MptError, KeyboardInterrupt)):  # the former is ours, of what can't be scaled or recorded
        raise error
    return code or seen.exit_code or (_judge_strictly(seen, allows_unchecked) if strict else OK)


def _judge_strictly(seen: "ScriptRun", allow_unchecked: bool) -> int:
    """As --fail-on-verdict has it."""
    if reason := seen.why_not_good(allow_unchecked):
        say(f"mpt run: --fail-on-verdict: {reason}", sys.stderr)
    return NUMERICAL if reason else OK


def _backend_without_tensorflow() -> str | None:
    """The installed backend where Keras would choose TensorFlow, which is not there; None where Keras can choose."""
    if "KERAS_BACKEND" in os.environ or importlib.util.find_spec("tensorflow") is not None:
        return None
    from mpt_cli.settings.load import installed_backend

    return installed_backend()


def _choose_backend(name: str) -> None:
    """Have Keras imported on this backend; ConfigError where that can't be."""
    from mpt_cli.engine.backend import check_installed

    check_installed(name)
    keras = sys.modules.get("keras")
    if keras is not None and (loaded := keras.backend.backend()) != name:
        raise ConfigError(Problem("backend.name", f"Keras is loaded with backend {loaded} already.", name,
                                  "Start a new process."))
    os.environ["KERAS_BACKEND"] = name


def _split(words: list[str]) -> tuple[list[str], list[str]]:
    """The overrides before the script, and the script with its own words.

    >>> _split(["policy=mixed_float16", "train.py", "--rate=3"])
    (['policy=mixed_float16'], ['train.py', '--rate=3'])
    """
    others = (place for place, word in enumerate(words)
              if word not in (STRICT, ALLOW_UNCHECKED) and ("=" not in word or word.startswith("-")))  # fmt: skip
    count = next(others, len(words))
    return words[:count], words[count:]


def _target_name(rest: list[str]) -> str:
    if not rest or rest == ["-m"]:
        raise ConfigError(Problem("script", "must be given: mpt run [key=value …] script.py args …, or -m module."))
    if rest[0] == "-m":
        return rest[1]
    if not Path(rest[0]).is_file():
        raise DataError(f"there is no script {rest[0]}.")
    return rest[0]


def _settings(overrides: list[str]) -> Settings:
    """The settings for these words; ConfigError for keys that are the script's own affair."""
    from mpt_cli.settings.checks import check_combinations
    from mpt_cli.settings.load import build_settings, compose_tree, resolve_tree
    from mpt_cli.settings.overrides import parse_overrides
    from mpt_cli.settings.recipes import GroupChoice

    given = parse_overrides(overrides)
    problems = list(given.problems)
    told = {problem.key for problem in problems}
    problems += [p for word in overrides if (p := _foreign(word)) is not None and p.key not in told]
    given.choices.setdefault("policy", GroupChoice("policy", "mixed_float16", "policy"))
    tree, _ = compose_tree([], given, problems, set())
    if problems:
        raise ConfigError(problems)
    settings = build_settings(resolve_tree(tree, problems), set(), problems)
    if settings.policy.is_auto:
        problems.append(Problem("policy.name", "is chosen for the layers of a model that is built, and a script builds "
                                "its own under one policy.", settings.policy.name, "Use mixed_float16, or "
                                "mpt.fit(policy='auto_float16') in the script."))  # fmt: skip
    problems += check_combinations(settings, {problem.key for problem in problems})
    if problems:
        raise ConfigError(problems)
    return settings


def is_taken(path: str) -> bool:
    """Whether `mpt run` takes this key; what it trains, and on what, is the script's own affair."""
    section, _, name = path.partition(".")
    if section == "trainer":
        return name in RECORDED_TRAINER_KEYS
    return path in SINGLE_KEYS or (section in SECTIONS and (section != "policy" or name in ("", "name")))


def _foreign(word: str) -> Problem | None:
    path, _, value = word.partition("=")
    if is_taken(path):
        return None
    of_trainer = [f"trainer.{name}" for name in RECORDED_TRAINER_KEYS]
    known = ["policy", *(f"{section}.…" for section in SECTIONS if section != "policy"), *SINGLE_KEYS, *of_trainer]
    own = 'In the script, a layer takes dtype="float32". ' if path.startswith("policy.") else ""
    return Problem(path, "is the script's own affair.", value, f"{own}mpt run takes {', '.join(known)}.")


def _code_of(error: BaseException | None) -> int:
    """What the script itself would have ended with; its own exception is shown as Python shows it, by what the script
    may have for that.
    """
    if error is None or isinstance(error, (MptError, KeyboardInterrupt)):
        return OK
    if isinstance(error, SystemExit):
        if isinstance(error.code, str):
            print(error.code, file=sys.stderr)
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    frames = user_frames(error)
    sys.excepthook(type(error), error.with_traceback(frames), frames)
    return SCRIPT_RAISED
