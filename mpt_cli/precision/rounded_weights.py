"""Weights in half precision that keep their small updates: each is computed in float32 and rounded stochastically.

Rounding to nearest loses every update below half the distance of a weight to its neighbour, step after step. Here the
update goes up or down to a neighbour with the probabilities that make its mean the exact value (Gupta et al. 2015,
arXiv 1502.02551; for bfloat16 weights Zamirai et al. 2020, arXiv 2010.06192), so that many small ones add up.
"""

import math
from numbers import Integral
from typing import Any

import keras
from keras import ops

from mpt_cli.precision.gradient_check import is_overwritten, reinterpret
from mpt_cli.precision.gradients import round_stochastically
from mpt_cli.precision.keras_internals import float32_stand_in, forget_value, move_decay_exclusions

NARROW = ("float16", "bfloat16")
Tensor = Any


def check_seed(seed: object) -> int | None:
    """Raise ValueError for `rounding_seed` that is neither None nor a whole number of 32 bits."""
    if seed is None:
        return None
    if isinstance(seed, bool) or not isinstance(seed, Integral) or not 0 <= int(seed) < 2**32:
        raise ValueError(
            f"`rounding_seed` must be a whole number from 0 to 2**32 - 1. Received: rounding_seed={seed!r}."
        )
    return int(seed)


def rounded_variables(variables: list[Any]) -> list[Any]:
    """Return those of `variables` that an optimizer moves and half precision rounds."""
    return [v for v in variables if keras.backend.standardize_dtype(v.dtype) in NARROW and not is_overwritten(v)]


class StochasticRounding:
    """What an optimizer trains in place of `variables`: for each in half precision a variable in float32.

    The optimizer is built for `stand_ins`, so that its moments, averages and accumulated gradients are float32, and
    clipping, weight decay, constraints and every formula with them. A stand-in holds its weight for one update only; on
    JAX it has no memory of its own between updates, on TensorFlow it keeps it, of which nothing is ever read again.

    The random numbers are a function of `seed`, of how many updates were applied before and of the weight's index: a
    skipped step draws none and moves none, every replica of a step draws the same, and a run that goes on from a
    checkpoint, whose tally holds the count, draws what it would have drawn.

    ValueError for `variables` of which none is in half precision, or some are no Keras variables.
    """

    def __init__(self, variables: list[Any], seed: int) -> None:
        self.seed, self.weights = seed, rounded_variables(variables)
        if not self.weights:
            dtypes = ", ".join(sorted({keras.backend.standardize_dtype(v.dtype) for v in variables}))
            raise ValueError(
                "`rounding_seed` needs weights in float16 or bfloat16: there is nothing to round. "
                f"Received: weights in {dtypes}. Leave it out."
            )
        if foreign := [v.name for v in self.weights if not isinstance(v, keras.Variable)]:
            raise ValueError(f"`rounding_seed` needs Keras variables. Received: {foreign[0]}.")
        self._in_place_of = {id(v): float32_stand_in(v) for v in self.weights}
        self.stand_ins = [self.stand_in(v) for v in variables]
        self._forget()

    @classmethod
    def of(cls, inner: Any, variables: list[Any], seed: int) -> "StochasticRounding":
        """Return that of `inner` for `variables`: a new one, or the one for which another wrapper of it has built it.

        ValueError of the class, and where `inner` is built for the weights themselves.
        """
        kept: StochasticRounding | None = getattr(inner, "_mpt_rounding", None)
        if not inner.built:
            kept = cls(variables, seed)
            move_decay_exclusions(inner, variables, kept.stand_ins)
            inner._mpt_rounding = kept
        elif kept is None or [id(v) for v in kept.weights] != [id(v) for v in rounded_variables(variables)]:
            raise ValueError(
                "`rounding_seed` needs an inner optimizer that is not built: the moments of this one are "
                "in the dtype of the weights, or of other weights. Make a new one."
            )
        kept.seed = seed
        return kept

    def stand_in(self, variable: Any) -> Any:
        """Return what the optimizer trains in place of `variable`: itself where it is not rounded."""
        return self._in_place_of.get(id(variable), variable)

    def apply(self, inner: Any, grads: list[Tensor], variables: list[Any], count: Tensor) -> None:
        """Update `variables` by `inner`, after `count` applied updates (int32 scalar)."""
        self._take_up()
        inner.apply(grads, [self.stand_in(v) for v in variables])
        for index, variable in enumerate(self.weights):
            random = random_bits(self.seed, count, index, tuple(variable.shape))
            variable.assign(round_stochastically(self.stand_in(variable).value, variable.dtype, random))
        self._forget()

    def finalize(self, inner: Any, variables: list[Any]) -> None:
        """Make moving averages the weights, by `inner.finalize_variable_values`; here they are rounded to nearest."""
        self._take_up()
        inner.finalize_variable_values([self.stand_in(v) for v in variables])
        for variable in self.weights:
            variable.assign(ops.cast(self.stand_in(variable).value, variable.dtype))
        self._forget()

    def _take_up(self) -> None:
        """Copy all weights, also those without a gradient in this update, which moving averages read."""
        for variable in self.weights:
            self.stand_in(variable).assign(ops.cast(variable.value, "float32"))

    def _forget(self) -> None:
        if keras.backend.backend() == "jax":
            for variable in self.weights:
                forget_value(self.stand_in(variable), variable)


def random_bits(seed: int, count: Tensor, index: int, shape: tuple[int, ...]) -> Tensor:
    """Return an int32 array of `shape`, all values about equally likely.

    It is a function of the numbers alone, the same on every backend.

    Each element is its place, mixed twice with keys made of the numbers. XLA computes it where it rounds and stores
    none of it; a generator of JAX's own for each weight took ten times as long to compile (20 weights: 8.7 and 0.8 s).
    """
    key = _mixed(_mixed(_mixed(_bits(seed)) + ops.cast(count, "uint32")) + _bits(index))
    places = ops.reshape(ops.cast(ops.arange(math.prod(shape), dtype="int32"), "uint32"), shape)
    return reinterpret(_mixed(_mixed(places + key) ^ _mixed(key + _bits(0x9E3779B9))), "int32")


def _bits(number: int) -> Tensor:
    return ops.convert_to_tensor(number, dtype="uint32")


def _mixed(bits: Tensor) -> Tensor:
    """Mix the bits of uint32, one-to-one, each depending on all others: the last step of MurmurHash3 (Appleby)."""
    bits = (bits ^ ops.right_shift(bits, _bits(16))) * _bits(0x85EBCA6B)
    bits = (bits ^ ops.right_shift(bits, _bits(13))) * _bits(0xC2B2AE35)
    return bits ^ ops.right_shift(bits, _bits(16))
