"""What is known of the runs that failed: the rule that ended them, and what the last step looked like."""

from collections.abc import Sequence
from typing import Any

from mpt_cli.report.html import Head, Row, coloured, details, facts, table
from mpt_cli.report.run_words import value_words
from mpt_cli.report.story import RunStory
from mpt_cli.telemetry.console.words import count_words, scale_words

_BATCH_HEADS = [Head("array"), Head("shape"), Head("dtype"), Head("min", True), Head("max", True), Head("nan", True),
                Head("inf", True)]  # fmt: skip


def failures(stories: Sequence[RunStory]) -> str:
    """A part for each run that has an end and not a good one; nothing where there is none."""
    return "".join(_failure(story) for story in stories if story.summary and not story.is_good)


def _failure(story: RunStory) -> str:
    explanation = coloured(str(story.summary.get("explanation", "")), "bad")
    code = story.summary.get("exit_code")
    found = story.postmortem
    pairs = [("exit code", str(code)), ("verdict", story.verdict)]
    if found:
        checkpoint = found.get("checkpoint_step")
        pairs += [
            ("rule", str(found.get("rule", "-"))),
            ("what to do", str(found.get("remedy", "-"))),
            ("stopped at step", f"{count_words(found.get('step', 0))}, epoch {found.get('epoch', '-')}"),
            ("checkpoint before it", "none" if checkpoint is None else f"step {count_words(checkpoint)}"),
            ("loss scale", _scale(found.get("loss_scale"))),
        ]
    return f"<h3>{coloured(story.label, '')}</h3><p>{explanation}</p>{facts(pairs)}{_inside(story.label, found)}"


def _inside(label: str, found: dict[str, Any]) -> str:
    """The last batch and the weights, of which those that are not finite are unfolded."""
    parts = []
    batch = found.get("last_batch") or {}
    if batch:
        caption = f"The last batch of {label}"
        parts.append(table(caption, _BATCH_HEADS, [_numbers(name, numbers) for name, numbers in batch.items()]))
    variables = {name: numbers for layer in found.get("layers") or [] for name, numbers in layer["variables"].items()}
    spoiled = {name: numbers for name, numbers in variables.items() if numbers.get("nan") or numbers.get("inf")}
    if variables:
        words = f"{len(spoiled)} of {len(variables)} variables hold nan or inf" if spoiled else "All weights are finite"
        rows = [_numbers(name, numbers) for name, numbers in variables.items()]
        parts.append(details(words, table(f"Variables of {label}", _BATCH_HEADS, rows), is_open=bool(spoiled)))
    return "".join(parts)


def _numbers(name: str, numbers: dict[str, Any]) -> Row:
    shape = " × ".join(map(str, numbers.get("shape", []))) or "scalar"
    rest = [value_words(numbers.get(field, "-")) for field in ("dtype", "min", "max", "nan", "inf")]
    return Row([name, shape, *rest], "bad" if numbers.get("nan") or numbers.get("inf") else "")


def _scale(value: Any) -> str:
    return scale_words(float(value)) if value is not None else "none"
