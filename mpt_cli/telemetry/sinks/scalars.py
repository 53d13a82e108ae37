"""A snapshot as scalars by their names, for programs that draw curves: TensorBoard, MLflow, Weights & Biases."""

from collections.abc import Iterable, Iterator

from mpt_cli.telemetry.records import Event, Snapshot
from mpt_cli.telemetry.sinks.jsonl import SAMPLED

INTERVAL_FIELDS = ("loss", "learning_rate", "loss_scale", "skipped_steps", "consecutive_skips", "examples_per_second")


def scalars_of(snapshot: Snapshot) -> dict[str, float]:
    """What has a value; means of a whole epoch under `epoch/`, a sample of the gradients under `gradients/`."""
    if snapshot.epoch_end:
        found = {"epoch/loss": snapshot.loss, **{f"epoch/{name}": value for name, value in snapshot.metrics.items()}}
    else:
        sample = {} if snapshot.gradients is None else vars(snapshot.gradients)
        own = {name: getattr(snapshot, name) for name in INTERVAL_FIELDS}
        found = {**snapshot.metrics, **own, **{f"gradients/{name}": sample[name] for name in SAMPLED if sample}}
    return {name: float(value) for name, value in found.items() if value is not None}


def scale_changes(events: Iterable[Event]) -> Iterator[tuple[int, dict[str, float]]]:
    """The steps that moved the loss scale, each with the scalar after it: a point where there is no snapshot."""
    for event in events:
        if event.moves_scale:
            yield event.step, {"loss_scale": event.scale_after}
