"""Initial weights from a file, and layers that are not trained: fine-tuning in two runs."""

import keras
import pytest
from test_phases import load_program, saved, train, weights

from mpt_cli.errors import ConfigError, DataError
from mpt_cli.models.build import set_trained
from mpt_cli.settings.schema import PhaseSettings

TWO_EPOCHS = "trainer.epochs=2"


def moved(before, after):
    return {name.split("/")[0] for name, value in after.items() if (value != before[name]).any()} - {"dropout"}


@pytest.mark.slow
def test_a_head_is_trained_on_a_frozen_base_whose_top_a_second_run_unfreezes(tmp_path):
    first = train(tmp_path / "frozen", TWO_EPOCHS, "model.freeze=[base]")
    model = ["model=saved", f"model.path={tmp_path / 'frozen' / 'model.keras'}"]
    tuned = [train(tmp_path / name, TWO_EPOCHS, *model, *words).applied_steps
             for name, words in (("tuned", ["model.unfreeze=[top]"]), ("still", []))]  # fmt: skip

    assert [first.applied_steps, *tuned] == [10, 10, 10]
    keras.utils.set_random_seed(0)
    load_program().load_data()
    assert moved(weights(load_program().build_model((6,), 2)), saved(tmp_path / "frozen")) == {"head"}
    assert moved(saved(tmp_path / "frozen"), saved(tmp_path / "tuned")) == {"head", "top"}
    assert moved(saved(tmp_path / "frozen"), saved(tmp_path / "still")) == {"head"}


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".keras", ".weights.h5"])
def test_a_run_begins_with_the_weights_of_a_file(tmp_path, suffix):
    """A learning rate of 0 leaves them as they were."""
    train(tmp_path / "one", "seed=3", "trainer.max_steps=1", "trainer.epochs=1")
    model = keras.saving.load_model(tmp_path / "one" / "model.keras", compile=False)
    (model.save if suffix == ".keras" else model.save_weights)(tmp_path / f"w{suffix}")
    summary = train(tmp_path / "two", f"model.weights={tmp_path / f'w{suffix}'}", "trainer.max_steps=2",
                    "trainer.epochs=1", "optimizer.learning_rate=0", "model.freeze=[*norm]")  # fmt: skip

    assert summary.applied_steps == 2
    assert moved(saved(tmp_path / "one"), saved(tmp_path / "two")) == set()


@pytest.mark.parametrize(("freeze", "unfreeze", "trained"), [
    (["base"], [], ["head"]),
    (["*"], ["head"], ["head"]),
    (["base"], ["top*"], ["head", "top", "top_norm"]),
    (["base"], ["base", "!BatchNormalization"], ["head", "low", "top"]),
    (["Dense", "!head"], [], ["head", "low_norm", "top_norm"]),
    (["base/*"], ["*norm"], ["head", "low_norm", "top_norm"]),
])  # fmt: skip
def test_patterns_are_of_names_paths_and_classes_and_some_keep_what_they_name(freeze, unfreeze, trained):
    model = load_program().build_model((6,), 2)
    set_trained(model, PhaseSettings(epochs=1, freeze=freeze, unfreeze=unfreeze), "phases.0")
    assert sorted({v.path.split("/")[-2] for v in model.trainable_variables}) == trained


@pytest.mark.parametrize(("words", "sentence"), [
    (["model.freeze=[bas]"],
     "model.freeze: must match the name, path or class of a layer of the model. Received: 'bas'. Did you mean base?"),
    (["model.unfreeze=['!basis']"],
     "model.unfreeze: must match the name, path or class of a layer of the model. Received: '!basis'. Did you mean "
     "base?"),
    (["model.freeze=['*']"],
     "model.freeze: must leave something to train. Received: ['*']. Name what is to be trained in `unfreeze`."),
])  # fmt: skip
def test_patterns_that_can_not_be_meant_are_said(tmp_path, words, sentence):
    with pytest.raises(ConfigError) as raised:
        train(tmp_path / "run", *words)
    assert str(raised.value) == sentence


def test_a_file_without_the_weights_of_the_model_is_said(tmp_path):
    with pytest.raises(DataError, match=r"^model.weights: there is no such file. Received: 'none.keras'\.$"):
        train(tmp_path / "run", "model.weights=none.keras")
    other = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    other.save_weights(tmp_path / "other.weights.h5")
    with pytest.raises(DataError, match=r"^model.weights: '.*other.weights.h5' does not have the weights of this mod"):
        train(tmp_path / "run", f"model.weights={tmp_path / 'other.weights.h5'}")
