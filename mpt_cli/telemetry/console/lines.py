"""The lines that stay: header, epochs, intervals and the end of a run, the same words on screen and in console.log."""

from pathlib import Path

from mpt_cli.errors import NUMERICAL
from mpt_cli.settings.command import command, conf_word
from mpt_cli.settings.override import override_word
from mpt_cli.telemetry.console.words import (
    bytes_words,
    count_words,
    fraction_words,
    number_words,
    sample_words,
    scale_words,
    seconds_words,
    share_words,
)
from mpt_cli.telemetry.records import GradientSample, RunHeader, Snapshot, Summary
from mpt_cli.telemetry.verdict import COLLAPSED

LABEL_WIDTH = 13


def header_rows(header: RunHeader) -> list[tuple[str, str]]:
    """What the run is, as label and text."""
    length = f"{header.epochs} epochs"
    if header.steps_per_epoch:
        length += f" of {count_words(header.steps_per_epoch)} steps"
    if header.total_steps and header.total_steps != header.epochs * (header.steps_per_epoch or 0):
        length += f", ended after {count_words(header.total_steps)} steps in all"
    rows = [("recipe", header.recipe), ("", header.description), ("policy", header.policy)]
    rows += [("loss scale", header.loss_scale), ("model", header.model), ("data", header.data)]
    rows += [("loss", header.loss), ("optimizer", header.optimizer)]
    rows += [("backend", header.backend), ("device", header.device)]
    rows += [("execution", header.execution), ("length", length), ("writes to", header.run_dir)]
    rows += [("warning", warning) for warning in header.warnings]
    return [(label, text) for label, text in rows if text]


def labelled(rows: list[tuple[str, str]]) -> list[str]:
    return [f"{label:<{LABEL_WIDTH}}{text}" for label, text in rows]


def epoch_parts(snapshot: Snapshot, header: RunHeader, seconds: float) -> list[str]:
    """The permanent line of an epoch, in parts that stay whole where a narrow screen breaks it."""
    parts = [f"epoch {snapshot.epoch}/{header.epochs}", f"loss {number_words(snapshot.loss)}"]
    parts += [f"{name} {number_words(value)}" for name, value in beside_loss(snapshot)]
    if header.scaling.mode != "none":
        parts += [f"scale {scale_words(snapshot.loss_scale)}", f"skipped {snapshot.skipped_steps}"]
    return [*parts, *rate_parts(snapshot.examples_per_second), seconds_words(seconds)]


def interval_line(snapshot: Snapshot, header: RunHeader) -> str:
    """One logged interval where there is no live screen."""
    total = f"/{count_words(header.total_steps)}" if header.total_steps else ""
    parts = [f"step {count_words(snapshot.step)}{total}", f"epoch {snapshot.epoch}/{header.epochs}"]
    parts.append(f"loss {number_words(snapshot.loss)}")
    parts += [f"{name} {number_words(value)}" for name, value in beside_loss(snapshot)]
    parts.append(f"learning rate {snapshot.learning_rate:.3g}")
    if header.scaling.mode != "none":
        parts += [f"scale {scale_words(snapshot.loss_scale)}{counter_words(snapshot, header, ' ({})')}"]
        parts += [f"skipped {snapshot.skipped_steps}"]
    if snapshot.gradients is not None:
        parts += [f"{label} {value}" for label, value in sample_words(snapshot.gradients)]
    return "  ".join([*parts, *rate_parts(snapshot.examples_per_second)])


def rate_parts(examples_per_second: float | None) -> list[str]:
    """Empty where nothing was timed."""
    return [] if examples_per_second is None else [f"{count_words(examples_per_second)} examples/s"]


def beside_loss(snapshot: Snapshot) -> list[tuple[str, float]]:
    """The metrics, without a `loss` among them: the snapshot has its own."""
    return [(name, value) for name, value in snapshot.metrics.items() if name != "loss"]


def counter_words(snapshot: Snapshot, header: RunHeader, form: str = "{}") -> str:
    """Applied steps since the last change of how many that make the scale grow; empty where it never grows."""
    if header.scaling.mode != "dynamic" or not header.scaling.growth_steps:
        return ""
    return form.format(f"{snapshot.scale_counter}/{header.scaling.growth_steps}")


def final_rows(summary: Summary) -> list[tuple[str, str]]:
    """The end of a run, as label and text."""
    rows = [("verdict", summary.verdict), ("", summary.explanation)]
    rows.append(("metrics", "  ".join(f"{name} {number_words(value)}" for name, value in summary.metrics.items())))
    best = {name: value for name, value in summary.best_metrics.items() if value != summary.metrics.get(name)}
    rows.append(("best", "  ".join(f"{name} {number_words(value)}" for name, value in best.items())))
    skipped, seen = summary.skipped_steps, summary.steps_seen
    rows.append(("skipped", f"{count_words(skipped)} of {count_words(seen)} steps ({share_words(skipped, seen)})"))
    if summary.final_loss_scale is not None:
        rows.append(("loss scale", f"{scale_words(summary.final_loss_scale)} at the end{_scale_range(summary)}"))
    if summary.rollbacks:
        rows.append(("rollbacks", f"{summary.rollbacks}, each from the last good checkpoint with lower rates"))
    if summary.gradients is not None:
        rows.append(("gradients", _gradients(GradientSample(**summary.gradients), summary.steps_seen)))
    rows += [("speed", _speed(summary)), ("files", summary.run_dir)]
    if summary.status == "stopped" and summary.run_dir:
        rows.append(("why", f"{summary.run_dir}/postmortem.json: the last steps, batch and weights in numbers"))
    rows += [("" if index else "next", command) for index, command in enumerate(next_commands(summary))]
    return [(label, text) for label, text in rows if text]


def next_commands(summary: Summary) -> list[str]:
    """What a person may want to do with this run now."""
    if not summary.run_dir:
        return []
    run = Path(summary.run_dir)
    own = conf_word(run / "config.yaml")
    repeat = command("train", own)
    if summary.status in ("interrupted", "terminated"):
        return [command("train", own, override_word("resume", str(run)))]
    if summary.exit_code == NUMERICAL:
        overflowed = summary.skipped_steps > 0 or summary.verdict == COLLAPSED
        look_into = [command("diagnose", run if overflowed else own), command("report", run)]
        return [*look_into, f"{repeat} {summary.change}"] if summary.change else look_into
    if summary.exit_code:
        return [repeat]
    return [command("evaluate", run), command("export", run), repeat]


def _scale_range(summary: Summary) -> str:
    low, high = summary.min_loss_scale, summary.max_loss_scale
    if low is None or high is None or low == high:
        return ""
    return f", {scale_words(low)} to {scale_words(high)} on the way"


def _gradients(sample: GradientSample, steps_seen: int) -> str:
    """What the latest sample said, which may be of an earlier attempt: the step comes first."""
    lost, room = (value for _, value in sample_words(sample))
    return (
        f"at step {count_words(sample.step)} of {count_words(steps_seen)}: {lost} flushed to zero, "
        f"{fraction_words(sample.subnormal_share)} subnormal, head-room {room}, norm {number_words(sample.norm)}"
    )


def _speed(summary: Summary) -> str:
    parts = [*rate_parts(summary.examples_per_second), f"{seconds_words(summary.seconds)} in all"]
    if summary.peak_memory_bytes is not None:
        parts.append(f"at most {bytes_words(summary.peak_memory_bytes)} of memory")
    return ", ".join(parts)
