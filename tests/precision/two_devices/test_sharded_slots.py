"""Optimizer variables divided over the devices of a mesh: the same training and checkpoints, a share of the memory. For
any number of devices."""

import math

import keras
import numpy as np
import pytest
from backends import only_on

from mpt_cli.data.examples import Examples
from mpt_cli.engine.distribution import Distribution, sharded_axis
from mpt_cli.engine.feed import BatchPlan, build_feed
from mpt_cli.engine.loop import LoopControl, build_engine
from mpt_cli.precision import LossScaleOptimizer, Policy
from mpt_cli.telemetry.ledger import Ledger, LedgerOptions
from mpt_cli.telemetry.records import LoggedSteps, StopLimits
from mpt_cli.training.assembly import build_metrics
from mpt_cli.training.checkpoint import collect_state, restore_state

pytestmark = only_on("jax")
if keras.backend.backend() == "jax":
    import jax

    from mpt_cli.precision.step_jax import TrainState

STEPS, BATCH = 8, 16
OPTIMIZERS = {
    "adamw": lambda: keras.optimizers.AdamW(0.01, global_clipnorm=1.0, use_ema=True, ema_momentum=0.5,
                                            ema_overwrite_frequency=3),
    "accumulated": lambda: keras.optimizers.SGD(0.1, momentum=0.9, gradient_accumulation_steps=2),
    "adafactor": lambda: keras.optimizers.Adafactor(0.01),
}  # fmt: skip
MODELS = [pytest.param("adamw", "float32"), pytest.param("accumulated", "mixed_float16", marks=pytest.mark.long),
          pytest.param("adafactor", "float32", marks=pytest.mark.long),
          pytest.param("rounded", "bfloat16", marks=pytest.mark.long)]  # fmt: skip


@pytest.fixture(autouse=True)
def mesh():
    """Of all devices, over which Keras splits each batch."""
    before = keras.distribution.distribution()
    distribution = keras.distribution.DataParallel(devices=keras.distribution.list_devices(), auto_shard_dataset=False)
    keras.distribution.set_distribution(distribution)
    yield distribution.device_mesh.backend_mesh
    keras.distribution.set_distribution(before)


class Trained:
    """A run of `STEPS` batches, the third of which is bad in its last example."""

    def __init__(self, mesh, shards: bool, kind: str, policy: str) -> None:
        distribution = Distribution(mesh.size, mesh=mesh, shards_slots=shards)
        keras.utils.set_random_seed(0)
        with Policy(policy).scope():
            layers = [keras.layers.Dense(256, "relu"), keras.layers.Dense(64), keras.layers.Dense(3, dtype="float32")]
            self.model = keras.Sequential([keras.Input((16,)), *layers])
        inner = OPTIMIZERS.get(kind, OPTIMIZERS["adamw"])()
        seed = 1 if kind == "rounded" else None
        self.optimizer = LossScaleOptimizer(inner, initial_scale=2.0**10, rounding_seed=seed)
        self.optimizer.making_slots = distribution.making_slots
        self.model.compile(self.optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True),
                           auto_scale_loss=False)  # fmt: skip
        self.optimizer.build(self.model.trainable_variables)
        random = np.random.default_rng(0)
        x = random.normal(size=(STEPS * BATCH, 16)).astype("float32")
        x[3 * BATCH - 1] = np.inf
        data = Examples(x, random.integers(0, 3, STEPS * BATCH).astype("int32"), None)
        build_metrics(self.model, data, BATCH)
        self.engine = build_engine(self.model, True, distribution)
        self.feed = build_feed(data, self.engine, BatchPlan(BATCH, 4, shuffle=False, devices=mesh.size), True)
        self.ledger = Ledger(LedgerOptions(tuple(v.path for v in self.model.trainable_variables)))

    def epoch(self, number: int = 1) -> "Trained":
        self.feed.start(number)
        while (piece := self.feed.take(4)) is not None:
            self.ledger.absorb(self.engine.train(piece.source, piece.batch_indices, piece.count).wait(), number)
        assert (self.ledger.seen, self.ledger.skipped) == (STEPS * number, number)
        return self

    def share(self, variable) -> float:
        """Of a variable, what each device has."""
        sizes = {shard.data.size for shard in variable.value.addressable_shards}
        assert len(variable.value.addressable_shards) > 1 and len(sizes) == 1
        return sizes.pop() / math.prod(variable.shape)


def assert_same(found: dict[str, np.ndarray], expected: dict[str, np.ndarray], policy: str = "float32") -> None:
    """Shares are updated by the same operations, but XLA fuses the whole otherwise: float16 activations are rounded in
    other places, which moves gradients of about 0.1 by 2**-11 of that in each of 7 steps at a rate of 0.1."""
    least = 5e-5 if policy == "mixed_float16" else 1e-6
    assert found.keys() == expected.keys()
    for name, value in found.items():
        value, other = np.asarray(value, "float32"), np.asarray(expected[name], "float32")
        np.testing.assert_allclose(value, other, rtol=1e-4, atol=least * max(1.0, np.abs(other).max()), err_msg=name)


@pytest.mark.parametrize(("kind", "policy"), MODELS)
def test_training_is_the_same_with_a_share_of_each_large_variable_on_each_device(mesh, kind, policy):
    whole, shared = (Trained(mesh, shards, kind, policy).epoch() for shards in (False, True))
    assert_same(collect_state(shared.model), collect_state(whole.model), policy)
    large = [v for v in shared.optimizer.variables if sharded_axis(v.shape, mesh.size) is not None]
    assert len(large) >= (2 if kind != "adafactor" else 0)
    for variable in [*shared.model.variables, *shared.optimizer.variables]:
        assert shared.share(variable) == (1 / mesh.size if any(variable is v for v in large) else 1.0), variable.path
    for run in (whole, shared):
        run.optimizer.finalize_variable_values(run.model.trainable_variables)
    assert_same(collect_state(shared.model), collect_state(whole.model), policy)


@pytest.mark.parametrize("shards", [False, pytest.param(True, marks=pytest.mark.long)])
def test_a_checkpoint_is_whole_and_goes_on_either_way(mesh, shards):
    first = Trained(mesh, shards, "adamw", "float32").epoch()
    saved = collect_state(first.model)
    again = Trained(mesh, not shards, "adamw", "float32")
    restore_state(again.model, saved)
    for name, value in collect_state(again.model).items():
        np.testing.assert_array_equal(value, saved[name])
    again.ledger = first.ledger
    shares = {again.share(variable) for variable in again.optimizer.variables}
    assert shares == ({1.0} if shards else {1.0, 1 / mesh.size})
    expected = collect_state(Trained(mesh, shards, "adamw", "float32").epoch().epoch(2).model)
    assert_same(collect_state(again.epoch(2).model), expected)


def test_each_device_updates_its_share_alone(mesh):
    """In the compiled loop what enters as slots is a share, and weights are gathered after the update."""
    run = Trained(mesh, True, "adamw", "float32")
    run.feed.start(1)
    piece = run.feed.take(4)
    lists = run.model.trainable_variables, run.model.non_trainable_variables, run.optimizer.variables
    state = [[v.value for v in variables] for variables in [*lists, run.model.metrics_variables]]
    control = run.engine.to_device(LoopControl.of(4, True, LoggedSteps(), StopLimits()).pack())
    indices = run.engine.to_device(piece.batch_indices)
    compiled = jax.jit(run.engine._train_loop).lower(TrainState(*state), piece.source, indices, control).compile()
    text = compiled.as_text()
    rows = 256 // mesh.size
    assert f"f32[{rows},64]" in text and " all-gather(" in text
    out = compiled.output_shardings[0].optimizer
    divided = [v.path for v, place in zip(run.optimizer.variables, out, strict=True) if not place.is_fully_replicated]
    assert len(divided) == 6, divided  # two moments and an average of two kernels
