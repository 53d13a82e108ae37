"""The schema: every key of a configuration, its type, default and meaning, the one place for these.

Below the sections: the same as a flat table of dotted paths, and which key a path that is not in it probably meant.
"""

from contextlib import suppress
from dataclasses import dataclass, field, is_dataclass, replace
from functools import cache
from typing import Any, Dict, List, Optional, Union, get_type_hints

from mpt_cli import plugins
from mpt_cli.errors import OTHER_WORDS, Problem, did_you_mean, nearest
from mpt_cli.settings.key_type import Key, class_keys, key
from mpt_cli.settings.model_data_optimizer_keys import (
    DATA,
    MLP,
    MODELS,
    OPTIMIZER_VARIANTS,
    OPTIMIZERS,
    PROGRAM_VARIANTS,
    PYTHON,
    SCALE_MODES,
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
    """What goes wrong on purpose, to rehearse how a run deals with it. Steps count from 1, skipped ones included."""

    kind: str = key(
        "none",
        "what numbers become: overflow (inf), nan, or zero (gradients that vanish)",
        choices=("none", "overflow", "nan", "zero"),
    )
    place: str = key(
        "backward",
        "backward: all gradients, with a loss that is in order; forward: the loss; data: the "
        "first example of the batch",
        choices=("backward", "forward", "data"),
    )
    at_steps: List[int] = key([], "steps at which it happens", at_least=1)
    every_steps: Optional[int] = key(None, "it happens at every multiple of this too", at_least=1)
    above_scale: Optional[float] = key(
        None,
        "it happens only while the loss scale is above this, as a real overflow does; null = at any scale",
        above=0,
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
    """Return whether this key acts where another program trains and mpt records."""
    section, _, name = path.partition(".")
    return section in ("loss_scale", "logger") or (section == "trainer" and name in RECORDED_TRAINER_KEYS)


FLOAT_POLICIES = ("float32", "float64", "float16", "bfloat16", "mixed_float16", "mixed_bfloat16")
AUTO_FLOAT16 = "auto_float16"


@dataclass
class PolicySettings:
    """In which dtype layers compute and keep their variables."""

    name: str = key(
        "float32",
        "dtype policy of all layers; auto_float16 = mixed_float16 with overrides by what each layer does",
        choices=(*FLOAT_POLICIES, AUTO_FLOAT16),
    )
    head: Optional[str] = key(
        "float32", "policy of the output layer, null = as `name` (float64 keeps float64)", choices=FLOAT_POLICIES
    )
    overrides: Dict[str, str] = key(
        {}, "layer name or path pattern (as in a shell: conv*) -> policy", choices=FLOAT_POLICIES
    )
    stochastic_rounding: bool = key(
        False,
        "updates of float16 and bfloat16 weights are computed in float32 and "
        "rounded up or down at random, so that none is lost on average",
    )

    @property
    def has_half_weights(self) -> bool:
        """Return whether a policy among its own keeps weights in float16 or bfloat16."""
        return not {"float16", "bfloat16"}.isdisjoint([self.name, *self.overrides.values()])

    @property
    def may_compute_in_float16(self) -> bool:
        """Return whether a policy among its own computes in it, or may be found to."""
        names = {self.name, self.head, *self.overrides.values()}
        return not names.isdisjoint({"float16", "mixed_float16", AUTO_FLOAT16})

    @property
    def description(self) -> str:
        """Return its name, and what it asks for beside it.

        >>> PolicySettings("bfloat16", stochastic_rounding=True).description
        'bfloat16 with stochastic rounding'
        """
        return f"{self.name} with stochastic rounding" if self.stochastic_rounding else self.name

    @property
    def is_auto(self) -> bool:
        """Return whether layers have yet to be given their policies, of which a run records `overrides`."""
        return self.name == AUTO_FLOAT16

    @property
    def base(self) -> str:
        """Keras's policy under which the model is built."""
        return "mixed_float16" if self.is_auto else self.name


@dataclass
class EarlyStoppingSettings:
    """Keras's EarlyStopping: the run ends where a metric no longer gets better."""

    patience: Optional[int] = key(None, "epochs without improvement before the run ends; null = never", at_least=0)
    monitor: str = key("val_loss", "the metric")
    min_delta: float = key(0.0, "a smaller change is no improvement", at_least=0)
    mode: str = key(
        "auto", "whether the metric should fall or rise; auto = as Keras tells from it", choices=("auto", "min", "max")
    )
    baseline: Optional[float] = key(None, "improvement counts only beyond this value; null = none")
    restore_best_weights: bool = key(False, "end with the weights of the best epoch")
    start_from_epoch: int = key(0, "epochs before the metric is looked at", at_least=0)


@dataclass
class TrainerSettings:
    """How long and in what portions is trained."""

    epochs: int = key(10, "passes over the training data", at_least=1)
    max_steps: Optional[int] = key(None, "stop after this many steps, skipped ones included", at_least=1)
    batch_size: int = key(64, "examples per step", at_least=1)
    steps_per_epoch: Optional[int] = key(
        None,
        "steps after which an epoch of a stream ends, and the next goes on from there; null = as many as there are",
        at_least=1,
    )
    validation_steps: Optional[int] = key(None, "batches of a stream of validation data, null = all", at_least=1)
    shuffle: bool = key(True, "new order each epoch, drawn from the seed")
    deterministic: bool = key(True, "bit-identical repeats: seeds, data order and deterministic kernels")
    jit_compile: Union[bool, str] = key(
        "auto", "XLA: auto decides by backend, device, model and the steps to run", choices=("auto", True, False)
    )
    steps_per_execution: Union[int, str] = key(
        "auto", "most steps per call into the compiled loop", choices=("auto",), at_least=1, at_most=2**16
    )
    feed: str = key(
        "auto",
        "resident: data on the device; stream: sent batch by batch; auto decides by size",
        choices=("auto", "resident", "stream"),
        advanced=True,
    )
    log_every_steps: int = key(50, "steps between lines in metrics.jsonl", at_least=1)
    validate_every_epochs: int = key(1, "epochs between validations", at_least=1)
    loss: Any = key(
        "auto",
        "what is minimised: auto (crossentropy of labels, mean squared error of numbers), a Keras "
        "name, module:name, {object: …, kwargs: {…}}, a mapping or list of these by output, or null where "
        "the model brings its own; but for auto, targets stay as they come",
    )
    loss_weights: Any = key(None, "factor of each output's loss, as a mapping or list; null = 1")
    from_logits: Union[bool, str] = key(
        "auto", "auto: whether the head has no softmax/sigmoid", choices=("auto", True, False)
    )
    metrics: Any = key(["auto"], "metrics beside the loss, named as `loss` is; auto: accuracy or mean absolute error")
    weighted_metrics: Any = key([], "metrics that sample weights count in, named as `metrics` are")
    class_weight: Any = key(None, "factor of the loss of each class, as in {0: 1, 1: 5}; a class left out has 1")
    max_nonfinite_losses: Optional[int] = key(
        10,
        "stop after this many applied steps in a row with a non-finite loss, null = never",
        at_least=1,
        advanced=True,
    )
    max_zero_gradients: Optional[int] = key(
        50,
        "stop after this many applied steps in a row in which every gradient was exactly 0, null = never",
        at_least=1,
        advanced=True,
    )
    gradient_health_every_steps: Optional[Union[int, str]] = key(
        "auto",
        "steps between samples of what half precision loses, layer by layer, where anything is in it, the "
        "first at step 100 at the latest, the last at the end: auto (2000, longer where samples would take over 1 % of "
        "the time, none where compiling the first, on JAX or of recurrent layers, would be over 5 % of the run, or 2 s "
        "at its end) or a number; null = never",
        choices=("auto",),
        at_least=1,
        advanced=True,
    )
    checkpoint_every_steps: Optional[int] = key(None, "steps between checkpoints, null = not by steps", at_least=1)
    checkpoint_every_minutes: Optional[float] = key(
        1.0,
        "minutes between checkpoints, longer where saving would take over 2 % of the time; null = not by time",
        above=0,
    )
    keep_checkpoints: int = key(2, "how many of the latest checkpoints are kept", at_least=1)
    callbacks: Any = key(
        [],
        "Keras's callbacks and your own: a list of Keras names, module:name, or {object: …, "
        "kwargs: {…}}; {run_dir} in a text of kwargs is the directory of the run",
    )
    early_stopping: EarlyStoppingSettings = field(default_factory=EarlyStoppingSettings)
    stop_on_nonfinite_weights: bool = key(True, "stop when an epoch ends with inf or nan in the weights", advanced=True)
    save_model: bool = key(True, "write model.keras at the end")


BACKENDS = ("tensorflow", "jax")  # in the order in which they are taken where nobody says which


@dataclass
class BackendSettings:
    """What runs underneath Keras."""

    name: str = key(
        "auto",
        "Keras backend; auto: KERAS_BACKEND where it is set, else the one that is installed, TensorFlow where both are",
        choices=("auto", *BACKENDS),
    )
    device: str = key(
        "auto", "auto: GPU where there is one; gpu without one is an error", choices=("auto", "cpu", "gpu")
    )
    memory_growth: bool = key(True, "take GPU memory as needed instead of all of it")


@dataclass
class LoggerSettings:
    """Where telemetry goes beside metrics.jsonl and events.jsonl, which are always written."""

    console: str = key(
        "auto", "auto: live in a terminal, plain lines elsewhere", choices=("auto", "live", "plain", "quiet")
    )
    tensorboard: bool = key(False, "tensorboard/ event files")
    mlflow: bool = key(False, "an MLflow run in mlflow/, or on the server of MLFLOW_TRACKING_URI (extra mlflow)")
    wandb: bool = key(False, "a Weights & Biases run in wandb/, offline unless WANDB_MODE says otherwise (extra wandb)")


@dataclass
class DistributeSettings:
    """Over how many devices, and on JAX processes, a batch is split."""

    name: str = key(
        "none",
        "none, mirrored (TensorFlow) or data_parallel (JAX)",
        choices=("none", "mirrored", "data_parallel"),
    )
    devices: Optional[int] = key(None, "how many devices (of each process), null = all", at_least=1)


@dataclass
class Settings:
    """One run, fully resolved."""

    recipe: str = key("custom", "name of the recipe; names the folder under runs/")
    description: str = key("", "one sentence on what it shows")
    seed: Optional[int] = key(0, "of everything random; null draws one and records it", at_least=0, at_most=2**32 - 1)
    requires: List[str] = key(
        [], "what it needs beside a CPU; `mpt reproduce --all` leaves it out without that", choices=("gpu", "network")
    )
    tags: List[str] = key([], "words by which `mpt reproduce -k` chooses recipes, as by their names")
    run_dir: Optional[str] = key(None, "where the run writes; null = runs/<recipe>/<time>-<id>")
    resume: Optional[str] = key(None, "auto or a run directory: go on where it stopped")
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
    vars: Dict[str, Any] = key({}, "values of the recipe's own, which other keys take as ${vars.NAME}")
    expect: Dict[str, Any] = key({}, "what the run must reach: `metric: {min: …, max: …, value: …, rtol: …, atol: …}`")


VARIANTS: dict[str, dict[str, type]] = {
    "model": MODELS,
    "data": DATA,
    "optimizer": OPTIMIZER_VARIANTS,
    "loss_scale": {mode: mode_settings(mode) for mode in SCALE_MODES},
}
_CHOOSING = {
    **dict.fromkeys(("model", "data", "optimizer", "policy", "backend", "distribute"), "name"),
    "loss_scale": "mode",
}
CHOOSING_KEYS = {f"{group}.{key}": group for group, key in _CHOOSING.items()}  # model.name=cnn acts as model=cnn


def choosing_key(group: str) -> str:
    """Return the key within a section that chooses its file, empty where only the group itself does.

    >>> choosing_key("model"), choosing_key("loss_scale"), choosing_key("trainer")
    ('name', 'mode', '')
    """
    return _CHOOSING.get(group, "")


def chosen_variant(section: str, given: Any) -> str:
    """Return which variant these settings, or this part of a composed tree, are."""
    name = choosing_key(section)
    return str(given[name] if isinstance(given, dict) else getattr(given, name))


def variant_class(section: str, name: str) -> type:
    """Return the keys of one variant, of modes also another package's; PluginError where it can't be used."""
    if name in VARIANTS[section]:
        return VARIANTS[section][name]
    if name == PYTHON and section in PROGRAM_VARIANTS:
        return PROGRAM_VARIANTS[section]
    if section == "loss_scale":
        return mode_settings(name)
    names = [*VARIANTS[section]]
    raise plugins.PluginError(
        f"its name must be one of {', '.join(names)}. Received: {name!r}. {did_you_mean(name, names)}".rstrip()
    )


def variants_of(section: str) -> dict[str, type]:
    """Return every variant that can be used, those of other packages after ours."""
    found = dict(VARIANTS[section])
    for name in plugins.installed() if section == "loss_scale" else ():
        with suppress(plugins.PluginError):
            found[name] = variant_class(section, name)
    return found


def unknown_key_problem(path: str, value: Any) -> Problem | None:
    """Return a problem when no variant has a key `path`, None when one does."""
    if find_key(path) or mapping_of(path):
        return None
    if _is_section(path):
        return None if isinstance(value, dict) else _scalar_problem(path, value)
    holder = path.rpartition(".")[0]
    if find_key(holder):
        return Problem(path, f"there is no such key; {holder} has no keys inside.", value)
    return no_such_key(path, value)


def no_such_key(path: str, value: Any) -> Problem:
    return Problem(path, "there is no such key.", value, remedy_for(path, value))


_OBJECT_KEYS = {"model": "builder", "data": "loader"}  # which name an object, as optimizer.object does
FAR_CUTOFF = 0.75  # how like a name of another section is: bugcalls is not callbacks, nor rize freeze


def remedy_for(path: str, value: Any) -> str:
    """Name the key of the same name elsewhere, else the nearest in the same section, else anywhere.

    >>> remedy_for("precision", "16-mixed"), remedy_for("model._target_", "nets.deep.build")
    ('Did you mean policy=mixed_float16?', 'Write model.builder: nets.deep:build.')
    """
    if path == "sweep":
        return "Give its keys to `mpt sweep` as words, as in seed=0,1,2."
    section, _, written = path.rpartition(".")
    leaf = OTHER_WORDS.get(written, written)
    if leaf == HYDRA_TARGET and section:
        return f"Write {section}.{_OBJECT_KEYS.get(section, 'object')}: {':'.join(str(value).rsplit('.', 1))}."
    if leaf != written and find_key(near := f"{section}.{leaf}".lstrip(".")):
        return f"Did you mean {near}?"
    if section == "optimizer" and any(leaf in optimizer_arguments(name) for name in OPTIMIZERS):
        return f"Write optimizer.kwargs.{leaf}: it is an argument of the class."
    if policy := leaf if leaf in FLOAT_POLICIES else leaf == "policy" and nearest(value, FLOAT_POLICIES):
        return f"Did you mean policy={policy}?"
    keys = all_keys()
    known = dict.fromkeys([*keys, *(key.rpartition(".")[0] for key in keys if "." in key)])
    if same_leaf := [other for other in known if other.rpartition(".")[2] == leaf]:
        return f"Did you mean {' or '.join(same_leaf[:3])}?"
    siblings = {other.rpartition(".")[2]: other for other in known if other.rpartition(".")[0] == section}
    if match := nearest(leaf, siblings):
        return f"Did you mean {siblings[match]}?"
    leaves = {other.rpartition(".")[2]: other for other in known}
    if match := nearest(leaf, leaves, FAR_CUTOFF):
        return f"Did you mean {leaves[match]}?"
    if section and siblings:
        return f"Keys here: {', '.join(siblings)}."
    match = nearest(path, known)
    return f"Did you mean {match}?" if match else f"Sections: {', '.join(sections())}."


def _is_section(path: str) -> bool:
    return any(other.startswith(path + ".") for other in all_keys())


def _scalar_problem(path: str, value: Any) -> Problem:
    inside = [other for other in all_keys() if other.rpartition(".")[0] == path]
    first = f"{path}.name" if f"{path}.name" in inside else inside[0]
    return Problem(path, "must be a section with keys of its own.", value, f"Did you mean {first}={value}?")


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
        for each in class_keys(sections()[section], section):  # the key that chooses a variant is one for all
            if CHOOSING_KEYS.get(each.path) == section:
                default = getattr(getattr(Settings(), section), choosing_key(section))
                found[each.path] = {"": replace(each, default=default, choices=(*variants,), variants=(*variants,))}
        for variant, cls in variants.items():
            for each in class_keys(cls, section):
                versions = found.setdefault(each.path, {})
                if "" not in versions:
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
    """Return the key at `path`. Other packages are asked, and imported, only where none of ours has it."""
    is_added = path.startswith("loss_scale.") and bool(plugins.installed())
    return all_keys(with_plugins=False).get(path) or (all_keys().get(path) if is_added else None)


def mapping_of(path: str) -> Key | None:
    """Return the key with free content that holds `path`, such as model.kwargs for model.kwargs.depth."""
    parts = path.split(".")
    holders = (".".join(parts[:count]) for count in range(1, len(parts)))
    return next((key for holder in holders if (key := find_key(holder)) and key.is_mapping), None)
