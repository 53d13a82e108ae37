"""Initial weights from a file, and layers that are not trained: two runs, as fine-tuning needs them."""

import json
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from backends import BACKEND, ROOT

from mpt_cli import job
from mpt_cli.errors import ConfigError, DataError
from mpt_cli.settings import load_settings

EXAMPLE = ROOT / "examples" / "transfer_learning"
FAST = f"trainer.jit_compile={str(BACKEND == 'jax').lower()}"


def train(folder: Path, run: str, *words: str) -> Any:
    module = EXAMPLE / "transfer_learning.py"
    given = [f"conf={EXAMPLE / 'transfer_learning.yaml'}", f"run_dir={folder / run}", f"backend={BACKEND}", FAST,
             f"data.loader={module}:load_shapes", "logger.console=quiet", *words]  # fmt: skip
    if not any(word.startswith("model=") for word in words):
        given.append(f"model.builder={module}:build_model")
    return job.train(load_settings(given))


def weights(run_dir: Path) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Of the base and of the head."""
    model = keras.saving.load_model(run_dir / "model.keras", compile=False)
    return model.get_layer("base").get_weights(), model.layers[-1].get_weights()


def changed(before: list[np.ndarray], after: list[np.ndarray]) -> list[bool]:
    return [bool((a != b).any()) for a, b in zip(before, after, strict=True)]


@pytest.mark.slow
def test_a_head_is_trained_on_a_frozen_base_which_a_second_run_unfreezes(tmp_path):
    """The base calls its BatchNormalization in inference mode: statistics never change, scale and offset do."""
    first = train(tmp_path, "frozen")
    saved = f"model.path={tmp_path / 'frozen' / 'model.keras'}"
    second = train(tmp_path, "tuned", "model=saved", saved, "model.freeze=[]", "model.unfreeze=[base]")
    third = train(tmp_path, "still", "model=saved", saved, "model.freeze=[]")

    assert [each.applied_steps for each in (first, second, third)] == [18, 18, 18]
    base, head = weights(tmp_path / "frozen")
    assert base[0].std() > 0.01 and base[2].tolist() == [1.0] * 8 and base[3].tolist() == [0.0] * 8  # as initialised
    tuned, tuned_head = weights(tmp_path / "tuned")
    assert changed(base, tuned) == [True, True, True, True, False, False] and changed(head, tuned_head) == [True, True]
    still, still_head = weights(tmp_path / "still")
    assert changed(base, still) == [False] * 6 and changed(head, still_head) == [True, True]
    assert json.loads((tmp_path / "tuned" / "summary.json").read_text())["metrics"]["loss"] < first.metrics["loss"]


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".keras", ".weights.h5"])
def test_a_run_begins_with_the_weights_of_a_file(tmp_path, suffix):
    train(tmp_path, "one", "seed=3", "trainer.max_steps=1")
    model = keras.saving.load_model(tmp_path / "one" / "model.keras", compile=False)
    (model.save if suffix == ".keras" else model.save_weights)(tmp_path / f"w{suffix}")
    summary = train(tmp_path, "two", f"model.weights={tmp_path / f'w{suffix}'}", "trainer.max_steps=2",
                    "optimizer.learning_rate=0")  # fmt: skip

    assert summary.applied_steps == 2
    pairs = zip(weights(tmp_path / "one"), weights(tmp_path / "two"), strict=True)
    assert all(changed(before, after) == [False] * len(before) for before, after in pairs)


@pytest.mark.parametrize(("words", "sentence"), [
    (["model.freeze=[bas]"], "model.freeze: must match a layer of the model. Received: 'bas'. Did you mean base?"),
    (["model.unfreeze=[basis]"],
     "model.unfreeze: must match a layer of the model. Received: 'basis'. Did you mean base?"),
    (["model.freeze=['*']"], "model.freeze: must leave something to train. Received: ['*']."),
])  # fmt: skip
def test_patterns_that_can_not_be_meant_are_said(tmp_path, words, sentence):
    with pytest.raises(ConfigError) as raised:
        train(tmp_path, "run", *words)
    assert str(raised.value) == sentence


def test_a_file_without_the_weights_of_the_model_is_said(tmp_path):
    with pytest.raises(DataError, match=r"^model.weights: there is no such file. Received: 'none.keras'\.$"):
        train(tmp_path, "run", "model.weights=none.keras")
    other = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    other.save_weights(tmp_path / "other.weights.h5")
    with pytest.raises(DataError, match=r"^model.weights: '.*other.weights.h5' does not have the weights of this mod"):
        train(tmp_path, "run", f"model.weights={tmp_path / 'other.weights.h5'}")
