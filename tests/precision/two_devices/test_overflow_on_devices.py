"""What an overflow does where a batch is split over devices: one decision for all of them, as on one device."""

import keras
import numpy as np
import pytest
from backends import only_on

from mpt_cli.precision import LossScaleOptimizer, Policy, keep_skips_whole

pytestmark = only_on("jax")
L = keras.layers
COUNT = len(keras.distribution.list_devices()) if keras.backend.backend() == "jax" else 1
ROWS = 2 * COUNT


@pytest.fixture(autouse=True)
def no_distribution_stays():
    before = keras.distribution.distribution()
    yield
    keras.distribution.set_distribution(before)


def split_over(devices: int):
    split = keras.distribution.DataParallel(devices=keras.distribution.list_devices()[:devices])
    keras.distribution.set_distribution(split if devices > 1 else None)


def one_step(numbers, devices):
    """A step on a batch of which the kernel's gradient is the sum of these numbers, and the values before it."""
    split_over(devices)
    keras.utils.set_random_seed(0)
    with Policy("mixed_float16").scope():
        x, other = keras.Input((1,), dtype="float32"), keras.Input((1,), dtype="float32")
        product = L.Dense(1, use_bias=False, kernel_initializer="zeros", name="product")(x)
        model = keras.Model([x, other], L.Add()([product, L.BatchNormalization()(other)]))
    inner = keras.optimizers.AdamW(2.0**-4)
    model.compile(
        LossScaleOptimizer(inner, initial_scale=float(ROWS)),  # the mean's slopes are 1 / ROWS
        lambda y, out: keras.ops.cast(out, "float32"),
        auto_scale_loss=False,
    )
    keep_skips_whole(model).optimizer.build(model.trainable_variables)
    state = [*model.variables, *inner.variables]
    before = [np.array(variable.value) for variable in state]
    data = [np.float32(numbers)[:, None], np.random.default_rng(0).normal(size=(ROWS, 1)).astype("float32")]
    model.fit(data, np.zeros((ROWS, 1), "float32"), ROWS, shuffle=False, verbose=0)
    return model, before, [np.array(variable.value) for variable in state]


def parts(*of_devices: list[float]):
    """The numbers of the first devices, two of each; zeros of the others."""
    return [*np.concatenate(of_devices), *[0.0] * (ROWS - 2 * len(of_devices))]


@pytest.mark.parametrize(
    ("numbers", "finite_on_one", "finite_on_all"),
    [
        (parts([30000, 0], [30000, 0]), True, True),
        (parts([40000, 0], [40000, 0]), False, False),  # the sum is beyond 65504, each part is not
        (parts([40000, 40000], [1, 1]), False, False),  # one part is
        (parts([40000, 40000], [-40000, -40000]), True, False),  # so are parts which cancel on one device
    ],
)
@pytest.mark.parametrize("devices", [1, COUNT])
def test_a_sum_beyond_float16_skips_the_step_whole_on_every_device(numbers, finite_on_one, finite_on_all, devices):
    model, before, after = one_step(numbers, devices)
    applied = finite_on_one if devices == 1 else finite_on_all
    optimizer = model.optimizer
    assert (int(optimizer.applied_steps), int(optimizer.skipped_steps)) == (applied, not applied)
    same = [np.array_equal(old, new) for old, new in zip(before, after, strict=True)]
    assert all(same) if not applied else not all(same)
    assert float(optimizer.loss_scale) == (ROWS if applied else ROWS / 2)
    for variable in [*model.variables, *optimizer.inner_optimizer.variables]:
        shards = [np.asarray(shard.data) for shard in variable.value.addressable_shards]
        assert len(shards) == devices and all(np.array_equal(shards[0], shard) for shard in shards)
