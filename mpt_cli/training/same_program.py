"""Which runs compute by the same compiled step: what of their settings decides it, and what is state of it."""

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from mpt_cli.engine.compile_cache import cache_folder
from mpt_cli.settings.checks import object_keys
from mpt_cli.settings.references import imported_names
from mpt_cli.settings.schema import Settings
from mpt_cli.settings.variants import Schedule
from mpt_cli.training.program import SettingsProgram

if TYPE_CHECKING:
    from mpt_cli.training.assembly import Assembly

SEED, RATE, SCALE, GROWTH = "seed", "optimizer.learning_rate", "loss_scale.initial_scale", "loss_scale.growth_steps"
_MODES = ("auto", "dynamic", "fixed", "none")  # what another mode computes with is not known


def numbers_of(settings: Settings) -> dict[str, Any]:
    """What is state of the compiled step, or of no account to it: all else must be the same in jobs of one program.

    >>> numbers_of(Settings(seed=3))["seed"]
    3
    """
    scale, optimizer = settings.loss_scale, settings.optimizer
    found: dict[str, Any] = {}
    # a builder may draw constants of the model, and the seed of stochastic rounding is one of the step
    if settings.model.name != "builder" and not settings.policy.stochastic_rounding:
        found[SEED] = settings.seed
    if optimizer.schedule == Schedule() and isinstance(optimizer.learning_rate, int | float):
        found[RATE] = optimizer.learning_rate
    if scale.mode in _MODES:
        found |= {key: getattr(scale, name) for key in (SCALE, GROWTH) if hasattr(scale, name := key.split(".")[1])}
    return found


def why_alone(settings: Settings) -> str:
    """Why a job must have a process of its own; empty where it need not."""
    trainer, logger, fault = settings.trainer, settings.logger, settings.fault
    reasons = {
        f"backend={settings.backend.name}: it is for jax": settings.backend.name != "jax",
        f"distribute={settings.distribute.name}": settings.distribute.name != "none",
        "trainer.jit_compile=false": trainer.jit_compile is False,
        "trainer.callbacks": bool(trainer.callbacks),
        "trainer.reduce_on_plateau": trainer.reduce_on_plateau.patience is not None,
        "trainer.on_unhealthy=rollback": trainer.on_unhealthy == "rollback",
        "phases": bool(settings.phases),
        "fault": fault.kind != "none" or fault.slow_storage_seconds > 0,
        "logger.mlflow": logger.mlflow,
        "logger.wandb": logger.wandb,
    }
    return ", ".join(reason for reason, holds in reasons.items() if holds)


# of models and data that come with the package, and compute the same wherever these settings are the same
_MODELS = ("mlp", "cnn", "resnet", "transformer")
_DATA = ("digits", "tabular", "text", "synthetic", "keras", "npz", "csv", "images", "tfrecord")
_NOT_OF_THE_STEP = ("run_dir", "resume", "recipe", "description", "expect")


def what_decides_the_step(settings: Settings) -> str | None:
    """All of the settings that the compiled steps of a run follow from, as a text; None where they follow from more:
    from Python functions of the user's or of other packages, whose code may change, or from what is done to the model
    while it is trained.

    >>> what_decides_the_step(Settings()) is None  # of TensorFlow, which traces anew
    True
    """
    names_code = any(True for key, value in object_keys(settings) for _ in imported_names(key, value))
    is_shipped = settings.model.name in _MODELS and settings.data.name in _DATA and settings.loss_scale.mode in _MODES
    if names_code or not is_shipped or why_alone(settings):
        return None
    content = {name: part for name, part in asdict(settings).items() if name not in _NOT_OF_THE_STEP}
    for key in numbers_of(settings):
        section, _, name = key.rpartition(".")
        (content[section] if section else content).pop(name)
    return repr(content)


def keep_programs(parts: "Assembly") -> None:
    """Have the steps of a run found where an earlier one left the same, if its settings say all that decides them."""
    content, chosen, engine = what_decides_the_step(parts.settings), parts.settings.backend.compile_cache, parts.engine
    if content is None or chosen is None or type(parts.program) is not SettingsProgram or not _is_mpt_alone():
        return
    from mpt_cli.engine.ensemble import form_of
    from mpt_cli.engine.kept_programs import KeptPrograms
    from mpt_cli.engine.loop_jax import JaxEngine

    if not isinstance(engine, JaxEngine) or not engine.jit_compile or engine.own is not None:
        return
    data = parts.data
    beside = form_of(engine.model), data.task, data.num_classes, data.targets_as_given, parts.total_steps
    if (kept := KeptPrograms.find(cache_folder(chosen, "jax"), repr((content, beside)))) is not None:
        engine.keep_programs(kept)


def _is_mpt_alone() -> bool:
    """Whether this process is `python -m mpt_cli`, as jobs are: a program that calls it may change what is traced."""
    started = getattr(sys.modules["__main__"], "__spec__", None)
    return started is not None and started.name == "mpt_cli.__main__"
