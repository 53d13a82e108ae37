"""Keys of each model, data source, optimizer and loss-scale mode, by `model.name`, `data.name`, `optimizer.name` and
`loss_scale.mode`. The numbers of a mode are those of the mode itself (`precision.scale_rules`); here they become keys.
"""

from dataclasses import KW_ONLY, dataclass, field, fields, make_dataclass
from functools import cache
from typing import Annotated, Any, ClassVar, Dict, List, Literal, Optional, Self, get_type_hints

from annotated_types import Interval

from mpt_cli.plugins import PluginError
from mpt_cli.precision.scale_rules import DynamicScale, FixedScale, LogMaxScale, NoScale, ScaleRule, load_rule
from mpt_cli.settings.key_type import (
    LARGEST_COUNT,
    REQUIRED,
    Count,
    Factor,
    Fraction,
    NonNegative,
    Positive,
    Share,
    Whole,
    key,
    ranged,
)


@dataclass
class ModelSettings:
    """The keys of every model."""

    name: str = key(REQUIRED, "which model is built; `mpt list models` shows them")
    weights: Optional[str] = key(
        None, "a .weights.h5 or .keras file with the initial weights; null = as the model is built or was saved"
    )
    skip_mismatch: bool = key(
        False,
        "initialise and name weights that the file lacks or has in other shapes; false = they are an error",
    )
    freeze: List[str] = key(
        [],
        "layers not to train: patterns (as in a shell: conv*) of their name, path or class; ! before a pattern "
        "excepts its layers",
    )
    unfreeze: List[str] = key([], "layers to train again, such as frozen ones of a saved model; applied after `freeze`")


@dataclass
class MLP(ModelSettings):
    """Fully connected layers on flattened input."""

    name: str = "mlp"
    hidden_units: List[Count] = key([512, 512], "width of each hidden layer")
    activation: str = key("relu", "activation of the hidden layers, any Keras name")
    dropout: Share = key(0.0, "share of hidden units dropped in training")
    batch_norm: bool = key(False, "BatchNormalization before each activation")


@dataclass
class CNN(ModelSettings):
    """Convolution blocks, each two 3x3 convolutions and a 2x2 max pooling, then one hidden layer."""

    name: str = "cnn"
    filters: List[Count] = key([32, 64], "filters of each block")
    hidden_units: Count = key(128, "width of the hidden layer before the head")
    dropout: Share = key(0.25, "share of units dropped before the head")


@dataclass
class ResNet(ModelSettings):
    """Residual network with BatchNormalization (He et al. 2016), for small images."""

    name: str = "resnet"
    filters: List[Count] = key([16, 32, 64], "filters of each stage; each stage but the first halves the image")
    blocks: List[Count] = key([1, 1, 1], "residual blocks of each stage")


@dataclass
class Transformer(ModelSettings):
    """A small GPT: token and position embedding, blocks with causal attention, pre-LayerNorm (Radford et al. 2019)."""

    name: str = "transformer"
    layers: Count = key(2, "number of blocks")
    width: Count = key(128, "width of the residual stream; a multiple of `heads`")
    heads: Count = key(4, "attention heads")
    mlp_ratio: Count = key(4, "width of the feed-forward layer, as a multiple of `width`")
    dropout: Share = key(0.0, "share of units dropped")


@dataclass
class Builder(ModelSettings):
    """A function, yours or of keras.applications, that returns a Keras model."""

    name: str = "builder"
    builder: str = key(REQUIRED, "package.module:function, or path/to/file.py:function")
    kwargs: Dict[str, Any] = key({}, "arguments of the builder besides input_shape and num_classes")


@dataclass
class Saved(ModelSettings):
    """A saved .keras model, to train further."""

    name: str = "saved"
    path: str = key(REQUIRED, "the .keras file")


MODELS = {"mlp": MLP, "cnn": CNN, "resnet": ResNet, "transformer": Transformer, "builder": Builder, "saved": Saved}


@dataclass
class DataSettings:
    """The keys of every data source."""

    name: str = key(REQUIRED, "which source; `mpt list data` shows them")
    validation_fraction: Share = key(
        0.2, "share of examples held out, drawn by the seed, if the source has no validation set"
    )
    limit: Optional[Count] = key(None, "use only this many examples, drawn by the seed before the split")


@dataclass
class Digits(DataSettings):
    """1,797 scans of handwritten digits, 8x8, inside scikit-learn (UCI optical recognition test set)."""

    name: str = "digits"


@dataclass
class Tabular(DataSettings):
    """scikit-learn's bundled tables; columns are standardised with the training split's mean and deviation."""

    name: str = "tabular"
    dataset: Literal["breast_cancer", "iris", "wine", "diabetes", "linnerud"] = key("breast_cancer", "which table")


@dataclass
class Text(DataSettings):
    """Characters of a text file, as windows for next-character prediction."""

    name: str = "text"
    path: Optional[str] = key(None, "a text file; null = source code of Python's standard library")
    sequence_length: Count = key(128, "characters per window")


@dataclass
class Synthetic(DataSettings):
    """Random data of any shape with something to learn: labels come from a fixed random teacher."""

    name: str = "synthetic"
    task: Literal["classification", "regression", "tokens"] = key("classification", "what is predicted")
    examples: Count = key(1024, "number of examples")
    input_shape: List[Count] = key([32], "shape of one example, without the batch; tokens: [sequence_length]")
    num_classes: Count = key(10, "number of classes, outputs or tokens")
    magnitude: Positive = key(1.0, "standard deviation of the inputs")


@dataclass
class Loader(DataSettings):
    """A function of yours that returns arrays, tf.data.Datasets, PyDatasets or generators."""

    name: str = "loader"
    loader: str = key(REQUIRED, "package.module:function, or path/to/file.py:function")
    kwargs: Dict[str, Any] = key(
        {}, "arguments of the loader; a parameter `seed` gets the seed of the run unless it is given here"
    )
    path: Optional[str] = key(None, "a file or folder, passed to the loader as `path`")
    num_classes: Optional[Count] = key(None, "number of classes; null = found from integer targets")


DATA = {
    "digits": Digits,
    "tabular": Tabular,
    "text": Text,
    "synthetic": Synthetic,
    "loader": Loader,
}


@dataclass
class Schedule:
    """How the learning rate changes over applied steps; it starts (after warm-up) at `optimizer.learning_rate`.

    A step is a batch that was applied, also where gradient_accumulation_steps gathers several into one update.
    """

    name: Literal["constant", "cosine"] = key("constant", "shape of the schedule")
    warmup_steps: Whole = key(0, "applied steps of linear warm-up from 0")
    decay_steps: Optional[Count] = key(None, "cosine: steps of decay after warm-up; null = until the planned end")
    final_factor: Optional[Factor] = key(
        None, "cosine: last rate, as a share of learning_rate (Keras's alpha); null = 0"
    )
    object: Optional[str] = key(
        None, "another schedule instead: a Keras name such as exponential_decay, or your own as module:name"
    )
    kwargs: Dict[str, Any] = key(
        {}, "arguments of `object`; initial_learning_rate is learning_rate unless it is given here"
    )


@dataclass
class OptimizerSettings:
    """What every optimizer has. Clipping acts on unscaled gradients; steps are applied steps."""

    name: str = key(REQUIRED, "which optimizer; `mpt list optimizers` shows them")
    learning_rate: NonNegative = key(1e-3, "learning rate at the start of the schedule")
    schedule: Schedule = field(default_factory=Schedule)
    weight_decay: Optional[NonNegative] = key(None, "decoupled weight decay; null = none")
    clipnorm: Optional[Positive] = key(None, "clip each gradient to this norm")
    clipvalue: Optional[Positive] = key(None, "clip each gradient element to ±this")
    global_clipnorm: Optional[Positive] = key(None, "clip all gradients together to this norm")
    use_ema: bool = key(False, "keep an exponential moving average of the weights; it replaces them at the end")
    ema_momentum: Factor = key(0.99, "weight of the old average")
    ema_overwrite_frequency: Optional[Count] = key(
        None, "applied steps between copies of the average into the weights; null = only at the end"
    )
    gradient_accumulation_steps: Optional[Annotated[int, Interval(ge=2, le=LARGEST_COUNT)]] = key(
        None, "batches whose gradients are averaged into one update; null = 1"
    )
    kwargs: Dict[str, Any] = key({}, "other arguments of the class, as in {momentum: 0.9}")


# of keras.optimizers
_CLASSES = ["SGD", "RMSprop", "Adam", "AdamW", "Adadelta", "Adagrad", "Adamax", "Adafactor", "Nadam", "Ftrl", "Lion"]
_CLASSES += ["Lamb", "Muon", "ScheduleFreeAdamW"]
_LEARNING_RATES = {"sgd": 0.01, "schedule_free_adamw": 0.0025}  # learning rates of Keras other than 0.001
_WEIGHT_DECAYS = {"adamw": 0.004, "muon": 0.004}


def _keras_optimizer(class_name: str) -> type[OptimizerSettings]:
    """Return the keys of an optimizer of Keras, with its defaults."""
    name = class_name.lower().replace("schedulefree", "schedule_free_")
    decay = NonNegative if name == "adamw" else Optional[NonNegative]  # adam is the one without
    numbers = [
        ("learning_rate", NonNegative, _LEARNING_RATES.get(name, 1e-3)),
        ("weight_decay", decay, _WEIGHT_DECAYS.get(name)),
    ]
    shared = OptimizerSettings.__dataclass_fields__
    changed = [(each, hint, field(default=value, metadata=shared[each].metadata)) for each, hint, value in numbers]
    namespace = {"__module__": __name__, "__doc__": f"keras.optimizers.{class_name}"}
    keys: list[Any] = [("name", str, name), *changed]
    return make_dataclass(class_name, keys, bases=(OptimizerSettings,), namespace=namespace)


@dataclass
class CustomOptimizer(OptimizerSettings):
    """A Keras optimizer of your own; keys given besides kwargs are set on it."""

    name: str = "object"
    object: str = key(REQUIRED, "module:name, or path/to/file.py:name, of a class, function or optimizer")
    learning_rate: Optional[NonNegative] = key(  # type: ignore[assignment]
        None, "learning rate at the start of the schedule; null = as the object sets it"
    )


OPTIMIZERS = {each.name: each for each in map(_keras_optimizer, _CLASSES)}

PYTHON = "python"  # the recorded name of an object that a Python program gave; no YAML can make it


@dataclass
class GivenModel(ModelSettings):
    """A model that a Python program gave to `mpt.fit`, or trained itself while mpt recorded."""

    name: str = PYTHON
    class_name: str = key("", "its class")
    command: List[str] = key(
        [], "the command that ran its script, without `mpt`: run, keys, the script and its arguments"
    )


@dataclass
class GivenData(DataSettings):
    """Arrays or datasets that a Python program gave."""

    name: str = PYTHON


@dataclass
class GivenOptimizer(OptimizerSettings):
    """An optimizer that a Python program compiled its model with."""

    name: str = PYTHON
    class_name: str = key("", "its class")


PYTHON_VARIANTS: dict[str, type] = {"model": GivenModel, "data": GivenData, "optimizer": GivenOptimizer}


AUTO = "auto"
SCALE_RULES: dict[str, type[ScaleRule]] = {  # auto has the numbers of dynamic, which it may become
    AUTO: DynamicScale,
    **{rule.mode: rule for rule in (DynamicScale, FixedScale, LogMaxScale, NoScale)},
}
SCALE_MODES = tuple(SCALE_RULES)


@dataclass
class LossScaleSettings:
    """How the loss is scaled before the backward pass, and when an unhealthy scale ends the run.

    `LossScaleSettings(mode=…)` returns the class of that mode, which adds the mode's numbers.
    """

    rule_class: ClassVar[type[ScaleRule]] = DynamicScale

    mode: str = key(AUTO, "auto = dynamic if any layer computes in float16, else none")
    _: KW_ONLY
    max_consecutive_skips: Optional[Count] = key(50, "stop after this many skipped steps in a row; null = never")
    max_skip_rate: Optional[Fraction] = key(
        0.5,
        "stop at the end of an epoch if at least this share of the second half of all steps was skipped (if that half "
        "has 100 steps or more); null = never",
    )

    def __new__(cls, mode: str = AUTO, *_: Any, **__: Any) -> Self:
        chosen: Any = mode_settings(mode) if cls is LossScaleSettings else cls
        return object.__new__(chosen)  # type: ignore[no-any-return]

    @property
    def rule(self) -> ScaleRule:
        """Return the mode with these numbers."""
        return self.rule_class(**{name: getattr(self, name) for name in self.rule_class.key_names()})

    def rule_for(self, computes_in_float16: bool) -> ScaleRule:
        """Return the mode for a model: the only place that decides what `auto` means."""
        return NoScale() if self.mode == AUTO and not computes_in_float16 else self.rule

    @classmethod
    def transferable_keys(cls) -> set[str]:
        """Return the keys, set in a recipe for another mode, that also act under this mode: none without scaling."""
        return {declared.name for declared in fields(cls)} if cls.rule_class.scales else set()


@cache
def mode_settings(mode: str) -> type[LossScaleSettings]:
    """Return the class with the keys of a mode; PluginError for a mode of another package that can't be used."""
    rule = SCALE_RULES[mode] if mode in SCALE_RULES else load_rule(mode)
    try:
        return _with_numbers(mode, rule)
    except (TypeError, ValueError, NameError) as error:
        raise PluginError(f"{rule.__module__}.{rule.__qualname__} has fields that can't be keys: {error}.") from error


def _with_numbers(mode: str, rule: type[ScaleRule]) -> type[LossScaleSettings]:
    hints, said = get_type_hints(rule), {each.name: each for each in fields(rule) if each.name in rule.key_names()}
    numbers = [
        (
            name,
            ranged(hints[name], each.metadata.get("bounds", {})),
            key(each.default, each.metadata.get("meaning", "")),
        )
        for name, each in said.items()
    ]
    own = field(default=mode, metadata=LossScaleSettings.__dataclass_fields__["mode"].metadata)
    doc = "Dynamic if any layer computes in float16, else none." if mode == AUTO else rule.__doc__
    namespace = {"rule_class": rule, "__module__": __name__, "__doc__": doc}
    keys: list[Any] = [("mode", str, own), *numbers]
    return make_dataclass(f"{rule.__name__}Settings", keys, bases=(LossScaleSettings,), namespace=namespace)
