"""What `mpt reproduce` shows and writes: progress, a table of expected, got and verdict, JUnit XML for CI, and on
GitHub annotations and a summary of the job.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO
from xml.etree import ElementTree

from rich.console import Console
from rich.table import Table
from rich.text import Text

from mpt_cli.errors import DataError, printable
from mpt_cli.redaction import without_secrets
from mpt_cli.reproduce.collection import Collection, Unreadable
from mpt_cli.reproduce.reproduction import Reproduction
from mpt_cli.runs.directory import write_atomic
from mpt_cli.runs.provenance import format_environment
from mpt_cli.settings.limits import read_file

MOST_DIFFERENCES = 12
MOST_LINES = 40  # of what a run that failed had said


class ResultPrinter:
    """Plain lines that read the same in a terminal, a pipe and a CI log."""

    def __init__(self, stream: TextIO) -> None:
        self.console = Console(file=stream, highlight=False, markup=False)
        self.count = self.done = 0

    def line(self, text: str) -> None:
        """It stays one line, whatever the width."""
        self.console.print(printable(text), soft_wrap=True)

    def start(self, found: Collection) -> None:
        self.count = len(found.targets)
        for name, reason in found.left_out.items():
            self.line(f"left out: {name} {reason}")
        for error in found.errors:
            self.line(f"error: {error}")

    def list_targets(self, found: Collection) -> None:
        """What would run, and what would be expected of it."""
        for target in found.targets:
            self.line(f"{target.name}: {', '.join(map(str, target.expect))}")
        self.line(f"{len(found.targets)} to run, {len(found.errors)} unreadable, {len(found.left_out)} left out")

    def tell(self, result: Reproduction) -> None:
        self.done += 1
        missed = sum(not check.passed for check in result.checks)
        verdict = f"{missed} of {len(result.checks)} expectations missed" if missed else "reproduced"
        verdict = verdict if result.checks else "ran, with nothing expected of it yet"
        if result.attempts > 1:
            self.count += 1
            verdict += f" at attempt {result.attempts}" + (": flaky" if result.is_flaky else "")
        self.line(f"[{self.done}/{self.count}] {result.target.name}: {verdict}")

    def finish(self, results: Sequence[Reproduction]) -> None:
        table = Table(box=None, pad_edge=False, header_style="dim")
        table.add_column("run", no_wrap=True)
        for title in ("what", "expected", "got", ""):
            table.add_column(title, overflow="fold")
        for result in results:
            for check in result.checks:
                verdict = Text("ok", "green") if check.passed else Text("MISSED", "bold red")
                table.add_row(result.target.name, check.name, Text(check.expected), check.got_text, verdict)
        if table.rows:
            self.console.print()
            self.console.print(table)
        for result in results:
            if not result.passed:
                self._explain(result)

    def _explain(self, result: Reproduction) -> None:
        self.line(f"\n{result.target.name}: look into {result.child.run.path}")
        for check in result.checks:
            if check.unreported:
                self.line(f"  {check.name} was expected, {check.unreported}")
        if result.child.exit_code and result.child.words:
            self.line(f"  {result.child.words}")
        if result.target.environment is None:
            self.line(f"  it ran on {format_environment(result.child.environment)}")
            return
        for remark in result.remarks:
            self.line(f"  {remark}")
        self.line("  what is different from the first run:" if result.differences else
                  "  the environment is that of the first run")  # fmt: skip
        for line in result.differences[:MOST_DIFFERENCES]:
            self.line(f"    {line}")
        if len(result.differences) > MOST_DIFFERENCES:
            self.line(f"    and {len(result.differences) - MOST_DIFFERENCES} more, in environment.json")


def check_junit(path: Path) -> None:
    """Its folder is there from now on; DataError where the file can't be written, before the runs take their time."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        is_new = not path.exists()
        path.open("ab").close()
        if is_new:
            path.unlink()
    except OSError as error:
        raise DataError(f"{path} can't be written: {error.strerror}. Give another --junit.") from error


def write_junit(path: Path, results: Sequence[Reproduction], found: Collection) -> None:
    """DataError where the file can't be written. What was left out stands in it as skipped, what can't be read as an
    error.
    """
    root = ElementTree.Element("testsuites", name="mpt reproduce")
    for result in results:
        _add_suite(root, result)
    for name, reason in found.left_out.items():
        _add_case(root, name, "skipped", reason)
    for error in found.errors:
        _add_case(root, error.name, "error", str(error))
    for target in found.targets[len(results) :]:
        _add_case(root, target.name, "skipped", "not run: another failed before it")
    ElementTree.indent(root)
    text = ElementTree.tostring(root, encoding="unicode", xml_declaration=False)
    write_atomic(path, f'<?xml version="1.0" encoding="UTF-8"?>\n{text}\n')


def _add_case(root: ElementTree.Element, name: str, kind: str, message: str) -> None:
    """A suite of one case, which did not run."""
    counts = {"failures": "0", "errors": str(int(kind == "error")), "skipped": str(int(kind == "skipped"))}
    suite = ElementTree.SubElement(root, "testsuite", {"name": name, "tests": "1", **counts})
    case = ElementTree.SubElement(suite, "testcase", classname=name, name="run")
    ElementTree.SubElement(case, kind, message=_printable(message))


def _add_suite(root: ElementTree.Element, result: Reproduction) -> None:
    name = result.target.name
    failures = sum(not check.passed for check in result.checks)
    counts = {"tests": str(len(result.checks)), "failures": str(failures), "errors": "0", "skipped": "0"}
    seconds = str((result.child.summary or {}).get("seconds", 0.0))
    suite = ElementTree.SubElement(root, "testsuite", {"name": name, "time": seconds, **counts})
    properties = ElementTree.SubElement(suite, "properties")
    for key, value in _properties(result).items():
        ElementTree.SubElement(properties, "property", name=key, value=_printable(value))
    for index, check in enumerate(result.checks):  # the run is the first case's time, and a look at its summary theirs
        case = ElementTree.SubElement(
            suite, "testcase", classname=name, name=check.name, time="0" if index else seconds
        )
        if not check.passed:
            failure = ElementTree.SubElement(case, "failure", message=_printable(str(check)), type="mismatch")
            details = [str(check), f"run: {result.child.run.path}", result.child.words, *result.differences]
            failure.text = _printable("\n".join(details))
    if failures:
        ElementTree.SubElement(suite, "system-out").text = _printable(_said(result))


def _properties(result: Reproduction) -> dict[str, str]:
    """What a reader of the verdicts may want to group them by."""
    machine = result.child.environment
    found = {
        "run_dir": result.child.run.path, "seed": result.target.seed, "tags": ", ".join(result.target.tags),
        "attempts": result.attempts, "flaky": str(result.is_flaky).lower(), "exit_code": result.child.exit_code,
        "environment": format_environment(machine) if machine else None,
    }  # fmt: skip
    return {name: str(value) for name, value in found.items() if value not in (None, "")}


def _said(result: Reproduction) -> str:
    """The last lines of the run's console."""
    try:
        text = read_file(result.child.run.console_log, errors="replace")
    except OSError:
        text = result.child.words
    return "\n".join(text.splitlines()[-MOST_LINES:])


def write_for_github(results: Sequence[Reproduction], errors: Sequence[Unreadable], stream: TextIO) -> None:
    """Annotations on the recipes that failed where GitHub's Actions run this, and a summary of the job in Markdown."""
    if os.environ.get("GITHUB_ACTIONS") == "true":
        for line in _annotations(results, errors):
            print(printable(line), file=stream)
    if summary := os.environ.get("GITHUB_STEP_SUMMARY"):
        try:
            with Path(summary).open("a", encoding="utf-8") as file:
                file.write(printable(_markdown(results, errors)))
        except OSError as error:
            raise DataError(f"GITHUB_STEP_SUMMARY={summary} can't be written: {error.strerror}.") from error


def _annotations(results: Sequence[Reproduction], errors: Sequence[Unreadable]) -> list[str]:
    """
    >>> _annotations([], [Unreadable("a,b.yaml", [])])
    ['::error file=a%2Cb.yaml,title=mpt reproduce a%2Cb.yaml::']
    """
    failed = [(result.target, [str(check) for check in result.checks if not check.passed])
              for result in results if not result.passed]  # fmt: skip
    found = [(target.recipe or Path(target.name), target.name, "\n".join(lines)) for target, lines in failed]
    found += [(Path(error.name), error.name, str(error)) for error in errors]
    lines = [f"::error file={_escaped(str(path), ':,')},title=mpt reproduce {_escaped(name, ':,')}::{_escaped(text)}"
             for path, name, text in found]  # fmt: skip
    flaky = [result for result in results if result.is_flaky]
    return [*lines, *(f"::warning title=mpt reproduce::{_escaped(result.target.name)} passed at attempt "
                      f"{result.attempts}: flaky" for result in flaky)]  # fmt: skip


def _escaped(text: str, also: str = "") -> str:
    """As commands of a workflow are written: line breaks, and in properties colons and commas, by their codes."""
    for sign in "%\r\n" + also:
        text = text.replace(sign, f"%{ord(sign):02X}")
    return text


def _markdown(results: Sequence[Reproduction], errors: Sequence[Unreadable]) -> str:
    rows = [
        (result.target.name, check.name, check.expected, check.got_text, "ok" if check.passed else "**missed**")
        for result in results
        for check in result.checks
    ]
    rows += [(error.name, "", "", str(error), "**error**") for error in errors]
    cells = [" | ".join(cell.replace("|", "\\|").replace("\n", "<br>") for cell in row) for row in rows]
    lines = ["### mpt reproduce", "", "| run | what | expected | got | |", "|---|---|---|---|---|"]
    return "\n".join([*lines, *(f"| {row} |" for row in cells), "", ""])


def _printable(text: str) -> str:
    """XML has no control characters, which the last words of a broken run may hold."""
    text = without_secrets(text)
    return "".join(sign if sign.isprintable() or sign == "\n" else "?" for sign in text)
