"""Attention in float16 on JAX's CPU, which has no product for it: another stands in its place."""

import json
from typing import Any

import numpy as np
import pytest
from backends import only_on
from command import mpt

from mpt_cli.precision.jax_internals import replace_attention

pytestmark = only_on("jax")


@pytest.fixture
def attention():
    """JAX's attention as a run on its CPU has it, and afterwards as it was."""
    import jax

    replace_attention(on_cpu=True)
    yield jax.nn.dot_product_attention
    replace_attention(on_cpu=False)


def attended(query: Any, key: Any, value: Any, seen: Any, bias: Any = 0.0):
    """Attention in float64 by its definition."""
    heads = query.shape[2] // key.shape[2]
    key, value = np.repeat(key, heads, 2), np.repeat(value, heads, 2)
    logits = np.einsum("btnh,bsnh->bnts", query, key) / np.sqrt(query.shape[-1]) + bias
    weights = np.where(seen, np.exp(logits), 0.0)
    return np.einsum("bnts,bsnh->btnh", weights / weights.sum(-1, keepdims=True), value)


@pytest.mark.parametrize("kind", ["both", "bias", "grouped"])
def test_it_is_attention_to_the_precision_of_float16(attention, kind):
    import jax.numpy as jnp

    rng = np.random.default_rng(3)
    query, key, value = (rng.normal(size=(2, 5, 4, 8)).astype("float16") for _ in range(3))
    if kind == "grouped":
        key, value = key[:, :, :2], value[:, :, :2]
    mask = rng.uniform(size=(2, 1, 5, 5)) < 0.6
    mask[..., 0] = True
    bias = rng.normal(size=(2, 4, 5, 5)).astype("float16") if kind == "bias" else None
    both = kind == "both"  # a causal mask and one of the user's
    seen = np.tril(np.ones((5, 5), bool)) & mask if both else np.ones((5, 5), bool)
    found = attention(
        *map(jnp.asarray, (query, key, value)),
        bias,
        jnp.asarray(mask) if both else None,
        is_causal=both,
        implementation="xla",
    )
    wanted = attended(
        *(part.astype("float64") for part in (query, key, value)), seen, 0.0 if bias is None else bias.astype("float64")
    )
    assert found.dtype == "float16"
    # probabilities and output are rounded to 11 bits, over sums of values up to 4
    np.testing.assert_allclose(np.asarray(found), wanted, atol=4 * 2.0**-10)


def test_gradients_of_the_logits_flush_and_overflow_as_float16(attention):
    import jax
    import jax.numpy as jnp

    rng = np.random.default_rng(5)
    parts = [jnp.asarray(rng.normal(size=(1, 4, 1, 8)), "float16") for _ in range(3)]

    def gradient(scale: float, dtype: str = "float16"):
        query, key, value = (part.astype(dtype) for part in parts)
        return jax.grad(lambda q: jnp.sum(attention(q, key, value).astype("float32") ** 2 * scale))(query)

    # a dozen roundings to 11 bits in a row, of sums of values up to 4
    np.testing.assert_allclose(np.asarray(gradient(1.0)), gradient(1.0, "float32"), atol=12 * 4 * 2.0**-11)
    assert not np.isfinite(gradient(2.0**20)).all()
    assert (np.asarray(gradient(2.0**-30)) == 0).all()


def test_other_dtypes_go_to_jax_itself_and_other_arguments_with_them(attention):
    import jax.numpy as jnp

    wide, narrow = (jnp.ones((1, 3, 1, 4), dtype) for dtype in ("float32", "float16"))
    assert attention(wide, wide, wide).dtype == "float32"
    assert attention(narrow, narrow, narrow, local_window_size=1).dtype == "float16"


@pytest.mark.slow
def test_a_transformer_trains_in_float16(tmp_path):
    small = ["data.limit=128", "data.sequence_length=16", "model.layers=1", "model.width=16", "model.heads=2"]
    words = ["backend=jax", *small, "trainer.max_steps=4", "optimizer.schedule.warmup_steps=2", "run_dir=run"]
    done = mpt("train", "conf=char_transformer", *words, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["applied_steps"], summary["skipped_steps"]) == (4, 0)
