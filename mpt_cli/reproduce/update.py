"""`mpt reproduce --update`: what the runs came to, written into their recipes as new expectations, but for bounds that
a run which has learned nothing would hold to as well.
"""

import difflib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Self

from mpt_cli.errors import DataError
from mpt_cli.report.history import read_lines
from mpt_cli.reproduce.reproduction import Reproduction
from mpt_cli.runs.directory import HEADER, RunDirectory, read_json
from mpt_cli.runs.expectations import KeyPath, first_figures, new_figures, updated_text, write_recipe
from mpt_cli.telemetry.format import format_number

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Beginning:
    """What is known of a run before it has learned anything: among how many classes it guesses, and which loss it has
    then; None where that is not known.
    """

    num_classes: int | None = None
    loss: float | None = None

    @classmethod
    def of(cls, run: RunDirectory) -> Self:
        """From its record. The loss is the first that was logged, and of a crossentropy at least ln(classes), that of
        equal chances; a run with a single line of metrics began with it, and ended.
        """
        try:
            header = read_json(run.header_json, HEADER)
        except DataError:
            header = {}
        classes = header.get("num_classes")
        lines = list(islice(read_lines(run.metrics_jsonl), 2))
        known = [float(lines[0]["loss"])] if len(lines) == 2 and lines[0].get("loss") is not None else []
        known += [math.log(classes)] if classes and "crossentropy" in header.get("loss", "") else []
        return cls(classes, max(filter(math.isfinite, known), default=None))

    def why_weak(self, name: str, side: str, bound: float, steps: int) -> str:
        """Why a run of so many steps that learns nothing would hold to a `bound`, the min or max of what `name` came
        to; empty where it would not, as far as is known.

        >>> Beginning(10, 2.3).why_weak("val_accuracy", "min", 0.09, 345)
        'guessing among 10 classes comes to 0.1000'
        """
        guess = 1 / self.num_classes if self.num_classes else 0.0
        if side == "min" and name.endswith("accuracy") and bound <= guess:
            among = f"among {self.num_classes} classes " if self.num_classes else ""
            return f"guessing {among}comes to {format_number(guess)}"
        if side == "max" and name.endswith("loss") and self.loss is not None and bound >= self.loss:
            return f"the run began with a loss of {format_number(self.loss)}"
        return f"the run has {steps:,} steps" if (name, side) == ("skipped_steps", "max") and bound >= steps else ""


def update_recipes(results: Sequence[Reproduction], tell: Tell) -> bool:
    """Whether every recipe now expects what came out; a run that failed gives nothing to write. `tell` hears of what is
    written, and of what is not and why.
    """
    by_recipe: dict[Path, list[Reproduction]] = {}
    for result in results:
        if result.target.recipe is not None:
            by_recipe.setdefault(result.target.recipe, []).append(result)
    updated = [_update(path, seeds, tell) for path, seeds in by_recipe.items()]  # all of them, also after a failure
    return all(updated)


def _update(path: Path, seeds: Sequence[Reproduction], tell: Tell) -> bool:
    """`seeds` are the results of one recipe."""
    expect = seeds[0].target.expect
    reached = {name: [_as_number(check.got) for result in seeds for check in result.checks if check.name == name]
               for name in dict.fromkeys(check.name for result in seeds for check in result.checks if not check.passed)
               }  # fmt: skip
    if not reached and expect:
        return True
    is_lost = any(name not in expect or None in got for name, got in reached.items())
    summaries = [_with_numbers(result.child.summary or {}) for result in seeds]
    if is_lost or not all(summaries):
        tell(f"{path}: not updated, because the run failed or has no such value")
        return False
    figures = new_figures(expect, reached) if expect else first_figures(summaries)
    weak = _weak_bounds(figures, Beginning.of(seeds[0].child.run), summaries[0])
    for place, why in weak.items():
        tell(f"{path}: expect.{'.'.join(place)} is not written: it would be {figures[place]}, and {why}")
    _write(path, {place: figure for place, figure in figures.items() if place not in weak}, not expect, tell)
    return not (expect and weak)


def _as_number(value: Any) -> Any:
    """What strict JSON has as a text because it has no such number."""
    return float(value) if value in ("NaN", "Infinity", "-Infinity") else value


def _with_numbers(summary: Mapping[str, Any]) -> dict[str, Any]:
    metrics = {name: _as_number(value) for name, value in summary.get("metrics", {}).items()}
    return {**summary, "metrics": metrics} if summary else {}


def _weak_bounds(
    figures: Mapping[KeyPath, Any], beginning: Beginning, summary: Mapping[str, Any]
) -> dict[KeyPath, str]:  # fmt: skip
    reasons = {}
    for place, figure in figures.items():
        numbers = [*figure.values()] if isinstance(figure, Mapping) else [figure]
        if any(isinstance(number, float) and not math.isfinite(number) for number in numbers):
            reasons[place] = "nothing can be held against that"
        elif place[-1] in ("min", "max"):
            name = place[0].removeprefix("best_metrics.")
            reasons[place] = beginning.why_weak(name, place[-1], figure, int(summary["steps_seen"]))
    return {place: why for place, why in reasons.items() if why}


def _write(path: Path, figures: Mapping[KeyPath, Any], is_new: bool, tell: Tell) -> None:
    if not figures:
        return
    before = path.read_text(encoding="utf-8")
    after = updated_text(before, figures, is_new)
    tell("\n".join(difflib.unified_diff(before.splitlines(), after.splitlines(), str(path), "updated", "", "", 0, "")))
    write_recipe(path, after)
