"""The schema: every key of a configuration, its type, default and meaning, the one place for these.

Below the sections: the same as a flat table of dotted paths, and which key a path that is not in it probably meant.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, is_dataclass, replace
from functools import cache
from typing import Any, Dict, List, Optional, Union, get_type_hints

from mpt_cli.errors import Problem, nearest
from mpt_cli.settings.key import Key, class_keys, key
from mpt_cli.settings.variants import (
    DATA,
    MLP,
    MODELS,
    OPTIMIZERS,
    Adam,
    DataSettings,
    Digits,
    ModelSettings,
    OptimizerSettings,
)


@dataclass
class FaultSettings:
    """What goes wrong on purpose, to rehearse how a run deals with it. Steps count from 1, skipped ones included."""

    kind: str = key("none", "what numbers become: overflow (inf), nan, or zero (gradients that vanish)",
                    choices=("none", "overflow", "nan", "zero"))
    place: str = key("backward", "backward: all gradients, with a loss that is in order; forward: the loss; data: the "
                     "first example of the batch", choices=("backward", "forward", "data"))
    at_steps: List[int] = key([], "steps at which it happens", at_least=1)
    every_steps: Optional[int] = key(None, "it happens at every multiple of this too", at_least=1)
    until_step: Optional[int] = key(None, "the last step at which it may happen, null = the last of the run",
                                    at_least=1)
    above_scale: Optional[float] = key(None, "it happens only while the loss scale is above this, as a real overflow "
                                       "does; null = at any scale", above=0)
    replica: Optional[int] = key(None, "only on this device of those a batch is split over, from 0; null = on all",
                                 at_least=0)
    slow_storage_seconds: float = key(0.0, "seconds that reading each batch of training data takes longer",
                                      at_least=0)


FLOAT_POLICIES = ("float32", "float64", "float16", "bfloat16", "mixed_float16", "mixed_bfloat16")
SCALE_MODES = ("auto", "dynamic", "fixed", "logmax", "none")
SMALLEST_SCALE, LARGEST_SCALE = 2.0**-126, 2.0**127  # that a float32 can be, and be doubled


@dataclass
class PolicySettings:
    """In which dtype layers compute and keep their variables."""

    name: str = key("float32", "dtype policy of all layers", choices=FLOAT_POLICIES)
    float8: bool = key(False, "Dense and EinsumDense layers multiply in float8 on top of a mixed policy")
    head: Optional[str] = key("float32", "policy of the output layer, null = as `name` (float64 keeps float64)",
                              choices=FLOAT_POLICIES)
    overrides: Dict[str, str] = key({}, "layer name or path pattern (as in a shell: conv*) -> policy",
                                    choices=FLOAT_POLICIES)


@dataclass
class LossScaleSettings:
    """How the loss is scaled before the backward pass, and when an unhealthy scale ends the run."""

    mode: str = key("auto", "auto: dynamic when anything computes in float16, none otherwise", choices=SCALE_MODES)
    initial_scale: float = key(2.0**15, "first (fixed: only) scale", at_least=SMALLEST_SCALE, at_most=LARGEST_SCALE)
    growth_steps: int = key(2000, "applied steps without overflow before the scale grows", at_least=1)
    growth_factor: float = key(2.0, "factor of a growth", above=1, at_most=LARGEST_SCALE)
    backoff_factor: float = key(0.5, "factor after an overflow", at_least=SMALLEST_SCALE, below=1)
    min_scale: float = key(2.0**-14, "the scale never falls below this", at_least=SMALLEST_SCALE,
                           at_most=LARGEST_SCALE)
    max_scale: float = key(2.0**32, "the scale never grows above this", at_least=SMALLEST_SCALE,
                           at_most=LARGEST_SCALE)
    hysteresis: int = key(1, "overflows since the last growth before the scale falls", at_least=1)
    log_max: float = key(16.0, "logmax: power of two that gradients must stay below", above=0, at_most=127)
    beta1: float = key(0.99, "logmax: decay of the mean of log2(largest gradient)", above=0, below=1)
    beta2: float = key(0.999, "logmax: decay of its variance", above=0, below=1)
    deviations: float = key(3.09, "logmax: standard deviations kept free below log_max", above=0)
    on_overflow: str = key("skip", "what an overflow step does", choices=("skip", "apply", "abort"))
    schedules_follow: str = key("applied_steps", "steps that move learning-rate schedules: applied_steps as in Keras 3 "
                                "or all_steps as in tf.keras", choices=("applied_steps", "all_steps"))
    max_consecutive_skips: Optional[int] = key(50, "stop the run after this many skipped steps in a row, null = never",
                                               at_least=1)
    max_skips_at_floor: Optional[int] = key(10, "stop after this many steps skipped with the scale at min_scale, "
                                                "null = never", at_least=1)
    max_skip_rate: Optional[float] = key(0.5, "stop when more than this share of the last skip_rate_window steps was "
                                         "skipped, null = never", above=0, at_most=1)
    stop_on_idle_epoch: bool = key(True, "stop when an epoch ends in which every step was skipped")
    skip_rate_window: int = key(500, "steps over which the skip rate is taken; the first window is warm-up",
                                at_least=10)


@dataclass
class TrainerSettings:
    """How long and in what portions is trained."""

    epochs: int = key(10, "passes over the training data", at_least=1)
    max_steps: Optional[int] = key(None, "stop after this many steps, skipped ones included", at_least=1)
    batch_size: int = key(64, "examples per step", at_least=1)
    shuffle: bool = key(True, "new order each epoch, drawn from the seed")
    drop_remainder: bool = key(False, "leave out the last, smaller batch of an epoch")
    deterministic: bool = key(True, "bit-identical repeats: seeds, data order and deterministic kernels")
    jit_compile: Union[bool, str] = key("auto", "XLA: auto decides by backend and device",
                                        choices=("auto", True, False))
    steps_per_execution: Union[int, str] = key("auto", "steps per call into the compiled loop: auto or a number ≥ 1",
                                                at_most=2**16)
    feed: str = key("auto", "resident: data on the device; stream: sent batch by batch; auto decides by size",
                    choices=("auto", "resident", "stream"))
    log_every_steps: int = key(50, "steps between lines in metrics.jsonl", at_least=1)
    validate_every_epochs: int = key(1, "epochs between validations", at_least=1)
    loss: str = key("auto", "auto, or the name of a Keras loss")
    from_logits: Union[bool, str] = key("auto", "auto: whether the head has no softmax/sigmoid",
                                        choices=("auto", True, False))
    metrics: List[str] = key(["auto"], "Keras metrics beside the loss; auto: accuracy or mean absolute error")
    max_nonfinite_losses: Optional[int] = key(10, "stop after this many applied steps in a row with a non-finite loss, "
                                              "null = never", at_least=1)
    max_zero_gradients: Optional[int] = key(50, "stop after this many applied steps in a row in which every gradient "
                                            "was exactly 0, null = never", at_least=1)
    gradient_health_every_steps: Optional[int] = key(
        2000, "steps between samples of the gradients where anything computes in float16 (flushed to zero, norm, "
        "head-room), the first at step 100 at the latest; null = never", at_least=1)
    on_unhealthy: str = key("stop", "what a broken health rule does: stop the run, or rollback to the last good "
                            "checkpoint and go on with lower rates", choices=("stop", "rollback"))
    max_rollbacks: int = key(3, "rollback: how often at most; the next broken rule stops the run", at_least=1)
    rollback_learning_rate_factor: float = key(0.5, "rollback: factor of the learning rate each time, under a schedule "
                                               "too", above=0, at_most=1)
    rollback_scale_factor: float = key(0.5, "rollback: factor of the loss scale each time, after a rule of loss_scale",
                                       above=0, at_most=1)
    checkpoint_every_steps: Optional[int] = key(None, "steps between checkpoints, null = not by steps", at_least=1)
    checkpoint_every_epochs: Optional[int] = key(None, "epochs between checkpoints, null = not by epochs", at_least=1)
    checkpoint_every_minutes: Optional[float] = key(
        1.0, "minutes between checkpoints, longer where saving would take over 2 % of the time; null = not by time",
        above=0)
    keep_checkpoints: int = key(2, "how many of the latest checkpoints are kept", at_least=1)
    monitor: Optional[str] = key("auto", "metric whose best epoch (lowest loss or error, highest of the others) is "
                                 "kept too: auto = the first of val_accuracy, val_loss, accuracy, loss that there is; "
                                 "null = none")
    stop_on_nonfinite_weights: bool = key(True, "stop when an epoch ends with inf or nan in the weights")
    save_model: bool = key(True, "write model.keras at the end")


@dataclass
class BackendSettings:
    """What runs underneath Keras."""

    name: str = key("tensorflow", "Keras backend", choices=("tensorflow", "jax"))
    device: str = key("auto", "auto: GPU where there is one; gpu without one is an error",
                      choices=("auto", "cpu", "gpu"))
    memory_growth: bool = key(True, "take GPU memory as needed instead of all of it")
    compile_cache: Optional[str] = key("auto", "folder for compiled programs, so that the next run starts sooner; "
                                       "auto = in the user's cache folder, null = none")


@dataclass
class LoggerSettings:
    """Where telemetry goes beside metrics.jsonl and events.jsonl, which are always written."""

    console: str = key("auto", "auto: live in a terminal, plain lines elsewhere",
                       choices=("auto", "live", "plain", "quiet"))
    csv: bool = key(True, "metrics.csv")
    tensorboard: bool = key(False, "tensorboard/ event files")
    mlflow: bool = key(False, "an MLflow run in mlflow/, or on the server of MLFLOW_TRACKING_URI (extra mlflow)")
    wandb: bool = key(False, "a Weights & Biases run in wandb/, offline unless WANDB_MODE says otherwise (extra wandb)")


@dataclass
class DistributeSettings:
    """Over how many devices, and on JAX processes, a batch is split."""

    name: str = key("none", "none, mirrored (TensorFlow) or data_parallel (JAX)",
                    choices=("none", "mirrored", "data_parallel"))
    devices: Optional[int] = key(None, "how many devices (of each process), null = all", at_least=1)
    processes: Optional[int] = key(None, "data_parallel: processes that `mpt train` starts on this machine; null = "
                                   "one, or those of a Slurm step", at_least=1)


@dataclass
class Settings:
    """One run, fully resolved."""

    recipe: str = key("custom", "name of the recipe; names the folder under runs/")
    description: str = key("", "one sentence on what it shows")
    seed: Optional[int] = key(0, "of everything random; null draws one and records it", at_least=0, at_most=2**32 - 1)
    requires: List[str] = key([], "what it needs beside a CPU; `mpt reproduce --all` leaves it out without that",
                              choices=("gpu", "network"))
    run_dir: Optional[str] = key(None, "where the run writes; null = runs/<recipe>/<time>-<id>")
    resume: Optional[str] = key(None, "auto or a run directory: go on where it stopped")
    policy: PolicySettings = field(default_factory=PolicySettings)
    loss_scale: LossScaleSettings = field(default_factory=LossScaleSettings)
    model: ModelSettings = field(default_factory=MLP)
    data: DataSettings = field(default_factory=Digits)
    optimizer: OptimizerSettings = field(default_factory=Adam)
    trainer: TrainerSettings = field(default_factory=TrainerSettings)
    backend: BackendSettings = field(default_factory=BackendSettings)
    logger: LoggerSettings = field(default_factory=LoggerSettings)
    distribute: DistributeSettings = field(default_factory=DistributeSettings)
    fault: FaultSettings = field(default_factory=FaultSettings)
    expect: Dict[str, Any] = key({}, "what the run must reach: `metric: {min: …, max: …, value: …, tolerance: …}`")


VARIANTS = {"model": MODELS, "data": DATA, "optimizer": OPTIMIZERS}


def unknown_key_problem(path: str, value: Any) -> Problem | None:
    """A problem when no variant has a key `path`, None when one does."""
    if path in all_keys() or mapping_of(path):
        return None
    if _is_section(path):
        return None if isinstance(value, dict) else _scalar_problem(path, value)
    holder = path.rpartition(".")[0]
    if holder in all_keys():
        return Problem(path, f"there is no such key; {holder} has no keys inside.", value)
    return Problem(path, "there is no such key.", value, remedy_for(path))


def remedy_for(path: str) -> str:
    """Names the key of the same name elsewhere, else the nearest in the same section, else anywhere."""
    section, _, leaf = path.rpartition(".")
    known = [*all_keys(), *sections()]
    same_leaf = [other for other in known if other.rpartition(".")[2] == leaf]
    if same_leaf:
        return f"Did you mean {' or '.join(same_leaf[:3])}?"
    siblings = {other.rpartition(".")[2]: other for other in known if other.rpartition(".")[0] == section}
    if match := nearest(leaf, siblings):
        return f"Did you mean {siblings[match]}?"
    leaves = {other.rpartition(".")[2]: other for other in known}
    if match := nearest(leaf, leaves):
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


def sections() -> dict[str, type]:
    """Each section of Settings and its dataclass (the shared base where it has variants)."""
    hints = get_type_hints(Settings).items()
    return {name: hint for name, hint in hints if isinstance(hint, type) and is_dataclass(hint)}


def key_versions() -> list[Key]:
    """Every key once for each meaning, default and range it has; `variants` are those that share it."""
    versions: list[Key] = []
    for path, first in all_keys().items():
        section = path.split(".")[0]
        if section not in VARIANTS:
            versions.append(first)
            continue
        of_path: list[Key] = []
        for variant in first.variants:
            key = next(key for key in class_keys(VARIANTS[section][variant], section) if key.path == path)
            same = next((i for i, other in enumerate(of_path) if replace(other, variants=()) == key), None)
            if same is None:
                of_path.append(replace(key, variants=(variant,)))
            else:
                of_path[same] = replace(key, variants=(*of_path[same].variants, variant))
        versions += of_path
    return versions


@cache
def all_keys() -> dict[str, Key]:
    """Every key of every variant by its path; one that several variants have is the first one's."""
    found = {key.path: key for key in class_keys(Settings) if key.path.split(".")[0] not in VARIANTS}
    for section, classes in VARIANTS.items():
        owners: dict[str, list[str]] = {}
        for variant, cls in classes.items():
            for declared in class_keys(cls, section):
                owners.setdefault(declared.path, []).append(variant)
                found.setdefault(declared.path, declared)
        for path, names in owners.items():
            found[path] = Key(**{**found[path].__dict__, "variants": tuple(names)})
    return found


def mapping_of(path: str) -> Key | None:
    """The key with free content that holds `path`, such as model.kwargs for model.kwargs.depth."""
    parts = path.split(".")
    holders = (".".join(parts[:count]) for count in range(1, len(parts)))
    return next((key for holder in holders if (key := all_keys().get(holder)) and key.is_mapping), None)


def emptied_paths(path: str, value: Any) -> Iterator[str]:
    """The dictionaries in `value`, which is set at `path`, that are given as {}: they are meant to be empty.

    >>> list(emptied_paths("data.kwargs", {"n": 3, "options": {}}))
    ['data.kwargs.options']
    """
    key = all_keys().get(path)
    if not isinstance(value, dict) or (key is not None and not key.is_mapping):
        return
    if not value:
        yield path
    for name, inner in value.items():
        if "." not in str(name):  # else no path can name it
            yield from emptied_paths(f"{path}.{name}", inner)
