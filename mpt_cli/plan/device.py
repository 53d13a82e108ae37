"""A GPU as its data sheet describes it: what XLA needs to compile for one that is not here.

One short file each in `devices/`. XLA chooses kernels by these figures without
trying any (no autotuning), so that what it compiles here may differ in tile sizes and algorithms from what it compiles
beside the GPU; what is computed, in which dtype and in how much memory, does not.
"""

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mpt_cli.errors import config_error, did_you_mean, install_command
from mpt_cli.settings.yaml_reader import load_yaml

FOLDER = Path(__file__).parent / "devices"
PLUGINS = ("jax_cuda12_plugin", "jax_cuda13_plugin")
_JAX_SHARE = 0.75  # of a GPU's memory: what JAX's allocator takes at most, unless it is told otherwise
_TARGET = """
gpu_device_info {{
  threads_per_block_limit: 1024 threads_per_warp: 32 shared_memory_per_block: 49152
  shared_memory_per_core: {shared_core} shared_memory_per_block_optin: {shared_block}
  threads_per_core_limit: {device.threads_per_multiprocessor} core_count: {device.multiprocessors}
  fpus_per_core: {device.lanes_per_multiprocessor}
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  memory_bandwidth: {bandwidth} l2_cache_size: {l2} clock_rate_ghz: {device.clock_ghz}
  device_memory_size: {device.memory_bytes}
  cuda_compute_capability {{ major: {version[0]} minor: {version[1]} }}
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 10 patch: 0 }}
device_description_str: "{device.description}"
"""


@dataclass(frozen=True)
class Device:
    """The figures of a data sheet."""

    name: str
    description: str
    compute_capability: str
    multiprocessors: int
    lanes_per_multiprocessor: int
    threads_per_multiprocessor: int
    clock_ghz: float
    memory_gib: float
    memory_gb_per_second: float
    l2_cache_kib: int
    shared_kib_per_multiprocessor: int
    shared_kib_per_block: int

    @property
    def memory_bytes(self) -> int:
        """Return the memory of the whole GPU."""
        return int(self.memory_gib * 2**30)

    @property
    def usable_bytes(self) -> int:
        """Return the most that JAX's allocator takes of it."""
        return int(self.memory_bytes * _JAX_SHARE)

    def at_least(self, capability: str) -> bool:
        """Return whether its compute capability is at least this one.

        >>> load_device("b200").at_least("9.0"), load_device("v100").at_least("8.0")
        (True, False)
        """
        return _version(self.compute_capability) >= _version(capability)

    def target_config(self) -> str:
        """Return the description that XLA compiles for, a text proto `stream_executor.GpuTargetConfigProto`."""
        return _TARGET.format(
            device=self,
            shared_core=self.shared_kib_per_multiprocessor * 1024,
            l2=self.l2_cache_kib * 1024,
            shared_block=self.shared_kib_per_block * 1024,
            bandwidth=int(self.memory_gb_per_second * 1e9),
            version=_version(self.compute_capability),
        )

    def target_devices(self, count: int) -> list[Any]:
        """Return `count` devices to compile for; nothing can be run on them."""
        from jax.experimental import topologies

        found = topologies.get_topology_desc(
            self.name, platform="cuda", target_config=self.target_config(), topology=f"1x1x{count}"
        )
        return list(found.devices)


def _version(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(".")))


def device_names() -> list[str]:
    """Return the names of the shipped devices.

    >>> device_names()
    ['a100', 'a6000', 'b200', 'h100', 'h200', 'v100']
    """
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def load_device(name: str | None) -> Device:
    """Load a shipped device by its name; ConfigError for another one.

    >>> load_device("h100").memory_bytes / 2**30
    80.0
    """
    known = device_names()
    if name is None or name.lower() not in known:
        raise config_error("--device", f"must be one of {', '.join(known)}.", name, did_you_mean(name or "", known))
    return Device(name.lower(), **load_yaml(FOLDER / f"{name.lower()}.yaml"))


def check_compiler() -> None:
    """Raise ConfigError, with what to install, where there is no JAX that compiles for NVIDIA's GPUs."""
    if not any(importlib.util.find_spec(name) for name in PLUGINS):
        raise config_error(
            "--device",
            "the compiler for NVIDIA's GPUs is not installed; it needs no GPU.",
            None,
            f"{install_command('gpu-plan')} (3 GB)",
        )
