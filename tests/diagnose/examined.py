"""Recipes on small nets, examined in this process on whichever backend it runs."""

from pathlib import Path
from typing import Any

import keras
from backends import BACKEND

from mpt_cli.diagnose.diagnosis import Diagnosis, diagnose
from mpt_cli.engine.backend import Platform
from mpt_cli.settings.load import load_settings
from mpt_cli.settings.schema import Settings
from mpt_cli.training.run_from_settings import RunDefinition

NETS = Path(__file__).with_name("nets.py")
PLATFORM = Platform(BACKEND, "CPU", ("CPU",), 0)


def net_settings(net: str, *words: str) -> Settings:
    """digits on a net of `nets.py`, or of FILE:FUNCTION, in mixed_float16 with SGD, no XLA; `words` change it."""
    keras.utils.set_random_seed(0)
    builder = net if ":" in net else f"{NETS}:{net}"
    chosen = {word.partition("=")[0] for word in words}
    usual = {"policy": "mixed_float16", "optimizer": "sgd"}
    words += tuple(f"{group}={name}" for group, name in usual.items() if group not in chosen)
    own = [f"backend={BACKEND}", f"model.builder={builder}", "trainer.save_model=false"]
    return load_settings(["conf=digits_mlp", *own, *words])


def diagnosed(net: str, *words: str, **request: Any) -> Diagnosis:
    return diagnose(RunDefinition(net_settings(net, *words)), PLATFORM, lambda text: None, **request)


def unnamed(input_shape: tuple[int, ...], num_classes: int) -> keras.Model:
    """Layers with the names that Keras gives them."""
    layers = keras.layers
    return keras.Sequential([keras.Input(input_shape), layers.Flatten(), layers.Dense(4), layers.Dense(num_classes)])
