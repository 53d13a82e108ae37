"""What `mpt reproduce` shows and writes: progress, a table of expected, got and verdict, and JUnit XML for CI."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TextIO
from xml.etree import ElementTree

from rich.console import Console
from rich.table import Table
from rich.text import Text

from mpt_cli.errors import DataError
from mpt_cli.reproduce.reproduction import ReproduceTarget, Reproduction
from mpt_cli.runs.directory import write_atomic
from mpt_cli.runs.provenance import format_environment

MOST_DIFFERENCES = 12


class ResultPrinter:
    """Plain lines that read the same in a terminal, a pipe and a CI log."""

    def __init__(self, stream: TextIO) -> None:
        self.console = Console(file=stream, highlight=False, markup=False)
        self.line = partial(self.console.print, soft_wrap=True)  # a line stays one line, whatever the width
        self.count = self.done = 0

    def start(self, targets: Sequence[ReproduceTarget], left_out: Mapping[str, str]) -> None:
        self.count = len(targets)
        for name, reason in left_out.items():
            self.line(f"left out: {name} {reason}")

    def tell(self, result: Reproduction) -> None:
        self.done += 1
        missed = sum(not check.passed for check in result.checks)
        verdict = f"{missed} of {len(result.checks)} expectations missed" if missed else "reproduced"
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


def write_junit(path: Path, results: Sequence[Reproduction], left_out: Mapping[str, str]) -> None:
    """DataError where the file can't be written. Recipes that were left out stand in it as skipped."""
    root = ElementTree.Element("testsuites", name="mpt reproduce")
    for result in results:
        _add_suite(root, result)
    for name, reason in left_out.items():
        suite = ElementTree.SubElement(root, "testsuite", name=name, tests="1", failures="0", errors="0", skipped="1")
        case = ElementTree.SubElement(suite, "testcase", classname=name, name="run")
        ElementTree.SubElement(case, "skipped", message=reason)
    ElementTree.indent(root)
    text = ElementTree.tostring(root, encoding="unicode", xml_declaration=False)
    write_atomic(path, f'<?xml version="1.0" encoding="UTF-8"?>\n{text}\n')


def _add_suite(root: ElementTree.Element, result: Reproduction) -> None:
    name = result.target.name
    failures = sum(not check.passed for check in result.checks)
    counts = {"tests": str(len(result.checks)), "failures": str(failures), "errors": "0", "skipped": "0"}
    seconds = str((result.child.summary or {}).get("seconds", 0.0))
    suite = ElementTree.SubElement(root, "testsuite", {"name": name, "time": seconds, **counts})
    for check in result.checks:
        case = ElementTree.SubElement(suite, "testcase", classname=name, name=check.name)
        if not check.passed:
            failure = ElementTree.SubElement(case, "failure", message=_printable(str(check)), type="mismatch")
            details = [str(check), f"run: {result.child.run.path}", result.child.words, *result.differences]
            failure.text = _printable("\n".join(details))


def _printable(text: str) -> str:
    """XML has no control characters, which the last words of a broken run may hold."""
    return "".join(sign if sign.isprintable() or sign == "\n" else "?" for sign in text)
