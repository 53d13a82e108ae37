"""A run directory that is removed, or moved away, while its run goes on: noticed within a second, and made again from
what this process still holds, so that nothing which is trained is lost.

A file that is removed stays as long as a process has it open: the files of the record are held open from the start.
"""

import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from mpt_cli.errors import DataError
from mpt_cli.runs.directory import LOCK_FILE, RunDirectory
from mpt_cli.telemetry.sink import Sink, Telemetry

LOOK_SECONDS = 1.0
MOST_HELD_FILES, LARGEST_HELD_BYTES = 64, 2**26


class KeptDirectory(Sink):
    """To be the first sink of `telemetry`: what the others write then, and a checkpoint after `flush`, has a place.

    DataError where something else stands at the directory's path, and where it can't be made again.
    """

    def __init__(self, run: RunDirectory, telemetry: Telemetry, clock: Callable[[], float] = time.monotonic) -> None:
        self.run, self.telemetry, self.was_lost = run, telemetry, False
        self._clock, self._looked_at = clock, clock()
        self._held = ExitStack()
        self._hold()

    @property
    def is_there(self) -> bool:
        """Whether the directory that the run began in stands at its path."""
        try:
            return os.path.samestat(self.run.path.stat(), os.fstat(self._folder))
        except OSError:
            return False

    def progress(self, step: int, epoch: int, phase: str) -> None:
        if self._clock() - self._looked_at >= LOOK_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Look, whenever the latest look was."""
        self._looked_at = self._clock()
        if self.is_there:
            return
        if self.run.path.exists():
            raise DataError(f"{self.run.path} is not the directory any more that this run began in{self._where()}. "
                            "Nothing in the present one was changed; the run ends here.")  # fmt: skip
        self._make_again()

    def close(self) -> None:
        self._held.close()

    def _hold(self) -> None:
        folder = self.run.path
        self._folder = self._open(folder)
        self._files = {path.relative_to(folder): self._open(path) for path in self._record()}

    def _record(self) -> list[Path]:
        """The files of the run but for checkpoints, which are large and follow one another."""
        checkpoints = self.run.checkpoints
        found = [path for path in sorted(self.run.path.rglob("*"))
                 if path.is_file() and path.name != LOCK_FILE and checkpoints not in path.parents]  # fmt: skip
        return [path for path in found if path.stat().st_size <= LARGEST_HELD_BYTES][:MOST_HELD_FILES]

    def _open(self, path: Path) -> int:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._held.callback(os.close, descriptor)
        return descriptor

    def _where(self) -> str:
        """Where the directory of before is now.

        Its name as the kernel knows it, which says so where it is deleted.
        """
        name = os.readlink(f"/proc/self/fd/{self._folder}")
        return ", which was removed" if name.endswith(" (deleted)") else f", which is {name} now"

    def _make_again(self) -> None:
        path, where = self.run.path, self._where()
        self.was_lost = True
        try:
            self.telemetry.move_files(self._restore)
        except OSError as error:
            raise DataError(f"{path} is gone{where}, and can't be made again: {error.strerror}.") from error
        self.telemetry.message(f"{path} is gone{where}: made again, with the record so far; checkpoints of before, and "
                               "what other programs had put there, are not in it")  # fmt: skip

    def _restore(self) -> None:
        for name, descriptor in self._files.items():
            target = self.run.path / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(_whole(descriptor))
        with self._held:  # of the directory before
            self._held = ExitStack()
            self._held.enter_context(self.run.lock())
            self._hold()


def _whole(descriptor: int) -> bytes:
    with open(os.dup(descriptor), "rb") as file:
        file.seek(0)
        return file.read()
