"""A loss-scale mode: its numbers, how the scale moves, and what it answers for itself.

The fields of a mode that have a meaning are the keys of the settings group `loss_scale` under that mode: type, default,
range and meaning stand here and nowhere else. A rule knows numbers, not variables: `initial` gives the state it needs,
`advance` maps the state and what was measured of the step's gradients to the next state. It runs inside compiled steps,
so it is written in `keras.ops`; Keras is imported there, since settings read the fields before a backend is chosen.
"""

import math
import numbers
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from inspect import isabstract
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from mpt_cli import plugins

if TYPE_CHECKING:
    from mpt_cli.precision.finite import Measured

RuleState = dict[str, Any]
SMALLEST_SCALE, LARGEST_SCALE = 2.0**-126, 2.0**127  # that a float32 can be, and be doubled
UNLIFTED = 1.0  # at it and below, a loss scale pushes no gradient towards an overflow
MARGIN = 4.0  # two halvings: recurrent nets were seen to skip at half the highest scale at which steps were applied


def number(default: float | bool, meaning: str, **bounds: float) -> Any:
    """A field that is a key, a number or a switch: `bounds` are numbers `above`, `at_least`, `below`, `at_most`."""
    return field(default=default, metadata={"meaning": meaning, "choices": (), "bounds": bounds})


def scale_number(default: float, meaning: str) -> Any:
    """A field that is a loss scale."""
    return number(default, meaning, at_least=SMALLEST_SCALE, at_most=LARGEST_SCALE)


def lowest_scale() -> Any:
    return scale_number(2.0**-14, "the scale never falls below this")


def highest_scale() -> Any:
    return scale_number(2.0**32, "the scale never grows above this")


def let_through() -> Any:
    """A field that is `ScaleRule.lets_through_after`."""
    return field(default=None, metadata={
        "meaning": "after this many skipped steps in a row apply overflows too, until a step is finite; null = never",
        "choices": (), "bounds": {"at_least": 1},
    })  # fmt: skip


class Fault(NamedTuple):
    """What is wrong with one number of a mode, as `loss_scale.NAME: RULE REMEDY` says it."""

    name: str
    rule: str
    remedy: str = ""


@dataclass(frozen=True)
class ScaleRule(ABC):
    """What every mode is asked; one of your own overrides `mode`, `advance`, and whatever differs.

    `LossScaleOptimizer(rule=…)` takes an instance. Under the entry point group `mpt.scale_rules` the class is a mode of
    the command line too, called as `mode` says.
    """

    mode: ClassVar[str] = ""  # the word of YAML, checkpoints and records
    scales: ClassVar[bool] = True  # whether the loss is multiplied at all
    moves: ClassVar[bool] = True  # whether the scale changes during a run
    probes: ClassVar[bool] = False  # whether it finds its scale by overflowing now and then
    overflow_actions: ClassVar[tuple[str, ...]] = ("skip",)  # what `loss_scale.on_overflow` may be, the default first
    follows: ClassVar[str] = "its own rule"  # what moves a scale that counts no steps
    no_use: ClassVar[str] = "it has no use for it"  # why numbers of other modes must be left out; "": they need not

    initial_scale: float = scale_number(2.0**15, "first (fixed: only) scale")

    def __post_init__(self) -> None:
        check_bounds(self.lowest, self.initial_scale, self.highest)

    def initial(self) -> RuleState:
        """NumPy scalars by name; `scale` (float32) and `counter` (int32) are always among them."""
        import numpy as np

        return {"scale": np.float32(self.initial_scale), "counter": np.int32(0)}

    @abstractmethod
    def advance(self, state: RuleState, measured: "Measured") -> RuleState:
        """The state after a step; the names and dtypes are those of `initial`."""

    @classmethod
    def key_names(cls) -> list[str]:
        """The numbers that are keys of the settings."""
        return [declared.name for declared in fields(cls) if "meaning" in declared.metadata]

    @property
    def growth_steps(self) -> int | None:
        """Applied steps before it grows, None where it counts none."""
        return None

    @property
    def lets_through_after(self) -> int | None:
        """How many steps in a row are skipped before what is not finite is applied all the same; None: all of them.

        As optax's `apply_if_finite`, whose `max_consecutive_errors` this is: a streak ends with a finite step alone.
        """
        return getattr(self, "let_through_after", None)

    @property
    def lowest(self) -> float:
        """The least that the scale can be."""
        return float(getattr(self, "min_scale", SMALLEST_SCALE))

    @property
    def highest(self) -> float:
        """The most that the scale can be."""
        return float(getattr(self, "max_scale", LARGEST_SCALE))

    @property
    def floor(self) -> float | None:
        """The scale below which it never falls; None for one that doesn't move, or has no such number."""
        return self.lowest if self.moves and hasattr(self, "min_scale") else None

    def may_explain(self, scale: float, applied: float, overflowed: float) -> bool:
        """Whether nan in the gradients may be due to `scale`, where steps of this run were `applied` at so much at the
        most (0: none was) and gradients `overflowed`, to inf, at so little at the least (inf: none did).

        A nan of the model or data comes at any scale. One that the scale makes, from inf - inf, comes above those that
        worked, or where other batches overflow. A rule that probes works at scales that are too high for some of its
        batches, whose gradients differ: only one that is MARGIN lower is free of suspicion.
        """
        return scale > UNLIFTED and (scale * (MARGIN if self.probes else 1.0) > applied or scale >= overflowed)

    @classmethod
    def check(cls, values: Any) -> Iterator[Fault]:
        """What is wrong with its numbers together, given as attributes of `values`; each alone is in its range."""
        low, high = getattr(values, "min_scale", SMALLEST_SCALE), getattr(values, "max_scale", LARGEST_SCALE)
        if not low <= high:
            yield Fault("min_scale", f"must be <= loss_scale.max_scale, which is {high:g}.")
        elif not low <= values.initial_scale <= high:
            rule = f"must lie within loss_scale.min_scale={low:g} and max_scale={high:g}."
            yield Fault("initial_scale", rule, "Move the bound if you mean it.")

    def describe(self, scale: str, on_overflow: str) -> str:
        """The mode in a line, for the header; `scale` is where it begins."""
        return f"{self.mode} from {scale}"

    def next_move(self, counter: int) -> str:
        """When the scale will move, `counter` applied steps after it last did."""
        return self.growth_counter(counter) or f"with {self.follows}"

    def growth_counter(self, counter: int) -> str:
        """How many of the steps to a growth are done; empty where it counts none."""
        return f"{counter}/{self.growth_steps}" if self.growth_steps else ""

    def explain_moves(self, count: int) -> str:
        """Why the scale has moved `count` times without an overflow."""
        if not self.growth_steps:
            return f"the scale follows {self.follows}"
        return f"{count} growths" if count > 1 else f"{self.growth_steps} applied steps without overflow"

    @classmethod
    def used_on_resume(cls, mode_before: str | None) -> set[str]:
        """The numbers that act in a run that goes on; it begins at `initial_scale` only after another mode."""
        return set(cls.key_names()) - ({"initial_scale"} if mode_before == cls.mode else set())

    def resumed_scale(self, saved: float | None) -> float:
        """Where the scale goes on, after `saved` of the same mode or None of another."""
        return self.initial_scale if saved is None else min(max(saved, self.lowest), self.highest)

    def resumed_state(self, saved: Mapping[str, Any], numbers_before: Mapping[str, Any]) -> RuleState:
        """What is not as it was `saved` (by the names of `initial`), as the numbers may be others than before."""
        return {}

    def optimizer_config(self) -> dict[str, Any]:
        """Arguments of `LossScaleOptimizer` that make this rule again, as model files store them."""
        return {"rule": {"class_name": type(self).__name__, "config": asdict(self)}}


def load_rule(name: str) -> type[ScaleRule]:
    """The mode that another package has under this name; PluginError where it can't be used."""
    rule: type[ScaleRule] = plugins.load_plugin(plugins.SCALE_RULES, name, ScaleRule)
    if rule.mode != name:
        raise plugins.PluginError(f"{rule.__qualname__} has mode={rule.mode!r}, and its entry point is called {name}.")
    if isabstract(rule):
        raise plugins.PluginError(f"{rule.__qualname__} must have a method `advance`.")
    return rule


def find_installed_rule(class_name: str) -> type[ScaleRule] | None:
    """The class of this name among the modes of other packages, None where there is none that can be used."""
    rules = plugins.loadable(plugins.SCALE_RULES, ScaleRule).values()
    return next((rule for rule in rules if rule.__name__ == class_name), None)


def check_scale(name: str, value: object) -> float:
    """`value` as a float if it is a number that a float32 scale can be, else ValueError or TypeError that names it.

    That is 2**-126 to 2**127: below, kernels flush float32 to 0; above, a doubling would be inf.
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"`{name}` must be a number. Received: {name}={value!r} of type {type(value).__name__}.")
    size = float(value)
    if not (size > 0 and math.isfinite(size)):
        raise ValueError(f"`{name}` must be a finite number above 0. Received: {name}={value}.")
    if not SMALLEST_SCALE <= size <= LARGEST_SCALE:
        raise ValueError(f"`{name}` must lie between 2**-126 and 2**127, float32's range. Received: {name}={value}.")
    return size


def check_count(name: str, value: object) -> int:
    """`value` as an int if it is a whole number of at least 1, else ValueError or TypeError that names it."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"`{name}` must be a whole number. Received: {name}={value!r} of type {type(value).__name__}.")
    size = float(value)
    if not (size >= 1 and size.is_integer()):
        raise ValueError(f"`{name}` must be a whole number of at least 1. Received: {name}={value}.")
    if not size < 2**31:
        raise ValueError(f"`{name}` must be below 2**31, as steps are counted in int32. Received: {name}={value}.")
    return int(size)


def check_let_through(value: object) -> None:
    """TypeError or ValueError for `let_through_after` that is neither None nor a count."""
    if value is not None:
        check_count("let_through_after", value)


def check_bounds(min_scale: float, initial_scale: float, max_scale: float) -> None:
    """ValueError unless all three are scales and `min_scale <= initial_scale <= max_scale`."""
    for name, value in (("min_scale", min_scale), ("initial_scale", initial_scale), ("max_scale", max_scale)):
        check_scale(name, value)
    if not min_scale <= initial_scale <= max_scale:
        raise ValueError(
            "`initial_scale` must lie between `min_scale` and `max_scale`. Received: "
            f"min_scale={min_scale}, initial_scale={initial_scale}, max_scale={max_scale}."
        )
