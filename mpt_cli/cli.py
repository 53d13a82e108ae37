"""The command line: finds the verb, runs it, and turns what it raises into sentences and an exit code."""

import argparse
import errno
import io
import os
import signal
import sys
import traceback
from collections.abc import Sequence

from mpt_cli.errors import (
    BAD_CONFIG,
    BAD_DATA,
    BUG,
    OK,
    ConfigError,
    MptError,
    UserCodeError,
    did_you_mean,
    printable,
)
from mpt_cli.files import fall_silent, strict_json
from mpt_cli.redaction import note_word
from mpt_cli.settings.search_path import add_config_directories
from mpt_cli.settings.yaml_reader import MOST_PROBLEMS
from mpt_cli.signals import SIGNAL_EXIT_CODES, format_end, raised_signal, signal_of
from mpt_cli.verbs import check_options, load_verb, options_before_script, split_config_directories, verb_parser
from mpt_cli.verbs.arguments import LISTED_VERBS, MERGED_VERBS, VERBS, Parser
from mpt_cli.version import __version__

EXIT_CODE_HELP = """exit codes: 0 done, 1 a bug in mpt, 2 bad configuration or usage, 3 data or files,
            4 numerical failure, 5 expectation not met, 130 interrupted,
            143 terminated or killed; mpt run: or that of the script"""

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EIO)


def main(argv: Sequence[str] | None = None) -> int:
    """Run `mpt` with these arguments and return the exit code; the one place where errors become codes."""
    if {"_ARGCOMPLETE", "COMP_LINE"} <= os.environ.keys():  # a shell asks what it could offer
        from mpt_cli.verbs.completion import complete

        complete()
    arguments = list(sys.argv[1:] if argv is None else argv)
    _tolerate_narrow_encodings()
    for word in arguments:
        note_word(word)
    variables, search_path = dict(os.environ), list(sys.path)
    code = OK
    try:
        code = _exit_code(arguments)
        if sys.stdout is not None:  # it is None when the caller closed it
            sys.stdout.flush()  # flush here, so that a closed pipe is noticed while it can be handled
        return code
    except KeyboardInterrupt as interrupt:
        sent = raised_signal() or signal_of(interrupt) or signal.SIGINT
        _say(f"\nmpt: {format_end(sent)}" + (f": {interrupt}" if str(interrupt) else ""))
        return SIGNAL_EXIT_CODES[sent]
    except BrokenPipeError:
        fall_silent(sys.stdout)
        return code
    except Exception as error:
        return explain(error, arguments)
    finally:  # a program that calls `main` goes on afterwards
        os.environ.clear()
        os.environ.update(variables)
        sys.path[:] = search_path


def _exit_code(arguments: list[str]) -> int:
    try:
        return _run(arguments)
    except SystemExit as stop:  # argparse, after its own message
        return stop.code if isinstance(stop.code, int) else BAD_CONFIG


def explain(error: Exception, arguments: list[str]) -> int:
    """Print to standard error what ended the program, and return the exit code."""
    if (number := raised_signal()) is not None:  # compiled code made another exception of it
        _say(f"\nmpt: {format_end(number)}")
        return SIGNAL_EXIT_CODES[number]
    if isinstance(error, MptError):
        _say(_message(arguments[0], error))
        if "--json" in arguments:
            _print_json(error)
        return error.exit_code
    if reason := _system_error(error):
        _say(f"mpt {arguments[0]}: {reason}")
        return BAD_DATA
    _say("".join(traceback.format_exception(error)))
    _say(f"This is a bug in mpt {__version__}: please report it with the lines above.")
    return BUG


def _system_error(error: Exception) -> str:
    """Return what the system lacks or refuses, in a sentence; empty for any other error."""
    is_of_fork = isinstance(error, BlockingIOError) and not error.filename
    if is_of_fork or (isinstance(error, RuntimeError) and "can't start new thread" in str(error)):
        return f"the system starts no more threads or processes: {error}. `ulimit -u` shows the limit."
    if isinstance(error, OSError) and error.errno in _NO_ROOM:  # of a file, or of what standard output leads to
        fall_silent(sys.stdout)
        return f"its output can't be written: {error.strerror}"
    if isinstance(error, MemoryError):
        return f"there is no memory left: {str(error) or 'it needs more than there is'}."
    if isinstance(error, FileNotFoundError) and error.filename is None:
        return "the working directory is gone. Change to one that exists."
    if isinstance(error, OSError) and error.filename:
        return f"{str(error.filename)[:200]}: {error.strerror}."
    return ""


def _say(text: str) -> None:
    """Print to standard error, without control codes that a name or a file brought in.

    If standard error can't be written, only the exit code remains."""
    if sys.stderr is None:
        return
    try:
        print(printable(text), file=sys.stderr, flush=True)
    except OSError:
        fall_silent(sys.stderr)


def _run(arguments: list[str]) -> int:
    if not arguments:
        print(_top_parser().format_help(), file=sys.stderr)
        return BAD_CONFIG
    verb, rest = arguments[0], arguments[1:]
    if verb in MERGED_VERBS:
        _say(f"mpt {verb} is now `mpt {MERGED_VERBS[verb]}`; the next version drops the old verb.")
        verb, option = MERGED_VERBS[verb].split()
        rest = [option, *rest]
    if verb == "--version":  # argparse would hide that it can't be written
        print(f"mpt {__version__}")
        return OK
    if verb.startswith("-"):
        _top_parser().parse_args([verb])  # --help ends here
    if verb not in VERBS:
        remedy = did_you_mean(verb, LISTED_VERBS) or f"Verbs: {', '.join(LISTED_VERBS)}."
        _top_parser().error(f"there is no verb {verb!r}. {remedy}")
    folders, parser = list[str](), verb_parser(verb)
    end = rest.index("--") if verb == "compare" and "--" in rest else len(rest)
    rest, script = rest[:end], rest[end + 1 :]  # argparse would parse options after --
    if verb == "run":  # arguments after the script belong to the script
        check_options(parser, options_before_script(rest))
    else:
        folders, rest = split_config_directories(rest)
        check_options(parser, rest)
    add_config_directories(folders)
    words = parser.parse_intermixed_args(rest)  # --help, and what argparse refuses, ends here: no verb is loaded
    words.config_dir = folders
    if script:
        words.overrides += script
    return load_verb(verb)(words)


def _top_parser() -> argparse.ArgumentParser:
    lines = [f"  {verb:<11}{meaning}" for verb, meaning in LISTED_VERBS.items()]
    parser = Parser(
        prog="mpt",
        usage="mpt VERB ...",
        description="Mixed-precision training for Keras. `mpt VERB --help` shows what a verb takes.",
        epilog="\n".join(["verbs:", *lines]),
    )
    merged = [f"  {old:<15}mpt {new}" for old, new in MERGED_VERBS.items()]
    parser.notes = "\n".join(["old words:", *merged, "", EXIT_CODE_HELP])
    parser.add_argument("--version", action="version", version=f"mpt {__version__}", help=argparse.SUPPRESS)
    return parser


def _message(verb: str, error: MptError) -> str:
    """Return the message of an error: one problem a line, and an exception of the user's code with its traceback."""
    if isinstance(error, ConfigError):
        count = len(error.problems)
        listed = [problem.shown for problem in error.problems]
        listed[MOST_PROBLEMS:] = [f"… and {count - MOST_PROBLEMS:,} more"] if count > MOST_PROBLEMS else []
        listed = [f"mpt {verb}: {count:,} problems:", *listed] if count > 1 else [f"mpt {verb}: {listed[0]}"]
        return "\n".join(listed).replace("\n", "\n  ")
    text = f"mpt {verb}: {error}"
    if isinstance(error, UserCodeError) and error.__cause__ is not None:
        from mpt_cli.user_code import user_traceback

        text += "\n\n" + user_traceback(error.__cause__)
    return text


def _tolerate_narrow_encodings() -> None:
    """Write letters that a terminal lacks as \\xf6, so that no message fails for one."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _print_json(error: MptError) -> None:
    """Print the error as JSON to standard output, where scripts read it."""
    problems = [problem.as_dict() for problem in error.problems] if isinstance(error, ConfigError) else []
    found = {"status": "error", "exit_code": error.exit_code, "error": str(error), "problems": problems}
    try:
        print(strict_json(found), flush=True)
    except BrokenPipeError:
        fall_silent(sys.stdout)
