"""The training loop of a run, compiled from shapes for GPUs that are not here: the one that `mpt train` would call.

Nothing of the model is allocated: its large variables have no values, and the loop is lowered for abstract arrays.
While the program is traced, JAX answers for the device it is for.
"""

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from mpt_cli.engine.backend import Platform, prepare_backend
from mpt_cli.engine.distribution import Distribution, undistributed
from mpt_cli.errors import MptError, Problem, UserCodeError, summarise_error
from mpt_cli.plan.device import Device, check_compiler
from mpt_cli.settings.schema import Settings
from mpt_cli.training.run_from_settings import RunDefinition
from mpt_cli.user_code import raise_model_problem

if TYPE_CHECKING:
    from mpt_cli.training.build_run_parts import Assembly

MOST_REAL_ELEMENTS = 4096  # smaller variables, such as a learning rate, have values: code may read them
CPU: Final = "cpu"  # compiled for this processor, so that predictions can be compared with a run


@dataclass(frozen=True)
class CompileTarget:
    """`count` devices to compile for; `device` is None for the CPU that is here."""

    device: Device | None
    count: int = 1

    def answering(self) -> AbstractContextManager[None]:
        """Return a context in which JAX answers for these devices while a program is traced."""
        from mpt_cli.precision.jax_internals import answering_for_gpu

        return nullcontext() if self.device is None else answering_for_gpu(self.device.at_least)

    def distribution(self) -> Distribution:
        """Split a batch over the devices; all else is on each device."""
        import jax
        import numpy as np

        target_devices = np.array(
            jax.devices(CPU)[: self.count] if self.device is None else self.device.target_devices(self.count)
        )
        return Distribution(self.count, mesh=jax.sharding.Mesh(target_devices, ("batch",)))


def plan_problems(settings: Settings, devices: int) -> list[Problem]:
    """Return the problems that keep a GPU program of these settings from being compiled here."""
    problems, batch = [], settings.trainer.batch_size
    if settings.backend.name != "jax":
        rule = "TensorFlow compiles for a GPU only where one is; JAX does so anywhere."
        remedy = "Use backend=jax, which trains the same recipe."
        problems.append(Problem("backend.name", rule, settings.backend.name, remedy))
    if settings.trainer.jit_compile is False:
        rule = "must be auto or true: what is planned is the compiled program."
        problems.append(Problem("trainer.jit_compile", rule, False))
    if devices < 1:
        problems.append(Problem("--devices", "must be at least 1.", devices))
    elif batch % devices:
        rule = f"must be a multiple of the {devices} devices it is split over."
        problems.append(Problem("trainer.batch_size", rule, batch, f"For example {-(-batch // devices) * devices}."))
    return problems


def prepare_compiler(settings: Settings, target: CompileTarget) -> Platform:
    """Import Keras on JAX's CPU, and load the compiler for GPUs if `target` is one."""
    if target.device is not None:
        check_compiler()
        os.environ["JAX_SKIP_CUDA_CONSTRAINTS_CHECK"] = "1"  # its plugin for CUDA looks for a driver otherwise
    plain = undistributed(settings)
    return prepare_backend(replace(plain, backend=replace(plain.backend, device=CPU)))


@dataclass(frozen=True)
class Planned:
    """A run assembled for a target: its loop can be compiled, and nothing can be run."""

    target: CompileTarget
    parts: "Assembly"

    def compile(self) -> Any:
        """Compile the loop of the run; return it as JAX has it: a `jax.stages.Compiled`."""
        engine: Any = self.parts.engine
        with self.target.answering(), self.parts.policy.scope(), tracing_errors():
            chunk = self.parts.train_feed.empty_chunk()
            indices = engine.to_device(chunk.batch_indices)
            return engine.lower_training(replace(chunk, batch_indices=indices)).compile()


def assemble_planned(definition: RunDefinition, target: CompileTarget, platform: Platform) -> Planned:
    """Assemble the run with everything but values; ConfigError where the model can't be built or traced."""
    from mpt_cli.plan.lowering import PlannedEngine
    from mpt_cli.precision.keras_internals import large_variables_without_values
    from mpt_cli.training.build_run_parts import assemble

    data = definition.load_data()
    with large_variables_without_values(MOST_REAL_ELEMENTS), target.answering(), tracing_errors():
        definition = definition.with_settings(undistributed(definition.settings))
        parts = assemble(definition, platform, data, target.distribution(), PlannedEngine)
    return Planned(target, parts)


@contextmanager
def tracing_errors() -> Iterator[None]:
    """Turn an exception of the model, of JAX or of XLA into a ConfigError or UserCodeError."""
    try:
        yield
    except MptError:
        raise
    except Exception as error:
        raise_model_problem("model", error)
        raise UserCodeError(f"The model could not be compiled for planning: {summarise_error(error)[:400]}") from error
