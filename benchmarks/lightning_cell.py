"""A process of its own for one model of `benchmarks.speed` in PyTorch Lightning, under every precision.

    python -m benchmarks.lightning_cell TASK

TASK is the JSON that `beside_lightning` makes. Needs NumPy, torch and lightning, neither Keras nor the package's
requirements. Prints one JSON object: steps per second by policy, or why there are none. As a user would write it, but
nothing is logged, saved or drawn, and no metric is computed.
"""

import json
import statistics
import sys
import time
from typing import Any

import numpy as np
import torch
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.lightning_models import build_model

try:
    import lightning
except ModuleNotFoundError:
    import pytorch_lightning as lightning


class Module(lightning.LightningModule):  # type: ignore[misc]
    """The model, its loss and its optimizer."""

    def __init__(self, model: torch.nn.Module, learning_rate: float) -> None:
        super().__init__()
        self.model, self.learning_rate = model, learning_rate

    def training_step(self, batch: Any, index: int) -> Any:
        x, y = batch
        return functional.cross_entropy(self.model(x), y)

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), self.learning_rate)


class Clock(lightning.Callback):  # type: ignore[misc]
    """Seconds of each epoch after the first, from end to end, until they make up `seconds`; losses of all steps."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.epochs, self.losses = seconds, [], []
        self._last: float | None = None

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, index: int) -> None:
        self.losses.append(outputs["loss"])

    def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        now = time.perf_counter()
        if self._last is not None:
            self.epochs.append(now - self._last)
            trainer.should_stop = sum(self.epochs) >= self.seconds
        self._last = now


def load_examples(path: str) -> TensorDataset:
    """x and y of the .npz, images with their channels first, labels as the int64 that cross entropy wants."""
    with np.load(path) as arrays:
        x, y = torch.from_numpy(arrays["x"]), torch.from_numpy(arrays["y"])
    return TensorDataset(x.permute(0, 3, 1, 2).contiguous() if x.ndim == 4 else x, y.long())


def measure_or_say(task: dict[str, Any], precision: str) -> dict[str, Any]:
    """Lightning may not offer a precision on this device; the others go on."""
    try:
        return measure(task, precision)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {str(error).strip().splitlines()[0]}"}


def measure(task: dict[str, Any], precision: str) -> dict[str, Any]:
    """Steps per second, the median over epochs, and the mean loss of the first and the last of them."""
    torch.manual_seed(0)
    clock, examples = Clock(task["seconds"]), load_examples(task["arrays"])
    module = Module(build_model(task, tuple(examples.tensors[0].shape[1:])), task["learning_rate"])
    count = sum(parameter.numel() for parameter in module.parameters())
    if count != task["parameters"]:
        raise ValueError(f"the model must have the {task['parameters']:,} parameters of Keras's. Received: {count:,}.")
    trainer = lightning.Trainer(
        accelerator="auto", devices=1, precision=precision, max_epochs=-1, callbacks=[clock], logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    if str(trainer.precision) != precision:
        raise ValueError(f"Lightning computes {precision} as {trainer.precision} on this device.")
    batches = DataLoader(examples, task["batch_size"], shuffle=True, drop_last=True)
    trainer.fit(module, batches)
    return {"steps_per_second": statistics.median(len(batches) / seconds for seconds in clock.epochs),
            **losses(clock, len(batches))}  # fmt: skip


def losses(clock: Clock, steps: int) -> dict[str, float]:
    values = torch.stack(clock.losses)
    return {"first_loss": float(values[:steps].mean()), "last_loss": float(values[-steps:].mean())}


def main() -> None:
    task = json.loads(sys.argv[1])
    print(json.dumps({policy: measure_or_say(task, name) for policy, name in task["precisions"].items()}))


if __name__ == "__main__":
    main()
