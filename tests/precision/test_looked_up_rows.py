"""On JAX the gradient of a table is looked at where rows of it were looked up, and nowhere else."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
from keras import ops

from mpt_cli.precision import LossScaleOptimizer, step_jax
from mpt_cli.precision.finite import BLOCK_ELEMENTS
from mpt_cli.precision.train_step import keep_skips_whole
from tests.backends import BACKEND, only_on

if BACKEND == "jax":
    import jax

    from mpt_cli.precision.looked_up_rows import looks_up, only_rows, with_rows

pytestmark = only_on("jax")
TOKENS, WIDTH, LENGTH = 5000, 16, 7
IDS = np.random.default_rng(0).integers(0, TOKENS, (4, LENGTH)).astype("int32")
Y = np.linspace(-1, 1, 4, dtype="float32")[:, None]
Tensor = Any


class Positions(keras.layers.Layer):  # type: ignore[misc]
    """Adds rows of a table of its own, which no `Embedding` holds."""

    def build(self, shape: Any) -> None:
        self.table = self.add_weight(shape=(TOKENS + 1, WIDTH), name="table")

    def call(self, x: Tensor) -> Tensor:
        return x + ops.take(self.table, ops.arange(LENGTH), axis=0)


def embedding(**given: Any) -> Any:
    return keras.layers.Embedding(TOKENS, WIDTH, **given)


def net(read: Callable[[Tensor], Tensor]) -> Any:
    """Ends with one number an example."""
    tokens = keras.Input((LENGTH,), dtype="int32")
    return keras.Model(tokens, keras.layers.Dense(1)(keras.layers.Flatten()(read(tokens))))


def twice() -> Any:
    table = embedding()
    return net(lambda ids: keras.layers.concatenate([table(ids), table(TOKENS - 1 - ids)]))


def tied() -> Any:
    table = keras.layers.ReversibleEmbedding(TOKENS, WIDTH)
    return net(lambda ids: table(keras.layers.Dense(WIDTH)(table(ids)), reverse=True))


def inside_another() -> Any:
    inner = keras.Sequential([embedding(), keras.layers.Dense(8, "relu")])
    return net(inner)


NETS: dict[str, Callable[[], Any]] = {
    "one lookup": lambda: net(embedding()),
    "masked, into an LSTM": lambda: net(lambda ids: keras.layers.LSTM(8)(embedding(mask_zero=True)(ids))),
    "two lookups": twice,
    "inside another": inside_another,
    "a layer's own table": lambda: net(lambda ids: Positions()(embedding()(ids))),
    "backwards from the end, and beyond it": lambda: net(lambda ids: embedding()(ids - TOKENS // 2)),
}
WHOLE: dict[str, Callable[[], Any]] = {
    "tied": tied,
    "regularized": lambda: net(embedding(embeddings_regularizer="l2")),
    "more lookups than rows": lambda: net(lambda ids: embedding()(ops.tile(ids, (1, 200)))),
}


def gradients_and_rows(model: Any) -> tuple[Any, Any, Any]:
    """Gradients as they are, and the same beside their rows."""

    def loss(weights: Any, frozen: Any, x: Any, y: Any) -> Any:
        y_pred, _, extra = model.stateless_call(weights, frozen, x, training=True, return_losses=True)
        return ops.mean((y_pred - y) ** 2) + sum(extra), y_pred

    function = jax.value_and_grad(loss, has_aux=True)
    given = [v.value for v in model.trainable_variables], [v.value for v in model.non_trainable_variables], IDS, Y
    plain = jax.jit(function)(*given)
    result, rows = jax.jit(lambda *given: with_rows(function, *given))(*given)
    assert jax.tree.all(jax.tree.map(lambda a, b: bool((a == b).all()), plain, result))
    return result[1], rows, model.trainable_variables


@pytest.mark.parametrize("policy", ["float32", "mixed_float16"])
@pytest.mark.parametrize("name", NETS)
def test_outside_of_the_rows_a_gradient_is_zero(name: str, policy: str) -> None:
    keras.config.set_dtype_policy(policy)
    model = NETS[name]()
    assert looks_up(model)

    gradients, rows, variables = gradients_and_rows(model)

    tables = 0
    for gradient, found, variable in zip(gradients, rows, variables, strict=True):
        if variable.shape[0] < TOKENS:
            assert found is None
            continue
        tables += 1
        other = np.delete(np.asarray(gradient), np.asarray(found) % variable.shape[0], axis=0)
        assert not other.any()
        assert float(abs(only_rows(gradient, found)).max()) == float(abs(gradient).max()) > 0
        assert len(found) <= 2 * IDS.size
    assert tables == (2 if name == "a layer's own table" else 1)


@pytest.mark.parametrize("name", WHOLE)
def test_a_gradient_that_holds_something_else_is_read_as_a_whole(name: str) -> None:
    _, rows, _ = gradients_and_rows(WHOLE[name]())
    assert all(found is None for found in rows)


def trained(model: Any, steps: int, y: Any = Y) -> tuple[list[Any], float]:
    """Values of all variables after so many steps from one state, and the scale then."""
    lists = (model.trainable_variables, model.non_trainable_variables, model.optimizer.variables,
             model.metrics_variables)  # fmt: skip
    state: Any = tuple([v.value for v in variables] for variables in lists)
    step = jax.jit(lambda state: model.train_step(state, (IDS, y))[1])
    for _ in range(steps):
        state = step(state)
    values = jax.device_get(state)
    places = [v is model.optimizer.scale_state.by_name["scale"] for v in model.optimizer.variables]
    return jax.tree.leaves(values), float(values[2][places.index(True)])


def compiled_model(build: Callable[[], Any]) -> Any:
    keras.config.set_dtype_policy("mixed_float16")
    keras.utils.set_random_seed(3)
    model = build()
    model.compile(LossScaleOptimizer(keras.optimizers.Adam(0.1), initial_scale=256.0, dynamic_growth_steps=2), "mse")
    keep_skips_whole(model)._symbolic_build(data_batch=(IDS, Y))
    return model


@pytest.mark.parametrize("y", [Y, np.float32([[0], [0], [6e4], [0]])], ids=["applied", "skipped"])
@pytest.mark.parametrize("name", ["one lookup", "two lookups", "tied"])
def test_steps_are_those_that_look_at_the_whole_bit_for_bit(
    name: str, y: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = {**NETS, **WHOLE}[name]
    found, scale = trained(compiled_model(build), 3, y)
    monkeypatch.setattr(step_jax, "looks_up", lambda model: False)
    expected, _ = trained(compiled_model(build), 3, y)

    assert all(np.array_equal(a, b) for a, b in zip(found, expected, strict=True))
    if name != "tied":  # whose sums over all tokens overflow in a step of either
        assert scale == (512 if y is Y else 32)  # grown after two steps; halved three times


def test_a_step_reads_no_blocks_of_the_whole() -> None:
    for name, reads in (("one lookup", False), ("tied", True)):
        model = compiled_model({**NETS, **WHOLE}[name])
        lists = (model.trainable_variables, model.non_trainable_variables, model.optimizer.variables,
                 model.metrics_variables)  # fmt: skip
        state = tuple([v.value for v in variables] for variables in lists)
        text = str(jax.make_jaxpr(lambda state, model=model: model.train_step(state, (IDS, Y))[1])(state))
        assert (f"slice_sizes=({BLOCK_ELEMENTS},)" in text) == reads, name


def test_an_ordinary_net_is_not_traced_for_it() -> None:
    assert not looks_up(keras.Sequential([keras.Input((3,)), keras.layers.Dense(2000)]))
    assert not looks_up(keras.Sequential([keras.Input((3,)), keras.layers.Embedding(30, 8)]))
