"""Reproductions as JUnit XML, which CI systems show: a suite per target, a case per expectation."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from xml.etree import ElementTree

from mpt_cli.errors import DataError
from mpt_cli.runs.atomic import write_atomic
from mpt_cli.runs.reproduction import Reproduction


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
