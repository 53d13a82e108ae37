"""Another installed package, as files: a mode, a model, a data source and a sink of its own."""

from pathlib import Path

SOURCE = '''
from dataclasses import dataclass
from typing import ClassVar

from mpt_cli.precision.scale_rules import ScaleRule, highest_scale, lowest_scale, number
from mpt_cli.settings.key import key
from mpt_cli.settings.variants import DataSettings, ModelSettings
from mpt_cli.telemetry.sink import Sink


@dataclass(frozen=True)
class LinearScale(ScaleRule):
    """Halved by every overflow, and raised by the same amount after each applied step."""

    mode: ClassVar[str] = "linear"
    follows: ClassVar[str] = "the number of steps"

    rise: float = number(64.0, "added to the scale by an applied step", above=0, at_most=2.0**20)
    min_scale: float = lowest_scale()
    max_scale: float = highest_scale()
    share: float = 0.5  # a plain field is a key, too

    def advance(self, state, measured):
        from keras import ops

        risen = ops.minimum(state["scale"] + self.rise, self.max_scale)
        fallen = ops.maximum(state["scale"] * self.share, self.min_scale)
        counter = ops.where(measured.finite, state["counter"] + 1, 0)
        return {"scale": ops.where(measured.finite, risen, fallen), "counter": counter}

    def describe(self, scale, on_overflow):
        return f"linear from {scale}, rises by {self.rise:g} a step"


@dataclass
class Wide(ModelSettings):
    """One hidden layer."""

    name: str = "wide"
    units: int = key(16, "units of the layer", at_least=1)

    def build(self, input_shape, num_classes):
        import keras

        layers = keras.layers
        return keras.Sequential([keras.Input(input_shape), layers.Dense(self.units, "relu"), layers.Dense(num_classes)])


@dataclass
class Halves(DataSettings):
    """Whether the first of four numbers is positive."""

    name: str = "halves"
    examples: int = key(256, "how many", at_least=8)

    def load(self, seed):
        import numpy as np

        x = np.random.default_rng(seed).normal(size=(self.examples, 4)).astype("float32")
        return x, (x[:, 0] > 0).astype("int64")


class StepFile(Sink):
    """The step of each line, in a file of its own."""

    def __init__(self, path):
        self.path, self.steps = path, []

    def snapshot(self, snapshot):
        self.steps.append(snapshot.step)

    def close(self):
        self.path.write_text(" ".join(map(str, self.steps)))
'''
ENTRY_POINTS = {
    "mpt.scale_rules": {"linear": "tiny_mpt:LinearScale"},
    "mpt.models": {"wide": "tiny_mpt:Wide"},
    "mpt.data": {"halves": "tiny_mpt:Halves"},
    "mpt.sinks": {"step_file": "tiny_mpt:StepFile"},
}


def install(
    folder: Path, name: str = "tiny-mpt", points: dict[str, dict[str, str]] = ENTRY_POINTS, source: str = SOURCE
) -> None:
    """The package as `pip install` would leave it in `folder`, which belongs on the path."""
    module = name.replace("-", "_")
    (folder / f"{module}.py").write_text(source)
    metadata = folder / f"{module}-1.2.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n")
    sections = (f"[{group}]\n" + "\n".join(f"{k} = {v}" for k, v in names.items()) for group, names in points.items())
    (metadata / "entry_points.txt").write_text("\n\n".join(sections) + "\n")
