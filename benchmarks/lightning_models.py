"""The models of `benchmarks.speed` in PyTorch: the layers of `mpt_cli.models`, from the same settings as JSON."""

from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from benchmarks.on_gpu.torch_models import Transformer


def build_model(task: dict[str, Any], shape: tuple[int, ...]) -> nn.Module:
    """The model for examples of `shape`, images as (channels, height, width); its weights in float32."""
    settings, classes = SimpleNamespace(**task["model"]), task["num_classes"]
    if settings.name == "transformer":
        return Transformer(settings, shape[0], classes)
    return {"mlp": build_mlp, "cnn": build_cnn}[settings.name](settings, shape, classes)


def build_mlp(settings: Any, shape: tuple[int, ...], classes: int) -> nn.Module:
    """Without BatchNormalization and dropout, which the recipe does not use; a ReLU after each hidden layer."""
    hidden = [part for units in settings.hidden_units for part in (nn.LazyLinear(units), nn.ReLU())]
    return initialised(nn.Sequential(nn.Flatten(), *hidden, nn.LazyLinear(classes)), shape)


def build_cnn(settings: Any, shape: tuple[int, ...], classes: int) -> nn.Module:
    blocks = [part for filters in settings.filters for part in
              (_conv(filters), nn.ReLU(), _conv(filters), nn.ReLU(), nn.MaxPool2d(2))]  # fmt: skip
    top = nn.LazyLinear(settings.hidden_units), nn.ReLU(), nn.Dropout(settings.dropout), nn.LazyLinear(classes)
    return initialised(nn.Sequential(*blocks, nn.Flatten(), *top), shape)


def _conv(filters: int) -> nn.Module:
    return nn.LazyConv2d(filters, 3, padding=1)


def initialised(model: nn.Module, shape: tuple[int, ...]) -> nn.Module:
    """The model after one example, from which the lazy layers learn their sizes."""
    model(torch.zeros(1, *shape))
    return model
