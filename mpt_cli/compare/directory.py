"""The directory of a comparison: that of a sweep, and what was measured beside the runs."""

from pathlib import Path
from typing import Any, ClassVar

from mpt_cli.errors import DataError
from mpt_cli.runs.summary import read_json
from mpt_cli.sweep.directory import SweepDirectory


class CompareDirectory(SweepDirectory):
    """Its plan is compare.json; the runs of its jobs lie in it as those of a sweep do."""

    verb: ClassVar[str] = "compare"
    noun: ClassVar[str] = "comparison"

    @property
    def footprints_json(self) -> Path:
        """Bytes, shapes and the speed of the device: what `examine` found."""
        return self.path / "footprints.json"

    @property
    def noise_json(self) -> Path:
        """How busy other programs kept the cores during each job."""
        return self.path / "noise.json"

    def read_extra(self, path: Path) -> dict[str, Any]:
        """One of the two; empty where it is missing or damaged."""
        try:
            return read_json(path)
        except DataError:
            return {}
