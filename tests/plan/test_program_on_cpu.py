"""The CPU's program of a run, compiled from shapes, on JAX."""

from unittest import mock

import numpy as np
import pytest
from backends import only_on

from mpt_cli.errors import ConfigError, UserCodeError
from mpt_cli.plan.compiled_program import CompileTarget, assemble_planned, prepare_compiler, tracing_errors
from mpt_cli.plan.device import load_device
from mpt_cli.plan.plan import compile_plan, details
from mpt_cli.settings.load import load_settings
from mpt_cli.training.run_from_settings import RunDefinition

on_jax = only_on("jax")
GPT = [
    "conf=gpt2_small_synthetic",
    "backend=jax",
    "model.layers=2",
    "model.width=64",
    "model.heads=4",
    "seed=0",
    "data.input_shape=[32]",
    "data.num_classes=200",
    "data.examples=64",
    "trainer.batch_size=8",
    "optimizer.schedule.warmup_steps=2",
]
WIDE = [
    "conf=digits_mlp",
    "backend=jax",
    "seed=0",
    "policy=float32",
    "model.hidden_units=[3072,3072]",
    "trainer.batch_size=1024",
]


def planned_on_cpu(words: list[str]):
    settings, target = load_settings(words), CompileTarget(None)
    return assemble_planned(RunDefinition(settings), target, prepare_compiler(settings, target))


@pytest.mark.long
@on_jax
def test_a_plan_holds_the_layers_and_the_memory_of_a_transformer():
    planned = planned_on_cpu(GPT)
    found = compile_plan(planned, {})
    layers = {each.layer for each in found.products}
    assert "head" in layers and sum("/query/" in layer for layer in layers) == 2
    assert found.parameters == sum(int(np.prod(v.shape)) for v in planned.parts.model.variables)
    assert found.memory.arguments > 3 * 4 * found.parameters and details(found)  # with two moments
    assert all(each.layer for each in found.arrays)


@on_jax
def test_no_weight_is_allocated():
    planned = planned_on_cpu(WIDE)
    large = [v for v in [*planned.parts.model.variables, *planned.parts.optimizer.variables] if np.prod(v.shape) > 4096]
    assert len(large) == 9 and all(v._value is None for v in large)  # three kernels with their two moments


@on_jax
@pytest.mark.parametrize("fill", [0.5, float("inf")])
def test_a_step_chosen_as_on_a_gpu_is_the_same_as_by_a_branch(fill):
    """There the update is computed in any case and chosen afterwards; bit for bit the same, applied and skipped."""
    import jax
    import jax.numpy as jnp
    import keras

    from mpt_cli.precision import LossScaleOptimizer

    def after(platform: str):
        optimizer = LossScaleOptimizer(keras.optimizers.AdamW(0.1, global_clipnorm=1.0), initial_scale=8.0)
        weight = keras.Variable(np.linspace(-1, 1, 12, dtype=np.float32))
        optimizer.build([weight])
        given = [v.value for v in optimizer.variables], [jnp.full((12,), 4.0).at[3].set(fill)], [weight.value]
        with mock.patch.object(jax, "default_backend", lambda: platform):
            step = jax.jit(optimizer.stateless_apply)
            return step.lower(*given).as_text().count("stablehlo.case"), jax.tree.leaves(step(*given))

    (branches, by_branch), (none, chosen) = after("cpu"), after("gpu")
    assert (branches, none) == (1, 0)
    for one, other in zip(by_branch, chosen, strict=True):
        np.testing.assert_array_equal(one, other)
    assert (np.linspace(-1, 1, 12, dtype=np.float32) != by_branch[0]).any() == np.isfinite(fill)


@on_jax
def test_a_step_that_asks_for_a_value_is_told_how_it_can_be_traced():
    import jax

    words = (
        r"model: its step can't be traced: it asks for a value that is known only while it runs \(.*Use "
        r"keras.ops.where or keras.ops.cond in place of an if"
    )
    with pytest.raises(ConfigError, match=words), tracing_errors():
        jax.jit(lambda x: x if x > 0 else -x)(1.0)
    words = r"The model could not be compiled for planning: ValueError: no such shape"
    with pytest.raises(UserCodeError, match=words), tracing_errors():
        raise ValueError("no such shape")


@on_jax
def test_jax_answers_for_the_gpu_only_while_a_program_is_traced():
    """Under the names that Keras asks, JAX's private one among them."""
    import jax
    from jax._src.cudnn import fused_attention_stablehlo as cudnn

    before = jax.nn.dot_product_attention, jax.default_backend, cudnn.check_compute_capability
    for name, has_attention in (("h100", True), ("v100", False)):
        with CompileTarget(load_device(name)).answering():
            assert jax.default_backend() == "gpu" and cudnn.check_compute_capability("8.0") is has_attention
    assert before == (jax.nn.dot_product_attention, jax.default_backend, cudnn.check_compute_capability)
