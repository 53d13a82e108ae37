"""Which loss and metrics a run gets, and that they compute in float32."""

from types import SimpleNamespace

import keras
import numpy as np
import pytest
from keras import layers

from mpt_cli.data.examples import Examples
from mpt_cli.errors import ConfigError, DataError
from mpt_cli.settings.model_data_optimizer_keys import CustomOptimizer, Schedule
from mpt_cli.settings.schema import TrainerSettings
from mpt_cli.training.loss_and_optimizer import (
    build_learning_rate,
    build_loss_and_metrics,
    build_optimizer,
    check_labels,
    gives_logits,
)


def net(units: int = 3, activation: str | None = None):
    return keras.Sequential([keras.Input((2,)), layers.Dense(units, activation=activation)])


def objective(model=None, task="classification", policy="mixed_float16", **trainer):
    return SimpleNamespace(**build_loss_and_metrics(TrainerSettings(**trainer), model or net(), task, policy))


def of_kind(built):
    return [(type(metric).__name__, metric.name) for metric in built.metrics]


def test_the_loss_and_metrics_of_each_task():
    built = objective()
    assert isinstance(built.loss, keras.losses.SparseCategoricalCrossentropy)
    assert built.loss.get_config()["from_logits"] is True
    assert of_kind(built) == [("SparseCategoricalAccuracy", "accuracy")]
    for activation, threshold in ((None, 0.0), ("sigmoid", 0.5)):
        built = objective(net(1, activation))
        assert isinstance(built.loss, keras.losses.BinaryCrossentropy)
        assert of_kind(built) == [("BinaryAccuracy", "accuracy")]
        assert built.metrics[0].get_config()["threshold"] == threshold
    built = objective(task="regression")
    assert isinstance(built.loss, keras.losses.MeanSquaredError)
    assert of_kind(built) == [("MeanAbsoluteError", "mean_absolute_error")]


def test_other_data_must_name_its_loss():
    with pytest.raises(
        ConfigError, match=r"trainer.loss: must be named where targets are neither plain labels nor numbers"
    ):
        objective(task="other")
    assert of_kind(objective(task="other", loss="categorical_crossentropy")) == [("CategoricalAccuracy", "accuracy")]


class Subclassed(keras.Model):
    def __init__(self, last=None):
        super().__init__()
        self.last = last or layers.Dense(3, activation="softmax")

    def call(self, x):
        return self.last(x)


def functional(*operations):
    x = inputs = keras.Input((2,))
    for operation in operations:
        x = operation(x)
    return keras.Model(inputs, x)


def test_logits_are_told_from_the_last_layer():
    for model, logits in (
        (net(), True),
        (keras.Sequential([keras.Input((2,)), layers.Dense(3), layers.Softmax()]), False),
        (functional(layers.Dense(3, activation="softmax"), layers.Dense(3)), True),
        (functional(functional(layers.Dense(3), keras.ops.softmax)), False),
        (functional(layers.Reshape((1, 2)), layers.TimeDistributed(net(activation="softmax"))), False),
        (Subclassed(net()), True),
        (Subclassed(Subclassed()), False),
        (Subclassed(layers.SpectralNormalization(layers.Dense(3, activation="softmax"))), False),
    ):
        model(keras.KerasTensor((None, 2)))
        assert gives_logits(model) is logits, model


def test_from_logits_with_a_loss_that_takes_none_is_an_error():
    with pytest.raises(ConfigError, match=r"trainer.from_logits: must be auto with MeanSquaredError, which takes"):
        objective(task="regression", from_logits=True)


def test_metrics_keep_the_name_they_were_asked_by():
    built = objective(metrics=["auto", "accuracy", "sparse_top_k_categorical_accuracy", "AUC", "mse"])
    assert of_kind(built) == [
        ("SparseCategoricalAccuracy", "accuracy"),
        ("SparseTopKCategoricalAccuracy", "sparse_top_k_categorical_accuracy"),
        ("AUC", "AUC"),
        ("MeanSquaredError", "mse"),
    ]
    assert built.metrics[2].get_config()["from_logits"] is True


def test_wrong_names_and_pairs_are_told():
    for trainer, message in (
        ({"loss": "mean_squared_eror"}, r"Received: 'mean_squared_eror'. Did you mean mean_squared_error\?"),
        ({"loss": "Loss"}, r"trainer.loss: Keras has none of this name. Received: 'Loss'"),
        ({"loss": "mse", "metrics": ["accuracy"]}, r"trainer.metrics: accuracy can't be told from loss mean"),
        ({"metrics": ["precision"]}, r"trainer.metrics: Precision needs probabilities, and the model ends"),
        ({"loss": "kl_divergence"}, r"trainer.loss: KLDivergence needs probabilities, and the model ends"),
    ):
        with pytest.raises(ConfigError, match=message):
            objective(**trainer)
    built = objective(from_logits=False, loss="kl_divergence", metrics=["precision"])  # on the user's word
    assert of_kind(built) == [("Precision", "precision")]


def test_loss_and_metrics_compute_in_float32_or_float64():
    for policy, dtype in (("mixed_float16", "float32"), ("bfloat16", "float32"), ("float64", "float64")):
        built = objective(policy=policy)
        assert (built.loss.dtype, built.metrics[0].dtype) == (dtype, dtype)


@pytest.fixture
def own_module(users_folder):
    """A module `own_objects` of the user's in the working directory."""
    (users_folder / "own_objects.py").write_text(
        "import keras\n"
        "def contrastive(margin=1):\n"
        "    return lambda y_true, y_pred: keras.ops.mean(y_pred * margin)\n"
        "def plain(y_true, y_pred):\n"
        "    return keras.ops.mean(keras.ops.abs(y_true - y_pred), -1)\n"
        "class Half(keras.losses.Loss):\n"
        "    def call(self, y_true, y_pred):\n"
        "        return 0.5 * keras.ops.abs(y_true - y_pred)\n"
        "def number():\n"
        "    return 3\n"
        "rate = keras.optimizers.schedules.ExponentialDecay(0.5, 10, 0.5)\n"
        "momentum = keras.optimizers.SGD(0.25, momentum=0.5)\n"
        "def scheduled():\n"
        "    return keras.optimizers.SGD(rate)\n"
        "def scaled():\n"
        "    return keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD())\n"
    )


@pytest.mark.usefixtures("own_module")
def test_losses_and_metrics_of_the_users_are_taken_in_every_form():
    contrastive = {"object": "own_objects:contrastive", "kwargs": {"margin": 3}}
    built = objective(loss=contrastive, metrics=["own_objects:plain"])
    assert float(built.loss(0.0, keras.ops.ones((2,)))) == 3.0
    assert of_kind(built) == [("MeanMetricWrapper", "plain")] and built.metrics[0].dtype == "float32"
    assert float(objective(loss="own_objects:Half").loss(np.zeros((2, 1)), np.ones((2, 1)))) == 0.5
    assert objective(loss="own_objects:plain").loss.__name__ == "plain"


def two_outputs():
    x = keras.Input((2,))
    return keras.Model(x, {"a": layers.Dense(1, name="a")(x), "b": layers.Dense(4, activation="softmax", name="b")(x)})


@pytest.mark.slow
def test_each_output_has_a_loss_and_metrics_for_what_it_gives():
    smoothed = {"object": "categorical_crossentropy", "kwargs": {"label_smoothing": 0.25}}
    loss = {"a": "binary_crossentropy", "b": smoothed}
    built = objective(
        two_outputs(),
        "other",
        loss=loss,
        loss_weights={"a": 2, "b": 1},
        metrics={"a": ["auto", "mae"], "b": "accuracy"},
        weighted_metrics={"b": ["AUC"]},
    )
    assert built.loss["a"].get_config()["from_logits"] is True
    config = built.loss["b"].get_config()
    assert (config["from_logits"], config["label_smoothing"]) == (False, 0.25)
    assert [metric.name for metric in built.metrics["a"]] == ["accuracy", "mae"]
    assert type(built.metrics["b"][0]) is keras.metrics.CategoricalAccuracy
    assert built.weighted_metrics["b"][0].get_config()["from_logits"] is False
    model = two_outputs()
    model.compile("sgd", **vars(built))
    logs = model.evaluate(np.ones((4, 2)), {"a": np.ones((4, 1)), "b": np.eye(4)}, verbose=0, return_dict=True)
    assert {"a_loss", "b_loss", "a_mae", "b_accuracy", "b_AUC"} <= logs.keys()


def test_losses_in_a_list_go_by_the_place_of_the_output():
    x = keras.Input((2,))
    model = keras.Model(x, [layers.Dense(1, activation="sigmoid")(x), layers.Dense(1)(x)])
    built = objective(model, "other", loss=["binary_crossentropy"] * 2, metrics=[["auto"], ["mae"]])
    assert [loss.get_config()["from_logits"] for loss in built.loss] == [False, True]
    assert [[metric.name for metric in metrics] for metrics in built.metrics] == [["accuracy"], ["mae"]]


@pytest.mark.parametrize(
    "loss", ["sparse_categorical_crossentropy", {"kind": keras.losses.SparseCategoricalCrossentropy()}]
)
def test_labels_that_an_output_has_no_class_for_are_refused(loss):
    """TensorFlow ends at the first of them, and JAX trains on another class."""
    inputs = keras.Input((2,))
    model = keras.Model(inputs, {"kind": keras.layers.Dense(3, name="kind")(inputs)})
    model.compile("sgd", loss)
    for labels in ([0, 1, 2], [2, 2, 2]):
        check_labels(model, Examples(np.ones((3, 2)), {"kind": np.array(labels)}))
    for labels in ([1, 2, 3], [-1, 0, 1]):
        with pytest.raises(DataError, match="the targets of output kind must be labels from 0 to 2, as many as it has"):
            check_labels(model, Examples(np.ones((3, 2)), {"kind": np.array(labels)}))
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(ignore_class=-1))
    check_labels(model, Examples(np.ones((3, 2)), np.array([-1, 0, 1])))


@pytest.mark.usefixtures("own_module")
def test_objects_of_another_kind_are_refused():
    for trainer, message in (
        ({"loss": "own_objects:number"}, r"trainer.loss: must be a keras.losses.Loss or a function of y_t"),
        ({"loss": "keras.metrics:MeanSquaredError"}, r"must be a keras.losses.Loss or .*Received: 'MeanSquaredError'"),
        ({"metrics": ["own_objects:number"]}, r"trainer.metrics: must be a keras.metrics.Metric or a function of y_tr"),
        ({"metrics": ["own_objects:Half"]}, r"must be a keras.metrics.Metric or .*Received: 'Half'"),
    ):
        with pytest.raises(ConfigError, match=message):
            objective(**trainer)


def own_optimizer(name: str, **settings):
    return build_optimizer(CustomOptimizer(object=f"own_objects:{name}", **settings), 20)


@pytest.mark.usefixtures("own_module")
def test_an_optimizer_of_the_users_has_the_keys_that_are_given():
    optimizer = own_optimizer("momentum", clipnorm=2.0, schedule=Schedule(warmup_steps=4))
    assert (optimizer.momentum, optimizer.clipnorm, float(optimizer.learning_rate)) == (0.5, 2.0, 0.0)
    assert float(own_optimizer("momentum").learning_rate) == 0.25
    assert float(own_optimizer("scheduled").learning_rate) == 0.5


def test_a_schedule_object_begins_at_the_learning_rate():
    schedule = Schedule(object="polynomial_decay", kwargs={"decay_steps": 10, "end_learning_rate": 0.0})
    rate = build_learning_rate(schedule, 0.5, None)
    assert [float(rate(step)) for step in (0, 5)] == [0.5, 0.25]


@pytest.mark.usefixtures("own_module")
def test_optimizers_and_schedules_of_another_kind_are_refused():
    for name, message in (
        ("number", r"optimizer.object: own_objects:number must be or return a keras Optimizer without"),
        ("scaled", r"optimizer.object: own_objects:scaled must be or return .*without loss scaling"),
        (
            "scheduled",
            r"optimizer.schedule: must be left out, as .*: own_objects:scheduled has a schedule of its own\.",
        ),
    ):
        with pytest.raises(ConfigError, match=message):
            own_optimizer(name, schedule=Schedule(warmup_steps=2))
    with pytest.raises(ConfigError, match=r"schedule.object: must be or return a Keras LearningRateSchedule\."):
        build_learning_rate(Schedule(object="own_objects:number"), 0.1, None)
