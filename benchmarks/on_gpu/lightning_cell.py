"""One process of `benchmarks.gpu`: PyTorch Lightning in `16-mixed`, plain and with `torch.compile`.

`python -m benchmarks.on_gpu.lightning_cell TASK`; prints a JSON object. Lightning gets its best case: random examples
of the recipe's shape and dtype lie on the GPU, a batch is a slice of them, images are in channels_last, cuDNN picks
its fastest kernels, nothing is logged, saved or drawn.
"""

import json
import sys
import time
from collections.abc import Iterator
from typing import Any

import lightning
import torch
from torch.nn import functional
from torch.utils.data import DataLoader, IterableDataset

from benchmarks.on_gpu.torch_models import build, build_optimizer
from mpt_cli.settings import load_settings
from mpt_cli.settings.schema import Settings


class Resident(IterableDataset):  # type: ignore[misc]
    """Batches of examples that lie on the device, without end."""

    def __init__(self, settings: Settings, device: str) -> None:
        data, self.batch_size = settings.data, settings.trainer.batch_size
        shape = (data.examples, *data.input_shape)
        if data.task == "tokens":
            self.x = torch.randint(data.num_classes, shape, device=device)
            self.y = torch.randint(data.num_classes, shape, device=device)
            return
        images = torch.randn(shape, device=device).permute(0, 3, 1, 2)
        self.x = images.contiguous(memory_format=torch.channels_last)
        self.y = torch.randint(data.num_classes, (data.examples,), device=device)

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        while True:
            for first in range(0, len(self.x), self.batch_size):
                yield self.x[first : first + self.batch_size], self.y[first : first + self.batch_size]


class Module(lightning.LightningModule):  # type: ignore[misc]
    """The model, its loss and its optimizer; `network` is what runs, compiled or not."""

    def __init__(self, settings: Settings, compiled: bool) -> None:
        super().__init__()
        self.settings = settings
        self.model = build(settings).to(memory_format=torch.channels_last)
        self.network = torch.compile(self.model) if compiled else self.model

    def training_step(self, batch: Any, index: int) -> Any:
        x, y = batch
        return functional.cross_entropy(self.network(x), y)

    def configure_optimizers(self) -> Any:
        return build_optimizer(self.settings, self.model)


class Clock(lightning.Callback):  # type: ignore[misc]
    """Seconds per step after the first `warm_up` steps, the device being done each time."""

    def __init__(self, warm_up: int, steps: int) -> None:
        self.warm_up, self.steps, self.seconds = warm_up, steps, 0.0

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, index: int) -> None:
        if index == self.warm_up:
            _wait()
            self._started = time.perf_counter()

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, index: int) -> None:
        if index == self.warm_up + self.steps - 1:
            _wait()
            self.seconds = (time.perf_counter() - self._started) / self.steps


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def measure(task: dict[str, Any]) -> dict[str, Any]:
    """Seconds per step, examples per second and peak memory. On a CPU, which has no 16-mixed, in bf16-mixed."""
    settings, on_gpu = load_settings(task["words"]), torch.cuda.is_available()
    clock = Clock(task["warm_up"], task["steps"])
    trainer = lightning.Trainer(
        accelerator="gpu" if on_gpu else "cpu", devices=1, precision="16-mixed" if on_gpu else "bf16-mixed",
        max_steps=task["warm_up"] + task["steps"], gradient_clip_val=settings.optimizer.global_clipnorm,
        callbacks=[clock], benchmark=True, logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False,
    )  # fmt: skip
    module = Module(settings, task["compiled"])
    trainer.fit(module, DataLoader(Resident(settings, "cuda" if on_gpu else "cpu"), batch_size=None))
    peak = torch.cuda.max_memory_allocated() if on_gpu else None
    return {
        "step_seconds": clock.seconds, "examples_per_second": settings.trainer.batch_size / clock.seconds,
        "peak_bytes": peak, "parameters": sum(p.numel() for p in module.model.parameters()),
        "precision": str(trainer.precision),
        "versions": {"torch": torch.__version__, "lightning": lightning.__version__},
    }  # fmt: skip


if __name__ == "__main__":
    print(json.dumps(measure(json.loads(sys.argv[1]))))
