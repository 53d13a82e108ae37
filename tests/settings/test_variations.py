"""Many command lines, composed once where they differ in plain values alone."""

from pathlib import Path

import pytest

from mpt_cli.errors import ConfigError
from mpt_cli.settings.load import load_settings, load_variations
from mpt_cli.settings.schema import Settings
from mpt_cli.sweep.overrides import read_grid

LINKED = """
defaults: [digits_mlp, override model: mlp]
vars: {rate: 0.1, width: 32, batches: 2}
model: {hidden_units: ["${vars.width}", 16]}
optimizer: {learning_rate: "${vars.rate}"}
loss_scale: {initial_scale: "${vars.batches}"}
trainer: {epochs: 3, batch_size: "${vars.batches}"}
"""
GRIDS = [
    "linked.yaml vars.rate=0.1,0.2,bad vars.batches=1,2 policy=float32,mixed_float16",
    "linked.yaml vars.width=1,x trainer.epochs=1,0 seed=${trainer.epochs},3",
    "digits_mlp loss_scale=dynamic,fixed loss_scale.growth_factor=2,4 loss_scale.initial_scale=8,0",
    "digits_mlp model=cnn,mlp,mpl model.hidden_units=[8],[4,2],x",
    "digits_mlp policy=bfloat16,mixed_float16 optimizer=sgd,adam optimizer.clipnorm=1,0",
    "digits_mlp seed=0,-1,null expect.val_accuracy.min=0.5,x policy.overrides.dense=float32",
    "digits_mlp,nowhere trainer={epochs:3} trainer.epochs=1,2 sed=1",
]


def loaded(words: tuple[str, ...]):
    try:
        return load_settings([*words])
    except ConfigError as error:
        return error


def said(outcome: Settings | ConfigError):
    return sorted(map(str, outcome.problems)) if isinstance(outcome, ConfigError) else repr(outcome)


@pytest.mark.slow
@pytest.mark.parametrize("grid", GRIDS)
def test_each_has_the_settings_or_the_problems_that_it_has_alone(grid, here):
    Path("linked.yaml").write_text(LINKED)
    points = [*read_grid(f"conf={grid}".split()).combinations]
    assert [*map(said, load_variations(points))] == [said(loaded(words)) for words in points]


def test_those_that_differ_in_plain_values_are_composed_once(write_recipe):
    def lines():
        own = write_recipe("trainer: {epochs: 3}\n")
        yield [own, "seed=1"]
        Path("own.yaml").unlink()  # so that it can't be read again
        yield [own, "seed=2"]

    first, second = load_variations(lines())
    assert isinstance(first, Settings) and isinstance(second, Settings)
    assert (first.seed, second.seed, second.trainer.epochs) == (1, 2, 3)
