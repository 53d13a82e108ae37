"""Whether speeds can be compared: how much of the cores other programs had while a job ran."""

import os
import resource
import time
from collections.abc import Callable
from pathlib import Path

from mpt_cli.compare.directory import CompareDirectory
from mpt_cli.runs.summary import write_json
from mpt_cli.sweep.capacity import usable_cores
from mpt_cli.sweep.child import Child, Work
from mpt_cli.sweep.directory import Ending
from mpt_cli.sweep.queue import Watch

NOISY_SHARE = 0.15  # of the cores; two equal runs beside a busy core differed by more than the policies did
_STAT = Path("/proc/stat")


class NoiseMeter(Watch):
    """Measures jobs that run one after another: the time all cores were busy, less what the job used itself.

    Only where this process may use every core of the machine: else what the others do needs not concern it.
    """

    def __init__(self, place: CompareDirectory, busy_seconds: "Callable[[], float | None] | None" = None) -> None:
        self._place = place
        self._shares: dict[str, float] = dict(place.read_extra(place.noise_json).get("others_share", {}))
        self._busy = busy_seconds or busy_core_seconds
        self._start: tuple[float, float | None, float] = (0.0, None, 0.0)

    def started(self, child: Child) -> None:
        self._start = (time.monotonic(), self._busy(), _own_seconds())

    def ended(self, work: Work, ending: Ending) -> None:
        since, before, own = self._start
        now = self._busy()
        elapsed = (time.monotonic() - since) * usable_cores()
        if before is None or now is None or elapsed <= 0:
            return
        share = (now - before - (_own_seconds() - own)) / elapsed
        self._shares[work.job.name] = round(min(1.0, max(0.0, share)), 3)
        write_json(self._place.noise_json, {"others_share": self._shares})


def busy_core_seconds() -> float | None:
    """Seconds that all cores together have been busy since the machine started; None where that says nothing here."""
    try:
        lines = _STAT.read_text().splitlines()
    except OSError:
        return None
    cores = sum(line.startswith("cpu") and line[3:4].isdigit() for line in lines)
    if cores != usable_cores():
        return None
    user, nice, system, _idle, _waiting, *rest = map(int, lines[0].split()[1:8])
    return (user + nice + system + sum(rest)) / os.sysconf("SC_CLK_TCK")


def _own_seconds() -> float:
    """Processor time of the jobs that have ended, and of this process, which waits for them."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_CHILDREN, resource.RUSAGE_SELF)]
    return sum(each.ru_utime + each.ru_stime for each in used)
