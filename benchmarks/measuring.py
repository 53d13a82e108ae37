"""What all benchmarks share: the machine in words, CPU seconds of processes, tables in markdown."""

import importlib.util
import os
import platform
import resource
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import metadata
from typing import Any

from mpt_cli.machine import cpu_features, cpu_model


def machine(names: Sequence[str] = ("tensorflow", "jax", "keras", "numpy")) -> dict[str, Any]:
    """Return what a report says of it, with the versions of those packages that are installed."""
    names = [name for name in names if importlib.util.find_spec(name.replace("-", "_"))]
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "cpu": cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "cpu_features": cpu_features(),
        "python": platform.python_version(),
        "versions": {name: metadata.version(name) for name in names},
    }


def machine_line(report: dict[str, Any], machine: str = "") -> str:
    """Return the machine of a report in words, with its versions."""
    versions = ", ".join(f"{name} {version}" for name, version in report["versions"].items())
    machine = machine or f"{report['cpu']} with {report['cores']} cores"
    return f"{report['date']}, {machine}, Python {report['python']}, {versions}"


def children_seconds() -> float:
    """Return the CPU seconds of all processes that this one has started and that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def markdown_table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [titles, ["---"] * len(titles), *rows])
