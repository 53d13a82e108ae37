"""What `mpt reproduce` shows: a line while it works, then a table of expected, got and verdict."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from mpt_cli.runs.environment import environment_line
from mpt_cli.runs.reproduction import Reproduction
from mpt_cli.runs.targets import Target

MOST_DIFFERENCES = 12


class Reporter:
    """Plain lines that read the same in a terminal, a pipe and a CI log."""

    def __init__(self, stream: TextIO) -> None:
        self.console = Console(file=stream, highlight=False, markup=False)
        self.line = partial(self.console.print, soft_wrap=True)  # a line stays one line, whatever the width
        self.count = self.done = 0

    def start(self, targets: Sequence[Target], left_out: Mapping[str, str]) -> None:
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
                table.add_row(result.target.name, check.name, Text(check.expected), check.got_words, verdict)
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
            self.line(f"  it ran on {environment_line(result.child.environment)}")
            return
        for remark in result.remarks:
            self.line(f"  {remark}")
        self.line("  what is different from the first run:" if result.differences else
                  "  the environment is that of the first run")  # fmt: skip
        for line in result.differences[:MOST_DIFFERENCES]:
            self.line(f"    {line}")
        if len(result.differences) > MOST_DIFFERENCES:
            self.line(f"    and {len(result.differences) - MOST_DIFFERENCES} more, in environment.json")
