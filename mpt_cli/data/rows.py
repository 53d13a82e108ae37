"""Inputs whose rows are not all of one length, or mostly zeros: ragged and sparse arrays, held as NumPy arrays.

Keras's `fit` takes both. On TensorFlow a ragged batch stays ragged (`tf.RaggedTensor`); on JAX it is padded with zeros
to the longest of its rows. A sparse batch is made dense, which gives the same numbers.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from mpt_cli.errors import DataError

Values = NDArray[Any]
RAGGED = "ragged "  # before the dtype of such an input


@dataclass(frozen=True, eq=False)
class Rows(ABC):
    """`splits` (n + 1 of them) say where in `values` each of the n rows begins and ends.

    What looks at arrays finds here what it looks for: shape, dtype, length, rows by slice or by indices.
    """

    values: Values
    splits: Values

    @property
    def shape(self) -> tuple[int | None, ...]:
        return (len(self), None, *self.values.shape[1:])

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def dtype(self) -> Any:
        return self.values.dtype

    @property
    def dtype_name(self) -> str:
        return str(self.dtype.name)

    @property
    def size(self) -> int:
        return int(self.values.size)

    @property
    def parts(self) -> tuple[Values, ...]:
        """All arrays that it is made of."""
        return self.values, self.splits

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self.parts)

    def __len__(self) -> int:
        return len(self.splits) - 1

    def __getitem__(self, which: Any) -> Self:
        rows = np.arange(len(self))[which]
        lengths = np.diff(self.splits)[rows]
        splits = np.concatenate([[0], np.cumsum(lengths)])
        places = np.repeat(self.splits[rows] - splits[:-1], lengths) + np.arange(splits[-1])
        return self._picked(places, splits)

    def _picked(self, places: Values, splits: Values) -> Self:
        return replace(self, values=self.values[places], splits=splits)

    def min(self) -> Any:
        return self.values.min()

    def max(self) -> Any:
        return self.values.max()

    def mapped(self, function: Callable[[Values], Values]) -> Self:
        """The same rows with `function` applied to all values at once."""
        return replace(self, values=function(self.values))

    @abstractmethod
    def dense(self) -> Values:
        """As one array."""


@dataclass(frozen=True, eq=False)
class Ragged(Rows):
    """Rows of different lengths, each of `values.shape[1:]` in what follows.

    >>> texts = Ragged(np.array([5, 6, 7]), np.array([0, 2, 2, 3]))
    >>> texts.shape, texts[[2, 0]].dense().tolist()
    ((3, None), [[7, 0], [5, 6]])
    """

    @property
    def dtype_name(self) -> str:
        return f"{RAGGED}{'string' if self.dtype.kind == 'S' else self.dtype.name}"

    def dense(self) -> Values:
        """Padded with zeros to the longest of the rows."""
        lengths = np.diff(self.splits)
        filled = np.arange(lengths.max(initial=0)) < lengths[:, None]
        whole = np.zeros((*filled.shape, *self.values.shape[1:]), self.dtype)
        whole[filled] = self.values
        return whole


@dataclass(frozen=True, eq=False)
class Sparse(Rows):
    """Rows of a matrix with `width` columns: `values` stand in `columns`, all else is 0.

    >>> Sparse(np.array([1.5, 2.5]), np.array([0, 1, 1, 2]), np.array([2, 0]), 3)[1:].dense().tolist()
    [[0.0, 0.0, 0.0], [2.5, 0.0, 0.0]]
    """

    columns: Values
    width: int

    @property
    def shape(self) -> tuple[int | None, ...]:
        return (len(self), self.width)

    @property
    def size(self) -> int:
        return len(self) * self.width

    @property
    def parts(self) -> tuple[Values, ...]:
        return self.values, self.splits, self.columns

    def _picked(self, places: Values, splits: Values) -> Self:
        return replace(self, values=self.values[places], splits=splits, columns=self.columns[places])

    def min(self) -> Any:
        return self.values.min(initial=0)

    def max(self) -> Any:
        return self.values.max(initial=0)

    def dense(self) -> Values:
        whole = np.zeros((len(self), self.width), self.dtype)
        np.add.at(whole, (np.repeat(np.arange(len(self)), np.diff(self.splits)), self.columns), self.values)
        return whole


def as_rows(value: Any, name: str = "x") -> Rows | Values | None:
    """The Rows of a tensor or matrix of TensorFlow, SciPy or JAX that is ragged or sparse; None of all else.

    Sparse ones of more than two dimensions are made dense. DataError for a ragged tensor with more than one ragged
    dimension, or with a ragged one behind a fixed one.
    """
    if hasattr(value, "row_splits"):
        return _of_ragged(value, name)
    module = type(value).__module__
    if module.startswith("scipy.sparse"):
        return _of_csr(value.tocsr())
    if hasattr(value, "dense_shape") and hasattr(value, "indices"):
        return _of_places(np.asarray(value.indices), np.asarray(value.values), np.asarray(value.dense_shape))
    if module.startswith("jax.experimental.sparse"):
        return np.asarray(value.todense())
    return None


def _of_ragged(value: Any, name: str) -> Ragged:
    if hasattr(value.values, "row_splits"):
        raise DataError(f"{name} must have one dimension of different lengths, the second. Received: a ragged tensor "
                        f"of shape {tuple(value.shape)}. Make it dense with to_tensor(), or pad its inner rows.")
    return Ragged(np.asarray(value.values), np.asarray(value.row_splits).astype(np.int64))


def _of_csr(matrix: Any) -> Sparse:
    return Sparse(np.asarray(matrix.data), np.asarray(matrix.indptr).astype(np.int64), np.asarray(matrix.indices),
                  int(matrix.shape[1]))  # fmt: skip


def _of_places(indices: Values, values: Values, shape: Values) -> Sparse | Values:
    if len(shape) != 2:
        whole = np.zeros(tuple(shape), values.dtype)
        np.add.at(whole, tuple(indices.T), values)
        return whole
    order = np.lexsort((indices[:, 1], indices[:, 0]))
    counts = np.bincount(indices[:, 0], minlength=int(shape[0]))
    return Sparse(values[order], np.concatenate([[0], np.cumsum(counts)]), indices[order, 1], int(shape[1]))


def on_values(function: Callable[..., Any], array: Any, *more: Any) -> Any:
    """`function` of an array, or of the values of Rows, which come back as Rows."""
    return array.mapped(lambda values: function(values, *more)) if isinstance(array, Rows) else function(array, *more)


def joined(parts: Sequence[Any], length: int | None = None) -> Any:
    """Arrays or Rows one after the other, as `length` rows: those behind are zeros, or empty."""
    missing = 0 if length is None else length - sum(len(part) for part in parts)
    if isinstance(parts[0], Rows):
        return _joined_rows(parts, missing)
    shape, dtype = parts[0].shape[1:], np.result_type(*parts)  # texts are as wide as the longest of theirs
    whole = np.zeros((sum(len(part) for part in parts) + missing, *shape), dtype)
    np.concatenate(parts, out=whole[: len(whole) - missing])
    return whole


def _joined_rows(parts: Sequence[Any], missing: int) -> Rows:
    lengths = np.concatenate([*(np.diff(part.splits) for part in parts), np.zeros(missing, np.int64)])
    values = np.concatenate([part.values for part in parts])
    whole: Rows = replace(parts[0], values=values, splits=np.concatenate([[0], np.cumsum(lengths)]))
    if isinstance(whole, Sparse):
        whole = replace(whole, columns=np.concatenate([part.columns for part in parts]))
    return whole
