"""Cross-entropy without whole logits: its values and gradients are those of the logits that it never has."""

import keras
import numpy as np
import pytest
from backends import BACKEND, MODE_NAMES, central_difference, compiled, float64_allowed, gradients
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import ops

from mpt_cli.precision.gradients import ChunkedCrossentropy, chunked_crossentropy
from mpt_cli.precision.gradients.chunked_crossentropy import LARGE, token_scores

ROUNDING = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24}


def drawn(tokens: int = 7, width: int = 5, classes: int = 6, seed: int = 0):
    """Labels, hidden states, kernel and bias in float64."""
    random = np.random.default_rng(seed)
    return (random.integers(0, classes, tokens).astype("int32"), random.normal(size=(tokens, width)),
            random.normal(size=(width, classes)), random.normal(size=(classes,)))  # fmt: skip


def tensor(values, dtype="float32"):
    return ops.cast(ops.convert_to_tensor(np.float64(values).astype("float32")), dtype)


def numpy_of(x):
    return np.asarray(ops.convert_to_numpy(ops.cast(x, "float32")), "float64")


def reference(labels, hidden, kernel, bias=0.0):
    logits = hidden @ kernel + bias
    largest = logits.max(axis=-1, keepdims=True)
    exact = np.log(np.exp(logits - largest).sum(axis=-1)) + largest[..., 0]
    return exact - np.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]


def reference_slopes(labels, hidden, kernel, upstream, bias=0.0):
    """Of hidden states and kernel, in float64."""
    logits = hidden @ kernel + bias
    p = np.exp(logits - logits.max(axis=-1, keepdims=True))
    slopes = (p / p.sum(axis=-1, keepdims=True) - np.eye(kernel.shape[1])[labels]) * upstream[:, None]
    return slopes @ kernel.T, hidden.T @ slopes


def whole(labels, hidden, kernel):
    """The head as a Dense computes it in the dtype of `hidden`, and Keras's loss in float32."""
    logits = ops.cast(ops.matmul(hidden, ops.cast(kernel, hidden.dtype)), "float32")
    return ops.sparse_categorical_crossentropy(labels, logits, from_logits=True)


SLOW = pytest.mark.slow


@pytest.mark.parametrize("mode", ["eager", *(pytest.param(mode, marks=SLOW) for mode in MODE_NAMES[1:])])
def test_values_and_gradients_are_those_of_whole_logits(mode):
    labels, *weights = drawn()

    def both(hidden, kernel, bias):
        return (chunked_crossentropy(labels, hidden, kernel, bias, chunk_tokens=3),
                *gradients(lambda *x: chunked_crossentropy(labels, *x, chunk_tokens=3) ** 2, hidden, kernel, bias))

    loss, *slopes = compiled(both, mode)(*map(tensor, weights))
    assert keras.backend.standardize_dtype(loss.dtype) == "float32"
    np.testing.assert_allclose(numpy_of(loss), reference(labels, *weights), rtol=8 * ROUNDING["float32"], atol=1e-6)
    for place, slope in enumerate(slopes):
        def changed(x, place=place):
            return reference(labels, *[x if index == place else w for index, w in enumerate(weights)]) ** 2

        expected = central_difference(changed, weights[place])
        # each is a sum of terms about as large as the largest of them, of up to 23, and processors differ in its order
        rounding = 8 * ROUNDING["float32"] * np.abs(expected).max()
        np.testing.assert_allclose(numpy_of(slope), expected, rtol=2e-6, atol=max(2e-6, rounding))


@SLOW
def test_gradients_agree_with_finite_differences_in_float64():
    labels, *weights = drawn(tokens=5, width=3, classes=4)
    with float64_allowed():
        def loss(*x):
            return chunked_crossentropy(labels, *x, chunk_tokens=2)

        slopes = gradients(loss, *(ops.convert_to_tensor(w, "float64") for w in weights))
        assert [keras.backend.standardize_dtype(slope.dtype) for slope in slopes] == ["float64"] * 3
        for place, slope in enumerate(slopes):
            def changed(x, place=place):
                given = [x if index == place else w for index, w in enumerate(weights)]
                return loss(*(ops.convert_to_tensor(w, "float64") for w in given))

            expected = central_difference(changed, weights[place])
            np.testing.assert_allclose(ops.convert_to_numpy(slope), expected, rtol=1e-8, atol=1e-9)


@SLOW
@settings(max_examples=12, deadline=None, derandomize=True)
@given(tokens=st.integers(1, 12), width=st.integers(1, 5), classes=st.integers(2, 7), chunk=st.integers(1, 14),
       seed=st.integers(0, 9))  # fmt: skip
def test_no_number_of_tokens_or_size_of_a_chunk_changes_the_result(tokens, width, classes, chunk, seed):
    labels, hidden, kernel, _ = drawn(tokens, width, classes, seed)
    given = tensor(hidden), tensor(kernel)
    loss = chunked_crossentropy(labels, *given, chunk_tokens=chunk)
    np.testing.assert_allclose(numpy_of(loss), reference(labels, hidden, kernel), rtol=1e-5, atol=2e-6)
    slopes = gradients(lambda *x: chunked_crossentropy(labels, *x, chunk_tokens=chunk), *given)
    for slope, expected in zip(slopes, reference_slopes(labels, hidden, kernel, np.ones(tokens)), strict=True):
        np.testing.assert_allclose(numpy_of(slope), expected, rtol=1e-5, atol=4e-6)


def test_columns_that_fill_up_the_tiles_of_many_classes_are_no_classes():
    """1,030 are multiplied as 1,088, whose last logits, 0, would be larger than all others here."""
    labels, hidden, kernel, bias = drawn(tokens=5, width=3, classes=LARGE + 6)
    labels[0] = LARGE + 6
    hidden, kernel, bias = np.abs(hidden), -np.abs(kernel), -np.abs(bias)
    given = tensor(hidden), tensor(kernel), tensor(bias)
    scores = numpy_of(token_scores(labels, *given, chunk_tokens=2))
    logits = hidden @ kernel + bias
    at_label = np.take_along_axis(logits[1:], labels[1:, None], axis=1)
    assert np.isnan(scores[0, 0]) and scores[0, 1] == LARGE + 6
    np.testing.assert_array_equal(scores[1:, 1], (logits[1:] > at_label).sum(axis=1))
    np.testing.assert_allclose(scores[1:, 0], reference(labels[1:], hidden[1:], kernel, bias), rtol=1e-5)
    weights = np.arange(5.0)  # none for the label that is no class
    counts = tensor(weights) > 0

    def weighted(*x):
        return ops.where(counts, chunked_crossentropy(labels, *x, chunk_tokens=2), 0.0) * tensor(weights)

    slopes = gradients(weighted, *given)
    assert [tuple(slope.shape) for slope in slopes] == [x.shape for x in (hidden, kernel, bias)]
    expected = reference_slopes(np.minimum(labels, LARGE + 5), hidden, kernel, weights, bias)
    for slope, wanted in zip(slopes, expected, strict=False):
        np.testing.assert_allclose(numpy_of(slope), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float16", pytest.param("bfloat16", marks=SLOW)])
def test_half_precision_is_no_worse_than_whole_logits_in_it(dtype):
    """Held against float64 from the numbers that half precision holds."""
    labels, hidden, kernel, _ = drawn(tokens=96, width=32, classes=50, seed=3)
    upstream = np.full(96, 8.0)  # about a scale of 2^15 over 4096 tokens
    given = tensor(hidden, dtype), tensor(kernel)
    exact = numpy_of(given[0]), numpy_of(ops.cast(given[1], dtype))
    wanted = [reference(labels, *exact), *reference_slopes(labels, *exact, upstream)]

    def errors(function):
        found = [function(*given), *gradients(lambda *x: function(*x) * tensor(upstream), *given)]
        assert [keras.backend.standardize_dtype(x.dtype) for x in found] == ["float32", dtype, "float32"]
        return [np.abs(numpy_of(x) - y).max() for x, y in zip(found, wanted, strict=True)]

    chunked = errors(lambda *x: chunked_crossentropy(labels, *x, chunk_tokens=20))
    for error, of_whole in zip(chunked, errors(lambda *x: whole(labels, *x)), strict=True):
        assert error <= of_whole
    assert chunked[0] < 1e-5  # the logits are float32: nothing of them is rounded


def test_the_gradient_of_the_kernel_is_not_rounded_to_half_precision():
    """Whole logits give inf: 64 rows whose slopes of 1,024 add up to 65,536."""
    labels, hidden, kernel = np.zeros(64, "int32"), tensor(np.full((64, 1), 1.0), "float16"), tensor([[0.0, 0.0]])
    (slope,) = gradients(lambda k: 2048 * chunked_crossentropy(labels, hidden, k, chunk_tokens=16), kernel)
    np.testing.assert_array_equal(numpy_of(slope), [[-65536.0, 65536.0]])


def test_what_float16_has_no_room_for_is_inf_in_the_gradients():
    labels, hidden = np.zeros(4, "int32"), tensor(np.ones((4, 1)), "float16")
    slopes = gradients(lambda h, k: 2.0**18 * chunked_crossentropy(labels, h, k, chunk_tokens=3), hidden,
                       tensor([[0.5, -0.5]]))  # fmt: skip
    assert not any(np.isfinite(numpy_of(slope)).all() for slope in slopes)


def test_scores_are_what_metrics_ask_of_the_logits():
    """The last label is no class, and neither is -1; of equal logits the first is the largest, as for argmax."""
    logits = np.float32([[1, 3, 3, 0], [1, 3, 3, 0], [5, 1, 2, 2], [0, np.nan, 0, 0], [1, 2, 3, 4], [1, 2, 3, 4]])
    labels = np.int32([1, 2, 3, 0, 4, -1])
    scores = numpy_of(token_scores(labels, tensor(logits), tensor(np.eye(4)), chunk_tokens=4))
    assert scores[:3, 1:].tolist() == [[0, 0], [0, 1], [1, 1]]
    assert scores[3, 1] >= 1 and scores[4:, 1].tolist() == [4, 4]
    assert np.isnan(scores[3:, 0]).all()


def test_a_label_that_is_no_class_spoils_the_gradient_only_where_it_counts():
    hidden, kernel = tensor(np.ones((3, 2))), tensor(np.zeros((2, 4)))

    def slopes(weights):
        (slope,) = gradients(lambda h: chunked_crossentropy([0, 9, -1], h, kernel, chunk_tokens=2) * weights, hidden)
        return np.isfinite(numpy_of(slope)).all(axis=1).tolist()

    assert slopes(tensor([1, 1, 1])) == [True, False, False]
    assert slopes(tensor([1, 0, 0])) == [True, True, True]


@pytest.mark.parametrize("shape", [(4, 3), (2, 2, 3)])
def test_labels_may_have_an_axis_of_one_and_be_floats(shape):
    labels, hidden, kernel = np.arange(4).reshape(shape[:-1]) % 3, tensor(np.ones(shape)), tensor(np.eye(3))
    plain = chunked_crossentropy(labels, hidden, kernel, chunk_tokens=3)
    assert tuple(plain.shape) == shape[:-1]
    column = chunked_crossentropy(np.float32(labels)[..., None], hidden, kernel, chunk_tokens=3)
    np.testing.assert_array_equal(numpy_of(plain), numpy_of(column))


@pytest.mark.parametrize(("change", "message"), [
    ({"chunk_tokens": 0}, "chunk_tokens must be at least 1. Received: 0."),
    ({"labels": np.zeros((2, 2), "int32")}, "labels must have the shape of hidden without its last axis. Received: "
                                            r"labels.shape=\(2, 2\), hidden.shape=\(3, 2\)."),
    ({"kernel": np.zeros((3, 4), "float32")}, r"kernel must have the shape \(width, classes\). Received: "
                                              r"kernel.shape=\(3, 4\), hidden.shape=\(3, 2\)."),
])  # fmt: skip
def test_the_words_of_what_does_not_belong_together(change, message):
    given = {"labels": np.zeros(3, "int32"), "hidden": tensor(np.ones((3, 2))), "kernel": np.zeros((2, 4), "float32")}
    with pytest.raises(ValueError, match=f"^chunked_crossentropy: {message}$"):
        chunked_crossentropy(**given | change)


def test_hidden_states_must_be_floats():
    with pytest.raises(TypeError, match=r"chunked_crossentropy: x must be floating. Received: dtype=int32."):
        chunked_crossentropy([0], ops.ones((1, 2), "int32"), ops.ones((2, 3)))


TOKENS, CLASSES = 48, 101


@pytest.mark.skipif(BACKEND != "jax", reason="TensorFlow's graphs are read below")
def test_no_array_of_the_traced_program_is_as_large_as_the_logits():
    import jax
    import jax.extend

    def sizes(jaxpr):
        for each in jaxpr.eqns:
            yield from (np.prod(v.aval.shape, dtype=int) for v in each.outvars)
            for inner in jax.extend.core.jaxprs_in_params(each.params):
                yield from sizes(inner)

    def slopes(hidden, kernel):
        return gradients(lambda *x: chunked_crossentropy(np.zeros(TOKENS, "int32"), *x, chunk_tokens=8), hidden, kernel)

    given = tensor(np.ones((TOKENS, 4)), "float16"), tensor(np.ones((4, CLASSES)))
    traced = jax.make_jaxpr(slopes)(*given)
    found = list(sizes(traced.jaxpr))
    assert 8 * CLASSES in found and max(found) < TOKENS * CLASSES
    temporary = jax.jit(slopes).lower(*given).compile().memory_analysis().temp_size_in_bytes
    assert temporary < 4 * TOKENS * CLASSES


@pytest.mark.skipif(BACKEND != "tensorflow", reason="a program of JAX is read above")
@pytest.mark.parametrize("tokens", [TOKENS, None])
def test_no_tensor_of_the_graph_is_as_large_as_the_logits(tokens):
    """Nor where the number of tokens is not known, as for batches of any length."""
    import tensorflow as tf

    @tf.function(input_signature=[tf.TensorSpec((tokens, 4), tf.float16), tf.TensorSpec((4, CLASSES), tf.float32)])
    def slopes(hidden, kernel):
        labels = tf.zeros(tf.shape(hidden)[:1], tf.int32)
        return gradients(lambda *x: chunked_crossentropy(labels, *x, chunk_tokens=8), hidden, kernel)

    graph = slopes.get_concrete_function().graph
    names = {f.signature.name for f in graph.as_graph_def().library.function}
    graphs = [graph, *(graph._get_function(name).graph for name in names)]
    shapes = {tuple(out.shape) for each in graphs for op in each.get_operations() for out in op.outputs
              if out.shape.rank is not None}  # fmt: skip
    assert (8 if tokens else None, CLASSES) in shapes
    assert not any(shape[-1:] == (CLASSES,) and TOKENS in shape for shape in shapes)
    found = slopes(tf.ones((13, 4), tf.float16), tf.ones((4, CLASSES))) if tokens is None else None
    assert found is None or found[0].shape == (13, 4)


def test_the_loss_is_that_of_keras_where_logits_are_given():
    labels, _, _, _ = drawn()
    logits = tensor(np.random.default_rng(1).normal(size=(7, 6)))
    labels[2] = -1
    ours = ChunkedCrossentropy(4, ignore_class=-1, reduction="sum", name="ce")
    theirs = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=-1, reduction="sum")
    assert float(ours(labels, logits)) == float(theirs(labels, logits))
    again = keras.losses.deserialize(keras.losses.serialize(ours))
    assert isinstance(again, ChunkedCrossentropy) and again.get_config() == ours.get_config()
    assert ours.get_config() == {"name": "ce", "reduction": "sum", "ignore_class": -1, "chunk_tokens": 4}


def test_a_loss_of_no_tokens_at_a_time_is_refused():
    with pytest.raises(ValueError, match=r"`chunk_tokens` must be at least 1. Received: chunk_tokens=0."):
        ChunkedCrossentropy(0)
