"""What `tf.custom_gradient` documents, as examples that run: read from top to bottom, simplest first.

The counterparts for JAX are in `test_jax_custom_vjp_examples.py`; what mpt offers ready-made, in the other files here.
"""

import pytest
from backends import only_on

tf = pytest.importorskip("tensorflow")
pytestmark = only_on("tensorflow")


@tf.custom_gradient
def log1pexp(x):
    e = tf.exp(x)
    return tf.math.log(1 + e), lambda upstream: upstream * (1 - 1 / (1 + e))


@tf.custom_gradient
def product(x, y):
    def backward(upstream):
        return upstream * y, upstream * x

    return x * y, backward


def slope(function, x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = function(x)
    return tape.gradient(y, x)


def test_a_stable_formula_replaces_inf_by_inf():
    x = tf.constant(100.0)
    assert tf.math.is_nan(slope(lambda v: tf.math.log(1 + tf.exp(v)), x))
    assert slope(log1pexp, x) == 1.0


def test_upstream_is_the_gradient_of_all_that_comes_after():
    assert slope(lambda v: 3.0 * log1pexp(v) ** 2, tf.constant(0.0)).numpy() == pytest.approx(3 * 0.693147, rel=1e-6)


def test_several_inputs_get_one_gradient_each_and_a_persistent_tape_asks_twice():
    x, y = tf.constant(2.0), tf.constant(3.0)
    with tf.GradientTape(persistent=True) as tape:
        tape.watch([x, y])
        z = product(x, y)
    assert z == 6.0
    assert (tape.gradient(z, x), tape.gradient(z, y)) == (3.0, 2.0)
    assert tape.gradient(z, [x, y]) == [3.0, 2.0]


def test_several_outputs_bring_one_upstream_each():
    @tf.custom_gradient
    def sum_and_difference(x, y):
        return (x + y, x - y), lambda of_sum, of_difference: (of_sum + of_difference, of_sum - of_difference)

    x, y = tf.constant(1.0), tf.constant(2.0)
    with tf.GradientTape() as tape:
        tape.watch([x, y])
        total, difference = sum_and_difference(x, y)
        z = 10.0 * total + difference
    assert tape.gradient(z, [x, y]) == [11.0, 9.0]


def test_none_says_that_an_input_has_no_gradient():
    @tf.custom_gradient
    def power(x, exponent):
        return x**exponent, lambda upstream: (upstream * exponent * x ** (exponent - 1), None)

    x, exponent = tf.constant(3.0), tf.constant(2.0)
    with tf.GradientTape() as tape:
        tape.watch([x, exponent])
        y = power(x, exponent)
    assert tape.gradient(y, [x, exponent]) == [6.0, None]


def test_too_few_gradients_are_an_error_when_the_gradient_is_taken():
    @tf.custom_gradient
    def forgetful(x, y):
        return x * y, lambda upstream: upstream * y

    with pytest.raises(ValueError, match=r"expected to return 2 gradients, but returned 1 instead"):
        slope(lambda v: forgetful(v, 2.0), tf.constant(1.0))


@pytest.mark.parametrize("compiled", [lambda f: f, tf.function, lambda f: tf.function(f, jit_compile=True)])
def test_variables_that_the_function_reads_get_gradients_by_their_own_list(compiled):
    weights = tf.Variable([1.0, 1.0])

    @tf.custom_gradient
    def linear(x):
        def backward(upstream, variables=None):  # the name is what TensorFlow looks for
            assert [variable.ref() for variable in variables] == [weights.ref()]
            by_weights = tf.stack([tf.reduce_sum(upstream), tf.reduce_sum(upstream * x)])
            return upstream * weights[1], [by_weights]

        return weights[1] * x + weights[0], backward

    @compiled
    def slopes(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = linear(x)
        return y, *tape.gradient(y, [x, weights])

    y, by_x, by_weights = slopes(tf.constant([1.0, 2.0, 3.0]))
    assert y.numpy().tolist() == [2.0, 3.0, 4.0]
    assert by_x.numpy().tolist() == [1.0, 1.0, 1.0]
    assert by_weights.numpy().tolist() == [3.0, 6.0]


def test_reading_a_variable_without_taking_the_list_is_an_error():
    weight = tf.Variable(2.0)

    @tf.custom_gradient
    def scaled(x):
        return weight * x, lambda upstream: upstream * weight

    with pytest.raises(TypeError, match=r"grad_fn.*must accept keyword argument 'variables'"):
        slope(scaled, tf.constant(1.0))


@pytest.mark.parametrize("compiled", [lambda f: f, tf.function])
def test_second_order_needs_the_inner_function_to_take_x_again(compiled):
    @tf.custom_gradient
    def cube(x):
        def first_order(upstream):
            @tf.custom_gradient
            def slope_of_cube(x):
                return 3 * x**2, lambda upstream_of_slope: upstream_of_slope * 6 * x

            return upstream * slope_of_cube(x)

        return x**3, first_order

    first = compiled(lambda x: slope(cube, x))
    second = compiled(lambda x: slope(lambda v: slope(cube, v), x))
    assert (first(tf.constant(3.0)), second(tf.constant(3.0))) == (27.0, 18.0)


@tf.custom_gradient
def cube_with_decorated_gradient(x):
    @tf.custom_gradient
    def first_order(upstream):
        return upstream * 3 * x**2, lambda upstream_of_slope: upstream_of_slope * 3 * x**2

    return x**3, first_order


@pytest.mark.parametrize(("compiled", "second"), [(lambda f: f, 18.0), (tf.function, None)])
def test_decorating_the_gradient_function_itself_loses_the_second_order_in_a_graph(compiled, second):
    # eagerly the tape still sees the operations inside; a graph has the rule only, and that speaks of `upstream`
    twice = compiled(lambda x: slope(lambda v: slope(cube_with_decorated_gradient, v), x))
    assert twice(tf.constant(3.0)) == second


def test_decorating_the_gradient_function_gives_the_derivative_by_upstream():
    x, upstream = tf.constant(3.0), tf.constant(5.0)
    with tf.GradientTape() as outer:
        outer.watch(upstream)
        with tf.GradientTape() as inner:
            inner.watch(x)
            y = cube_with_decorated_gradient(x)
        first = inner.gradient(y, x, output_gradients=upstream)
    assert (first, outer.gradient(first, upstream)) == (135.0, 27.0)


def test_stop_gradient_keeps_operations_without_a_gradient_off_the_tape():
    x = tf.constant([0.3, 0.5])

    @tf.custom_gradient
    def shuffled(x):
        inner = tf.function(lambda: tf.stop_gradient(tf.random.shuffle(x)))
        return inner(), lambda upstream: upstream

    assert slope(shuffled, x).numpy().tolist() == [1.0, 1.0]


def test_stop_gradient_in_the_gradient_makes_the_second_order_zero():
    @tf.custom_gradient
    def cube(x):
        return x**3, lambda upstream: upstream * tf.stop_gradient(3 * x**2)

    x = tf.constant(2.0)
    with tf.GradientTape() as outer:
        outer.watch(x)
        first = slope(cube, x)
    assert first == 12.0
    assert outer.gradient(first, x) is None


def test_keyword_arguments_are_constants_and_work_eagerly_only():
    @tf.custom_gradient
    def clipped_identity(x, limit=1.0):
        return x, lambda upstream: tf.clip_by_value(upstream, -limit, limit)

    x = tf.constant(1.0)
    assert slope(lambda v: 5.0 * clipped_identity(v, limit=2.0), x) == 2.0
    in_graph = tf.function(lambda v: slope(lambda u: 5.0 * clipped_identity(u, limit=2.0), v))
    with pytest.raises(ValueError, match=r"currently supports keywords arguments only when eager execution"):
        in_graph(x)


def test_keywords_bound_beforehand_work_in_every_mode():
    def clip_gradient(x, limit):
        @tf.custom_gradient
        def identity(x):
            return x, lambda upstream: tf.clip_by_value(upstream, -limit, limit)

        return identity(x)

    in_graph = tf.function(lambda v: slope(lambda u: 5.0 * clip_gradient(u, limit=2.0), v), jit_compile=True)
    assert in_graph(tf.constant(1.0)) == 2.0
