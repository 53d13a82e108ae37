"""The models of `plan` in PyTorch: the same layers and shapes as `mpt_cli.models.build` and `.transformer`."""

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from mpt_cli.settings.schema import Settings


class Bottleneck(nn.Module):
    """relu(x + f(x)), f of three convolutions with the stride in the middle one."""

    def __init__(self, channels: int, filters: int, stride: int) -> None:
        super().__init__()
        wide = 4 * filters
        self.branch = nn.Sequential(
            *_conv(channels, filters, 1, 1), nn.ReLU(), *_conv(filters, filters, 3, stride), nn.ReLU(),
            *_conv(filters, wide, 1, 1))  # fmt: skip
        same = stride == 1 and channels == wide
        self.shortcut = nn.Identity() if same else nn.Sequential(*_conv(channels, wide, 1, stride))

    def forward(self, x: Any) -> Any:
        return functional.relu(self.shortcut(x) + self.branch(x))


def _conv(channels: int, filters: int, size: int, stride: int) -> tuple[nn.Module, nn.Module]:
    convolution = nn.Conv2d(channels, filters, size, stride, padding=size // 2, bias=False)
    return convolution, nn.BatchNorm2d(filters, eps=1e-5, momentum=0.1)


def build_resnet(settings: Settings) -> nn.Module:
    """Images (batch, channels, height, width) → logits."""
    model, data = settings.model, settings.data
    modules: list[nn.Module] = [*_conv(data.input_shape[-1], model.filters[0], 7, 2), nn.ReLU(),
                                nn.MaxPool2d(3, 2, padding=1)]  # fmt: skip
    channels = model.filters[0]
    for stage, (filters, blocks) in enumerate(zip(model.filters, model.blocks, strict=True)):
        for block in range(blocks):
            modules.append(Bottleneck(channels, filters, 2 if stage and not block else 1))
            channels = 4 * filters
    return nn.Sequential(*modules, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, data.num_classes))


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, width: int, heads: int, mlp_ratio: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width, eps=1e-5), nn.LayerNorm(width, eps=1e-5)
        self.query_key_value, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, mlp_ratio * width), nn.GELU(), nn.Linear(mlp_ratio * width, width))

    def forward(self, x: Any) -> Any:
        batch, length, width = x.shape
        parts = self.query_key_value(self.norm_1(x)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norm_2(x))


class Transformer(nn.Module):
    """Tokens (batch, length) → logits (batch, num_classes, length), as `cross_entropy` wants them."""

    def __init__(self, model: Any, length: int, vocabulary: int) -> None:
        super().__init__()
        self.token = nn.Embedding(vocabulary, model.width)
        self.position = nn.Embedding(length, model.width)
        self.blocks = nn.Sequential(*[Block(model.width, model.heads, model.mlp_ratio) for _ in range(model.layers)])
        self.norm = nn.LayerNorm(model.width, eps=1e-5)
        self.head = nn.Linear(model.width, vocabulary, bias=False)
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=0.02)

    def forward(self, tokens: Any) -> Any:
        x = self.token(tokens) + self.position(torch.arange(tokens.shape[1], device=tokens.device))
        return self.head(self.norm(self.blocks(x))).transpose(1, 2)


def build(settings: Settings) -> nn.Module:
    """The model of `settings.model`, its weights in float32."""
    if settings.model.name != "transformer":
        return build_resnet(settings)
    return Transformer(settings.model, settings.data.input_shape[0], settings.data.num_classes)


def build_optimizer(settings: Settings, model: nn.Module) -> torch.optim.Optimizer:
    """The recipe's optimizer, at a constant rate; clipping is Lightning's to do."""
    own = settings.optimizer
    if own.name == "sgd":
        return torch.optim.SGD(model.parameters(), own.learning_rate, momentum=own.momentum)
    return torch.optim.AdamW(model.parameters(), own.learning_rate, (own.beta_1, own.beta_2), own.epsilon,
                             own.weight_decay)  # fmt: skip
