"""What `benchmarks.gpu` measures: the models, their sizes, and the words that make mpt train them."""

from dataclasses import dataclass
from typing import Any

POLICIES = ("mixed_float16", "mixed_bfloat16", "float32")
SCALINGS = {
    "mixed_float16": ("dynamic", "plain Keras", "Keras fit"),
    "mixed_bfloat16": ("none",),
    "float32": ("none",),
}  # "plain Keras" is Keras's own train_step in a compiled loop, without scaling, checks or records; "Keras fit" scales
COMMON = (
    "data.validation_fraction=0",
    "optimizer.schedule.name=constant",
    "optimizer.schedule.warmup_steps=0",
    "trainer.epochs=1",
    "trainer.max_steps=null",
    "trainer.deterministic=false",
    "trainer.checkpoint_every_minutes=null",
    "trainer.save_model=false",
    "trainer.gradient_health_every_steps=null",
    "logger.console=quiet",
)


@dataclass(frozen=True)
class Model:
    """A recipe with a batch that fills one GPU of 80 GB or more; `tokens` per example where it has them."""

    name: str
    words: tuple[str, ...]
    batch_size: int
    steps_per_epoch: int
    tokens: int | None = None

    def task(self, backend: str, policy: str) -> dict[str, Any]:
        """What a process of `cell` is told."""
        sizes = f"trainer.batch_size={self.batch_size}", f"data.examples={self.batch_size * self.steps_per_epoch}"
        return {
            "backend": backend,
            "model": self.name,
            "policy": policy,
            "scalings": SCALINGS[policy],
            "words": [*self.words, *COMMON, *sizes, f"backend={backend}", f"policy={policy}"],
            "tokens": self.tokens,
        }


FULL = {
    "transformer": Model("transformer", ("conf=gpt2_small_synthetic",), 16, 32, 1024),
    "resnet50": Model("resnet50", ("conf=resnet50_synthetic",), 256, 6),
}
TINY = {
    "transformer": Model(
        "transformer",
        (
            "conf=gpt2_small_synthetic",
            "model.layers=1",
            "model.width=16",
            "model.heads=2",
            "data.input_shape=[8]",
            "data.num_classes=50",
        ),
        4,
        2,
        8,
    ),
    "resnet50": Model(
        "resnet50",
        (
            "conf=resnet50_synthetic",
            "model=resnet",
            "model.filters=[4]",
            "model.blocks=[1]",
            "data.input_shape=[32,32,3]",
            "data.num_classes=10",
        ),
        4,
        2,
    ),
}
