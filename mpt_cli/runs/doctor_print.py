"""The doctor's report as a person reads it."""

from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from mpt_cli.runs.doctor import Backend, DoctorReport
from mpt_cli.telemetry.console.words import bytes_words

LABEL_WIDTH = 12
POLICIES = {"mixed_float16": "float16", "mixed_bfloat16": "bfloat16"}
FASTER, SLOWER = 1.1, 0.9  # within a tenth a measurement this short says nothing


def print_report(report: DoctorReport, console: Console) -> None:
    """Rows of label and text, then what to do about what is missing; folded in a terminal, whole lines elsewhere."""
    if not console.is_terminal:
        for label, text in report_rows(report):
            print(f"{label:<{LABEL_WIDTH}}  {text}", file=console.file)
        return
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True, min_width=LABEL_WIDTH, style="dim")
    grid.add_column(overflow="fold")
    for label, text in report_rows(report):
        grid.add_row(label, Text(text))
    console.print(grid)


def report_rows(report: DoctorReport) -> list[tuple[str, str]]:
    """The whole report as label and text."""
    rows = [("versions", ", ".join(f"{name} {version}" for name, version in report.versions.items()))]
    rows += _machine_rows(report.machine)
    for backend in report.backends:
        rows += _backend_rows(backend)
    if report.is_busy and any(backend.timings for backend in report.backends):
        load = f"load average {report.load_average:.1f} on {report.machine['usable_cores']} cores"
        rows.append(("", f"uncertain speeds: the machine is busy ({load}). Measure again when it is quiet"))
    rows += [("missing", f"{item.name}, for {item.purpose}: {item.install}") for item in report.missing]
    writable = "can be written" if report.runs_parent_writable else "can NOT be written: set run_dir"
    rows.append(("runs", f"{report.runs_parent} {writable}"))
    terminal = "live screen" if report.terminal["interactive"] else "plain lines (not a terminal)"
    rows.append(("terminal", f"{terminal}, {report.terminal['encoding']}"))
    return [*rows, ("result", _result_words(report))]


def _machine_rows(machine: dict[str, Any]) -> list[tuple[str, str]]:
    features = ", ".join(machine["cpu_precision_features"]) or "none"
    gpus = [f"{gpu['name']}, {gpu['memory']}, driver {gpu['driver']}" for gpu in machine["gpus"]]
    cores = f"{machine['usable_cores']} of {machine['cpu_cores']} cores"
    return [
        ("system", machine["os"]),
        ("CPU", f"{machine['cpu']}, {cores}, {bytes_words(machine['memory_bytes'])}"),
        ("16-bit", f"instructions of the CPU: {features}"),
        *[("GPU", gpu) for gpu in gpus or ["none that nvidia-smi knows"]],
    ]


def _backend_rows(backend: Backend) -> list[tuple[str, str]]:
    if not backend.works:
        return [(backend.name, backend.error or "does not work")]
    rows = [(backend.name, f"works on {', '.join(backend.devices)}")]
    for device in sorted({row["device"] for row in backend.timings}):
        rows += [("", _gain_words(backend, device, policy, dtype)) for policy, dtype in POLICIES.items()]
    return rows


def _gain_words(backend: Backend, device: str, policy: str, dtype: str) -> str:
    """Measured here, on this device: the policy's arithmetic against float32's."""
    speeds = {
        row["operation"]: row["speed_against_float32"]
        for row in backend.timings
        if row["device"] == device and row["dtype"] == dtype
    }
    figures = ", ".join(f"{operation} {speed:.2f}x" for operation, speed in speeds.items())
    return f"{device} {policy}: {figures} the speed of float32, {_gain(list(speeds.values()))}"


def _gain(speeds: list[float]) -> str:
    if min(speeds) >= FASTER:
        return "faster"
    if max(speeds) <= SLOWER:
        return "slower: use it here for memory or for rehearsal"
    return "faster for some layers only" if max(speeds) >= FASTER else "no gain in speed"


def _result_words(report: DoctorReport) -> str:
    if report.exit_code == 0:
        named = "" if report.backend in (None, report.backends[0]) else f" backend={report.backend.name}"
        return f"ready: mpt train conf=digits_cnn{named}"
    return "NOT ready: see above"
