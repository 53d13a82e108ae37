"""Variables divided over the devices of a mesh by patterns of their paths: the training, skips and checkpoints of one
device, a share of the memory. For an even number of devices."""

import math
from contextlib import contextmanager

import keras
import numpy as np
import pytest
from backends import only_on

from mpt_cli.data.examples import Examples
from mpt_cli.engine.choose_engine import build_engine
from mpt_cli.engine.distribution import Distribution, build_distribution
from mpt_cli.engine.step_batches import BatchPlan, Feed
from mpt_cli.precision import LossScaleOptimizer, Policy
from mpt_cli.settings.schema import DistributeSettings, Settings, TrainerSettings
from mpt_cli.telemetry.step_counters import CounterOptions, StepCounters
from mpt_cli.training.build_run_parts import build_metrics
from mpt_cli.training.checkpoint import collect_state, restore_state

pytestmark = only_on("jax")
DEVICES = 1
if keras.backend.backend() == "jax":
    import jax

    DEVICES = len(jax.devices())
STEPS, BATCH, BAD = 8, 16, 3
MESHES = [{"data": 1, "model": DEVICES}, {"data": 2, "model": DEVICES // 2}]
ALONG_OUTPUTS = {".*up.*/kernel": [None, "model"], ".*up.*/bias": ["model"], ".*down/kernel": ["model", None]}
ALONG_BATCH = {".*(up|down)/kernel": ["data", None]}  # nothing is divided along model
OPTIMIZERS = {
    "adamw": lambda: keras.optimizers.AdamW(
        0.01, global_clipnorm=0.5, use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=3
    ),
    "accumulated": lambda: keras.optimizers.SGD(0.1, momentum=0.9, gradient_accumulation_steps=2),
    "adafactor": lambda: keras.optimizers.Adafactor(0.01),
}
L = keras.layers


@contextmanager
def over(mesh, layout):
    """The distribution that a run of these settings has; over one device where `mesh` is None."""
    before = keras.distribution.distribution()
    wanted = DistributeSettings() if mesh is None else DistributeSettings("model_parallel", mesh=mesh, layout=layout)
    try:
        yield build_distribution(Settings(distribute=wanted, trainer=TrainerSettings(batch_size=BATCH)), gpus=0)
    finally:
        keras.distribution.set_distribution(before)


class Trained:
    """A run of `STEPS` batches, the third of which is bad in its last example."""

    def __init__(self, distribution: Distribution, kind: str = "adamw", policy: str = "float32"):
        keras.utils.set_random_seed(0)
        with Policy(policy).scope():
            self.model = keras.Sequential(
                [
                    keras.Input((16,)),
                    L.Dense(64, "relu", name="up"),
                    L.LayerNormalization(name="norm"),
                    L.Dense(32, name="down"),
                    L.Dense(3, dtype="float32", name="head"),
                ]
            )
        distribution.divide(self.model)
        self.optimizer = LossScaleOptimizer(OPTIMIZERS[kind](), initial_scale=2.0**10)
        self.model.compile(
            self.optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True), auto_scale_loss=False
        )
        self.optimizer.build(self.model.trainable_variables)
        random = np.random.default_rng(0)
        x = random.normal(size=(STEPS * BATCH, 16)).astype("float32")
        x[BAD * BATCH - 1] = np.inf
        data = Examples(x, random.integers(0, 3, STEPS * BATCH).astype("int32"), None)
        build_metrics(self.model, data, BATCH)
        self.engine = build_engine(self.model, True, distribution)
        plan = BatchPlan(BATCH, 4, shuffle=False, devices=distribution.replicas)
        self.feed = Feed(data, self.engine, plan, True)
        self.counters = StepCounters(CounterOptions(tuple(v.path for v in self.model.trainable_variables)))
        self.skipped: list[int] = []

    def epoch(self, number: int = 1) -> "Trained":
        self.feed.start(number)
        while (chunk := self.feed.take(4)) is not None:
            records = self.engine.train(chunk.source, chunk.batch_indices, chunk.count)
            self.skipped += [event.step for event in self.counters.absorb(records, number) if event.kind == "overflow"]
        return self

    def shares(self) -> dict[str, float]:
        """By path, what each device has of a variable of the model or of its inner optimizer."""
        variables = [*self.model.variables, *self.optimizer.inner_optimizer.variables]
        return {variable.path: share(variable) for variable in variables}


def share(variable) -> float:
    sizes = {shard.data.size for shard in variable.value.addressable_shards}
    assert len(sizes) == 1
    return sizes.pop() / math.prod(variable.shape)


def assert_same(found, expected, policy: str = "float32") -> None:
    """Products of divided weights are added up in another order: 1e-7 a step in float32. Activations and gradients in
    float16 may then be rounded to the next number: optimizers hold gradients of up to 0.8, where the numbers of float16
    lie 2**-11 apart, and two such steps are allowed."""
    least = 2.0**-10 if policy == "mixed_float16" else 2e-5
    assert found.keys() == expected.keys()
    for name, value in found.items():
        value, other = np.asarray(value, "float32"), np.asarray(expected[name], "float32")
        np.testing.assert_allclose(value, other, rtol=1e-3, atol=least * max(1.0, np.abs(other).max()), err_msg=name)


@pytest.mark.parametrize("mesh", MESHES, ids=str)
@pytest.mark.parametrize(
    ("kind", "policy"),
    [
        ("adamw", "float32"),
        ("accumulated", "mixed_float16"),
        ("adafactor", "float32"),
    ],
)
def test_training_is_that_of_one_device_with_its_skips(mesh, kind, policy):
    with over(None, {}) as distribution:
        alone = Trained(distribution, kind, policy).epoch()
    with over(mesh, ALONG_OUTPUTS) as distribution:
        divided = Trained(distribution, kind, policy).epoch()
    assert divided.skipped == alone.skipped == [BAD]
    assert (
        (divided.counters.seen, divided.counters.skipped) == (alone.counters.seen, alone.counters.skipped) == (STEPS, 1)
    )
    assert_same(collect_state(divided.model), collect_state(alone.model), policy)
    scale = divided.optimizer.scale_state.by_name["scale"]
    assert {float(shard.data) for shard in scale.value.addressable_shards} == {float(alone.optimizer.loss_scale)}


@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_each_device_has_a_share_of_what_is_divided_and_of_its_slots(mesh):
    with over(mesh, ALONG_OUTPUTS) as distribution:
        run = Trained(distribution)
        before = run.shares()
        assert run.epoch().shares() == before
    names = ("up_kernel", "up_bias", "down_kernel")
    for path, found in before.items():
        divided = any(name in path.replace("/", "_") for name in names)
        assert found == (1 / mesh["model"] if divided else 1.0), path
    slots = [v.path for v in run.optimizer.inner_optimizer.variables if any(name in v.path for name in names)]
    assert len(slots) == 9  # two moments and an average of each


def test_weights_divided_along_the_batch_train_to_the_same():
    """Fully sharded: each device has a share of weights and slots, which XLA gathers where they are used."""
    with over(None, {}) as distribution:
        alone = Trained(distribution).epoch()
    with over({"data": DEVICES}, ALONG_BATCH) as distribution:
        divided = Trained(distribution).epoch()
    assert divided.skipped == [BAD] and divided.shares()[divided.model.layers[0].kernel.path] == 1 / DEVICES
    assert_same(collect_state(divided.model), collect_state(alone.model))


@pytest.mark.parametrize("mesh", [None, MESHES[1]], ids=str)
def test_a_checkpoint_is_whole_and_goes_on_over_another_mesh_and_on_one_device(mesh):
    with over(MESHES[0], ALONG_OUTPUTS) as distribution:
        first = Trained(distribution).epoch()
        saved = collect_state(first.model)
        expected = collect_state(first.epoch(2).model)
    with over(mesh, ALONG_OUTPUTS) as distribution:
        again = Trained(distribution)
        restore_state(again.model, saved)
        for name, value in collect_state(again.model).items():
            np.testing.assert_array_equal(value, saved[name])
        assert_same(collect_state(again.epoch(2).model), expected)
    assert again.counters.skipped == 1
