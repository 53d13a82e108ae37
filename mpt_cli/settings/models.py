"""Keys of each model, by `model.name`."""

from dataclasses import dataclass
from typing import Any, Dict, List

from mpt_cli.settings.key import REQUIRED, key


@dataclass
class ModelSettings:
    """What every model has."""

    name: str = key(REQUIRED, "which model is built; `mpt list models` shows them")


@dataclass
class MLP(ModelSettings):
    """Fully connected layers on flattened input."""

    name: str = "mlp"
    hidden_units: List[int] = key([512, 512], "width of each hidden layer", at_least=1)
    activation: str = key("relu", "activation of the hidden layers, any Keras name")
    dropout: float = key(0.0, "share of hidden units dropped in training", at_least=0, below=1)
    batch_norm: bool = key(False, "BatchNormalization before each activation")


@dataclass
class CNN(ModelSettings):
    """Convolution blocks, each two 3x3 convolutions and a 2x2 max pooling, then one hidden layer."""

    name: str = "cnn"
    filters: List[int] = key([32, 64], "filters of each block", at_least=1)
    hidden_units: int = key(128, "width of the hidden layer before the head", at_least=1)
    dropout: float = key(0.25, "share of units dropped before the head", at_least=0, below=1)


@dataclass
class ResNet(ModelSettings):
    """Residual network with BatchNormalization (He et al. 2016): basic blocks, or bottlenecks for large images."""

    name: str = "resnet"
    filters: List[int] = key([16, 32, 64], "filters of each stage; each but the first halves the image", at_least=1)
    blocks: List[int] = key([1, 1, 1], "residual blocks of each stage", at_least=1)
    bottleneck: bool = key(False, "1x1-3x3-1x1 blocks with four times the filters, as in ResNet-50")
    stem: str = key("small", "small: one 3x3 convolution; imagenet: 7x7 stride 2 and max pooling",
                    choices=("small", "imagenet"))


@dataclass
class Transformer(ModelSettings):
    """A small GPT: token and position embedding, blocks with causal attention, pre-LayerNorm (Radford et al. 2019)."""

    name: str = "transformer"
    layers: int = key(2, "number of blocks", at_least=1)
    width: int = key(128, "width of the residual stream; a multiple of `heads`", at_least=1)
    heads: int = key(4, "attention heads", at_least=1)
    mlp_ratio: int = key(4, "width of the feed-forward layer over the width of the stream", at_least=1)
    dropout: float = key(0.0, "share of units dropped", at_least=0, below=1)


@dataclass
class Builder(ModelSettings):
    """A function of the user's, or of keras.applications, that returns a Keras model."""

    name: str = "builder"
    builder: str = key(REQUIRED, "package.module:function, or path/to/file.py:function")
    kwargs: Dict[str, Any] = key({}, "arguments for the builder beside input_shape and num_classes")


@dataclass
class Saved(ModelSettings):
    """A model saved as a .keras file, whose weights are trained further."""

    name: str = "saved"
    path: str = key(REQUIRED, "the .keras file")


MODELS = {"mlp": MLP, "cnn": CNN, "resnet": ResNet, "transformer": Transformer, "builder": Builder, "saved": Saved}
