"""`jax.custom_vjp` for each thing that `tf.custom_gradient` documents: the counterparts, in the same order."""

from functools import partial

import pytest
from backends import only_on

jax = pytest.importorskip("jax")
jnp = jax.numpy
pytestmark = only_on("jax")


@jax.custom_vjp
def log1pexp(x):
    return jnp.log(1 + jnp.exp(x))


log1pexp.defvjp(lambda x: (log1pexp(x), x), lambda x, upstream: (upstream * (1 - 1 / (1 + jnp.exp(x))),))


@jax.custom_vjp
def product(x, y):
    return x * y


product.defvjp(lambda x, y: (product(x, y), (x, y)), lambda xy, upstream: (upstream * xy[1], upstream * xy[0]))


@pytest.mark.parametrize("compiled", [lambda f: f, jax.jit])
def test_a_stable_formula_replaces_inf_by_inf(compiled):
    assert jnp.isnan(jax.grad(lambda v: jnp.log(1 + jnp.exp(v)))(100.0))
    assert compiled(jax.grad(log1pexp))(100.0) == 1.0


def test_several_inputs_get_one_gradient_each():
    assert jax.grad(product, argnums=(0, 1))(2.0, 3.0) == (3.0, 2.0)


def test_the_pullback_of_vjp_is_the_persistent_tape():
    z, pullback = jax.vjp(product, 2.0, 3.0)
    assert (z, pullback(1.0), pullback(10.0)) == (6.0, (3.0, 2.0), (30.0, 20.0))


def test_none_says_that_an_input_has_no_gradient_and_reads_as_zero():
    @jax.custom_vjp
    def power(x, exponent):
        return x**exponent

    def backward(saved, upstream):
        x, exponent = saved
        return upstream * exponent * x ** (exponent - 1), None

    power.defvjp(lambda x, exponent: (power(x, exponent), (x, exponent)), backward)
    assert jax.grad(power, argnums=(0, 1))(3.0, 2.0) == (6.0, 0.0)


def test_too_few_gradients_are_an_error_when_the_gradient_is_taken():
    @jax.custom_vjp
    def forgetful(x, y):
        return x * y

    forgetful.defvjp(lambda x, y: (x * y, y), lambda y, upstream: (upstream * y,))
    with pytest.raises(TypeError, match=r"(?i)must produce an output with the same (tuple|container|pytree)"):
        jax.grad(forgetful)(1.0, 2.0)


def test_what_a_function_would_read_from_variables_it_takes_as_an_argument():
    @jax.custom_vjp
    def linear(weights, x):
        return weights["slope"] * x + weights["offset"]

    def backward(saved, upstream):
        weights, x = saved
        by_weights = {"slope": jnp.sum(upstream * x), "offset": jnp.sum(upstream)}
        return by_weights, upstream * weights["slope"]

    linear.defvjp(lambda weights, x: (linear(weights, x), (weights, x)), backward)
    weights, x = {"slope": 1.0, "offset": 1.0}, jnp.array([1.0, 2.0, 3.0])
    by_weights, by_x = jax.grad(lambda w, v: jnp.sum(linear(w, v)), argnums=(0, 1))(weights, x)
    assert (by_weights, by_x.tolist()) == ({"slope": 6.0, "offset": 3.0}, [1.0, 1.0, 1.0])


def test_second_order_goes_through_the_backward_rule():
    @jax.custom_vjp
    def cube(x):
        return x**3

    @jax.custom_vjp
    def slope_of_cube(x):
        return 3 * x**2

    cube.defvjp(lambda x: (cube(x), x), lambda x, upstream: (upstream * slope_of_cube(x),))
    slope_of_cube.defvjp(lambda x: (slope_of_cube(x), x), lambda x, upstream: (upstream * 6 * x,))
    assert (jax.grad(cube)(2.0), jax.grad(jax.grad(cube))(2.0)) == (12.0, 12.0)


@pytest.mark.parametrize(("calls_itself", "second"), [(True, 1200.0), (False, 120.0)])
def test_a_forward_rule_that_does_not_call_the_function_loses_its_gradient_at_second_order(calls_itself, second):
    @jax.custom_vjp
    def times_ten(x):  # identity, gradient times ten
        return x

    times_ten.defvjp(lambda x: (times_ten(x) if calls_itself else x, None), lambda _, upstream: (10 * upstream,))
    assert jax.grad(jax.grad(lambda x: times_ten(x) ** 3))(2.0) == second  # 6 x 10**2, or one ten short


def test_stop_gradient_in_the_gradient_makes_the_second_order_zero():
    @jax.custom_vjp
    def cube(x):
        return x**3

    cube.defvjp(lambda x: (cube(x), x), lambda x, upstream: (upstream * jax.lax.stop_gradient(3 * x**2),))
    assert (jax.grad(cube)(2.0), jax.grad(jax.grad(cube))(2.0)) == (12.0, 0.0)


@pytest.mark.parametrize("compiled", [lambda f: f, jax.jit])
def test_keyword_arguments_that_are_constants_are_named_as_such(compiled):
    @partial(jax.custom_vjp, nondiff_argnums=(1,))
    def clipped_identity(x, limit=1.0):
        return x

    clipped_identity.defvjp(lambda x, limit: (x, None), lambda limit, _, upstream: (jnp.clip(upstream, -limit, limit),))
    assert compiled(jax.grad(lambda x: 5.0 * clipped_identity(x, limit=2.0)))(1.0) == 2.0


def test_forward_mode_is_refused():
    with pytest.raises(TypeError, match=r"can't apply forward-mode .* \(jvp\) to a custom_vjp function"):
        jax.jvp(log1pexp, (1.0,), (1.0,))
