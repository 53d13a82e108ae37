"""Initial weights from a file, and layers that are not trained: fine-tuning in two runs."""

import keras
import numpy as np
import pytest
from test_phases import load_program, saved, train, weights

from mpt_cli.errors import DataError
from mpt_cli.models.build import set_trained
from mpt_cli.settings.schema import PhaseSettings
from mpt_cli.training.model_saving import load_initial_weights

TWO_EPOCHS = "trainer.epochs=2"


def moved(before, after):
    return {name.split("/")[0] for name, value in after.items() if (value != before[name]).any()} - {"dropout"}


@pytest.mark.long
def test_a_head_is_trained_on_a_frozen_base_whose_top_a_second_run_unfreezes(tmp_path):
    first = train(tmp_path / "frozen", TWO_EPOCHS, "model.freeze=[base]")
    model = ["model=saved", f"model.path={tmp_path / 'frozen' / 'model.keras'}", "model.unfreeze=[top]"]
    tuned = train(tmp_path / "tuned", TWO_EPOCHS, *model)
    # a learning rate of 0 leaves the weights of a file as they were
    again = train(
        tmp_path / "again",
        f"model.weights={tmp_path / 'frozen' / 'model.keras'}",
        "trainer.max_steps=2",
        "trainer.epochs=1",
        "optimizer.learning_rate=0",
        "model.freeze=[*norm]",
        "seed=3",
    )

    assert (first.applied_steps, tuned.applied_steps, again.applied_steps) == (10, 10, 2)
    keras.utils.set_random_seed(0)
    load_program().load_data()
    assert moved(weights(load_program().build_model((6,), 2)), saved(tmp_path / "frozen")) == {"head"}
    assert moved(saved(tmp_path / "frozen"), saved(tmp_path / "tuned")) == {"head", "top"}
    assert moved(saved(tmp_path / "frozen"), saved(tmp_path / "again")) == set()


@pytest.mark.parametrize(
    ("freeze", "unfreeze", "trained"),
    [
        (["base"], ["top*"], ["head", "top", "top_norm"]),
        (["base"], ["base", "!BatchNormalization"], ["head", "low", "top"]),
        (["Dense", "!head"], [], ["head", "low_norm", "top_norm"]),
    ],
)
def test_patterns_are_of_names_paths_and_classes_and_some_keep_what_they_name(freeze, unfreeze, trained):
    model = load_program().build_model((6,), 2)
    set_trained(model, PhaseSettings(epochs=1, freeze=freeze, unfreeze=unfreeze), "phases.0")
    assert sorted({v.path.split("/")[-2] for v in model.trainable_variables}) == trained


def test_a_file_without_the_weights_of_the_model_is_said(tmp_path):
    with pytest.raises(DataError, match=r"^model.weights: there is no such file. Received: 'none.keras'\.$"):
        load_initial_weights(deeper(), "none.keras")
    other = keras.Sequential([keras.Input((3,)), keras.layers.Dense(7)])
    other.save_weights(tmp_path / "other.weights.h5")
    with pytest.raises(DataError, match=r"^model.weights: '.*other.weights.h5' does not have the weights of this mod"):
        load_initial_weights(deeper(), str(tmp_path / "other.weights.h5"))


def deeper():
    """The net of the files below, with a layer more, one of another width and one of theirs."""
    sizes = {"first": 3, "wide": 5, "last": 2}
    return keras.Sequential([keras.Input((4,)), *(keras.layers.Dense(n, name=name) for name, n in sizes.items())])


@pytest.mark.parametrize("suffix", [".keras", ".weights.h5"])
def test_a_file_with_some_of_the_weights_is_refused_by_name_unless_that_is_allowed(tmp_path, suffix):
    file, model = str(tmp_path / f"part{suffix}"), deeper()
    part = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), keras.layers.Dense(2)])
    (part.save if suffix == ".keras" else part.save_weights)(file)
    fresh = [value.copy() for value in model.get_weights()]
    found = f"model.weights: 4 of 6 variables of the model have no values in {file!r}, or others in shape"
    names = ", ".join(variable.path for variable in model.variables[2:])
    with pytest.raises(DataError) as raised:
        load_initial_weights(model, file)
    assert str(raised.value) == (
        f"{found}: {names}. Give the file of this model, or set model.skip_mismatch=true to begin these afresh."
    )
    assert load_initial_weights(model, file, skip_mismatch=True) == [f"{found}, and begin afresh: {names}."]
    expected = [*part.get_weights()[:2], *fresh[2:]]
    assert all(np.array_equal(a, b) for a, b in zip(model.get_weights(), expected, strict=True))
    assert load_initial_weights(part, file) == []
