"""Initial weights from a file, and layers that are not trained: fine-tuning in two runs."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import base_and_head
import keras
import numpy as np
import pytest
from backends import BACKEND

import mpt_cli as mpt
from mpt_cli import training_run
from mpt_cli.errors import ConfigError, DataError
from mpt_cli.models.build import set_trained
from mpt_cli.settings.load import load_settings
from mpt_cli.settings.model_data_optimizer_keys import ModelSettings
from mpt_cli.training.model_saving import load_initial_weights

PROGRAM = Path(base_and_head.__file__)  # an epoch has 5 steps


def train(run_dir: Path, *words: str):
    given = [
        "conf=digits_mlp",
        f"backend={BACKEND}",
        f"run_dir={run_dir}",
        "logger.console=quiet",
        f"trainer.jit_compile={str(BACKEND == 'jax').lower()}",
        "trainer.batch_size=32",
        "trainer.epochs=2",
        f"data.loader={PROGRAM}:load_data",
        *words,
    ]
    given += [] if "model=saved" in words else [f"model.builder={PROGRAM}:build_model"]
    return training_run.train(load_settings(given))


def weights(model: Any):
    """By layer and name: models that are loaded have other paths."""
    return {"/".join(v.path.split("/")[-2:]): np.asarray(v.numpy()) for v in model.weights}


def saved(run_dir: Path):
    return weights(keras.saving.load_model(run_dir / "model.keras", compile=False))


def fitted_twice(fit: Callable[..., Any]):
    """A frozen base under a new head, then the top of the base at a lower rate; its weights at the start and the end."""
    keras.utils.set_random_seed(0)
    (x, y), _ = base_and_head.load_data()
    model = base_and_head.build_model((6,), 2, dropout=0.0)
    start, base = weights(model), model.get_layer("base")
    base.trainable = False
    for rate in (0.05, 0.01):
        if rate == 0.01:
            base.get_layer("top").trainable = base.get_layer("top_norm").trainable = True
        optimizer = keras.optimizers.Adam(rate, use_ema=True, ema_momentum=0.5)
        model.compile(
            optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=BACKEND == "jax"
        )
        fit(model, x, y, batch_size=32, epochs=2, shuffle=False)
    return start, weights(model)


@pytest.mark.slow
def test_two_runs_are_what_a_keras_program_does_that_compiles_and_fits_twice(tmp_path):
    """BatchNormalization that is frozen and trained on, fresh slots of Adam, averages that become the weights. No Dropout,
    as a file holds no state of it. The tolerance is of some roundings of float32 (2^-23) a step: Keras adds up in programs
    of other shape."""
    words = ["policy=float32", "trainer.shuffle=false", "optimizer.use_ema=true", "optimizer.ema_momentum=0.5"]
    first = ["model.kwargs={dropout: 0.0}", "model.freeze=[base]"]
    head = train(tmp_path / "head", *words, *first, "optimizer.learning_rate=0.05")
    second = ["model=saved", f"model.path={tmp_path / 'head' / 'model.keras'}", "model.unfreeze=[top*]"]
    tuned = train(tmp_path / "tuned", *words, *second, "optimizer.learning_rate=0.01")
    start, expected = fitted_twice(lambda model, *data, **options: model.fit(*data, **options, verbose=0))
    ours = {"logger.console": "quiet", "trainer.jit_compile": BACKEND == "jax"}
    _, in_python = fitted_twice(partial(mpt.fit, settings=ours))

    assert (head.applied_steps, tuned.applied_steps) == (10, 10)
    for found in (saved(tmp_path / "tuned"), in_python):
        assert found.keys() == expected.keys()
        for path, values in expected.items():
            np.testing.assert_allclose(found[path], values, rtol=1e-5, atol=20 * 2.0**-20, err_msg=path)
        moved = {path for path in start if (start[path] != found[path]).any()}
        assert moved == {path for path in start if "low" not in path and "seed" not in path}


@pytest.mark.slow
def test_a_learning_rate_of_0_leaves_the_weights_of_a_file_as_they_were(tmp_path):
    train(tmp_path / "first")
    file = f"model.weights={tmp_path / 'first' / 'model.keras'}"
    words = ["trainer.epochs=1", "trainer.max_steps=2", "optimizer.learning_rate=0", "model.freeze=[*norm]", "seed=3"]
    assert train(tmp_path / "again", file, *words).applied_steps == 2
    before, after = saved(tmp_path / "first"), saved(tmp_path / "again")
    assert {path for path in after if (after[path] != before[path]).any()} <= {"seed_generator/seed_generator_state"}


@pytest.mark.parametrize(
    ("patterns", "sentence"),
    [
        (
            {"unfreeze": ["tops"]},
            r"^model.unfreeze: must match the name, path or class of a layer of the model. Received: 'tops'. "
            r"Did you mean top\?$",
        ),
        (
            {"freeze": ["*"]},
            r"^model.freeze: must leave something to train. Received: \['\*'\]. Name what is to be trained in `unfreeze`.$",
        ),
    ],
)
def test_layers_that_can_not_be_meant_are_said(patterns, sentence):
    with pytest.raises(ConfigError, match=sentence):
        set_trained(base_and_head.build_model((6,), 2), ModelSettings(**patterns))


@pytest.mark.parametrize(
    ("freeze", "unfreeze", "trained"),
    [
        (["base"], ["top*"], ["head", "top", "top_norm"]),
        (["base"], ["base", "!BatchNormalization"], ["head", "low", "top"]),
        (["Dense", "!head"], [], ["head", "low_norm", "top_norm"]),
    ],
)
def test_patterns_are_of_names_paths_and_classes_and_some_keep_what_they_name(freeze, unfreeze, trained):
    model = base_and_head.build_model((6,), 2)
    set_trained(model, ModelSettings(freeze=freeze, unfreeze=unfreeze))
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
        f"{found}: {names}. Give the file of this model, or set model.skip_mismatch=true to start these fresh."
    )
    assert load_initial_weights(model, file, skip_mismatch=True) == [f"{found}. They start fresh: {names}."]
    expected = [*part.get_weights()[:2], *fresh[2:]]
    assert all(np.array_equal(a, b) for a, b in zip(model.get_weights(), expected, strict=True))
    assert load_initial_weights(part, file) == []
