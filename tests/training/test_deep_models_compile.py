"""The training step of a deep model gives XLA a program whose compilation does not grow without bound."""

import keras
import pytest
from backends import only_on
from hlo import visits_from_comparisons
from tiny import compile_tiny, sgd, tiny_data

from mpt_cli.engine.build import build_engine
from mpt_cli.engine.distribution import Distribution
from mpt_cli.engine.feed import BatchPlan, build_feed
from mpt_cli.precision import LossScaleOptimizer
from mpt_cli.training.assembly import build_metrics


class _Traced(Exception):
    """The arguments of the compiled loop are known."""


def residual_net(blocks: int) -> keras.Model:
    layers = keras.layers
    x = inputs = keras.Input((4,))
    for _ in range(blocks):
        x = x + layers.Dense(4, activation="gelu")(layers.LayerNormalization()(x))
    return keras.Model(inputs, layers.Dense(3)(x))


def program_of(model: keras.Model) -> str:
    """What XLA is given for the whole training loop: HLO, before any optimization."""
    data = tiny_data(8)
    optimizer = LossScaleOptimizer(sgd())
    compile_tiny(model, optimizer)
    optimizer.build(model.trainable_variables)
    build_metrics(model, data, 4)
    engine = build_engine(model, True, Distribution())
    feed = build_feed(data, engine, BatchPlan(4, 2), True)
    feed.start(1)
    piece = feed.take(2)
    loop, seen = engine._train, []

    def record(*arguments):
        seen.extend(arguments)
        raise _Traced

    engine._train = record
    with pytest.raises(_Traced):
        engine.train(piece.source, piece.batch_indices, piece.count)
    return loop.of_shape(seen[1]).experimental_get_compiler_ir(*seen)("hlo")


@pytest.mark.slow
@only_on("tensorflow")
def test_no_comparison_makes_xla_visit_the_same_values_again_and_again():
    """A comparison at the end of a chain of selections doubled the time to compile with each large gradient."""
    few, many = (visits_from_comparisons(program_of(residual_net(blocks))) for blocks in (1, 4))
    assert 0 < few <= many <= 200
