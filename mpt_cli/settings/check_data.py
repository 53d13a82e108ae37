"""Combinations within the data source."""

from collections.abc import Iterator

from mpt_cli.errors import Problem
from mpt_cli.settings.data import Images, KerasDataset, Synthetic
from mpt_cli.settings.schema import Settings


def check_synthetic(settings: Settings) -> Iterator[Problem]:
    data = settings.data
    if isinstance(data, Synthetic) and not data.input_shape:
        yield Problem("data.input_shape", "must have at least one entry.", data.input_shape)
    elif isinstance(data, Synthetic) and data.task == "tokens" and len(data.input_shape) != 1:
        rule = "must be [sequence_length] with data.task=tokens."
        yield Problem("data.input_shape", rule, data.input_shape)
    if isinstance(data, Images) and len(data.image_size) != 2:
        yield Problem("data.image_size", "must be [height, width].", data.image_size)


def check_keras_dataset(settings: Settings) -> Iterator[Problem]:
    """Words per review and vocabulary are matters of imdb; the image sets would ignore them."""
    data = settings.data
    if not isinstance(data, KerasDataset) or data.dataset == "imdb":
        return
    for name in ("sequence_length", "vocabulary"):
        if getattr(data, name) != getattr(KerasDataset, name):
            rule = f"must be left out with data.dataset={data.dataset}: only imdb uses it."
            yield Problem(f"data.{name}", rule, getattr(data, name))
