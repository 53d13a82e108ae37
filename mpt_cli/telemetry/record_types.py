"""The values that pass between trainer and telemetry: plain frozen data.

The trainer makes records and events, which the console and files show; limits say where a call must end.
Lines of a run's files are read back here, and checked against the types of their record, as they may be damaged or
hostile.
"""

import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from functools import cache
from types import UnionType
from typing import Any, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

from mpt_cli.files import JsonObject
from mpt_cli.precision.scale_rules import NoScale, ScaleRule

# the kinds of an Event
OVERFLOW, GROWTH, FLOOR, CEILING = "overflow", "growth", "floor", "ceiling"
FORWARD_PASS, BACKWARD_PASS = "forward", "backward"  # what an overflow began in: whether the loss itself was not finite
IN_DATA, IN_LOSS = "data", "loss"  # stand for the layer of an event where no layer did it
DECLINE = "decline"  # a fall without an overflow: loss_scale=logmax follows the gradients both ways

Metrics = dict[str, float]
NEVER = 2**30  # a step or count that is not reached


@dataclass(frozen=True)
class Scaling:
    """The loss scaling of a run, for the console and the verdict."""

    rule: ScaleRule = field(default_factory=NoScale)
    is_needed: bool = False  # whether anything computes in float16, whose small gradients vanish without scaling

    @property
    def scales(self) -> bool:
        """Return whether the loss is scaled at all; if not, gradients that are not finite are applied like others."""
        return self.rule.scales


@dataclass(frozen=True)
class RunHeader:
    """The description of a run before its first step, which the console prints first."""

    recipe: str
    description: str
    run_dir: str
    facts: Mapping[str, str]  # by label: {"policy": "mixed_float16 (head float32)", "model": "cnn, 138,218 parameters"}
    epochs: int
    steps_per_epoch: int | None
    total_steps: int | None
    warnings: tuple[str, ...] = ()
    scaling: Scaling = Scaling()
    metric_names: tuple[str, ...] = ()  # every name that a Snapshot's metrics will hold, val_* included
    attempt: int = 1  # 2 and more: a resumed run, appending to the files of the ones before


@dataclass(frozen=True)
class Event:
    """One skipped step or one change of the scale. `scale_*` are the loss scale before and after the step."""

    step: int
    epoch: int
    kind: str  # overflow (one skipped step, whether the scale changed or not) | growth | decline | floor | ceiling
    scale_before: float
    scale_after: float
    nan: int = 0
    inf: int = 0
    # The variable nearest to the fault. If the loss was finite: the last variable, in the order of the forward pass,
    # whose gradient was not. Otherwise: that of the first layer whose output is not finite when the batch goes through
    # the model again.
    variable: str | None = None
    cause: str | None = None  # forward: the loss was already not finite; backward: only gradients were not
    layer: str | None = None  # of that variable or output; "data" if the batch itself was not finite, or not in float16
    fault: str | None = None  # what was found there: inf, or nan alone, which an overflow seldom causes
    optimizer: str | None = None  # with several optimizers: the attribute of the model whose scale this is
    dtype: str | None = None  # in which that layer computes, where the fault is of its output
    largest_input: float | None = None  # magnitude in the batch, where "data" is finite but beyond float16


# the kinds of a LayerSample
ACTIVATIONS, ACTIVATION_GRADIENTS, WEIGHT_GRADIENTS = "activations", "activation_gradients", "weight_gradients"
UPDATES = "updates"
# the faults of a layer
VANISHED, OVERFLOWED, FLUSHED, DEAD, UNMOVED = "vanished", "overflowed", "flushed", "dead", "unmoved"
DIGITS, STALE = "digits", "stale"
# what loses digits where it is no single layer; of the inputs, as the model casts them
TARGETS, ALL_LAYERS, INPUTS = "targets", "*", "the inputs"
NEARLY_ALL = 0.9  # of the elements, and half of their sum: a softmax over many classes has most of its values near 0
MOST_OF_SUM = 0.5


@dataclass(frozen=True)
class LayerSample:
    """The effect of half precision on one kind of tensor in one layer, beside a float32 run of the same batch.

    Shares are of the `values`, the elements that are not 0 in float32; only `overflowed` is of all elements. Gradients
    are those of the scaled loss. `exponents` counts the values of the float32 run: entry i counts those from
    2**(lowest_exponent + i) up to twice that. Updates are what the optimizer would add in float32 to weights that are
    stored in half precision; `flushed` is the share of updates that leave the weight as it is.
    """

    layer: str
    kind: str  # activations (the outputs) | activation_gradients (of the outputs) | weight_gradients | updates
    dtype: str  # their dtype
    values: int
    flushed: float  # share that is 0, but not in float32
    subnormal: float  # share below 2^-14, where float16 loses bits; 0 for other dtypes
    overflowed: float  # share that is inf or nan
    kept_sum: float  # share of the sum of magnitudes that is left
    lowest_exponent: int | None
    exponents: tuple[int, ...] = ()
    variable: str | None = None  # for weight_gradients and updates: the path of the weight

    @property
    def predicted_flushed(self) -> float:
        """Return the share of float32 values below 2^-25, which rounding each value to float16 would flush."""
        if self.lowest_exponent is None or self.dtype != "float16":
            return 0.0
        return sum(self.exponents[: max(0, -25 - self.lowest_exponent)]) / max(self.values, 1)

    @property
    def is_beyond_float16(self) -> bool:
        """Return whether some float32 values are too large for float16, or nearly all are too small."""
        return (self.lowest_exponent or 0) + len(self.exponents) > 16 or self.predicted_flushed >= NEARLY_ALL

    @property
    def is_lost(self) -> bool:
        """Return whether nearly all values are lost."""
        return self.values > 0 and self.flushed >= NEARLY_ALL and self.kept_sum <= MOST_OF_SUM


@dataclass(frozen=True)
class GradientSample:
    """A sample of the gradients of one batch, after `step`. Shares are of the elements that are not zero in a float32
    run of the same batch with the same weights.

    On N replicas (`distribute=mirrored`) the gradients are those of the first replica before they are added up: of its
    share of the batch, divided by N.

    `faults` maps the layers that do not train as in float32, in forward order, to what is wrong. vanished: nearly all
    outputs are 0. overflowed: outputs are inf or nan. flushed: the gradients of the weights became 0. dead: these
    gradients are 0 in float32 too. unmoved: weights in half precision stay as they are, whatever the optimizer adds.
    digits: the rounding of this layer leaves the outputs of the model too few digits. `targets`, or `the inputs` with
    the layers that read them, stand for no layer; `*` says that no few layers are the cause, those around the next one
    neither. stale: half precision rounds away the updates of the layer's own state.
    """

    step: int
    norm: float  # of all unscaled gradients together
    flushed_share: float  # share that is zero in float16
    subnormal_share: float  # share below 2^-14 in layers that compute in float16, where bits are lost
    # how often the scale could double before a gradient of a weight or output passes 65504, by their sizes in float32;
    # None if all are zero there or nothing is in float16
    headroom_doublings: float | None
    lost_updates_share: float | None = None  # share of updates lost by weights in half precision; None without these
    # squared difference of the outputs (of at most 256 examples) from those in float32, over their variance over the
    # examples; None if it could not be measured
    output_noise: float | None = None
    output_noise_left: float | None = None  # the same, with the layer in float32 that `faults` names for its digits
    faults: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class UnmovedWeights:
    """No bit of any kernel examined has changed since `since_step`, at this learning rate. `has_gradients` says whether
    a sample showed that some of these kernels have a gradient; None where none tells.
    """

    since_step: int
    learning_rate: float
    has_gradients: bool | None = None


@dataclass(frozen=True)
class Snapshot:
    """A line of metrics.jsonl: the state after `step`, with loss and metrics over applied steps only.

    `loss` is the mean over the applied steps since the last line, None if there was none. `metrics` are running
    values of the epoch. A line with `epoch_end` has the means over the epoch and the `val_*` metrics.
    """

    step: int
    epoch: int
    loss: float | None
    learning_rate: float
    loss_scale: float
    scale_counter: int
    skipped_steps: int
    consecutive_skips: int
    applied_steps: int
    examples_per_second: float | None  # None if every call since the last line was one that compiles
    metrics: Metrics = field(default_factory=dict)
    epoch_end: bool = False
    step_in_epoch: int = 0
    gradients: GradientSample | None = None  # on the lines at which gradients were sampled


@dataclass(frozen=True)
class Summary:
    """The end of a run: the content of summary.json.

    In a resumed run, `seconds` and `examples_per_second` cover all attempts, each up to the checkpoint from which the
    next one continued. Steps lost after that checkpoint are not counted.
    """

    status: str  # finished | stopped | interrupted | terminated | failed
    exit_code: int
    verdict: str
    explanation: str  # the verdict in a sentence, with what to do
    steps_seen: int
    applied_steps: int
    skipped_steps: int
    final_loss_scale: float | None
    min_loss_scale: float | None
    max_loss_scale: float | None
    metrics: Metrics
    best_metrics: Metrics
    examples_per_second: float | None
    peak_memory_bytes: int | None
    seconds: float
    recipe: str = ""
    description: str = ""  # of the recipe; of a script's training, its model or optimizer
    run_dir: str = ""
    epochs_completed: int = 0
    gradients: JsonObject | None = None  # the latest `GradientSample`
    ended_early: str = ""  # why a callback ended the run before its last epoch
    weights_fingerprint: str | None = None  # of the variables at the end; only in a deterministic run
    repeatable: bool = True  # whether config.yaml is enough to repeat the run; not with objects of a Python program
    starter: str = ""  # what started several processes, such as srun --nodes 2 --ntasks 2
    not_recorded: tuple[str, ...] = ()  # what a Recorder or `mpt run` could not see, in sentences
    steps_per_second: float | None = None  # for a Recorder or `mpt run`: without the first call


R = TypeVar("R")


class StreakCounts(NamedTuple):
    """Counts of bad steps, or the counts at which a call ends early. Vectors have this order everywhere.

    Steps in a row that were skipped; that were applied with a non-finite loss; that were applied with all gradients 0.
    """

    skips: Any
    non_finite_losses: Any
    zero_steps: Any


NO_STREAKS, NO_LIMITS = StreakCounts(0, 0, 0), StreakCounts(NEVER, NEVER, NEVER)


class StopLimits(NamedTuple):
    """`streaks` before a call, and their `limits`."""

    streaks: StreakCounts = NO_STREAKS
    limits: StreakCounts = NO_LIMITS

    def reachable(self) -> StreakCounts:
        """Return limits above the current streaks: a run resumed at a limit gets one more step.

        >>> StopLimits(StreakCounts(0, 12, 0), StreakCounts(50, 10, NEVER)).reachable()
        StreakCounts(skips=50, non_finite_losses=13, zero_steps=1073741824)
        """
        pairs = zip(self.streaks, self.limits, strict=True)
        return StreakCounts(*(max(limit, streak + 1) for streak, limit in pairs))


LARGEST_WHOLE = 2**63 - 1
NUMBERS_AS_TEXT = ("NaN", "Infinity", "-Infinity")  # of strict JSON


@cache
def _type_hints(record: type) -> Mapping[str, Any]:
    return get_type_hints(record)


@cache
def required_fields(record: type) -> tuple[str, ...]:
    """Return the fields of a dataclass that have no default."""
    return tuple(each.name for each in fields(record) if each.default is MISSING and each.default_factory is MISSING)


def as_number(value: Any) -> float | None:
    """Return a number from strict JSON, in which nan and infinity are texts; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


def field_problem(
    record: type | Mapping[str, Any], tree: Mapping[str, Any], required: Sequence[str] = ()
) -> str | None:
    """Return which field does not have its type in `record` (a dataclass, or types by name), or which `required` field
    is missing; None if all is well.

    Unknown fields are accepted, as a later version may have written them.

    >>> field_problem({"step": int, "loss": float | None}, {"step": 3, "loss": "NaN", "new": []}, ["step"]) is None
    True
    >>> field_problem({"step": int}, {"step": "three"})
    "step must not be 'three'"
    """
    hints = record if isinstance(record, Mapping) else _type_hints(record)
    missing = [name for name in required if name not in tree]
    if missing:
        return f"{missing[0]} is missing"
    wrong = [name for name, hint in hints.items() if name in tree and not _is_of_type(hint, tree[name])]
    return f"{wrong[0]} must not be {reprlib.repr(tree[wrong[0]])}" if wrong else None


def _is_of_type(hint: Any, value: Any) -> bool:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return any(_is_of_type(each, value) for each in arguments)
    if isinstance(value, bool) or hint is bool:
        return hint is Any or (hint is bool and isinstance(value, bool))
    if isinstance(value, int) and not -LARGEST_WHOLE <= value <= LARGEST_WHOLE:
        return hint is Any
    if hint is float:
        return isinstance(value, int | float) or (isinstance(value, str) and value in NUMBERS_AS_TEXT)
    if hint in (int, str):
        return isinstance(value, hint)
    if hint is type(None):
        return value is None
    if is_dataclass(hint) or origin is dict or hint is dict:
        return isinstance(value, dict) and all(_is_of_type(arguments[1], v) for v in value.values() if arguments)
    if origin in (tuple, list):
        return isinstance(value, list | tuple) and all(_is_of_type(arguments[0], part) for part in value)
    return True


GRADIENT_FIELDS = tuple(field.name for field in fields(GradientSample) if field.name not in ("step", "faults"))


def snapshot_fields(snapshot: Snapshot) -> JsonObject:
    """Return the snapshot as one flat dict: its fields, the gradient sample as `gradient_*` (None if there is none),
    then the metrics by name. A field wins over a metric of the same name.
    """
    own = {**vars(snapshot)}
    metrics, sample = own.pop("metrics"), own.pop("gradients")
    own |= {f"gradient_{name}": None if sample is None else getattr(sample, name) for name in GRADIENT_FIELDS}
    return {**own, **{name: value for name, value in metrics.items() if name not in own}}


def line_problem(line: Mapping[str, Any]) -> str | None:
    """Return what is wrong with a line of layers.jsonl, events.jsonl or metrics.jsonl; the last alone has no kind."""
    record = LayerSample if "exponents" in line else Event if "kind" in line else Snapshot
    required = () if record is Snapshot else required_fields(record)  # what a line of metrics lacks is not drawn
    return field_problem({**_type_hints(record), **_BESIDE_RECORD}, line, ("step", *required))


_BESIDE_RECORD = {
    "step": int,
    "attempt": int,
    "seconds": float | None,
    **{f"gradient_{name}": float | None for name in GRADIENT_FIELDS},
}


def record_from(record: type[R], tree: Mapping[str, Any]) -> R:
    """Return the dataclass of a line or a file of strict JSON; fields that a later version added are ignored."""
    known = fields(record)  # type: ignore[arg-type]
    return record(**{each.name: _from_json(tree[each.name]) for each in known if each.name in tree})


def _from_json(value: Any) -> Any:
    """Return lists as tuples, and numbers that strict JSON holds as texts."""
    if isinstance(value, list):
        return tuple(map(_from_json, value))
    if isinstance(value, dict):
        return {name: _from_json(part) for name, part in value.items()}
    return float(value) if value in NUMBERS_AS_TEXT else value
