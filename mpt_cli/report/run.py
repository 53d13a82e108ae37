"""A run as a Python object, read from its directory, for a program or a notebook."""

import html
from functools import cached_property
from pathlib import Path

from mpt_cli.files import JsonObject
from mpt_cli.report.history import STEP_FIELDS, read_history
from mpt_cli.report.run_page import headline, run_page
from mpt_cli.runs.directory import RunDirectory, read_json, read_lines


def load_run(path: str | Path) -> "Run":
    """Return the run in this directory, also one that still trains or was killed; DataError where there is none."""
    return Run(RunDirectory.open(path).path)


class Run:
    """A run, given its directory. Files are read at the first access; `Run(path)` reads again."""

    def __init__(self, path: Path) -> None:
        self.directory = RunDirectory(path)

    @property
    def path(self) -> Path:
        """Return the run directory."""
        return self.directory.path

    @cached_property
    def summary(self) -> JsonObject:
        """Return the content of summary.json; DataError where the run has not ended or was killed."""
        return read_json(self.directory.summary_json)

    @property
    def verdict(self) -> str:
        """Return the word for how the run went: healthy, warm-up skips only, …."""
        return str(self.summary["verdict"])

    @property
    def explanation(self) -> str:
        """Return the verdict in a sentence, with what to do."""
        return str(self.summary["explanation"])

    @property
    def status(self) -> str:
        """Return finished, stopped, interrupted, terminated or failed."""
        return str(self.summary["status"])

    @property
    def exit_code(self) -> int:
        """Return the exit code that `mpt train` would have; 0 where all is well."""
        return int(self.summary["exit_code"])

    @cached_property
    def events(self) -> list[JsonObject]:
        """Return every skipped step and every change of the scale, in order, as `pandas.DataFrame` takes them."""
        return list(read_lines(self.directory.events_jsonl))

    @cached_property
    def lines(self) -> list[JsonObject]:
        """Return every line of metrics.jsonl, as `pandas.DataFrame` takes them."""
        return list(read_lines(self.directory.metrics_jsonl))

    @cached_property
    def history(self) -> dict[str, list[float]]:
        """Return each metric's values at the ends of the epochs, as Keras's `History.history` does."""
        curves = read_history(self.path).epochs
        return {name: curve.ys for name, curve in curves.items() if name == "learning_rate" or name not in STEP_FIELDS}

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r}: {headline(read_history(self.path))})"

    def _repr_html_(self) -> str:
        """Return the page of the run for a notebook, in a frame."""
        page = html.escape(run_page(read_history(self.path)))
        return f'<iframe srcdoc="{page}" style="width:100%;height:640px;border:0"></iframe>'
