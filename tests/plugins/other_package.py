"""Another installed package, as files: a loss-scale mode of its own."""

from pathlib import Path

SOURCE = '''
from dataclasses import dataclass
from typing import ClassVar

from mpt_cli.precision.scale_rules import ScaleRule, highest_scale, lowest_scale, number


@dataclass(frozen=True)
class LinearScale(ScaleRule):
    """Halved by every overflow, and raised by the same amount after each applied step."""

    mode: ClassVar[str] = "linear"

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

    def describe(self, scale):
        return f"linear from {scale}, rises by {self.rise:g} a step"
'''
ENTRY_POINTS = {"linear": "tiny_mpt:LinearScale"}


def install(folder: Path, name: str = "tiny-mpt", points: dict[str, str] = ENTRY_POINTS, source: str = SOURCE):
    """The package as `pip install` would leave it in `folder`, which belongs on the path."""
    module = name.replace("-", "_")
    (folder / f"{module}.py").write_text(source)
    metadata = folder / f"{module}-1.2.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n")
    lines = "".join(f"{name} = {place}\n" for name, place in points.items())
    (metadata / "entry_points.txt").write_text(f"[mpt.scale_rules]\n{lines}")
