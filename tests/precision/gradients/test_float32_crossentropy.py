"""The float32 cross-entropies: values by hand, gradients against finite differences, extremes, and the loss classes."""

import keras
import numpy as np
import pytest
from backends import BACKEND, MODES, central_difference, compiled, gradients
from keras import ops

from mpt_cli.precision.gradients import (
    Float32CategoricalCrossentropy,
    Float32SparseCategoricalCrossentropy,
    float32_categorical_crossentropy,
    float32_sparse_categorical_crossentropy,
)

LOGITS = np.array([[0.5, -1.0, 2.0], [3.0, 3.0, -4.0]])  # float16 holds each of them
SOFT = np.array([[0.25, 0.5, 0.25], [0.0, 1.5, 0.5]])


def tensor(values, dtype):
    return ops.cast(ops.convert_to_tensor(np.float32(values)), dtype)


def numpy_of(x):
    return ops.convert_to_numpy(ops.cast(x, "float32"))


def reference(labels, logits):
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return -np.sum(labels * (shifted - np.log(np.sum(np.exp(shifted), axis=-1, keepdims=True))), axis=-1)


def sparse_slope(labels, logits):
    return gradients(lambda x: float32_sparse_categorical_crossentropy(labels, x), logits)[0]


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_value_is_float32_and_exact_where_the_softmax_is_known(dtype, mode):
    loss = compiled(float32_sparse_categorical_crossentropy, mode)(
        ops.convert_to_tensor([0, 3]), tensor([[7.0] * 4, [0.0, 0.0, 0.0, -1e4]], dtype)
    )
    assert keras.backend.standardize_dtype(loss.dtype) == "float32"
    big = float(numpy_of(tensor(1e4, dtype)))  # 9984 in bfloat16
    np.testing.assert_allclose(numpy_of(loss), [np.log(4.0), big + np.log(3.0)], rtol=2e-7)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_gradient_agrees_with_finite_differences_and_has_the_dtype_of_the_logits(dtype):
    slopes = sparse_slope([2, 0], tensor(LOGITS, dtype))
    assert keras.backend.standardize_dtype(slopes.dtype) == dtype
    difference = central_difference(lambda x: reference(np.eye(3)[[2, 0]], x), LOGITS)
    unit = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 1e-6}[dtype]  # one rounding, of a float32 result
    np.testing.assert_allclose(numpy_of(slopes), difference, rtol=unit, atol=1e-7)


def test_dense_gradient_agrees_with_finite_differences_for_labels_that_do_not_add_up_to_one():
    slopes = gradients(lambda x: float32_categorical_crossentropy(SOFT, x), tensor(LOGITS, "float16"))[0]
    difference = central_difference(lambda x: reference(SOFT, x), LOGITS)
    np.testing.assert_allclose(numpy_of(slopes), difference, rtol=2.0**-11, atol=1e-7)


def test_gradient_for_dense_labels_is_minus_log_p():
    labels = tensor(SOFT, "float32")
    by_labels = gradients(lambda t: float32_categorical_crossentropy(t, tensor(LOGITS, "float16")), labels)[0]
    np.testing.assert_allclose(numpy_of(by_labels), central_difference(lambda t: reference(t, LOGITS), SOFT), rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_logits_of_plus_and_minus_1e4_give_finite_values_and_gradients(mode):
    logits = tensor([[1e4, -1e4], [1e4, -1e4]], "float16")
    labels = ops.convert_to_tensor([0, 1])
    loss = compiled(float32_sparse_categorical_crossentropy, mode)(labels, logits)
    assert numpy_of(loss).tolist() == [0.0, 2e4]
    slopes = compiled(lambda x: sparse_slope(labels, x), mode)(logits)
    assert numpy_of(slopes).tolist() == [[0.0, 0.0], [1.0, -1.0]]


@pytest.mark.parametrize("mode", MODES)
def test_gradient_of_a_nearly_certain_class_does_not_cancel_before_the_loss_scale(mode):
    def scaled(x):
        return float32_sparse_categorical_crossentropy([0], x) * 2.0**15

    slopes = compiled(lambda x: gradients(scaled, x)[0], mode)(tensor([[20.0, 0.0]], "float16"))
    exact = np.exp(-20.0) * 2.0**15  # 6.75e-5; 1 - p is 0 in float32
    np.testing.assert_allclose(numpy_of(slopes), [[-exact, exact]], rtol=2.0**-11)


def test_upstream_gradient_multiplies_each_row():
    def weighted(x):
        return float32_sparse_categorical_crossentropy([0, 0], x) * np.float32([2.0, 0.0])

    slopes = gradients(weighted, tensor([[0.0, 0.0], [0.0, 0.0]], "float16"))[0]
    assert numpy_of(slopes).tolist() == [[-1.0, 1.0], [0.0, 0.0]]


def test_a_class_masked_with_minus_infinity_takes_no_part():
    logits = tensor([[0.0, -np.inf, 0.0]], "float16")
    assert numpy_of(float32_sparse_categorical_crossentropy([0], logits))[0] == pytest.approx(np.log(2.0))
    assert numpy_of(sparse_slope([0], logits)).tolist() == [[-0.5, 0.0, 0.5]]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("label", [-1, 3])
def test_a_label_outside_the_classes_gives_nan_and_spares_the_other_rows(label, mode):
    labels, logits = ops.convert_to_tensor([label, 0]), tensor(LOGITS, "float16")
    loss = numpy_of(compiled(float32_sparse_categorical_crossentropy, mode)(labels, logits))
    slopes = numpy_of(sparse_slope(labels, logits))
    assert np.isnan(loss).tolist() == [True, False]
    assert np.isnan(slopes).all(axis=-1).tolist() == [True, False]


@pytest.mark.parametrize("mode", MODES)
def test_second_order_gradient_is_the_hessian_of_the_softmax(mode):
    weights = np.float32([[1.0, 0.0]])
    logits = tensor([[0.0, np.log(3.0)]], "float32")  # p = 1/4, 3/4
    second = compiled(lambda v: gradients(lambda x: sparse_slope([0], x) * weights, v)[0], mode)(logits)
    np.testing.assert_allclose(numpy_of(second), [[3 / 16, -3 / 16]], rtol=1e-6)


@pytest.mark.parametrize("shape", [(2, 3), (2, 3, 1)])
def test_more_dimensions_and_a_trailing_one_in_the_labels(shape):
    logits = ops.zeros((2, 3, 5), dtype="bfloat16")
    loss = float32_sparse_categorical_crossentropy(ops.zeros(shape, dtype="int32"), logits)
    np.testing.assert_allclose(numpy_of(loss), np.full((2, 3), np.log(5.0)), rtol=1e-6)


def test_shapes_that_do_not_belong_together_are_refused():
    with pytest.raises(ValueError, match=r"without the classes. Received: labels.shape=\(4, 2\), logits.*\(4, 3\)"):
        float32_sparse_categorical_crossentropy(ops.zeros((4, 2)), ops.zeros((4, 3)))
    with pytest.raises(ValueError, match=r"the shape of logits. Received: labels.shape=\(4,\), logits.shape=\(4, 3\)"):
        float32_categorical_crossentropy(ops.zeros(4), ops.zeros((4, 3)))


@pytest.mark.parametrize(
    ("loss", "labels"), [(Float32SparseCategoricalCrossentropy, [2, 0]), (Float32CategoricalCrossentropy, SOFT)]
)
def test_loss_class_averages_reduces_and_weighs_like_any_keras_loss(loss, labels):
    dense = np.eye(3)[labels] if np.ndim(labels) == 1 else labels
    each = reference(dense, LOGITS)
    logits, labels = tensor(LOGITS, "float16"), np.array(labels)
    assert float(loss()(labels, logits)) == pytest.approx(each.mean(), rel=1e-6)
    assert float(loss(reduction="sum")(labels, logits)) == pytest.approx(each.sum(), rel=1e-6)
    weighted = loss(reduction="none")(labels, logits, sample_weight=np.float32([2.0, 0.0]))
    np.testing.assert_allclose(numpy_of(weighted), [2 * each[0], 0.0], rtol=1e-6)


def test_loss_class_stays_float32_under_another_floatx():
    keras.config.set_floatx("float16")
    try:
        loss = Float32SparseCategoricalCrossentropy()(np.array([1]), tensor([[1e4, -1e4]], "float16"))
    finally:
        keras.config.set_floatx("float32")
    assert float(loss) == 2e4
    assert keras.backend.standardize_dtype(loss.dtype) == "float32"


@pytest.mark.parametrize("loss", [Float32SparseCategoricalCrossentropy, Float32CategoricalCrossentropy])
def test_loss_class_survives_serialisation(loss):
    copy = keras.losses.deserialize(keras.losses.serialize(loss(name="mine", reduction="sum")))
    assert (type(copy), copy.name, copy.reduction, copy.dtype) == (loss, "mine", "sum", "float32")


@pytest.mark.slow
def test_a_float16_model_compiled_with_the_loss_trains_and_comes_back_from_a_file(tmp_path):
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2, dtype="mixed_float16")])
    model.compile(keras.optimizers.SGD(0.5), Float32SparseCategoricalCrossentropy())
    x, y = np.float32([[1, 0], [0, 1]] * 8), np.array([0, 1] * 8)
    history = model.fit(x, y, epochs=8, batch_size=8, verbose=0).history["loss"]
    assert history[-1] < history[0] / 2
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert isinstance(loaded.loss, Float32SparseCategoricalCrossentropy), BACKEND
