"""Find the parser and the function of a verb, take out words that argparse must not see, and print for all verbs.

A verb NAME is an entry of `VERBS` and `configure_NAME(parser)` in `arguments`, and `run_NAME(arguments)` in its module,
which returns the exit code. The module is imported when the verb runs: help and completion need none.
"""

import importlib
import inspect
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from itertools import takewhile
from typing import Any, TextIO

from mpt_cli.errors import Problem, config_error, nearest, printable, raise_problems
from mpt_cli.files import strict_json
from mpt_cli.verbs import arguments
from mpt_cli.version import SCHEMA_VERSION


def say(text: str, stream: TextIO | None = None) -> None:
    """Print a text, without control codes that came from a file, a name or the environment."""
    print(printable(text), file=stream, flush=True)


def verb_parser(verb: str) -> arguments.Parser:
    """Return the parser of one verb, without importing the verb itself."""
    configure = getattr(arguments, f"configure_{verb.strip('_')}")
    parser = arguments.Parser(prog=f"mpt {verb}", description=inspect.getdoc(configure))
    configure(parser)
    arguments.set_short_usage(parser)
    return parser


def load_verb(verb: str) -> Callable[[Namespace], int]:
    """Import the module of a verb and return the function that runs it."""
    module = importlib.import_module(f"mpt_cli.verbs.{arguments.VERBS[verb][0]}")
    run: Callable[[Namespace], int] = getattr(module, f"run_{verb.strip('_')}")
    return run


_HYDRA_OPTIONS = {  # what Hydra's users type, and the word that does it here
    "-m --multirun": "`mpt sweep` runs every combination of the values given: mpt sweep conf=… seed=0,1",
    "-c --cfg": "`mpt check --show conf=…` prints the resolved configuration",
    "-cn --config-name": "conf=NAME or conf=./FILE.yaml chooses a recipe",
    "-cp --config-path": "--config-dir DIR adds a folder with groups and recipes",
    "--resolve": "`mpt check --show conf=…` resolves interpolations",
    "-i --info": "`mpt check --show conf=…` prints the configuration, `mpt list groups` where each file lies",
    "-r --run": "`mpt train conf=…` runs it",
    "-sc --shell-completion": "`mpt doctor --completion bash` prints the script",
    "--experimental-rerun": "`mpt train conf=RUN_DIR/config.yaml` repeats a run",
}


def check_options(parser: ArgumentParser, words: list[str]) -> None:
    """Raise ConfigError for options of Hydra's and for options named like a key, and say what to write instead."""
    answers = {option: answer for options, answer in _HYDRA_OPTIONS.items() for option in options.split()}
    given = [word.partition("=")[0] for word in words]
    raise_problems(
        Problem(word, "is an option of Hydra's own.", None, f"{answers[word]}.")
        for word in given
        if word in answers and word not in parser._option_string_actions
    )
    script = next((word for word in words if word.endswith(".py") and "=" not in word), "")
    unknown = [word for word in given if word[:2] == "--" and not nearest(word, parser._option_string_actions)]
    if script and unknown and parser.prog == "mpt compare":
        remedy = f"Options of a script come after it, with -- before it: mpt compare … -- {script} {unknown[0]}"
        raise_problems([Problem(unknown[0], "is no option of mpt compare.", None, remedy)])
    if unknown and any(action.dest in ("overrides", "words") for action in parser._actions):
        from mpt_cli.settings.schema import remedy_for

        remedies = {word: remedy_for(word[2:].replace("-", "_"), None) for word in unknown}
        raise_problems(
            Problem(word, "is no option; keys are set as KEY=VALUE.", None, remedy)
            for word, remedy in remedies.items()
            if remedy.startswith("Did you mean")
        )


def options_before_script(words: list[str]) -> list[str]:
    """
    >>> options_before_script(["policy=float32", "--strict", "train.py", "--epochs", "3"])
    ['policy=float32', '--strict']
    """
    return [*takewhile(lambda word: word != "-m" and ("=" in word or word.startswith("-")), words)]


CONFIG_DIR_OPTIONS = ("--config-dir", "-cd")


def split_config_directories(words: list[str]) -> tuple[list[str], list[str]]:
    """Return the folders given with --config-dir, and the other words; ConfigError where no folder follows.

    >>> split_config_directories(["conf=a", "--config-dir", "x", "--config-dir=y"])
    (['x', 'y'], ['conf=a'])
    """
    folders, others, left = [], list[str](), iter(words)
    for word in left:
        option, equals, value = word.partition("=")
        if option not in CONFIG_DIR_OPTIONS:
            others.append(word)
            continue
        folder = value if equals else next(left, "")
        if not folder:
            raise config_error("--config-dir", "must be followed by a folder.")
        folders.append(folder)
    return folders, others


def minimum_problems(minimum: int, **given: float | None) -> list[Problem]:
    """Return a problem for each option that is below `minimum`; options are given by name, with _ for -."""
    return [
        Problem(f"--{name.replace('_', '-')}", f"must be >= {minimum}.", value)
        for name, value in given.items()
        if value is not None and not value >= minimum
    ]


def problems_of_jobs(arguments: Namespace) -> list[Problem]:
    """Return what is wrong with --jobs and --timeout."""
    problems = minimum_problems(1, jobs=arguments.jobs)
    if arguments.timeout is not None and not arguments.timeout > 0:
        problems.append(Problem("--timeout", "must be > 0 seconds.", arguments.timeout))
    return problems


def print_json(content: dict[str, Any]) -> None:
    """Print one strict JSON object, with its schema_version."""
    print(strict_json({"schema_version": SCHEMA_VERSION, **content}, indent=2))
