"""Which examples are trained on and which are held out."""

import numpy as np

from mpt_cli.data.examples import Array, Examples
from mpt_cli.errors import DataError


def draw(examples: Examples, limit: int | None, seed: int, in_order: bool = False) -> Examples:
    """At most `limit` of the examples, drawn by seed; `in_order` keeps them in the order they have."""
    if limit is None or limit >= len(examples):
        return examples
    chosen = np.random.default_rng([seed, 0]).permutation(len(examples))[:limit]
    return examples.take(np.sort(chosen) if in_order else chosen)


def split(examples: Examples, fraction: float, seed: int, in_order: bool = False) -> tuple[Examples, Examples | None]:
    """Training and validation part; fraction 0 holds nothing out.

    By a permutation drawn from the seed, or, `in_order`, the last part as it stands. Both parts are non-empty;
    DataError where there are too few examples for that.
    """
    if fraction == 0:
        return examples, None
    count = len(examples)
    if count < 2:
        raise DataError(f"{count} example can't be split into training and validation. "
                        "Use more examples (data.limit), or data.validation_fraction=0 for none.")
    held_out = min(max(round(count * fraction), 1), count - 1)
    train, validation = _parts(count, held_out, seed, in_order)
    return examples.take(train), examples.take(validation)


def _parts(count: int, held_out: int, seed: int, in_order: bool) -> tuple["Array | slice", "Array | slice"]:
    if in_order:
        return slice(0, count - held_out), slice(count - held_out, count)
    order = np.random.default_rng([seed, 1]).permutation(count)
    return order[held_out:], order[:held_out]
