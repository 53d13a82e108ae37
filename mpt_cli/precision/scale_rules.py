"""Loss-scale modes: the interface of a mode, its numbers and how the scale moves; and the modes dynamic, fixed, none
and logmax.

The fields of a mode are the keys of the settings group `loss_scale` under that mode; their type, default, range and
meaning are only here. A rule handles values, not variables: `initial` returns the state it needs, `advance` maps the
state and the measurement of a step's gradients to the next state. It runs inside compiled steps, so it is written in
`keras.ops`; Keras is imported there, because settings read the fields before a backend is chosen.
"""

import math
import numbers
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import Field, asdict, dataclass, field, fields
from inspect import isabstract
from operator import ge, gt, le, lt
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeGuard

from mpt_cli import plugins

if TYPE_CHECKING:
    from mpt_cli.precision.gradient_check import GradientMeasurement

RuleState = dict[str, Any]
Config = dict[str, Any]  # what Keras saves to make an object again
# columns of the record of a step, float32 and int32 (`scale_state.StepRow`); reading them needs no Keras
FLOAT_FIELDS = ("loss", "scale_before", "scale_after", "learning_rate")
INT_FIELDS = ("finite", "counter", "nan", "inf", "nearest", "holds_inf", "zero")
SMALLEST_SCALE, LARGEST_SCALE = 2.0**-126, 2.0**127  # float32 holds these, and twice as much
UNLIFTED = 2.0**-14  # at it and below, a loss scale makes no gradient overflow that float16 can hold at all
MARGIN = 16.0  # four halvings: gradients of one batch may be so many times larger than those of another


def number(default: float | bool, meaning: str, **bounds: float) -> Any:
    """Return a field with a meaning, a number or a switch: `bounds` are numbers `above`, `at_least`, `below`,
    `at_most`."""
    return field(default=default, metadata={"meaning": meaning, "choices": (), "bounds": bounds})


def scale_number(default: float, meaning: str) -> Any:
    """Return a field that is a loss scale."""
    return number(default, meaning, at_least=SMALLEST_SCALE, at_most=LARGEST_SCALE)


def lowest_scale() -> Any:
    return scale_number(2.0**-14, "the scale never falls below this")


def highest_scale() -> Any:
    return scale_number(2.0**32, "the scale never grows above this")


class InvalidNumber(NamedTuple):
    """A bad number of a mode, for the message `loss_scale.NAME: RULE REMEDY`."""

    name: str
    rule: str
    remedy: str = ""


@dataclass(frozen=True)
class ScaleRule(ABC):
    """The interface of every mode; a custom one overrides `mode`, `advance`, and whatever differs.

    `LossScaleOptimizer(rule=…)` takes an instance. With an entry point in the group `mpt.scale_rules` the class is also
    a mode of the command line, under the name `mode`.
    """

    mode: ClassVar[str] = ""  # the word of YAML, checkpoints and records
    scales: ClassVar[bool] = True  # whether the loss is multiplied at all; if not, every step is applied
    moves: ClassVar[bool] = True  # whether the scale changes during a run
    reads_largest: ClassVar[bool] = True  # whether `advance` reads `measured.largest`, a pass over all gradients
    probes: ClassVar[bool] = False  # whether it finds its scale by overflowing now and then

    initial_scale: float = scale_number(2.0**15, "the scale at the start; a fixed scale keeps it")

    def __post_init__(self) -> None:
        for declared in fields(self):
            _check_number(declared, getattr(self, declared.name))
        if any(True for _ in ScaleRule.check(self)):
            raise ValueError(
                f"`initial_scale` must lie between `min_scale` and `max_scale`. Received: min_scale={self.lowest}, "
                f"initial_scale={self.initial_scale}, max_scale={self.highest}."
            )

    def initial(self) -> RuleState:
        """Return NumPy scalars by name; `scale` (float32) and `counter` (int32) are always among them."""
        import numpy as np

        return {"scale": np.float32(self.initial_scale), "counter": np.int32(0)}

    @abstractmethod
    def advance(self, state: RuleState, measured: "GradientMeasurement") -> RuleState:
        """Return the state after a step; the names and dtypes are those of `initial`."""

    @classmethod
    def key_names(cls) -> list[str]:
        """Return the fields that are keys of the settings: those whose default YAML can write."""
        return [declared.name for declared in fields(cls) if isinstance(declared.default, int | float | str)]

    @property
    def growth_steps(self) -> int | None:
        """Return the applied steps before the scale grows; None if it does not grow by steps."""
        return None

    @property
    def lowest(self) -> float:
        """Return the least that the scale can be."""
        return float(getattr(self, "min_scale", SMALLEST_SCALE))

    @property
    def highest(self) -> float:
        """Return the most that the scale can be."""
        return float(getattr(self, "max_scale", LARGEST_SCALE))

    @property
    def floor(self) -> float | None:
        """Return the scale below which it never falls; None if it doesn't move, or has no such number."""
        return self.lowest if self.moves and hasattr(self, "min_scale") else None

    def may_explain(self, scale: float, applied: float, overflowed: float) -> bool:
        """Return whether `scale` may explain nan in the gradients. `applied` is the highest scale at which steps of
        this run were applied (0: none), `overflowed` the lowest at which gradients became inf (inf: none).

        A nan of the model or data comes at any scale. A nan that the scale makes, from inf - inf, comes above the
        scales that worked, or where other batches overflow. A rule that probes works at scales that are too high for
        some batches, whose gradients differ: only a scale lower by MARGIN is certainly not the cause.
        """
        return scale > UNLIFTED and (scale * (MARGIN if self.probes else 1.0) > applied or scale >= overflowed)

    @classmethod
    def check(cls, values: Any) -> Iterator[InvalidNumber]:
        """Yield what is wrong with its numbers together, the attributes of `values`; each alone is in range."""
        low, high = getattr(values, "min_scale", SMALLEST_SCALE), getattr(values, "max_scale", LARGEST_SCALE)
        if not low <= high:
            yield InvalidNumber("min_scale", f"must be <= loss_scale.max_scale, which is {format_power(high)}.")
        elif not low <= values.initial_scale <= high:
            bounds = f"loss_scale.min_scale={format_power(low)} and loss_scale.max_scale={format_power(high)}"
            yield InvalidNumber("initial_scale", f"must lie within {bounds}.", "Move the bound if this is intended.")

    def describe(self, scale: str) -> str:
        """Return one line on the mode for the header; `scale` is its initial scale."""
        return f"{self.mode} from {scale}"

    def resumed_scale(self, saved: float | None) -> float:
        """Return the scale of a resumed run; `saved` is the last scale, None if that was of another mode."""
        return self.initial_scale if saved is None or not self.moves else min(max(saved, self.lowest), self.highest)

    def optimizer_config(self) -> Config:
        """Return the arguments of `LossScaleOptimizer` that make this rule again, as model files store them."""
        return {"rule": {"class_name": type(self).__name__, "config": asdict(self)}}


def load_rule(name: str) -> type[ScaleRule]:
    """Return the mode that another package has under this name; PluginError where it can't be used."""
    rule: type[ScaleRule] = plugins.load_plugin(name, ScaleRule)
    if rule.mode != name:
        raise plugins.PluginError(f"{rule.__qualname__} has mode={rule.mode!r}, and its entry point is called {name}.")
    if isabstract(rule):
        raise plugins.PluginError(f"{rule.__qualname__} must have a method `advance`.")
    return rule


def find_installed_rule(class_name: str) -> type[ScaleRule] | None:
    """Return the class of this name among the modes of other packages, None where there is none that can be used."""
    for name in plugins.installed():
        with suppress(plugins.PluginError):
            if (rule := load_rule(name)).__name__ == class_name:
                return rule
    return None


def format_power(number: float) -> str:
    """Return a number as it may be pasted as a value, from 16 on and below 1/8 as a power of two where it is one.

    >>> format_power(32768.0), format_power(2.0**-14), format_power(0.5), format_power(3.0e7), format_power(1234.5)
    ('2**15', '2**-14', '0.5', '30000000', '1234.5')
    """
    mantissa, exponent = math.frexp(number)
    return f"2**{exponent - 1}" if mantissa == 0.5 and abs(exponent - 1) > 3 else f"{number:.10g}"


def check_scale(name: str, value: object) -> float:
    """Return `value` as a float; raise ValueError if it is no number that a float32 scale can be.

    That is 2**-126 to 2**127: below, kernels flush float32 to 0; above, a doubling would be inf.
    """
    if not _is_number(value) or not SMALLEST_SCALE <= float(value) <= LARGEST_SCALE:
        raise ValueError(f"`{name}` must be a number from 2**-126 to 2**127. Received: {name}={value!r}.")
    return float(value)


def check_count(name: str, value: object) -> int:
    """Return `value` as an int; raise ValueError unless it is a whole number from 1 on that int32 holds."""
    if not _is_number(value) or not (1 <= value < 2**31 and float(value).is_integer()):
        raise ValueError(f"`{name}` must be a whole number from 1 to 2**31 - 1. Received: {name}={value!r}.")
    return int(value)


_WITHIN = {"above": gt, "at_least": ge, "below": lt, "at_most": le}


def _check_number(declared: "Field[Any]", value: object) -> None:
    """Raise ValueError, by the name in `LossScaleOptimizer`, unless a number is in the range of its field."""
    name = "dynamic_growth_steps" if declared.name == "growth_steps" else declared.name
    bounds = declared.metadata.get("bounds", {})
    if bounds and type(declared.default) is int:
        check_count(name, value)
    elif bounds and not (_is_number(value) and all(_WITHIN[kind](value, bound) for kind, bound in bounds.items())):
        words = " and ".join(f"{kind.replace('_', ' ')} {bound:g}" for kind, bound in bounds.items())
        raise ValueError(f"`{name}` must be a number {words}. Received: {name}={value!r}.")


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


@dataclass(frozen=True)
class DynamicScale(ScaleRule):
    """Grows after `growth_steps` applied steps, falls at an overflow, stays between `min_scale` and `max_scale`.

    With c the applied steps since the scale last changed:
    finite: `c += 1; if c >= growth_steps: S = min(S * growth_factor, max_scale); c = 0; hysteresis refilled`;
    otherwise: `c = 0; hysteresis_left -= 1; if hysteresis_left <= 0: S = max(S * backoff_factor, min_scale)`.
    Source: Micikevicius et al. 2018, arXiv:1710.03740, section 3.2; hysteresis as in Megatron-LM.

    Raises ValueError for a number out of range, by its name in `LossScaleOptimizer`.

    >>> from keras import ops
    >>> from mpt_cli.precision.gradient_check import GradientMeasurement
    >>> rule = DynamicScale(2.0**10, growth_steps=2)
    >>> state, scales = rule.initial(), []
    >>> for finite in (True, True, True, False):
    ...     state = rule.advance(state, GradientMeasurement(ops.convert_to_tensor(finite), ops.ones(())))
    ...     scales.append(float(state["scale"]))
    >>> scales
    [1024.0, 2048.0, 2048.0, 1024.0]
    """

    mode: ClassVar[str] = "dynamic"
    reads_largest: ClassVar[bool] = False
    probes: ClassVar[bool] = True

    growth_steps: int = number(2000, "applied steps without overflow before the scale grows", at_least=1)
    growth_factor: float = number(2.0, "factor by which the scale grows", above=1, at_most=LARGEST_SCALE)
    backoff_factor: float = number(
        0.5, "factor by which an overflow changes the scale", at_least=SMALLEST_SCALE, below=1
    )
    min_scale: float = lowest_scale()
    max_scale: float = highest_scale()
    hysteresis: int = number(1, "overflows since the last growth before the scale falls", at_least=1)

    def initial(self) -> RuleState:
        import numpy as np

        return {**super().initial(), "hysteresis_left": np.int32(self.hysteresis)}

    def advance(self, state: RuleState, measured: "GradientMeasurement") -> RuleState:
        from keras import ops

        finite = measured.finite
        scale, applied, left = state["scale"], state["counter"] + 1, ops.maximum(state["hysteresis_left"] - 1, 0)
        grows = ops.logical_and(finite, applied >= self.growth_steps)
        falls = ops.logical_and(ops.logical_not(finite), left <= 0)
        grown = ops.minimum(scale * self.growth_factor, self.max_scale)
        fallen = ops.maximum(scale * self.backoff_factor, self.min_scale)
        return {
            "scale": ops.where(grows, grown, ops.where(falls, fallen, scale)),
            "counter": ops.where(ops.logical_and(finite, ops.logical_not(grows)), applied, 0),
            "hysteresis_left": ops.where(grows, self.hysteresis, ops.where(finite, state["hysteresis_left"], left)),
        }

    def describe(self, scale: str) -> str:
        return f"{super().describe(scale)}, grows after {self.growth_steps} applied steps"

    def optimizer_config(self) -> Config:
        """Return the config in Keras's names where it has them; a subclass is stored under its own class."""
        if type(self) is not DynamicScale:
            return super().optimizer_config()
        config = asdict(self)
        return {"dynamic": True, "dynamic_growth_steps": config.pop("growth_steps"), **config}


@dataclass(frozen=True)
class FixedScale(ScaleRule):
    """The scale never changes; steps that overflow are skipped and counted.

    `min_scale` and `max_scale` bound what the settings may choose.
    Raises ValueError for a scale that is no number from 2**-126 to 2**127.

    >>> from keras import ops
    >>> from mpt_cli.precision.gradient_check import GradientMeasurement
    >>> rule = FixedScale(2.0**10)
    >>> state = rule.advance(rule.initial(), GradientMeasurement(ops.convert_to_tensor(False), ops.ones(())))
    >>> float(state["scale"]), int(state["counter"])
    (1024.0, 0)
    """

    mode: ClassVar[str] = "fixed"
    reads_largest: ClassVar[bool] = False
    moves: ClassVar[bool] = False

    min_scale: float = lowest_scale()
    max_scale: float = highest_scale()

    def __post_init__(self) -> None:
        check_scale("initial_scale", self.initial_scale)

    def advance(self, state: RuleState, measured: "GradientMeasurement") -> RuleState:
        from keras import ops

        return {**state, "counter": ops.where(measured.finite, state["counter"] + 1, 0)}

    def describe(self, scale: str) -> str:
        return f"{self.mode} at {scale}, overflow steps are skipped"

    def optimizer_config(self) -> Config:
        """Return the config in Keras's names; a subclass is stored under its own class."""
        if type(self) is not FixedScale:
            return super().optimizer_config()
        return {"dynamic": False, "initial_scale": self.initial_scale}


@dataclass(frozen=True)
class NoScale(ScaleRule):
    """No scaling: the scale is 1, and nothing is multiplied or divided by it.

    Every step is applied. `FixedScale(1.0)` skips those whose gradients are not finite.

    >>> from keras import ops
    >>> from mpt_cli.precision.gradient_check import GradientMeasurement
    >>> rule = NoScale()
    >>> float(rule.advance({"scale": ops.ones(()) * 8, "counter": 3}, GradientMeasurement(True, ops.ones(())))["scale"])
    1.0
    """

    mode: ClassVar[str] = "none"
    reads_largest: ClassVar[bool] = False
    scales: ClassVar[bool] = False
    moves: ClassVar[bool] = False

    initial_scale: float = 1.0

    @classmethod
    def key_names(cls) -> list[str]:
        return []

    def __post_init__(self) -> None:
        if self.initial_scale != 1:
            raise ValueError(f"`initial_scale` of NoScale must be 1. Received: initial_scale={self.initial_scale}.")

    def advance(self, state: RuleState, measured: "GradientMeasurement") -> RuleState:
        from keras import ops

        counter = ops.where(measured.finite, state["counter"] + 1, 0)
        return {**state, "counter": counter, "scale": ops.ones_like(state["scale"])}  # whatever a file held

    @classmethod
    def check(cls, values: Any) -> Iterator[InvalidNumber]:
        return iter(())

    def describe(self, scale: str) -> str:
        return self.mode


EXPONENT_BITS_AT = 23  # float32: the biased exponent starts at this bit
EXPONENT_BIAS = 127
SMALLEST_NORMAL = 2.0**-126


@dataclass(frozen=True)
class LogMaxScale(ScaleRule):
    """Keeps the chance of an overflow small, assuming that the largest gradient of a step is log-normal.

    With x = log2(largest magnitude of the true gradients), or x = log_max at an overflow:
    `fast = mean of x, weights decaying with beta1; slow, square = means of x and x**2, decaying with beta2` (all three
    divided by 1 - beta**steps, as in Adam);
    `S = 2**floor(log_max - fast - deviations * sqrt(max(square - slow**2, 0)))`, within `min_scale` and `max_scale`.
    3.09 deviations are the 99.9 % quantile of a normal distribution. A step whose scaled gradients are all 0 tells
    nothing and changes nothing; below 2**-126, where CPU kernels flush float32 to 0, they count as 0.

    Source: Kuchaiev et al. 2018, "Mixed-Precision Training for NLP and Speech Recognition with OpenSeq2Seq",
    arXiv:1805.10387, and the `logmax` algorithm of NVIDIA/OpenSeq2Seq. Two things differ from that program: S is
    rounded down to a power of two, so that scaling loses no bits, and an overflow counts as the exponent `log_max`
    (there 2**log_max is averaged as if it were an exponent).

    Raises ValueError for a number out of range, by its name.

    >>> from keras import ops
    >>> from mpt_cli.precision.gradient_check import GradientMeasurement
    >>> rule = LogMaxScale()
    >>> state = rule.initial()
    >>> for exponent in (-3, -1, -3, -1):
    ...     largest = ops.convert_to_tensor(2.0**exponent) * state["scale"]
    ...     state = rule.advance(state, GradientMeasurement(ops.convert_to_tensor(True), largest))
    >>> float(state["scale"])  # mean -2 and deviation 1: floor(16 + 2 - 3.09) = 14
    16384.0
    """

    mode: ClassVar[str] = "logmax"

    log_max: float = number(16.0, "scaled gradients should stay below 2**log_max", above=0, at_most=127)
    beta1: float = number(0.99, "decay of the mean of log2(largest gradient)", above=0, below=1)
    beta2: float = number(0.999, "decay of the variance of log2(largest gradient)", above=0, below=1)
    deviations: float = number(3.09, "margin below log_max, in standard deviations", above=0)
    min_scale: float = lowest_scale()
    max_scale: float = highest_scale()

    def initial(self) -> RuleState:
        import numpy as np

        zeros = dict.fromkeys(("fast", "slow", "square"), np.float32(0.0))
        return {**super().initial(), **zeros, **dict.fromkeys(("beta1_left", "beta2_left"), np.float32(1.0))}

    def advance(self, state: RuleState, measured: "GradientMeasurement") -> RuleState:
        from keras import ops

        exponent, informative = self._exponent(state["scale"], measured)
        moved = {
            "fast": _mean(state["fast"], exponent, self.beta1),
            "slow": _mean(state["slow"], exponent, self.beta2),
            "square": _mean(state["square"], exponent * exponent, self.beta2),
            "beta1_left": state["beta1_left"] * self.beta1,
            "beta2_left": state["beta2_left"] * self.beta2,
        }
        moved["scale"] = ops.clip(_power_of_two(self._wanted_exponent(moved)), self.min_scale, self.max_scale)
        new = {name: ops.where(informative, value, state[name]) for name, value in moved.items()}
        still = ops.logical_and(measured.finite, ops.equal(new["scale"], state["scale"]))
        return {**new, "counter": ops.where(still, state["counter"] + 1, 0)}

    def describe(self, scale: str) -> str:
        return f"{super().describe(scale)}, follows the largest gradient"

    def _exponent(self, scale: Any, measured: "GradientMeasurement") -> tuple[Any, Any]:
        """Return log2 of the largest true gradient, and whether this step has one to learn from."""
        from keras import ops

        largest = measured.largest
        seen = ops.logical_and(measured.finite, largest >= SMALLEST_NORMAL)
        exponent = _log2(ops.where(seen, largest, scale)) - _log2(scale)  # the quotient itself may be flushed to 0
        exponent = ops.where(measured.finite, exponent, self.log_max)
        return exponent, ops.logical_or(seen, ops.logical_not(measured.finite))

    def _wanted_exponent(self, moved: RuleState) -> Any:
        from keras import ops

        mean = moved["fast"] / (1 - moved["beta1_left"])
        slow, square = (moved[name] / (1 - moved["beta2_left"]) for name in ("slow", "square"))
        deviation = ops.sqrt(ops.maximum(square - slow * slow, 0.0))
        return self.log_max - mean - self.deviations * deviation


def _mean(before: Any, value: Any, beta: float) -> Any:
    return beta * before + (1 - beta) * value


def _log2(x: Any) -> Any:
    """Return log2 of a normal float32, the exponent read from its bits: exact for powers of two, 128 for inf."""
    from keras import ops

    from mpt_cli.precision.gradient_check import reinterpret

    bits = reinterpret(x, "int32")
    exponent = ops.right_shift(bits, EXPONENT_BITS_AT) - EXPONENT_BIAS
    fraction = ops.bitwise_and(bits, 2**EXPONENT_BITS_AT - 1)
    mantissa = reinterpret(ops.bitwise_or(fraction, EXPONENT_BIAS << EXPONENT_BITS_AT), "float32")
    return ops.cast(exponent, "float32") + ops.log(mantissa) / math.log(2.0)


def _power_of_two(exponent: Any) -> Any:
    """Return exactly 2**floor(exponent), made from bits: a compiled `pow` may round."""
    from keras import ops

    from mpt_cli.precision.gradient_check import reinterpret

    whole = ops.cast(ops.clip(ops.floor(exponent), 1 - EXPONENT_BIAS, EXPONENT_BIAS), "int32")
    return reinterpret(ops.left_shift(whole + EXPONENT_BIAS, EXPONENT_BITS_AT), "float32")
