"""Which GPUs a job gets: those with the fewest jobs on them."""

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass
class GpuPool:
    """GPUs that jobs take and give back. With more workers than GPUs, several jobs share one."""

    names: Sequence[str]
    workers: int
    load: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.load = dict.fromkeys(self.names, 0)

    @property
    def most_per_gpu(self) -> int:
        return max(1, -(-self.workers // max(1, len(self.names))))

    def take(self, count: int) -> list[str] | None:
        """Up to `count` GPUs, None while too few are free. Where there are no GPUs, every job gets none."""
        wanted = min(count, len(self.names))
        free = sorted((name for name in self.names if self.load[name] < self.most_per_gpu), key=self.load.__getitem__)
        if len(free) < wanted:
            return None
        for name in free[:wanted]:
            self.load[name] += 1
        return free[:wanted]

    def give_back(self, names: Sequence[str]) -> None:
        for name in names:
            self.load[name] -= 1


def gpu_environment(pool: GpuPool, names: Sequence[str]) -> dict[str, str]:
    """What shows a job its GPUs and no others; nothing where the machine has none."""
    if not pool.names:
        return {}
    return {"CUDA_VISIBLE_DEVICES": ",".join(names) or "-1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
