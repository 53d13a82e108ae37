"""TO BE REMOVED: the joblib launcher is dropped (notes, section C)."""

from collections.abc import Mapping
from concurrent.futures import Future, TimeoutError
from pathlib import Path
from typing import Any

from joblib.externals.loky import ProcessPoolExecutor
from joblib.externals.loky.process_executor import BrokenProcessPool

from mpt_cli.jobs.remote import Errand, Lost

_POLL_SECONDS = 0.1


class JoblibJob:
    """The worker is in the proxy's process group, and so gets every signal that the queue sends."""

    def __init__(self, future: "Future[int]") -> None:
        self._future = future

    def poll(self) -> int | None:
        try:
            return self._future.result(timeout=_POLL_SECONDS)
        except TimeoutError:
            return None
        except BrokenProcessPool as error:
            raise Lost("its worker was killed") from error

    def stop(self) -> None:
        """Has happened: see above."""


def submit(errand: Errand, settings: Mapping[str, Any], folder: Path) -> JoblibJob:
    return JoblibJob(ProcessPoolExecutor(max_workers=1).submit(errand))
