"""The schema: the one place for the type, default and meaning of every key of a configuration.

Below the sections: all keys as a flat table of dotted paths, and suggestions for unknown paths.
"""

from contextlib import suppress
from dataclasses import dataclass, field, is_dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Dict, List, Literal, Optional, Union, get_type_hints

from annotated_types import Interval

from mpt_cli import plugins
from mpt_cli.errors import OTHER_WORDS, Problem, nearest
from mpt_cli.settings.key_type import Count, Key, NonNegative, Positive, Whole, class_keys, key, one_of, section_content
from mpt_cli.settings.model_data_optimizer_keys import (
    DATA,
    MLP,
    MODELS,
    OPTIMIZERS,
    PYTHON,
    PYTHON_VARIANTS,
    SCALE_MODES,
    CustomOptimizer,
    DataSettings,
    Digits,
    LossScaleSettings,
    ModelSettings,
    OptimizerSettings,
    mode_settings,
)
from mpt_cli.settings.python_references import HYDRA_TARGET, optimizer_arguments


@dataclass
class FaultSettings:
    """A fault to inject, which shows how a run deals with it. Steps count from 1, skipped ones included."""

    kind: Literal["none", "overflow", "nan", "zero"] = key("none", "overflow: numbers become inf; nan: nan; zero: 0")
    place: Literal["backward", "forward", "data"] = key(
        "backward",
        "backward: all gradients, while the loss stays finite; forward: the loss; data: the first example of the batch",
    )
    at_steps: List[Count] = key([], "steps at which the fault is injected")
    every_steps: Optional[Count] = key(None, "inject the fault at each multiple of this, too")
    above_scale: Optional[Positive] = key(
        None, "inject the fault only while the loss scale is above this, like a real overflow; null = at any scale"
    )


# keys of the trainer that act in a fit of Keras's own, too
RECORDED_TRAINER_KEYS = (
    "log_every_steps",
    "max_nonfinite_losses",
    "max_zero_gradients",
    "stop_on_nonfinite_weights",
    "gradient_health_every_steps",
)


def acts_on_record(path: str) -> bool:
    """Return whether this key has an effect when another program trains and mpt only records."""
    section, _, name = path.partition(".")
    return section in ("loss_scale", "logger") or (section == "trainer" and name in RECORDED_TRAINER_KEYS)


FLOAT_POLICIES = ("float32", "float64", "float16", "bfloat16", "mixed_float16", "mixed_bfloat16")
AUTO_FLOAT16 = "auto_float16"
BACKENDS = ("tensorflow", "jax")  # in the order of preference
if TYPE_CHECKING:  # where Keras or a command line gave them, they are any text
    FloatPolicy = str
    Backend = str
else:
    FloatPolicy = Literal[FLOAT_POLICIES]
    Backend = Literal[BACKENDS]


@dataclass
class PolicySettings:
    """The dtypes in which layers compute and keep their variables."""

    name: Union[FloatPolicy, Literal["auto_float16"]] = key(
        "float32", "dtype policy of all layers; auto_float16 = mixed_float16, with float32 for the layers that need it"
    )
    head: Optional[FloatPolicy] = key("float32", "policy of the output layer; null = as `name`; ignored under float64")
    overrides: Dict[str, FloatPolicy] = key(
        {}, "policies of single layers, by name or path, or a pattern of these (as in a shell: conv*)"
    )

    @property
    def may_compute_in_float16(self) -> bool:
        """Return whether some layer computes in float16 under this policy, or may once `auto_float16` is resolved."""
        names = {self.name, self.head, *self.overrides.values()}
        return not names.isdisjoint({"float16", "mixed_float16", AUTO_FLOAT16})

    @property
    def is_auto(self) -> bool:
        """Return whether the layers' policies are chosen from the built model (a run records them as `overrides`)."""
        return self.name == AUTO_FLOAT16

    @property
    def base(self) -> str:
        """Return Keras's policy under which the model is built."""
        return "mixed_float16" if self.is_auto else self.name


@dataclass
class EarlyStoppingSettings:
    """Keras's EarlyStopping: the run ends when a metric no longer improves."""

    patience: Optional[Whole] = key(None, "epochs without improvement before the run ends; null = never")
    monitor: str = key("val_loss", "the metric to watch")
    min_delta: NonNegative = key(0.0, "the smallest change that counts as an improvement")
    mode: Literal["auto", "min", "max"] = key("auto", "whether the metric should fall or rise; auto = as Keras decides")
    baseline: Optional[float] = key(None, "a value that the metric must pass before it counts as improved; null = none")
    restore_best_weights: bool = key(False, "end with the weights of the best epoch")
    start_from_epoch: Whole = key(0, "epochs to wait before watching the metric")


@dataclass
class TrainerSettings:
    """How long to train, in which batches, and on which loss."""

    epochs: Count = key(10, "passes over the training data")
    max_steps: Optional[Count] = key(None, "stop after this many steps, skipped ones included")
    batch_size: Count = key(64, "examples per step")
    steps_per_epoch: Optional[Count] = key(
        None,
        "steps in an epoch of streamed data; the next epoch continues from there; null = all the data",
    )
    validation_steps: Optional[Count] = key(None, "batches to use of streamed validation data; null = all")
    shuffle: bool = key(True, "a new order in each epoch, drawn from the seed")
    deterministic: bool = key(True, "repeat bit for bit: fixed seeds, a fixed order of the data, deterministic kernels")
    jit_compile: Union[bool, Literal["auto"]] = key(
        "auto", "compile with XLA; auto = decide by backend, device, model and number of steps"
    )
    steps_per_execution: Union[Annotated[int, Interval(ge=1, le=2**16)], Literal["auto"]] = key(
        "auto", "the most steps in one call of the compiled loop"
    )
    feed: Literal["auto", "resident", "stream"] = key(
        "auto",
        "resident: data stays on the device; stream: it is sent batch by batch; auto = decide by size",
        advanced=True,
    )
    log_every_steps: Count = key(50, "steps between lines in metrics.jsonl")
    validate_every_epochs: Count = key(1, "epochs between validations")
    loss: Any = key(
        "auto",
        "the loss: auto (cross-entropy for labels, mean squared error for numbers), a Keras name, module:name, "
        "{object: …, kwargs: {…}}, a mapping or list of these by output, or null if the model has its own; only auto "
        "changes targets, one-hot rows into labels",
    )
    loss_weights: Any = key(None, "weight of each output's loss, as a mapping or list; null = 1")
    from_logits: Union[bool, Literal["auto"]] = key(
        "auto", "whether outputs are logits; auto = yes unless the model ends in softmax or sigmoid"
    )
    metrics: Any = key(
        ["auto"], "metrics besides the loss, written like `loss`; auto = accuracy or mean absolute error"
    )
    weighted_metrics: Any = key([], "metrics that use the sample weights, written like `metrics`")
    class_weight: Any = key(None, "weight of each class in the loss, as in {0: 1, 1: 5}; a class left out has 1")
    max_nonfinite_losses: Optional[Count] = key(
        10, "stop after this many applied steps in a row with a loss that is not finite; null = never", advanced=True
    )
    max_zero_gradients: Optional[Count] = key(
        50,
        "stop after this many applied steps in a row with all gradients exactly 0; null = never",
        advanced=True,
    )
    gradient_health_every_steps: Optional[Union[Count, Literal["auto"]]] = key(
        "auto",
        "steps between samples of what each layer loses in half precision; the first is at step 100 at the latest, "
        "the last at the end. auto = 2000, or more if samples would take over 1 % of the time; none if compiling "
        "them would take too long. null = never",
        advanced=True,
    )
    checkpoint_every_steps: Optional[Count] = key(None, "steps between checkpoints; null = none by steps")
    checkpoint_every_minutes: Optional[Positive] = key(
        1.0, "minutes between checkpoints, more if saving would take over 2 % of the time; null = none by time"
    )
    keep_checkpoints: Count = key(2, "how many of the latest checkpoints to keep")
    callbacks: Any = key(
        [],
        "Keras's callbacks and your own: a list of Keras names, module:name, or {object: …, kwargs: {…}}; "
        "{run_dir} in a text of kwargs stands for the run directory",
    )
    early_stopping: EarlyStoppingSettings = field(default_factory=EarlyStoppingSettings)
    stop_on_nonfinite_weights: bool = key(True, "stop if weights are inf or nan at the end of an epoch", advanced=True)
    save_model: bool = key(True, "write model.keras at the end")


@dataclass
class BackendSettings:
    """The backend and device of Keras."""

    name: Union[Literal["auto"], Backend] = key(
        "auto",
        "Keras backend; auto = KERAS_BACKEND if it is set, else the one that is installed (TensorFlow if both are)",
    )
    device: Literal["auto", "cpu", "gpu"] = key("auto", "auto = a GPU if there is one; gpu = a GPU, or an error")
    memory_growth: bool = key(True, "take GPU memory as needed, not all of it at the start")


@dataclass
class LoggerSettings:
    """Where to log, in addition to the files of the run directory, which are always written."""

    console: Literal["auto", "live", "plain", "quiet"] = key("auto", "auto = live in a terminal, plain lines elsewhere")
    tensorboard: bool = key(False, "TensorBoard event files in tensorboard/")
    mlflow: bool = key(False, "an MLflow run in mlflow/, or on the server of MLFLOW_TRACKING_URI (extra mlflow)")
    wandb: bool = key(False, "a Weights & Biases run in wandb/, offline unless WANDB_MODE says otherwise (extra wandb)")


@dataclass
class DistributeSettings:
    """How each batch is split over devices, on JAX also over processes."""

    name: Literal["none", "mirrored", "data_parallel"] = key(
        "none", "how to split: none, mirrored (TensorFlow), data_parallel (JAX)"
    )
    devices: Optional[Count] = key(None, "number of devices (of each process); null = all")


@dataclass
class Settings:
    """One run, fully resolved."""

    recipe: str = key("custom", "name of the recipe, and of its folder in runs/")
    description: str = key("", "one sentence on what the recipe shows")
    seed: Optional[Annotated[int, Interval(ge=0, le=2**32 - 1)]] = key(
        0, "seed of everything random; null = draw one and record it"
    )
    requires: List[Literal["gpu", "network"]] = key(
        [], "what the recipe needs besides a CPU; `mpt reproduce --all` skips it where that is missing"
    )
    tags: List[str] = key([], "words by which `mpt reproduce -k` selects recipes, as by name")
    run_dir: Optional[str] = key(None, "directory of the run; null = runs/<recipe>/<time>-<id>")
    resume: Optional[str] = key(
        None,
        "a run directory to resume; auto = the run in `run_dir` or the newest unfinished one of the recipe, if any",
    )
    policy: PolicySettings = field(default_factory=PolicySettings)
    loss_scale: LossScaleSettings = field(default_factory=LossScaleSettings)
    model: ModelSettings = field(default_factory=MLP)
    data: DataSettings = field(default_factory=Digits)
    optimizer: OptimizerSettings = field(default_factory=OPTIMIZERS["adam"])
    trainer: TrainerSettings = field(default_factory=TrainerSettings)
    backend: BackendSettings = field(default_factory=BackendSettings)
    logger: LoggerSettings = field(default_factory=LoggerSettings)
    distribute: DistributeSettings = field(default_factory=DistributeSettings)
    fault: FaultSettings = field(default_factory=FaultSettings)
    vars: Dict[str, Any] = key({}, "values of your own, which other keys read as ${vars.NAME}")
    expect: Dict[str, Any] = key({}, "what the run must reach: `metric: {min: …, max: …, value: …, rtol: …, atol: …}`")


VARIANTS: dict[str, dict[str, type]] = {
    "model": MODELS,
    "data": DATA,
    "optimizer": {**OPTIMIZERS, "object": CustomOptimizer},
    "loss_scale": {mode: mode_settings(mode) for mode in SCALE_MODES},
}
CHOOSING_KEYS = {  # model.name=cnn acts as model=cnn
    **{f"{group}.name": group for group in ("model", "data", "optimizer", "policy", "backend", "distribute")},
    "loss_scale.mode": "loss_scale",
}


def choosing_key(section: str) -> str:
    """Return the name of the key that chooses the variant of a section."""
    return "mode" if section == "loss_scale" else "name"


def chosen_variant(section: str, given: Any) -> str:
    """Return the name of the variant that these settings, or this part of a composed tree, choose."""
    name = choosing_key(section)
    return str(given[name] if isinstance(given, dict) else getattr(given, name))


def variant_class(section: str, name: str) -> type:
    """Return the class with the keys of a variant; PluginError for a mode of another package that can't be used."""
    if name == PYTHON and section in PYTHON_VARIANTS:
        return PYTHON_VARIANTS[section]
    return mode_settings(name) if section == "loss_scale" else VARIANTS[section][name]


def variants_of(section: str) -> dict[str, type]:
    """Return every variant that can be used, those of other packages after ours."""
    found = dict(VARIANTS[section])
    for name in plugins.installed() if section == "loss_scale" else ():
        with suppress(plugins.PluginError):
            found[name] = variant_class(section, name)
    return found


def unknown_key_problem(path: str, value: Any) -> Problem | None:
    """Return a problem if no variant has a key `path`, else None."""
    if find_key(path) or mapping_of(path):
        return None
    if inside := [other for other in all_keys() if other.startswith(f"{path}.")]:
        first = f"{path}.name" if f"{path}.name" in inside else inside[0]
        rule = "must be a section with keys of its own."
        return None if isinstance(value, dict) else Problem(path, rule, value, f"Did you mean {first}={value or '…'}?")
    holder = path.rpartition(".")[0]
    if find_key(holder):
        return Problem(path, f"there is no such key; {holder} has no keys inside.", value)
    return no_such_key(path, value)


def no_such_key(path: str, value: Any) -> Problem:
    return Problem(path, "there is no such key.", value, remedy_for(path, value))


_OBJECT_KEYS = {"model": "builder", "data": "loader"}  # which name an object, as optimizer.object does
FAR_CUTOFF = 0.75  # likeness of a name of another section: bugcalls is not callbacks, nor rize freeze


def remedy_for(path: str, value: Any) -> str:
    """Suggest the key of the same name in another section, else the nearest name in this section, else anywhere.

    >>> remedy_for("precision", "16-mixed"), remedy_for("model._target_", "nets.deep.build")
    ('Did you mean policy=mixed_float16?', 'Write model.builder: nets.deep:build.')
    """
    section, _, written = path.rpartition(".")
    leaf = OTHER_WORDS.get(written, written)
    if leaf == HYDRA_TARGET and section:
        return f"Write {section}.{_OBJECT_KEYS.get(section, 'object')}: {':'.join(str(value).rsplit('.', 1))}."
    if section and leaf in sections() and isinstance(value, dict):
        if leaf == section:
            return f"Write its keys without this `{leaf}:` around them."
        return f"Did you mean {leaf}? In a group file, keys of others need `# @package _global_` in its first line."
    if leaf != written and find_key(near := f"{section}.{leaf}".lstrip(".")):
        return f"Did you mean {near}?"
    if section == "optimizer" and any(leaf in optimizer_arguments(name) for name in OPTIMIZERS):
        return f"Write optimizer.kwargs.{leaf}: it is an argument of the class."
    if policy := leaf if leaf in FLOAT_POLICIES else leaf == "policy" and nearest(value, FLOAT_POLICIES):
        return f"Did you mean policy={policy}?"
    keys = all_keys()
    known = dict.fromkeys([*keys, *(key.rpartition(".")[0] for key in keys if "." in key)])
    leaves = {other.rpartition(".")[2]: other for other in known}
    siblings = {name: other for other in known for above, _, name in [other.rpartition(".")] if above == section}
    meant = [other for other in known if other.rpartition(".")[2] == leaf][:3]
    meant = meant or [siblings[name] for name in filter(None, [nearest(leaf, siblings)])]
    meant = meant or [leaves[name] for name in filter(None, [nearest(leaf, leaves, FAR_CUTOFF)])]
    if section and siblings and not meant:
        return f"Keys here: {', '.join(siblings)}."
    meant = meant or [*filter(None, [nearest(path, known)])]
    return f"Did you mean {' or '.join(meant)}?" if meant else f"Sections: {', '.join(sections())}."


@cache
def sections() -> dict[str, type]:
    """Return each section of Settings and its dataclass (the shared base where it has variants)."""
    hints = get_type_hints(Settings).items()
    return {name: hint for name, hint in hints if isinstance(hint, type) and is_dataclass(hint)}


@cache
def key_versions(with_plugins: bool = True) -> tuple[Key, ...]:
    """Return every key once for each meaning, default and range it has; `variants` are those that share it."""
    found = {each.path: {"": each} for each in class_keys(Settings) if each.path.partition(".")[0] not in VARIANTS}
    for section, ours in VARIANTS.items():
        variants = variants_of(section) if with_plugins else ours
        # the key that chooses a variant is one for all
        chooser, default = choosing_key(section), chosen_variant(section, getattr(Settings(), section))
        declared = section_content(sections()[section], section)[chooser]
        assert isinstance(declared, Key)
        one = replace(declared, type=one_of(*variants), default=default, variants=(*variants,))
        found[one.path] = {"": one}
        for variant, cls in variants.items():
            for each in class_keys(cls, section):
                if each.path != one.path:
                    versions = found.setdefault(each.path, {})
                    known = versions.get(repr(each), each)
                    versions[repr(each)] = replace(known, variants=(*known.variants, variant))
    return tuple(version for versions in found.values() for version in versions.values())


@cache
def all_keys(with_plugins: bool = True) -> dict[str, Key]:
    """Return every key of every variant by its path; one that several variants have is the first one's."""
    found: dict[str, Key] = {}
    for version in key_versions(with_plugins):
        first = found.get(version.path)
        found[version.path] = replace(first, variants=first.variants + version.variants) if first else version
    return found


def find_key(path: str) -> Key | None:
    """Return the key at `path`; None if there is none. Imports other packages only if no key of ours fits."""
    return all_keys(with_plugins=False).get(path) or (all_keys().get(path) if path.startswith("loss_scale.") else None)


def mapping_of(path: str) -> Key | None:
    """Return the key with free content that holds `path`, such as model.kwargs for model.kwargs.depth."""
    parts = path.split(".")
    holders = (".".join(parts[:count]) for count in range(1, len(parts)))
    return next((key for holder in holders if (key := find_key(holder)) and key.is_mapping), None)
