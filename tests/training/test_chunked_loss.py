"""A model whose logits never exist whole trains and is tested as one whose do: losses, metrics, weights and skips."""

from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest
from backends import BACKEND, only_on
from keras import layers

from mpt_cli import training_run
from mpt_cli.data.examples import Examples
from mpt_cli.engine.distribution import Distribution
from mpt_cli.engine.feed import Piece
from mpt_cli.engine.gradient_samples import GradientSampler
from mpt_cli.engine.loop import build_engine
from mpt_cli.errors import ConfigError
from mpt_cli.precision import LossScaleOptimizer, Policy, apply_policy, keep_skips_whole
from mpt_cli.precision.chunked_head import check_chunked_head, chunked_loss
from mpt_cli.precision.gradients import ChunkedCrossentropy
from mpt_cli.settings import load_settings
from mpt_cli.telemetry.records import WEIGHT_GRADIENTS
from mpt_cli.training.assembly import build_metrics
from mpt_cli.training.loss_and_optimizer import build_loss_and_metrics

WORDS, LENGTH, EXAMPLES, STEPS = 11, 5, 6, 3


def data_of(weighted: bool = False, ignored: bool = False) -> Examples:
    random = np.random.default_rng(5)
    x = random.integers(1, WORDS, (EXAMPLES, LENGTH)).astype("int32")
    y = random.integers(0, WORDS, (EXAMPLES, LENGTH)).astype("int32")
    x[1, 3:] = 0  # masked where the embedding masks
    y[2, :2] = -1 if ignored else y[2, :2]
    weight = random.uniform(0.5, 2, (EXAMPLES, LENGTH)).astype("float32") if weighted else None
    return Examples(x, y, weight)


def plain_net(**head: Any) -> keras.Model:
    inputs = keras.Input((LENGTH,), dtype="int32")
    x = layers.Embedding(WORDS, 8, mask_zero=True)(inputs)
    x = layers.Dense(8, activation="tanh")(x)
    return keras.Model(inputs, layers.Dense(WORDS, name="head", **head)(x))


def tied_net() -> keras.Model:
    embedding, inputs = layers.ReversibleEmbedding(WORDS, 8), keras.Input((LENGTH,), dtype="int32")
    return keras.Model(inputs, embedding(layers.Dense(8, activation="tanh")(embedding(inputs)), reverse=True))


def nested_net() -> keras.Model:
    inner = keras.Sequential([layers.Dense(8, activation="tanh"), layers.Dense(WORDS, use_bias=False)])
    return keras.Sequential([keras.Input((LENGTH,), dtype="int32"), layers.Embedding(WORDS, 8), inner])


KINDS = {"plain": plain_net, "tied": tied_net, "nested": nested_net}


def compiled(chunked: bool, kind: str = "plain", policy: str = "float32", head: str | None = None, **loss: Any) -> Any:
    """A model that is compiled with the same metrics of every kind and the same weights each time."""
    keras.utils.set_random_seed(1)
    whole = Policy(policy, head)
    with whole.scope():
        model = apply_policy(KINDS[kind](), whole)
    scale = loss.pop("initial_scale", 2.0**10)
    own = ChunkedCrossentropy(7, **loss)
    given = own if chunked else keras.losses.SparseCategoricalCrossentropy(from_logits=True, **loss)
    # not of float16 logits on TensorFlow; on JAX Keras takes a label of -1 for the last class there
    takes_top = policy == "float32" and "ignore_class" not in loss
    top = [keras.metrics.SparseTopKCategoricalAccuracy(3, name="top")] if takes_top else []
    entropy = keras.metrics.SparseCategoricalCrossentropy(from_logits=True, name="entropy",
                                                          ignore_class=loss.get("ignore_class"))  # fmt: skip
    model.compile(LossScaleOptimizer(keras.optimizers.SGD(0.1, momentum=0.9), initial_scale=scale), given,
                  metrics=["accuracy", *top], weighted_metrics=[entropy], auto_scale_loss=False, jit_compile=False)
    model.optimizer.build(model.trainable_variables)
    return model


def trained(model: Any, data: Examples) -> tuple[dict[str, float], dict[str, float], Any]:
    """Metrics of training, of a test afterwards, and the records of the steps."""
    build_metrics(model, data, EXAMPLES)
    engine = build_engine(model, BACKEND == "jax", Distribution())
    source, rows = engine.to_device(data.as_batch()), np.tile(np.arange(EXAMPLES, dtype="int32"), (STEPS, 1))
    records = engine.train(source, rows, STEPS).wait()
    metrics = engine.metrics()
    engine.reset_metrics()
    engine.evaluate(source, rows, 1)
    return metrics, engine.metrics(), records


def assert_alike(found: dict[str, float], expected: dict[str, float], rel: float) -> None:
    assert found.keys() == expected.keys() >= {"loss", "accuracy", "entropy"}
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, rel=rel), name


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "weighted", "loss"), [
    pytest.param("plain", True, {}, id="masks and weights"),
    pytest.param("plain", True, {"ignore_class": -1, "reduction": "sum"}, id="a class that is ignored"),
    pytest.param("tied", False, {}, id="tied", marks=pytest.mark.skipif(
        not hasattr(layers, "ReversibleEmbedding"), reason="Keras has no ReversibleEmbedding yet")),
    pytest.param("nested", False, {}, id="nested"),
])  # fmt: skip
def test_it_trains_and_is_tested_as_with_whole_logits(kind, weighted, loss):
    data = data_of(weighted, "ignore_class" in loss)
    models = [compiled(chunked, kind, **loss) for chunked in (True, False)]
    (found, tested, records), (expected, tested_whole, _) = (trained(model, data) for model in models)
    assert_alike(found, expected, 1e-5)
    assert_alike(tested, tested_whole, 1e-5)
    assert np.isfinite(records.floats).all()
    for ours, theirs in zip(models[0].variables, models[1].variables, strict=True):
        np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=1e-5, atol=2e-6)
    assert int(models[0].optimizer.applied_steps) == STEPS
    np.testing.assert_allclose(models[0].predict(data.x, verbose=0), models[1].predict(data.x, verbose=0), rtol=1e-5,
                               atol=1e-5)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("head", ["mixed_float16", "float32"])
def test_in_float16_it_skips_where_gradients_overflow_and_then_trains(head):
    """Scales of 2^30 and 2^29 over 30 tokens are above what float16 holds, wherever the head multiplies."""
    model, data = compiled(True, policy="mixed_float16", head=head, initial_scale=2.0**30), data_of()
    before = [v.numpy() for v in model.trainable_variables]
    trained(model, data)
    assert int(model.optimizer.skipped_steps) == STEPS and int(model.optimizer.applied_steps) == 0
    for old, new in zip(before, model.trainable_variables, strict=True):
        np.testing.assert_array_equal(old, new.numpy())
    model = compiled(True, policy="mixed_float16", head=head)
    found, _, _ = trained(model, data)
    assert int(model.optimizer.applied_steps) == STEPS
    expected, _, _ = trained(compiled(False, policy="float32"), data)
    assert found["loss"] == pytest.approx(expected["loss"], rel=2e-3)  # a few roundings of float16


@pytest.mark.slow
def test_samples_of_gradients_name_the_weights_of_the_head():
    model, data = compiled(True, policy="mixed_float16", head="mixed_float16"), data_of()
    build_metrics(model, data, EXAMPLES)
    engine = build_engine(model, True, Distribution())
    piece = Piece(engine.to_device(data.as_batch()), np.arange(EXAMPLES, dtype="int32")[None], 1)
    look = GradientSampler(engine, 1, pytest.fail).take(piece, 1, 2.0**10)
    rows = [row for row in look.layers if row.layer == "head"]
    assert {row.kind for row in rows} == {WEIGHT_GRADIENTS} and all(row.flushed == 0 for row in rows)


@pytest.mark.slow
def test_a_fit_of_keras_with_whole_skips_trains_so_and_validates_with_logits():
    data = data_of()
    histories, models = [], [compiled(chunked) for chunked in (True, False)]
    for model in models:
        seen = keep_skips_whole(model).fit(data.x, data.y, batch_size=3, epochs=2, shuffle=False, verbose=0,
                                           validation_data=(data.x, data.y))  # fmt: skip
        histories.append(seen.history)
    for name, values in histories[1].items():
        np.testing.assert_allclose(histories[0][name], values, rtol=1e-5, err_msg=name)
    assert "val_accuracy" in histories[0]


class WithStep(keras.Model):
    def train_step(self, *arguments: Any) -> Any:
        return super().train_step(*arguments)


class Subclassed(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.head = layers.Dense(WORDS, name="head")

    def call(self, x: Any) -> Any:
        return self.head(keras.ops.one_hot(x, WORDS))


def with_step() -> keras.Model:
    net = plain_net()
    return WithStep(net.inputs, net.outputs)


def shared_head() -> keras.Model:
    head, inputs = layers.Dense(WORDS), keras.Input((LENGTH, WORDS))
    return keras.Model(inputs, head(head(inputs)))


def lora() -> keras.Model:
    net = plain_net()
    net.get_layer("head").enable_lora(2)
    return net


@pytest.mark.parametrize(("build", "message"), [
    (lambda: plain_net(activation="softplus"), "ends in one Dense without activation"),
    (lambda: plain_net(activity_regularizer="l2"), "activity regularizer"),
    (shared_head, "called once. Received: Functional ending in Dense."),
    (lora, "and LoRA"),
    (Subclassed, "Sequential or functional model"),
    (with_step, "needs Keras's own steps. Received: WithStep, which has a train_step"),
])  # fmt: skip
def test_the_words_for_a_model_whose_logits_must_be_whole(build, message):
    model = build()
    model.compile(LossScaleOptimizer(keras.optimizers.SGD(0.1)), ChunkedCrossentropy(), auto_scale_loss=False)
    with pytest.raises(ValueError, match=message):
        check_chunked_head(model)


def test_the_words_for_a_metric_that_reads_logits():
    model, data = plain_net(), data_of()
    model.compile("sgd", ChunkedCrossentropy(), metrics=[keras.metrics.MeanSquaredError(name="squares")])
    build_metrics(model, Examples(data.x, data.y[..., None]), EXAMPLES)
    with pytest.raises(ValueError, match=r"metrics beside ChunkedCrossentropy must be of sparse_categorical_accuracy.*"
                                         r"Received: MeanSquaredError 'squares'. Leave it out."):
        check_chunked_head(model)


def test_it_is_the_only_loss_of_a_model():
    model = plain_net()
    model.compile("sgd", [ChunkedCrossentropy(), "mse"])
    with pytest.raises(ValueError, match=r"must be the only loss of a model. Received: 2 losses."):
        chunked_loss(model)


@only_on("tensorflow")
def test_the_words_for_several_replicas(monkeypatch):
    model = plain_net()
    model.compile("sgd", ChunkedCrossentropy())
    monkeypatch.setattr("tensorflow.distribute.get_strategy", lambda: SimpleNamespace(num_replicas_in_sync=2))
    with pytest.raises(ValueError, match=r"does not work on several replicas of tf.distribute.* Received: 2 replicas."):
        check_chunked_head(model)


TINY = [
    "conf=gpt2_small_synthetic", f"backend={BACKEND}", "backend.device=cpu", "model.layers=1", "model.width=16",
    "model.heads=2", "data.input_shape=[8]", "data.num_classes=40", "data.examples=24", "trainer.batch_size=4",
    "trainer.max_steps=4", "optimizer.schedule.warmup_steps=2", "logger=quiet", "expect={}", "seed=0",
    f"trainer.jit_compile={'true' if BACKEND == 'jax' else 'false'}", "trainer.log_every_steps=1",
]  # fmt: skip


@pytest.mark.slow
def test_a_run_of_the_shipped_transformer_is_that_with_whole_logits(tmp_path):
    found = []
    for name, chunk in (("chunked", 10), ("whole", "null")):
        words = [*TINY, "policy=float32", f"trainer.loss_chunk_tokens={chunk}", f"run_dir={tmp_path / name}"]
        summary = training_run.train(load_settings(words))
        assert (summary.exit_code, summary.applied_steps, summary.skipped_steps) == (0, 4, 0)
        found.append(summary.metrics)
    assert found[0].keys() == found[1].keys() >= {"loss", "accuracy", "val_loss", "val_accuracy"}
    for name, value in found[1].items():
        assert found[0][name] == pytest.approx(value, rel=1e-5), name
    assert "loss_chunk_tokens: 10" in (tmp_path / "chunked" / "config.yaml").read_text()


@pytest.mark.parametrize(("words", "message"), [
    (["trainer.loss=mse"], "needs trainer.loss auto or sparse_categorical_crossentropy. Received: 10."),
    (["trainer.from_logits=false"], "must be left out with trainer.from_logits=false: what is not there are logits."),
    (["distribute=mirrored", "backend=tensorflow"], "must be left out with distribute=mirrored."),
])
def test_settings_that_leave_no_room_for_it(words, message):
    with pytest.raises(ConfigError, match=rf"trainer.loss_chunk_tokens: {message}"):
        load_settings([*TINY, "trainer.loss_chunk_tokens=10", *words])


def test_at_least_one_token():
    with pytest.raises(ConfigError, match=r"trainer.loss_chunk_tokens: must be >= 1. Received: 0."):
        load_settings([*TINY, "trainer.loss_chunk_tokens=0"])


@pytest.mark.parametrize(("net", "task", "message"), [
    (keras.Sequential([keras.Input((2,)), layers.Dense(3)]), "regression", "must be left out with MeanSquaredError: "),
    (keras.Sequential([keras.Input((2,)), layers.Dense(1)]), "classification", "left out with BinaryCrossentropy: "),
    (keras.Sequential([keras.Input((2,)), layers.Dense(3, activation="softmax")]), "classification",
     "must be left out with a model that gives probabilities."),
])  # fmt: skip
def test_a_model_that_leaves_no_room_for_it(net, task, message):
    settings = load_settings([*TINY, "trainer.loss_chunk_tokens=10"]).trainer
    with pytest.raises(ConfigError, match=message):
        build_loss_and_metrics(settings, net, task, "float32")


def test_what_is_built_of_the_settings():
    loss = "trainer.loss={object: SparseCategoricalCrossentropy, kwargs: {ignore_class: -1}}"
    settings = load_settings([*TINY, "trainer.loss_chunk_tokens=10", loss, "trainer.metrics=[auto]"]).trainer
    net = keras.Sequential([keras.Input((2,)), layers.Dense(3)])
    built = build_loss_and_metrics(settings, net, "classification", "mixed_float16")
    assert isinstance(built.loss, ChunkedCrossentropy) and built.loss.dtype == "float32"
    assert (built.loss.chunk_tokens, built.loss.ignore_class) == (10, -1)
    assert [(type(metric).__name__, metric.name) for metric in built.metrics] == [
        ("SparseCategoricalAccuracy", "accuracy")]


@pytest.mark.slow
def test_a_compiled_model_says_it_itself(tmp_path):
    import mpt_cli as mpt

    data = data_of()
    given = {"batch_size": 3, "run_dir": tmp_path / "run", "settings": {"logger.console": "quiet"}}
    keras.utils.set_random_seed(1)
    model = plain_net()
    model.compile("sgd", "sparse_categorical_crossentropy")
    given["settings"]["trainer.loss_chunk_tokens"] = 10
    with pytest.raises(ConfigError, match=r"trainer.loss_chunk_tokens: has no effect: the model has a loss of its own"):
        mpt.fit(model, data.x, data.y, **given)
    del given["settings"]["trainer.loss_chunk_tokens"]
    model.compile("sgd", ChunkedCrossentropy(4), metrics=["accuracy"])
    run = mpt.fit(model, data.x, data.y, **given)
    assert run.summary["applied_steps"] == 2
    model.get_layer("head").activation = keras.activations.relu
    with pytest.raises(ConfigError, match=r"trainer.loss: ChunkedCrossentropy needs a Sequential or functional model"):
        mpt.fit(model, data.x, data.y, **given | {"run_dir": tmp_path / "other"})
