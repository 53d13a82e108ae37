"""Attention in float16 on the CPU: JAX has no product for it there, and another stands in its place."""

import json
from typing import Any

import keras
import numpy as np
import pytest
from backends import BACKEND, only_on
from preloaded import mpt
from tiny import compile_tiny, sgd

from mpt_cli.data.examples import Examples
from mpt_cli.engine.backend import _replace_attention
from mpt_cli.engine.build import build_engine
from mpt_cli.engine.distribution import Distribution
from mpt_cli.engine.feed import BatchPlan, build_feed
from mpt_cli.precision import LossScaleOptimizer
from mpt_cli.precision.gradients import Float16Attention
from mpt_cli.training.assembly import build_metrics

STEPS = 12


@pytest.fixture
def attention() -> Any:
    """JAX's attention as a run on its CPU has it, and afterwards as it was."""
    if BACKEND == "jax":
        import jax

        _replace_attention(on_cpu=True)
        yield jax.nn.dot_product_attention
        _replace_attention(on_cpu=False)
    else:
        yield None


def attended(query: Any, key: Any, value: Any, seen: Any, bias: Any = 0.0) -> Any:
    """Attention in float64 by its definition."""
    heads = query.shape[2] // key.shape[2]
    key, value = np.repeat(key, heads, 2), np.repeat(value, heads, 2)
    logits = np.einsum("btnh,bsnh->bnts", query, key) / np.sqrt(query.shape[-1]) + bias
    weights = np.where(seen, np.exp(logits), 0.0)
    return np.einsum("bnts,bsnh->btnh", weights / weights.sum(-1, keepdims=True), value)


@only_on("jax")
@pytest.mark.parametrize("kind", ["plain", "causal", "masked", "both", "bias", "grouped"])
def test_it_is_attention_to_the_precision_of_float16(attention: Any, kind: str) -> None:
    import jax.numpy as jnp

    rng = np.random.default_rng(3)
    query, key, value = (rng.normal(size=(2, 5, 4, 8)).astype("float16") for _ in range(3))
    if kind == "grouped":
        key, value = key[:, :, :2], value[:, :, :2]
    mask = rng.uniform(size=(2, 1, 5, 5)) < 0.6
    mask[..., 0] = True
    bias = rng.normal(size=(2, 4, 5, 5)).astype("float16") if kind == "bias" else None
    causal, masked = kind in ("causal", "both"), kind in ("masked", "both")
    seen = np.tril(np.ones((5, 5), bool)) if causal else np.ones((5, 5), bool)
    found = attention(jnp.asarray(query), jnp.asarray(key), jnp.asarray(value), bias, jnp.asarray(mask) if masked
                      else None, is_causal=causal, implementation="xla")  # fmt: skip
    wanted = attended(*(part.astype("float64") for part in (query, key, value)), seen & mask if masked else seen,
                      0.0 if bias is None else bias.astype("float64"))  # fmt: skip
    assert found.dtype == "float16" and attention.was_used
    # probabilities and output are rounded to 11 bits, over sums of values up to 4
    np.testing.assert_allclose(np.asarray(found), wanted, atol=4 * 2.0**-10)


@only_on("jax")
def test_gradients_of_the_logits_flush_and_overflow_as_float16(attention: Any) -> None:
    import jax
    import jax.numpy as jnp

    rng = np.random.default_rng(5)
    query, key, value = (jnp.asarray(rng.normal(size=(1, 4, 1, 8)), "float16") for _ in range(3))

    def gradient(scale: float) -> Any:
        return jax.grad(lambda q: jnp.sum(attention(q, key, value).astype("float32") ** 2 * scale))(query)

    assert np.isfinite(gradient(1.0)).all() and (np.asarray(gradient(1.0)) != 0).any()
    assert not np.isfinite(gradient(2.0**20)).all()
    assert (np.asarray(gradient(2.0**-30)) == 0).all()


@only_on("jax")
def test_other_dtypes_and_arguments_go_to_jax_itself(attention: Any) -> None:
    import jax
    import jax.numpy as jnp

    wide, narrow = (jnp.ones((1, 3, 1, 4), dtype) for dtype in ("float32", "float16"))
    assert attention(wide, wide, wide).dtype == "float32" and not attention.was_used
    with pytest.raises(ValueError, match=r"'F16_F16_F32' is not supported by dot_general on CPU"):
        jax.jit(lambda x: attention(x, x, x, local_window_size=1))(narrow)


@only_on("jax")
def test_on_a_gpu_attention_is_jax_s_own(attention: Any) -> None:
    import jax

    _replace_attention(on_cpu=True)
    assert not isinstance(jax.nn.dot_product_attention.original, Float16Attention)
    _replace_attention(on_cpu=False)
    assert not isinstance(jax.nn.dot_product_attention, Float16Attention)


def losses(policy: str) -> list[float]:
    """Of `STEPS` steps of a small transformer whose weights are the same on every backend."""
    layers = keras.layers
    keras.utils.set_random_seed(0)
    with_policy = {"dtype": policy}
    x = inputs = keras.Input((6,), dtype="int32")
    x = layers.Embedding(11, 16, **with_policy)(x)
    normed = layers.LayerNormalization(**with_policy)(x)
    mixed = layers.MultiHeadAttention(2, 8, **with_policy)(normed, normed, use_causal_mask=True)
    x = layers.Add(**with_policy)([x, mixed])
    x = layers.Dense(3, dtype="float32")(layers.Flatten()(x))
    model = keras.Model(inputs, x)
    rng = np.random.default_rng(1)
    model.set_weights([rng.normal(0, 0.2, w.shape) for w in model.get_weights()])
    data = Examples(rng.integers(0, 11, (16, 6)).astype("int32"), rng.integers(0, 3, 16).astype("int32"), None)
    optimizer = LossScaleOptimizer(sgd(), initial_scale=2.0**10)
    compile_tiny(model, optimizer)
    optimizer.build(model.trainable_variables)
    build_metrics(model, data, 4)
    engine = build_engine(model, BACKEND == "jax", Distribution())
    feed = build_feed(data, engine, BatchPlan(4, STEPS, shuffle=False), True)
    found: list[float] = []
    for epoch in range(1, 1 + STEPS // 4):
        feed.start(epoch)
        piece = feed.take(4)
        found += engine.train(piece.source, piece.batch_indices, piece.count).wait().loss.tolist()
    assert (int(optimizer.applied_steps), int(optimizer.skipped_steps)) == (STEPS, 0)
    return found


@pytest.mark.slow
def test_a_transformer_trains_in_float16_as_in_float32_on_both_backends(attention: Any) -> None:
    half, full = losses("mixed_float16"), losses("float32")
    # 2**-11 a rounding, a dozen of them in a row on the way to a loss near 1, and STEPS updates made of them
    np.testing.assert_allclose(half, full, atol=0.02)
    assert np.mean(half[-4:]) < np.mean(half[:4]) and half != full
    assert attention is None or attention.was_used


@pytest.mark.slow
@only_on("jax")
def test_a_run_says_in_header_and_record_that_it_is_emulated(tmp_path: Any) -> None:
    small = ["data.limit=128", "data.sequence_length=16", "model.layers=1", "model.width=16", "model.heads=2"]
    words = ["backend=jax", *small, "trainer.max_steps=4", "optimizer.schedule.warmup_steps=2", "run_dir=run"]
    done = mpt("train", "conf=char_transformer", *words, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "float16 attention emulated (products in float32, rounded)" in done.stdout
    assert json.loads((tmp_path / "run" / "environment.json").read_text())["emulated"] == ["float16 attention"]
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["applied_steps"], summary["skipped_steps"]) == (4, 0)
