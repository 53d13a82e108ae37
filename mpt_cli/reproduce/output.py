"""What `mpt reproduce` shows and writes: progress, a table of expected, got and verdict, JUnit XML for CI, and on
GitHub annotations and a summary of the job.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO
from xml.etree import ElementTree

from rich.table import Table
from rich.text import Text

from mpt_cli.errors import DataError, printable
from mpt_cli.jobs.capacity import fewer_cores, usable_cores
from mpt_cli.redaction import without_secrets
from mpt_cli.report.tables import plain_lines, text_columns
from mpt_cli.reproduce.collection import Collection
from mpt_cli.reproduce.history import History, Judgement
from mpt_cli.reproduce.reproduction import Reproduction
from mpt_cli.runs.directory import write_atomic
from mpt_cli.runs.provenance import cores_of, format_environment
from mpt_cli.settings.limits import read_file
from mpt_cli.telemetry.console import PrintableConsole

MOST_DIFFERENCES = 12
MOST_LINES = 40  # of what a run that failed had said


class ResultPrinter:
    """Plain lines that read the same in a terminal, a pipe and a CI log."""

    def __init__(self, stream: TextIO) -> None:
        self.console = PrintableConsole(stream, markup=False)
        self.count = self.done = 0

    def line(self, text: str) -> None:
        """It stays one line, whatever the width."""
        self.console.print(text, soft_wrap=True)

    def start(self, found: Collection) -> None:
        self.count = len(found.targets)
        for name, reason in found.left_out.items():
            self.line(f"left out: {name} {reason}")
        for error in found.errors:
            self.line(f"error: {error}")
        for target in found.targets:
            cores = cores_of(target.environment or {})
            if cores is not None and fewer_cores(cores, []):
                why = "as the first run had: on more it adds up in another order"
                self.line(f"{target.name}: on {cores} of {usable_cores()} cores, {why}")

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
        rows = [
            (result.target.name, check.name, check.expected, check.got_text, "ok" if check.passed else "MISSED")
            for result in results
            for check in result.checks
        ]
        if rows:
            self.console.print()
            self._show(rows)
        for result in results:
            if not result.passed:
                self._explain(result)

    def _show(self, rows: Sequence[Sequence[str]]) -> None:
        """In a terminal as wide as that is, with cells of several lines; piped, a check is one line, however long."""
        columns = text_columns(["run", "what", "expected", "got", ""])
        if not self.console.is_terminal:
            for line in plain_lines(columns, rows):
                self.line(line)
            return
        table = Table(box=None, pad_edge=False, header_style="dim")
        for column in columns:
            table.add_column(column.title, overflow="fold")
        for *cells, verdict in rows:
            table.add_row(*map(Text, cells), Text(verdict, "green" if verdict == "ok" else "bold red"))
        self.console.print(table)

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


@dataclass(frozen=True)
class ReproduceReport:
    """What was asked for and what became of it. A drift is a warning, or with `fails_on_drift` an error."""

    found: Collection
    results: Sequence[Reproduction] = ()
    history: History | None = None
    fails_on_drift: bool = False
    is_dry_run: bool = False

    def judgement(self, result: Reproduction) -> Judgement | None:
        """What the history says of the run."""
        return self.history.findings.get(result.child.run.path) if self.history else None

    @property
    def drifted(self) -> list[tuple[Reproduction, Judgement]]:
        judged = [(result, self.judgement(result)) for result in self.results]
        return [(result, judgement) for result, judgement in judged if judgement and judgement.drifts]

    @property
    def history_lines(self) -> list[str]:
        return self.history.lines(self.results) if self.history else []


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


def write_junit(path: Path, outcome: ReproduceReport) -> None:
    """DataError where the file can't be written. What did not run stands in it as skipped, with the reason; what can't
    be read, and a run that left no summary, as an error.
    """
    root = ElementTree.Element("testsuites", name="mpt reproduce")
    for result in outcome.results:
        _add_suite(root, result, outcome)
    for name, reason in outcome.found.left_out.items():
        _add_case(root, name, "skipped", reason)
    for error in outcome.found.errors:
        _add_case(root, error.name, "error", str(error))
    why = "nothing ran: --dry-run" if outcome.is_dry_run else "not run: another failed before it"
    for target in outcome.found.targets[len(outcome.results) :]:
        _add_case(root, target.name, "skipped", why)
    ElementTree.indent(root)
    text = ElementTree.tostring(root, encoding="unicode", xml_declaration=False)
    write_atomic(path, f'<?xml version="1.0" encoding="UTF-8"?>\n{text}\n')


def _add_case(root: ElementTree.Element, name: str, kind: str, message: str) -> None:
    """A suite of one case, which did not run."""
    counts = {"failures": "0", "errors": str(int(kind == "error")), "skipped": str(int(kind == "skipped"))}
    suite = ElementTree.SubElement(root, "testsuite", {"name": name, "tests": "1", **counts})
    case = ElementTree.SubElement(suite, "testcase", classname=name, name="run")
    ElementTree.SubElement(case, kind, message=_printable(message))


def _add_suite(root: ElementTree.Element, result: Reproduction, outcome: ReproduceReport) -> None:
    name, child, judgement = result.target.name, result.child, outcome.judgement(result)
    missed = sum(not check.passed for check in result.checks)
    history = judgement.line(name) if judgement else ""
    has_drifted = judgement is not None and bool(judgement.drifts)
    is_failed_by_it = has_drifted and outcome.fails_on_drift
    kind = "error" if child.fault else "failure"
    counts = {"tests": len(result.checks), "failures": 0, "errors": 0, "skipped": 0, f"{kind}s": missed}
    counts = {**counts, "tests": counts["tests"] + is_failed_by_it, "failures": counts["failures"] + is_failed_by_it}
    seconds = str((child.summary or {}).get("seconds", 0.0))
    suite = ElementTree.SubElement(
        root, "testsuite", {"name": name, "time": seconds, **{key: str(count) for key, count in counts.items()}}
    )
    properties = ElementTree.SubElement(suite, "properties")
    for key, value in {**_properties(result), **({"history": history} if history else {})}.items():
        ElementTree.SubElement(properties, "property", name=key, value=_printable(value))
    for index, check in enumerate(result.checks):  # the run is the first case's time, and a look at its summary theirs
        case = ElementTree.SubElement(
            suite, "testcase", classname=name, name=check.name, time="0" if index else seconds
        )
        if not check.passed:
            details = [str(check), f"run: {child.run.path}", child.words, *result.differences]
            _add_verdict(case, kind, str(check), details)
    if is_failed_by_it:
        case = ElementTree.SubElement(suite, "testcase", classname=name, name="history", time="0")
        _add_verdict(case, "failure", history, [history, f"run: {child.run.path}"])
    said = [*([_said(result)] if missed else []), *([history] if has_drifted else [])]
    if said:
        ElementTree.SubElement(suite, "system-out").text = _printable("\n".join(said))


def _add_verdict(case: ElementTree.Element, kind: str, message: str, details: Sequence[str]) -> None:
    """A failure is of what was expected; an error, of a run that came to nothing to hold it against."""
    type_ = {"failure": "mismatch", "error": "no summary"}[kind]
    verdict = ElementTree.SubElement(case, kind, message=_printable(message), type=type_)
    verdict.text = _printable("\n".join(details))


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


def write_for_github(outcome: ReproduceReport, stream: TextIO) -> None:
    """Annotations on the recipes that failed or drifted where GitHub's Actions run this, and a summary of the job in
    Markdown.
    """
    if os.environ.get("GITHUB_ACTIONS") == "true":
        for line in _annotations(outcome):
            print(printable(line), file=stream)
    if summary := os.environ.get("GITHUB_STEP_SUMMARY"):
        try:
            with Path(summary).open("a", encoding="utf-8") as file:
                file.write(printable(_markdown(outcome)))
        except OSError as error:
            raise DataError(f"GITHUB_STEP_SUMMARY={summary} can't be written: {error.strerror}.") from error


def _annotations(outcome: ReproduceReport) -> list[str]:
    """
    >>> from mpt_cli.reproduce.collection import Unreadable
    >>> _annotations(ReproduceReport(Collection(errors=[Unreadable("a,b.yaml", [])])))
    ['::error file=a%2Cb.yaml,title=mpt reproduce a%2Cb.yaml::']
    """
    failed = [(result.target, [str(check) for check in result.checks if not check.passed])
              for result in outcome.results if not result.passed]  # fmt: skip
    found = [_annotation("error", target.recipe, target.name, "\n".join(lines)) for target, lines in failed]
    found += [_annotation("error", None, error.name, str(error)) for error in outcome.found.errors]
    found += [f"::warning title=mpt reproduce::{_escaped(result.target.name)} passed at attempt "
              f"{result.attempts}: flaky" for result in outcome.results if result.is_flaky]  # fmt: skip
    kind = "error" if outcome.fails_on_drift else "warning"
    found += [_annotation(kind, result.target.recipe, result.target.name, judgement.line(result.target.name))
              for result, judgement in outcome.drifted]  # fmt: skip
    return found


def _annotation(kind: str, file: Path | None, name: str, text: str) -> str:
    """`file` None: what is named is one."""
    return (f"::{kind} file={_escaped(str(file or Path(name)), ':,')},title=mpt reproduce {_escaped(name, ':,')}"
            f"::{_escaped(text)}")  # fmt: skip


def _escaped(text: str, also: str = "") -> str:
    """As commands of a workflow are written: line breaks, and in properties colons and commas, by their codes."""
    for sign in "%\r\n" + also:
        text = text.replace(sign, f"%{ord(sign):02X}")
    return text


def _markdown(outcome: ReproduceReport) -> str:
    rows = [
        (result.target.name, check.name, check.expected, check.got_text, "ok" if check.passed else "**missed**")
        for result in outcome.results
        for check in result.checks
    ]
    rows += [(error.name, "", "", str(error), "**error**") for error in outcome.found.errors]
    cells = [" | ".join(cell.replace("|", "\\|").replace("\n", "<br>") for cell in row) for row in rows]
    lines = ["### mpt reproduce", "", "| run | what | expected | got | |", "|---|---|---|---|---|"]
    said = [f"- {line}" for line in outcome.history_lines]
    return "\n".join([*lines, *(f"| {row} |" for row in cells), "", *([*said, ""] if said else []), ""])


def _printable(text: str) -> str:
    """XML has no control characters, which the last words of a broken run may hold."""
    text = without_secrets(text)
    return "".join(sign if sign.isprintable() or sign == "\n" else "?" for sign in text)
