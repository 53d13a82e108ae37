"""TensorBoard's event files, an optional extra. They have every scalar of the log by name, the loss scale and skipped
steps among them; metrics.jsonl is the record, from which a resumed run removes what it trains again.
"""

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from mpt_cli.errors import DataError, config_error, first_line, install_command
from mpt_cli.settings.schema import LoggerSettings
from mpt_cli.telemetry.record_types import RunHeader, Snapshot, snapshot_fields
from mpt_cli.telemetry.sink_interface import Sink


def check_tensorboard(logger: LoggerSettings) -> None:
    """Raise ConfigError if TensorBoard is switched on and not installed."""
    if logger.tensorboard and importlib.util.find_spec("tensorboard") is None:
        remedy = f"Install the extra with: {install_command('tensorboard')}, or set logger.tensorboard=false."
        raise config_error("logger.tensorboard", "needs the package tensorboard.", True, remedy)


def snapshot_scalars(snapshot: Snapshot) -> dict[str, float]:
    """Return each number of the line by its name; those of an epoch as a whole under `epoch/`."""
    prefix = "epoch/" if snapshot.epoch_end else ""
    fields = snapshot_fields(snapshot).items()
    return {f"{prefix}{name}": float(value) for name, value in fields if type(value) in (int, float)}


class TensorBoardSink(Sink):
    """Writes the scalars of a run into `folder`; DataError where they can't be written."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writer: Any = None

    def start(self, header: RunHeader) -> None:
        with _named_errors():
            self._writer = import_module("tensorboard.summary").Writer(str(self._folder))

    def snapshot(self, snapshot: Snapshot) -> None:
        with _named_errors():
            for name, value in snapshot_scalars(snapshot).items():
                self._writer.add_scalar(name, value, snapshot.step)
            self._writer.flush()

    def close(self) -> None:
        if self._writer is not None:
            with _named_errors():
                self._writer.close()


@contextmanager
def _named_errors() -> Iterator[None]:
    try:
        yield
    except Exception as error:  # the package documents none
        remedy = "Set logger.tensorboard=false to continue without it."
        raise DataError(f"tensorboard rejected what was logged: {first_line(error)}. {remedy}") from error
