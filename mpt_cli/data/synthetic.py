"""Random data of any shape with something to learn: a fixed random teacher sets the targets."""

import numpy as np

from mpt_cli.data.assemble import Raw, build_data_set
from mpt_cli.data.describe import shape_text
from mpt_cli.data.examples import Array, DataSet, Examples
from mpt_cli.errors import ConfigError, Problem
from mpt_cli.settings.data import Synthetic

_COARSE_VECTOR, _COARSE_SIDE, _HIDDEN = 256, 8, 64
_CHUNK = 64  # examples filled at a time: bounds the memory beside the result


def load_synthetic(settings: Synthetic, seed: int) -> DataSet:
    """Data of `settings.task`, the same for the same seed; the examples and the teacher both come from the seed.

    The last examples are held out: they are as random as any, so nothing is shuffled and no copy is made.
    """
    rng = np.random.default_rng([seed, 2])
    classes: int | None = settings.num_classes
    if settings.task == "tokens":
        x, y = _tokens(settings, rng)
    else:
        x, seen = _inputs(settings, rng)
        y = _taught(seen, settings, rng)
    task = "regression" if settings.task == "regression" else "classification"
    raw = Raw(f"synthetic {settings.task}", Examples(x, y), task=task,
              num_classes=None if task == "regression" else classes, in_order=True)
    return build_data_set(raw, settings, seed)


def _inputs(settings: Synthetic, rng: np.random.Generator) -> tuple[Array, Array]:
    """Inputs (n, *input_shape) and what the teacher sees of them, (n, g).

    Small inputs are independent normals, and the teacher sees them all. Of large ones half the variance is a coarse
    normal pattern (at most 8 steps along each axis, 256 along a vector), which is what the teacher sees: a dense or
    pooled layer can find it, and targets of an ImageNet-like shape cost no large matrix product.
    """
    shape, count = tuple(settings.input_shape), settings.examples
    coarse = (min(shape[0], _COARSE_VECTOR),) if len(shape) == 1 else tuple(min(size, _COARSE_SIDE) for size in shape)
    seen = rng.standard_normal((count, *coarse), np.float32)
    if coarse == shape:
        return seen * np.float32(settings.magnitude), seen.reshape(count, -1)
    x = np.empty((count, *shape), np.float32)
    share = np.float32(np.sqrt(0.5) * settings.magnitude)
    places = [np.arange(size) * steps // size for size, steps in zip(shape, coarse, strict=True)]
    for start in range(0, count, _CHUNK):
        part = x[start:start + _CHUNK]
        rng.standard_normal(dtype=np.float32, out=part)
        part += seen[start:start + _CHUNK][np.ix_(np.arange(len(part)), *places)]
        part *= share
    return x, seen.reshape(count, -1)


def _taught(seen: Array, settings: Synthetic, rng: np.random.Generator) -> Array:
    """Scores of a random two-layer tanh net, about unit variance; for classification the highest one's index."""
    first = rng.standard_normal((seen.shape[1], _HIDDEN)) / np.sqrt(seen.shape[1])
    second = rng.standard_normal((_HIDDEN, settings.num_classes)) * np.sqrt(2.5 / _HIDDEN)  # tanh leaves 0.4 of 1
    # rounded, so that the last bits of a matrix product, which differ between machines, don't turn a label
    scores: Array = np.round(np.tanh(seen.astype(np.float64) @ first) @ second, 6)
    return scores if settings.task == "regression" else scores.argmax(axis=1)


def _tokens(settings: Synthetic, rng: np.random.Generator) -> tuple[Array, Array]:
    """Sequences in which four of five tokens follow from the one before by a random map; y is x one step on."""
    if len(settings.input_shape) != 1:
        raise ConfigError(Problem("data.input_shape", "must be [sequence_length] with data.task=tokens.",
                                  shape_text(tuple(settings.input_shape))))
    count, length, size = settings.examples, settings.input_shape[0], settings.num_classes
    follower = rng.permutation(size)
    tokens = rng.integers(0, size, (count, length + 1))
    follows = rng.random((count, length)) < 0.8
    for step in range(length):
        tokens[:, step + 1] = np.where(follows[:, step], follower[tokens[:, step]], tokens[:, step + 1])
    return tokens[:, :-1], tokens[:, 1:]
