"""Which loss and metrics a run gets, and that they compute in float32."""

import keras
import numpy as np
import pytest
from keras import layers

from mpt_cli.errors import ConfigError
from mpt_cli.settings.schema import TrainerSettings
from mpt_cli.training.loss_and_optimizer import build_loss_and_metrics, gives_logits


def net(units: int = 3, activation: str | None = None) -> keras.Model:
    return keras.Sequential([keras.Input((2,)), layers.Dense(units, activation=activation)])


def objective(model=None, task="classification", policy="mixed_float16", **trainer):
    return build_loss_and_metrics(TrainerSettings(**trainer), model or net(), task, policy)


def of_kind(built) -> list[tuple[str, str]]:
    return [(type(metric).__name__, metric.name) for metric in built.metrics]


def test_classification_has_cross_entropy_over_integer_labels_and_accuracy():
    built = objective()
    assert isinstance(built.loss, keras.losses.SparseCategoricalCrossentropy)
    assert built.loss.get_config()["from_logits"] is True
    assert of_kind(built) == [("SparseCategoricalAccuracy", "accuracy")]


def test_a_single_output_is_binary():
    built = objective(net(1))
    assert isinstance(built.loss, keras.losses.BinaryCrossentropy)
    assert of_kind(built) == [("BinaryAccuracy", "accuracy")]


@pytest.mark.parametrize(("activation", "threshold"), [(None, 0.0), ("sigmoid", 0.5)])
def test_binary_accuracy_is_cut_where_the_head_says(activation, threshold):
    assert objective(net(1, activation)).metrics[0].get_config()["threshold"] == threshold


def test_regression_has_squared_and_absolute_error():
    built = objective(task="regression")
    assert isinstance(built.loss, keras.losses.MeanSquaredError)
    assert of_kind(built) == [("MeanAbsoluteError", "mean_absolute_error")]


def test_other_data_must_name_its_loss():
    with pytest.raises(ConfigError, match=r"trainer.loss: must be named for data that is neither labels nor numbers"):
        objective(task="other")
    assert of_kind(objective(task="other", loss="categorical_crossentropy")) == [("CategoricalAccuracy", "accuracy")]


class Subclassed(keras.Model):
    def __init__(self, last=None):
        super().__init__()
        self.last = last or layers.Dense(3, activation="softmax")

    def call(self, x):
        return self.last(x)


def functional(*operations) -> keras.Model:
    x = inputs = keras.Input((2,))
    for operation in operations:
        x = operation(x)
    return keras.Model(inputs, x)


@pytest.mark.parametrize(("model", "logits"), [
    (net(), True),
    (net(activation="relu"), True),
    (net(activation="softmax"), False),
    (net(activation="sigmoid"), False),
    (keras.Sequential([keras.Input((2,)), layers.Dense(3), layers.Softmax()]), False),
    (functional(layers.Dense(3), layers.Activation("softmax")), False),
    (functional(layers.Dense(3), keras.ops.softmax), False),
    (functional(layers.Dense(3, activation="softmax"), layers.Dense(3)), True),
    (functional(net(activation="softmax")), False),
    (functional(functional(layers.Dense(3), keras.ops.softmax)), False),
    (functional(layers.Reshape((1, 2)), layers.TimeDistributed(layers.Dense(3, activation="softmax"))), False),
    (functional(layers.Reshape((1, 2)), layers.TimeDistributed(layers.Dense(3))), True),
    (functional(layers.Reshape((1, 2)), layers.TimeDistributed(layers.Softmax())), False),
    (functional(layers.Reshape((1, 2)), layers.TimeDistributed(net(activation="softmax"))), False),
    (Subclassed(), False),
    (Subclassed(net()), True),
    (Subclassed(net(activation="softmax")), False),
    (Subclassed(keras.Sequential([layers.Dense(3, activation="softmax")])), False),
    (Subclassed(Subclassed()), False),
    (Subclassed(layers.SpectralNormalization(layers.Dense(3, activation="softmax"))), False),
])
def test_logits_are_told_from_the_last_layer(model, logits):
    model(keras.KerasTensor((None, 2)))
    assert gives_logits(model) is logits


def test_from_logits_can_be_said():
    assert objective(from_logits=False).loss.get_config()["from_logits"] is False


def test_from_logits_with_a_loss_that_takes_none_is_an_error():
    with pytest.raises(ConfigError, match=r"trainer.from_logits: must be auto with MeanSquaredError, which takes"):
        objective(task="regression", from_logits=True)


@pytest.mark.parametrize(("name", "kind"), [
    ("mse", keras.losses.MeanSquaredError),
    ("MAE", keras.losses.MeanAbsoluteError),
    ("huber", keras.losses.Huber),
    ("CategoricalCrossentropy", keras.losses.CategoricalCrossentropy),
    ("binary_focal_crossentropy", keras.losses.BinaryFocalCrossentropy),
])
def test_losses_go_by_the_names_keras_takes(name, kind):
    assert type(objective(loss=name).loss) is kind


@pytest.mark.parametrize("loss", ["binary_crossentropy", "categorical_crossentropy"])
def test_from_logits_reaches_named_losses(loss):
    assert objective(loss=loss).loss.get_config()["from_logits"] is True


def test_metrics_keep_the_name_they_were_asked_by():
    built = objective(metrics=["auto", "accuracy", "sparse_top_k_categorical_accuracy", "AUC", "mse"])
    assert of_kind(built) == [
        ("SparseCategoricalAccuracy", "accuracy"),
        ("SparseTopKCategoricalAccuracy", "sparse_top_k_categorical_accuracy"),
        ("AUC", "AUC"), ("MeanSquaredError", "mse")]
    assert built.metrics[2].get_config()["from_logits"] is True


def test_no_metrics_are_fine():
    assert objective(metrics=[]).metrics == []


def test_auto_has_no_accuracy_where_the_loss_does_not_say_how_targets_are_coded():
    assert objective(loss="mse").metrics == []


WRONG = [
    ({"loss": "crosentropy"}, r"trainer.loss: Keras has none of this name. Received: 'crosentropy'"),
    ({"loss": "mean_squared_eror"}, r"Received: 'mean_squared_eror'. Did you mean mean_squared_error\?"),
    ({"loss": "Loss"}, r"trainer.loss: Keras has none of this name. Received: 'Loss'"),
    ({"metrics": ["acuracy"]}, r"trainer.metrics: Keras has none of this name. Received: 'acuracy'. Did you mean acc"),
    ({"metrics": ["mean"]}, r"trainer.metrics: Keras has none of this name. Received: 'mean'"),
    ({"metrics": ["mean_iou"]}, r"trainer.metrics: MeanIoU needs num_classes, which a name alone can't give"),
    ({"metrics": ["f1_score"]}, r"trainer.metrics: F1Score needs average, which a name alone can't give.*'f1_score'"),
    ({"metrics": ["fbeta_score"]}, r"trainer.metrics: FBetaScore needs average, which a name alone can't give"),
    ({"loss": "mse", "metrics": ["accuracy"]}, r"trainer.metrics: accuracy can't be told from loss mean_squared_error"),
    ({"metrics": ["precision"]}, r"trainer.metrics: Precision needs probabilities, and the model ends without softmax"),
    ({"loss": "kl_divergence"}, r"trainer.loss: KLDivergence needs probabilities, and the model ends without softmax"),
]


@pytest.mark.parametrize(("trainer", "message"), WRONG)
def test_wrong_names_and_pairs_are_told(trainer, message):
    with pytest.raises(ConfigError, match=message):
        objective(**trainer)


@pytest.mark.parametrize("trainer", [{"loss": "kl_divergence"}, {"metrics": ["precision"]}])
def test_probabilities_are_taken_on_the_users_word(trainer):
    assert objective(from_logits=False, **trainer).loss is not None


@pytest.mark.parametrize(("policy", "dtype"), [
    ("float32", "float32"), ("mixed_float16", "float32"), ("bfloat16", "float32"), ("float64", "float64")])
def test_loss_and_metrics_compute_in_float32_or_float64(policy, dtype):
    built = objective(policy=policy)
    assert (built.loss.dtype, built.metrics[0].dtype) == (dtype, dtype)


def test_a_float16_logit_does_not_overflow_the_loss():
    # the loss of a logit 60000 above the right one is 60000, and the sum of two is beyond float16
    logits = np.array([[60000.0, 0.0], [60000.0, 0.0]], np.float16)
    assert float(objective(net(2)).loss(np.array([1, 1]), logits)) == 60000.0


def test_the_mean_over_a_thousand_examples_loses_no_count():
    metric = objective(net(2)).metrics[0]
    for _ in range(3):
        metric.update_state(np.zeros(1000, np.int32), np.array([[1.0, 0.0]] * 999 + [[0.0, 1.0]], np.float16))
    assert float(metric.result()) == pytest.approx(0.999, abs=1e-6)
