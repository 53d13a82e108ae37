"""The output of `mpt reproduce`: progress, a table of expected and actual values, and JUnit XML for CI."""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TextIO
from xml.etree import ElementTree

from mpt_cli.errors import naming
from mpt_cli.files import write_atomic
from mpt_cli.redaction import without_secrets
from mpt_cli.report.tables import print_table, text_columns
from mpt_cli.reproduce.collection import FINGERPRINT, Collection, ReproduceTarget
from mpt_cli.reproduce.reproduction import TIME_DEPENDENT, Outcomes, Reproduction, first_difference, recorded
from mpt_cli.runs.directory import RunDirectory
from mpt_cli.settings.overrides import resume_command
from mpt_cli.settings.search_path import shell_command
from mpt_cli.telemetry.console import PrintableConsole
from mpt_cli.telemetry.health_and_verdict import GOOD_VERDICTS, UNCHECKED

MOST_OUTPUT_LINES = 40  # last lines of a failed run's output
NOT_BEGUN = "had not begun"


class ResultPrinter:
    """Plain lines that read the same in a terminal, a pipe and a CI log."""

    def __init__(self, stream: TextIO, found: Collection) -> None:
        self.console = PrintableConsole(stream, markup=False)
        self.found, self.done = found, 0
        for name, reason in found.left_out.items():
            self.line(f"left out: {name} {reason}")
        for word in found.unmatched:
            self.line(f"-k: {word} is part of no name or tag")

    def line(self, text: str) -> None:
        """Print a line without breaking it, whatever the width."""
        self.console.print(text, soft_wrap=True)

    def list_targets(self) -> None:
        """List what would run, and what would be expected of it."""
        found = self.found
        for target in found.targets:
            self.line(f"{target.name}: {', '.join(map(str, target.expect))}")
            if target.missing:
                self.line(target.missing)
        self.line(f"{len(found.targets)} to run, {len(found.errors)} unreadable, {len(found.left_out)} left out")

    def show_result(self, result: Reproduction) -> None:
        words = result.failure or ("reproduced" if result.target.recipe else "reproduced from its config.yaml")
        words = "; ".join(filter(None, [words, result.target.code]))
        verdict = (result.child.summary or {}).get("verdict", "")
        if result.passed and "verdict" not in result.target.expect and verdict not in ("", *GOOD_VERDICTS, UNCHECKED):
            words += f", though its verdict is {verdict}"
        self.done += result.attempts == 1
        progress = f"{self.done}/{len(self.found.targets)}" if result.attempts == 1 else f"attempt {result.attempts}"
        self.line(f"[{progress}] {result.target.name}: {words}{': flaky' * result.is_flaky}")

    def show_unfinished(self, outcomes: Outcomes) -> None:
        """Show what has no result after a signal, and how to finish what had begun."""
        left = []
        for number, target in enumerate(self.found.targets, 1):
            if number not in outcomes.results:
                begun = outcomes.commands.get(number)
                self.line(f"{target.name}: {_to_finish(begun.subject) if begun else NOT_BEGUN}")
                left.append(target)
        if left:
            self.line(f"to run the rest (a --junit file would hold these alone): {_command(*left)}")

    def finish(self, results: Sequence[Reproduction]) -> None:
        rows = [
            (result.target.name, check.name, check.expected, check.got_text, "ok" if check.passed else missed)
            for result in results
            for missed in ["NO RESULT" if result.crash else "MISSED"]
            for check in result.checks
        ]
        if not rows:
            return
        columns = text_columns(["run", "what", "expected", "got", ""])
        self.console.print()
        print_table(columns, rows, self.console, lambda row: "" if row[-1] == "ok" else "bold red")
        counts = Counter(map(_outcome, results)) + Counter(
            {"unreadable": len(self.found.errors), "left out": len(self.found.left_out)}
        )
        self.line(f"\n{', '.join(f'{count} {outcome}' for outcome, count in counts.items())}")
        for result in results:
            if result.earlier or not result.passed:
                self.line(f"\n{result.target.name}: {_outcome(result)}")
                for line in _details(result):
                    self.line(f"  {line}")


def _outcome(result: Reproduction) -> str:
    if not result.passed:
        return ("without a result" if result.crash else "missed") + " and not repeatable" * bool(result.unlike)
    failed = " as a run that failed" if result.child.code and not result.target.recipe else ""
    return "reproduced only at a later attempt (flaky)" if result.is_flaky else f"reproduced{failed}"


def _details(result: Reproduction) -> Iterator[str]:
    """Yield why attempts failed, facts about a failed run, and the command that runs it again."""
    child, ended = result.child, result.ended
    for attempt, each in enumerate(result.earlier, 1):
        yield f"attempt {attempt}: {each.failure}{f' (run: {each.child.run_dir})' if each.child.run_dir else ''}"
    if result.unlike:
        yield f"{'beside that, ' * (len(ended) < result.attempts)}{result.unlike}"
    for each in ended[:-1]:
        if difference := first_difference(each.child.run, ended[-1].child.run, recorded):
            yield f"first difference of attempt {ended[-1].attempts} from {each.attempts}: {difference}"
    if not result.unlike and 1 < result.attempts == len(ended) and (child.summary or {}).get(FINGERPRINT):
        meaning = (
            "what was missed depends on the machine and its load"
            if {check.name for check in result.checks if not check.passed} <= TIME_DEPENDENT - {"verdict"}
            else "probably not flaky"
        )
        yield f"{result.attempts} attempts gave the same weights and metrics: {meaning}"
    if result.passed:
        return
    if result.target.code:
        yield result.target.code
    if child.run_dir:
        yield f"run: {child.run_dir}"
        if child.timeout:
            yield _to_finish(child.run)
    if child.summary and not (result.crash or child.summary["explanation"] in child.words):  # a rule ended the run
        yield f"verdict {child.summary['verdict']}: {child.summary['explanation']}"
    yield from (f"{check.name} was expected, {check.unreported}" for check in result.checks if check.unreported)
    if child.exit_code:
        yield from child.words.splitlines()[-MOST_OUTPUT_LINES:]
    if result.differences:
        yield "changed since the first run (a cause only if the run is repeatable; untracked code is not compared):"
        yield from (f"  {difference}" for difference in result.differences[:12])
    elif result.target.environment:
        what = ", package or data" if child.environment else " or package"
        yield f"no commit{what} changed since the first run: untracked code has, or the run is not repeatable"
    yield f"again: {_command(result.target)}"


def _to_finish(run: RunDirectory) -> str:
    return f"cut off; to finish it: {resume_command(run.path)}"


def _command(*targets: ReproduceTarget) -> str:
    """Return the command that runs these targets of one reproduction again."""
    return shell_command("reproduce", *(target.name for target in targets), *targets[0].words[1:], *targets[0].options)


def write_junit(path: Path, found: Collection, outcomes: Outcomes) -> None:
    """Write a suite for each target. What is left out is skipped; a recipe that can't be read, a
    run that crashed or left no summary, and a target without a result so far is an error, because this process may be
    killed before it has one. DataError where the file can't be written.
    """
    root = ElementTree.Element("testsuites", name="mpt reproduce")
    for number, target in enumerate(found.targets, 1):
        if number in outcomes.results:
            _add_result(root, outcomes.results[number])
        else:
            command = outcomes.commands.get(number)
            lines = ["no result: mpt reproduce ended first", _to_finish(command.subject) if command else NOT_BEGUN]
            _add_suite(root, target.name, [("run", "error", lines)], run_dir=command.subject.path if command else "")
    for name, why in found.left_out.items():
        _add_suite(root, name, [("run", "skipped", [why])])
    for error in found.errors:
        _add_suite(root, error.name, [("run", "error", [str(error)])])
    ElementTree.indent(root)
    text = ElementTree.tostring(root, encoding="unicode")
    with naming(path, "Give another --junit."):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, f'<?xml version="1.0" encoding="UTF-8"?>\n{text}\n')


def _add_result(root: ElementTree.Element, result: Reproduction) -> None:
    """Add the suite of one run. A failure is a missed expectation; an error is a run that has no result."""
    child, target, details = result.child, result.target, [*_details(result)]
    kind = "error" if result.crash else "failure"
    cases = [
        (check.name, "" if check.passed else kind, [result.failure if result.crash else str(check), *details])
        for check in result.checks
    ]
    seconds = round(sum(each.child.seconds for each in (*result.earlier, result)), 3)
    suite = _add_suite(
        root,
        target.name,
        cases,
        seconds,
        run_dir=child.run_dir,
        seed="" if target.seed is None else target.seed,
        tags=", ".join(target.tags),
        attempts=result.attempts,
        flaky="true" if result.is_flaky else "",
        repeatable="false" if result.unlike else "",
        code=target.code,
        exit_code=child.code,
    )
    if result.is_flaky:
        _add(suite, "system-out", "\n".join(details))


def _add_suite(
    root: ElementTree.Element,
    name: str,
    cases: Sequence[tuple[str, str, Sequence[str]]],
    seconds: float = 0.0,
    **properties: object,
) -> ElementTree.Element:
    """Add a suite with its properties and cases: each has a name, its outcome unless it passed, and lines about it."""
    kinds = Counter(kind for _, kind, _ in cases)
    counts = {"failures": kinds["failure"], "errors": kinds["error"], "skipped": kinds["skipped"]}
    suite = _add(root, "testsuite", name=name, tests=len(cases), time=seconds, **counts)
    group = _add(suite, "properties")
    for key, value in properties.items():
        if value != "":
            _add(group, "property", name=key, value=value)
    each = round(seconds / len(cases), 3)  # no case took longer than another: all look at one run
    for case_name, kind, lines in cases:
        case = _add(suite, "testcase", classname=name, name=case_name, time=each)
        if kind:
            _add(case, kind, "\n".join(lines), message=lines[0].partition("\n")[0])
    return suite


def _add(parent: ElementTree.Element, tag: str, text: str = "", /, **attributes: object) -> ElementTree.Element:
    """Add an element, without the control characters that a failed run may have printed and XML does not allow."""
    found = ElementTree.SubElement(parent, tag, {name: _printable(str(value)) for name, value in attributes.items()})
    found.text = _printable(text) or None
    return found


def _printable(text: str) -> str:
    return "".join(sign if sign.isprintable() or sign == "\n" else "?" for sign in without_secrets(text))
