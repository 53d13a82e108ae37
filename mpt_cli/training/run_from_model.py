"""A run from Python objects: a compiled model, and arrays or datasets as Keras's `fit` accepts them.

Only its settings are recorded; the objects belong to the caller, so no YAML repeats such a run.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from inspect import isgenerator
from typing import Any, NamedTuple

import keras

from mpt_cli.data.batch_streams import (
    is_batch_source,
    is_tf_dataset,
    open_batches,
    open_tf_batches,
    read_arrays,
)
from mpt_cli.data.examples import DataSet, Examples, Stream, map_arrays
from mpt_cli.data.prepare_data_set import data_set_fields, shape_problems, weighted_by_class
from mpt_cli.engine.backend import Platform, running_platform
from mpt_cli.errors import DataError, config_error
from mpt_cli.models.build import set_trained
from mpt_cli.precision import LossScaleOptimizer, has_custom, layers_of
from mpt_cli.precision.keras_internals import compiled_loss_weights, copied_optimizer, policies_kept
from mpt_cli.precision.policy import made_in_float32, name_of
from mpt_cli.precision.scale_rules import DynamicScale, ScaleRule
from mpt_cli.precision.train_step import unwrapped
from mpt_cli.settings.model_data_optimizer_keys import GivenOptimizer
from mpt_cli.settings.schema import FLOAT_POLICIES, PolicySettings, Settings
from mpt_cli.training.build_run_parts import build_metrics
from mpt_cli.training.loss_and_optimizer import COMMON_ARGUMENTS
from mpt_cli.training.model import policy_of, put_under_policy, replace_optimizers
from mpt_cli.training.run_from_settings import RunDefinition


class DataArguments(NamedTuple):
    """The data arguments of Keras's `fit`."""

    x: Any
    y: Any = None
    sample_weight: Any = None
    class_weight: Mapping[int, float] | None = None
    validation_data: Any = None
    validation_split: float = 0.0


@dataclass(frozen=True)
class ModelRunDefinition(RunDefinition):
    """A compiled `model`, trained on `data`. `policy` None leaves its layers in the dtypes they have."""

    model: Any
    data: DataSet
    policy: str | None = None
    callbacks: tuple[Any, ...] = ()
    repeatable = False

    def check_present(self) -> None:
        """Check nothing: the caller has it in hand."""

    def prepare_backend(self) -> Platform:
        return running_platform(self.settings)

    def load_data(self) -> DataSet:
        return self.data

    def build_model(self, data: DataSet) -> Any:
        """Return the model with the plain optimizer of the author's `compile`, which a run puts into loss scaling;
        ConfigError if the policy would change the dtype of existing variables."""
        model, everywhere = self.model, self.policy is not None
        policy = policy_of(self.settings)
        wanted, before = policy.variable_dtype, {v.dtype for v in model.trainable_weights}
        if everywhere and before - {wanted}:
            raise config_error(
                "policy",
                f"must leave the variables as they are: {policy.name} has {wanted}, the model was built with "
                f"{', '.join(sorted(before))}.",
                self.settings.policy.name,
                f"Build the model after keras.config.set_dtype_policy({policy.name!r}), and leave policy out.",
            )
        model = put_under_policy(self.settings, model, data, everywhere)
        for inner in replace_optimizers(model, lambda inner: inner).values():
            inner._mpt_is_wrapped = False  # by an earlier run; from now on it is this one's
        set_trained(model, self.settings.model)
        model.built = model.built or not has_custom(model, "call")  # else Keras would not save what has no `call`
        model.train_function = None  # made anew by the next `fit`, which has another optimizer now
        return model

    def build_copy(self, settings: Settings, data: DataSet) -> Any:
        """Return the model itself, which only its author can make again, or a copy if its variables change dtype."""
        as_built = self.policy is None and settings.policy.name == self.settings.policy.name
        if self.policy is None and not as_built:  # a head that its author keeps in float32 stays there
            settings = replace(settings, policy=replace(settings.policy, head=PolicySettings().head))
        return put_under_policy(settings, self.model, data, everywhere=not as_built)

    def compile_copy(self, settings: Settings, model: Any, data: DataSet) -> None:
        if model is not self.model:
            model.compile(None, self.model.loss, compiled_loss_weights(self.model), auto_scale_loss=False)

    @property
    def model_name(self) -> str:
        return f"{type(self.model).__name__} {self.model.name}"

    def describe_policy(self, model: Any) -> str:
        counts = Counter(layer.dtype_policy.name for layer in layers_of(model))
        parts = [f"{count} layer{'s' if count > 1 else ''} {name}" for name, count in counts.items()]
        how = "as built" if self.policy is None else f"{self.policy}, set on the built model"
        return f"{how} ({', '.join(parts)})"


@contextmanager
def model_kept(model: Any, data: DataSet, batch_size: int) -> Iterator[None]:
    """Put weights, policies and optimizer of the compiled model back after this context, in which an optimizer like its
    own trains it."""
    build_metrics(model, data.train, batch_size)
    own, inner = model.optimizer, unwrapped(model.optimizer)
    kept = [keras.ops.copy(variable.value) for variable in model.variables]  # on JAX a loop gives its buffers away
    model.optimizer = copied_optimizer(inner)
    if inner.built:
        model.optimizer.build(model.trainable_variables)
        for variable, value in zip(model.optimizer.variables, inner.variables, strict=True):
            variable.assign(keras.ops.copy(value))
    try:
        with policies_kept(model):
            yield
    finally:
        for variable, value in zip(model.variables, kept, strict=True):
            variable.assign(value)
        model.optimizer, model.train_function = own, None
        vars(model).pop("mpt_half_output", None)  # as of the measured dtypes


def check_trainable(model: Any) -> None:
    """Raise ConfigError, with what to do, for a model that `mpt.fit` can't train."""
    backend = keras.backend.backend()
    if backend not in ("tensorflow", "jax"):
        remedy = "Set KERAS_BACKEND before Keras is imported."
        raise config_error("backend.name", "must be tensorflow or jax.", backend, remedy)
    if not isinstance(model, keras.Model):
        raise config_error("model", "must be a keras.Model.", type(model).__name__)
    if not model.compiled:
        rule = "must be compiled, with a loss and an optimizer."
        raise config_error("model", rule, None, "Call model.compile(...) first.")
    if model.run_eagerly:
        rule = "must not be compiled with run_eagerly=True: the loop is compiled."
        remedy = "Leave it out, or use mpt.Recorder with Keras's own fit."
        raise config_error("model", rule, True, remedy)


def check_targets(model: Any, given: DataArguments) -> None:
    """ConfigError for arrays without targets where the model is compiled with a loss that reads them."""
    own = has_custom(model, "train_step") or has_custom(model, "compute_loss")
    if given.y is None and model.loss is not None and not own and not is_batched_source(given.x):
        raise config_error(
            "y",
            "must be given with arrays: the model is compiled with a loss.",
            None,
            "Compile it with loss=None where add_loss says it all.",
        )


def rule_of(optimizer: Any) -> ScaleRule | None:
    """Return how the optimizer of a compiled model scales the loss already; None where it does not."""
    if isinstance(optimizer, LossScaleOptimizer):
        return optimizer.rule
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        return DynamicScale(float(optimizer.initial_scale), int(optimizer.dynamic_growth_steps))
    return None


def described_optimizer(optimizer: Any) -> GivenOptimizer:
    """Return the recorded settings of an optimizer that was given as an object."""
    inner = unwrapped(optimizer)
    numbers = {name: getattr(inner, name) for name in COMMON_ARGUMENTS}
    rate = float(keras.ops.cast(inner.learning_rate, "float32"))  # a mirrored variable is no number
    return GivenOptimizer(class_name=type(inner).__name__, learning_rate=rate, **numbers)


def described_policy(model: Any, policy: str | None) -> PolicySettings:
    """Return the policy asked for, but for layers made in float32; else the one that most layers of the model have."""
    if policy is not None:
        kept = map(name_of, made_in_float32(model, policy))
        return PolicySettings(policy, overrides=dict.fromkeys(kept, "float32"))
    names = [layer.dtype_policy.name for layer in layers_of(model)]
    known = [name for name in names if name in FLOAT_POLICIES]
    name = max(known, key=lambda each: (known.count(each), each != "float32"), default="float32")  # not of a head
    return PolicySettings(name, head=None)


def read_given(given: DataArguments) -> DataSet:
    """Return the data in the form of a run; ConfigError or DataError for data that Keras's `fit` refuses too."""
    if not (isinstance(given.validation_split, int | float) and 0 <= given.validation_split < 1):
        raise config_error("validation_split", "must be at least 0 and below 1.", given.validation_split)
    if is_batched_source(given.x):
        return _of_batches(given)
    train = _examples((given.x, given.y, given.sample_weight), "data")
    validation = _validation(given)
    if validation is None and given.validation_split:
        kept = int(train.size * (1 - given.validation_split))
        train, validation = train.take(slice(0, kept)), train.take(slice(kept, train.size))
    if given.class_weight is not None:
        train = weighted_by_class(train, given.class_weight)
    parts = [part for part in (train, validation) if isinstance(part, Examples)]
    counts = f"{train.size:,} training"
    counts += f" and {validation.size:,} validation" if isinstance(validation, Examples) else ""
    return DataSet(
        train=train,
        validation=validation,
        task="given",
        num_classes=None,
        description=f"arrays: {counts} examples",
        **data_set_fields(parts),
    )


def is_batched_source(x: Any) -> bool:
    """Return whether `x` brings batches, and targets and weights in them."""
    return is_tf_dataset(x) or is_batch_source(x)


def _of_batches(given: DataArguments) -> DataSet:
    kind = "a tf.data.Dataset" if is_tf_dataset(given.x) else "a PyDataset"
    for_arrays = {**given._asdict(), "validation_split": given.validation_split or None}
    for name in ("y", "sample_weight", "class_weight", "validation_split"):
        if for_arrays[name] is not None:
            raise config_error(name, f"must be left out with {kind}: it goes with arrays.")
    train = _stream(given.x, "x")
    first = train.first()
    if first is None:
        raise DataError("x: the dataset is empty.")
    return DataSet(
        train=train,
        validation=_validation(given),
        task="given",
        num_classes=None,
        description=kind,
        **data_set_fields([first]),
    )


def _stream(source: Any, where: str) -> Stream:
    if isgenerator(source):
        raise DataError(
            f"{where}: a generator can be read but once. Give a keras.utils.PyDataset, or "
            "tf.data.Dataset.from_generator(...).batch(n)."
        )
    if is_batch_source(source):
        found = open_batches(source, lambda: source, 0, where)
    else:
        found = open_tf_batches(source, None, where)
    return found.mapped(lambda batch, number: _as_keras(batch))


def _validation(given: DataArguments) -> "Examples | Stream | None":
    data = given.validation_data
    if data is None:
        return None
    if is_batched_source(data):
        return _stream(data, "validation_data")
    if not isinstance(data, (tuple, list)) or len(data) not in (2, 3):
        raise config_error(
            "validation_data",
            "must be (x, y), (x, y, sample_weight), a tf.data.Dataset or a PyDataset.",
            type(data).__name__,
        )
    return _examples(tuple(data), "validation_data")


def _examples(parts: tuple[Any, ...], where: str) -> Examples:
    found = _as_keras(read_arrays(parts, f"{where}: "))
    if problems := shape_problems(found):
        raise DataError(f"{where}: {'; '.join(problems)}.")
    return found


def _as_keras(examples: Examples) -> Examples:
    """Return floats in Keras's floatx, as its `fit` has them, and all else as it is."""

    return Examples(
        *map_arrays(lambda array: array.astype(keras.config.floatx()) if array.dtype.kind == "f" else array, examples)
    )
