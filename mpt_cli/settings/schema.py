"""The schema: every key of a configuration, its type, default and meaning. The one place for these."""

from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional, Union

from mpt_cli.settings.data import DATA, DataSettings, Digits
from mpt_cli.settings.fault import Fault
from mpt_cli.settings.key import key
from mpt_cli.settings.models import MLP, MODELS, ModelSettings
from mpt_cli.settings.optimizers import OPTIMIZERS, Adam, OptimizerSettings

FLOAT_POLICIES = ("float32", "float64", "float16", "bfloat16", "mixed_float16", "mixed_bfloat16")
SCALE_MODES = ("auto", "dynamic", "fixed", "logmax", "none")
SMALLEST_SCALE, LARGEST_SCALE = 2.0**-126, 2.0**127  # that a float32 can be, and be doubled


@dataclass
class Policy:
    """In which dtype layers compute and keep their variables."""

    name: str = key("float32", "dtype policy of all layers", choices=FLOAT_POLICIES)
    float8: bool = key(False, "Dense and EinsumDense layers multiply in float8 on top of a mixed policy")
    head: Optional[str] = key("float32", "policy of the output layer, null = as `name` (float64 keeps float64)",
                              choices=FLOAT_POLICIES)
    overrides: Dict[str, str] = key({}, "layer name or path pattern (as in a shell: conv*) -> policy",
                                    choices=FLOAT_POLICIES)


@dataclass
class LossScale:
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
class Trainer:
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
class Backend:
    """What runs underneath Keras."""

    name: str = key("tensorflow", "Keras backend", choices=("tensorflow", "jax"))
    device: str = key("auto", "auto: GPU where there is one; gpu without one is an error",
                      choices=("auto", "cpu", "gpu"))
    memory_growth: bool = key(True, "take GPU memory as needed instead of all of it")
    compile_cache: Optional[str] = key("auto", "folder for compiled programs, so that the next run starts sooner; "
                                       "auto = in the user's cache folder, null = none")


@dataclass
class Logger:
    """Where telemetry goes beside metrics.jsonl and events.jsonl, which are always written."""

    console: str = key("auto", "auto: live in a terminal, plain lines elsewhere",
                       choices=("auto", "live", "plain", "quiet"))
    csv: bool = key(True, "metrics.csv")
    tensorboard: bool = key(False, "tensorboard/ event files")
    mlflow: bool = key(False, "an MLflow run in mlflow/, or on the server of MLFLOW_TRACKING_URI (extra mlflow)")
    wandb: bool = key(False, "a Weights & Biases run in wandb/, offline unless WANDB_MODE says otherwise (extra wandb)")


@dataclass
class Distribute:
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
    policy: Policy = field(default_factory=Policy)
    loss_scale: LossScale = field(default_factory=LossScale)
    model: ModelSettings = field(default_factory=MLP)
    data: DataSettings = field(default_factory=Digits)
    optimizer: OptimizerSettings = field(default_factory=Adam)
    trainer: Trainer = field(default_factory=Trainer)
    backend: Backend = field(default_factory=Backend)
    logger: Logger = field(default_factory=Logger)
    distribute: Distribute = field(default_factory=Distribute)
    fault: Fault = field(default_factory=Fault)
    expect: Dict[str, Any] = key({}, "what the run must reach: `metric: {min: …, max: …, value: …, tolerance: …}`")


VARIANTS = {"model": MODELS, "data": DATA, "optimizer": OPTIMIZERS}
