"""Keras's global dtype policy, put into force for a while."""

from collections.abc import Iterator
from contextlib import contextmanager

import keras


@contextmanager
def global_policy(name: str) -> Iterator[None]:
    """The global policy `name` inside; the one before is put back, also after an exception.

    >>> with global_policy("mixed_bfloat16"):
    ...     keras.layers.Dense(1).compute_dtype
    'bfloat16'
    >>> keras.layers.Dense(1).compute_dtype
    'float32'
    """
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(name)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)
