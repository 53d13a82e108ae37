"""What `mpt reproduce` shows and writes: progress, a table of expected, got and verdict, and JUnit XML for CI."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TextIO
from xml.etree import ElementTree

from mpt_cli.errors import naming
from mpt_cli.files import read_file, write_atomic
from mpt_cli.redaction import without_secrets
from mpt_cli.report.tables import print_table, text_columns
from mpt_cli.reproduce.collection import Collection
from mpt_cli.reproduce.reproduction import Reproduction
from mpt_cli.runs.provenance import format_environment
from mpt_cli.settings.search_path import shell_command
from mpt_cli.telemetry.console import PrintableConsole
from mpt_cli.telemetry.health_and_verdict import GOOD_VERDICTS, UNCHECKED

MOST_DIFFERENCES = 12
MOST_LINES = 40  # of what a run that failed had said


class ResultPrinter:
    """Plain lines that read the same in a terminal, a pipe and a CI log."""

    def __init__(self, stream: TextIO) -> None:
        self.console = PrintableConsole(stream, markup=False)
        self.count = self.done = 0

    def line(self, text: str) -> None:
        """Print a line without breaking it, whatever the width."""
        self.console.print(text, soft_wrap=True)

    def start(self, found: Collection) -> None:
        self.count = len(found.targets)
        for name, reason in found.left_out.items():
            self.line(f"left out: {name} {reason}")
        for error in found.errors:
            self.line(f"error: {error}")

    def list_targets(self, found: Collection) -> None:
        """List what would run, and what would be expected of it."""
        for target in found.targets:
            self.line(f"{target.name}: {', '.join(map(str, target.expect))}")
            self.line(target.missing) if target.missing else None
        self.line(f"{len(found.targets)} to run, {len(found.errors)} unreadable, {len(found.left_out)} left out")

    def show_result(self, result: Reproduction) -> None:
        missed = sum(not check.passed for check in result.checks)
        words = f"{missed} of {len(result.checks)} expectations missed" if missed else "reproduced"
        words = words if result.checks else "ran, without expectations"
        words = result.failure if result.fault else words
        verdict = (result.child.summary or {}).get("verdict", "")
        if result.passed and "verdict" not in result.target.expect and verdict not in ("", *GOOD_VERDICTS, UNCHECKED):
            words += f", though its verdict is {verdict}"
        if result.attempts == 1:
            self.done += 1
            self.line(f"[{self.done}/{self.count}] {result.target.name}: {words}")
        else:
            self.line(f"[attempt {result.attempts}] {result.target.name}: {words}{': flaky' * result.is_flaky}")

    def finish(self, results: Sequence[Reproduction]) -> None:
        rows = [
            (result.target.name, check.name, check.expected, check.got_text, _word(result, check.passed))
            for result in results
            for check in result.checks
        ]
        if rows:
            self.console.print()
            print_table(
                text_columns(["run", "what", "expected", "got", ""]),
                rows,
                self.console,
                lambda row: "" if row[-1].startswith("ok") else "bold red",
            )
        if len(results) > 1:
            broken = sum(bool(result.fault) for result in results)
            flaky = sum(result.is_flaky for result in results)
            good = (
                f"{sum(result.passed for result in results)} reproduced{f' ({flaky} of them flaky)' if flaky else ''}"
            )
            missed = sum(not result.passed and not result.fault for result in results)
            self.line(f"\n{good}, {missed} missed, {broken} without a result")
        for result in results:
            if result.earlier or not result.passed:
                where = result.child.run.path
                outcome = "flaky" if result.passed else f"see {where}" if where.is_dir() else result.failure
                self.line(f"\n{result.target.name}: {outcome}")
                for line in [*_attempt_lines(result), *([] if result.passed else _failure_lines(result))]:
                    self.line(f"  {line}")


def _attempt_lines(result: Reproduction) -> Iterator[str]:
    for attempt, failure in enumerate(result.earlier, 1):
        yield f"attempt {attempt}: {failure}"
    if result.earlier and {*result.earlier} == {result.failure}:
        yield "all attempts failed in the same way, so another one is not likely to help"


def _failure_lines(result: Reproduction) -> Iterator[str]:
    """Yield what is known of a run that failed, and the command that runs it again."""
    child = result.child
    if child.summary:
        yield f"verdict {child.summary['verdict']}: {child.summary['explanation']}"
    yield from (f"{check.name} was expected, {check.unreported}" for check in result.checks if check.unreported)
    if child.exit_code:
        yield from child.words.splitlines()[-MOST_LINES:]
    if child.environment and result.target.environment is None:
        yield f"it ran on {format_environment(child.environment)}"
    elif child.environment:
        same = "the environment is that of the first run (your own code is not compared)"
        yield "what is different from the first run:" if result.differences else same
        yield from (f"  {difference}" for difference in result.differences[:MOST_DIFFERENCES])
        if len(result.differences) > MOST_DIFFERENCES:
            yield f"  and {len(result.differences) - MOST_DIFFERENCES} more, in environment.json"
    yield f"again: {_command(result)}"


def _command(result: Reproduction) -> str:
    """Return the command that runs this target again."""
    conf, *changes = result.target.words
    name = conf.removeprefix("conf=")
    if result.target.recipe is None:
        name = str(Path(name).parent)  # a run directory, whose config.yaml it is
    return shell_command("reproduce", name, *changes)


def _word(result: Reproduction, passed: bool) -> str:
    if result.fault:
        return "NO RESULT"
    return (f"ok at attempt {result.attempts}: flaky" if result.is_flaky else "ok") if passed else "MISSED"


def check_junit(path: Path) -> None:
    """Make the folder of the file; DataError where the file can't be written, before the runs take their time."""
    with naming(path, "Give another --junit."):
        path.parent.mkdir(parents=True, exist_ok=True)
        is_new = not path.exists()
        path.open("ab").close()
        if is_new:
            path.unlink()


def write_junit(path: Path, found: Collection, results: Sequence[Reproduction], is_dry_run: bool = False) -> None:
    """Write a suite for each run. A target that did not run is skipped, with the reason; a recipe that can't be read
    and a run that crashed or left no summary is an error. DataError where the file can't be written.
    """
    root = ElementTree.Element("testsuites", name="mpt reproduce")
    for result in results:
        _add_suite(root, result)
    ran = {result.target.name for result in results}
    reason = "nothing ran: --dry-run" if is_dry_run else "not run: interrupted before"
    unrun = {target.name: reason for target in found.targets if target.name not in ran}
    unread = [(name, "skipped", reason) for name, reason in {**found.left_out, **unrun}.items()]
    for name, kind, text in [*unread, *((error.name, "error", str(error)) for error in found.errors)]:
        suite = _suite(root, name, 1, **{"errors" if kind == "error" else kind: 1})
        _add(_add(suite, "testcase", classname=name, name="run"), kind, text, message=text.partition("\n")[0])
    ElementTree.indent(root)
    text = ElementTree.tostring(root, encoding="unicode", xml_declaration=False)
    write_atomic(path, f'<?xml version="1.0" encoding="UTF-8"?>\n{text}\n')


def _add(parent: ElementTree.Element, tag: str, text: str = "", /, **attributes: object) -> ElementTree.Element:
    """Add an element, without the control characters that a failed run may have printed and XML does not allow."""
    found = ElementTree.SubElement(parent, tag, {name: _printable(str(value)) for name, value in attributes.items()})
    found.text = _printable(text) or None
    return found


def _suite(root: ElementTree.Element, name: str, tests: int, **counts: object) -> ElementTree.Element:
    return _add(root, "testsuite", name=name, **{"tests": tests, "failures": 0, "errors": 0, "skipped": 0, **counts})


def _add_suite(root: ElementTree.Element, result: Reproduction) -> None:
    """Add the suite of one run. A failure is a missed expectation; an error is a run that has no result."""
    name, child = result.target.name, result.child
    missed = [check for check in result.checks if not check.passed]
    kind, type_ = ("error", "no result") if result.fault else ("failure", "mismatch")
    seconds = (child.summary or {}).get("seconds", 0.0)
    suite = _suite(root, name, len(result.checks), **{f"{kind}s": len(missed), "time": seconds})
    properties = _add(suite, "properties")
    for key, value in _properties(result).items():
        if value not in (None, ""):
            _add(properties, "property", name=key, value=value)
    for index, check in enumerate(result.checks):  # the run is the first case's time, and a look at its summary theirs
        case = _add(suite, "testcase", classname=name, name=check.name, time=0 if index else seconds)
        if not check.passed:
            message = result.failure if result.fault else str(check)
            earlier = [f"attempt {attempt}: {failure}" for attempt, failure in enumerate(result.earlier, 1)]
            where = [f"run: {child.run.path}"] if child.run.path.is_dir() else []
            details = [message, *where, child.words, *earlier, *result.differences]
            _add(case, kind, "\n".join(details), message=message, type=type_)
    if missed:
        _add(suite, "system-out", _last_lines(result))


def _properties(result: Reproduction) -> dict[str, object]:
    """Return what a reader of the results may want to group them by."""
    machine = result.child.environment
    return {
        "run_dir": result.child.run.path if result.child.run.path.is_dir() else None,
        "seed": result.target.seed,
        "tags": ", ".join(result.target.tags),
        "attempts": result.attempts,
        "flaky": "true" if result.is_flaky else None,
        "exit_code": result.child.exit_code,
        "earlier_failures": "\n".join(result.earlier),
        "environment": format_environment(machine) if machine else None,
    }


def _last_lines(result: Reproduction) -> str:
    """Return the last lines of the run's console."""
    try:
        text = read_file(result.child.run.console_log, errors="replace")
    except OSError:
        text = result.child.words
    return "\n".join(text.splitlines()[-MOST_LINES:])


def _printable(text: str) -> str:
    return "".join(sign if sign.isprintable() or sign == "\n" else "?" for sign in without_secrets(text))
