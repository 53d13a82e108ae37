import io
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from mpt_cli import doctor as module
from mpt_cli.doctor import (
    BackendReport,
    DoctorReport,
    MissingPackage,
    doctor,
    doctor_report_rows,
    print_doctor_report,
    probe_backend,
)


def _timings(float16: float, bfloat16: float) -> list[dict[str, Any]]:
    speeds = {"float32": 1.0, "float16": float16, "bfloat16": bfloat16}
    return [
        {"device": "cpu", "operation": operation, "dtype": dtype, "seconds": 1.0, "speed_against_float32": speed}
        for operation in ("matmul", "conv")
        for dtype, speed in speeds.items()
    ]


MACHINE = {
    "os": "Linux",
    "cpu": "A CPU",
    "cpu_cores": 4,
    "usable_cores": 2,
    "cpu_precision_features": ["f16c"],
    "memory_bytes": 2**34,
    "gpus": [],
}
WORKING = BackendReport("tensorflow", True, True, None, ["cpu:0"], _timings(0.3, 2.0))
ABSENT = BackendReport("jax", False, False, "not installed", [], [])
REPORT = DoctorReport(
    versions={"mpt": "1"},
    machine=MACHINE,
    backends=[WORKING, ABSENT],
    missing=[MissingPackage("jax", "backend=jax", "pip install 'mpt-cli[jax]'")],
    runs_parent="/here/runs",
    runs_parent_writable=True,
    terminal={"interactive": False, "type": "xterm", "encoding": "utf-8", "colour": True},
    load_average=0.4,
)


def test_what_each_policy_gains_is_told_per_device() -> None:
    texts = [text for _, text in doctor_report_rows(REPORT)]
    float16 = "cpu mixed_float16: matmul 0.30x, conv 0.30x the speed of float32, "
    assert float16 + "slower: use it here for memory or for rehearsal" in texts
    assert "cpu mixed_bfloat16: matmul 2.00x, conv 2.00x the speed of float32, faster" in texts
    assert "jax, for backend=jax: pip install 'mpt-cli[jax]'" in texts
    assert ("jax", "not installed") in doctor_report_rows(REPORT)


def test_speeds_measured_on_a_busy_machine_are_called_uncertain() -> None:
    def caveats(report: DoctorReport) -> list[str]:
        return [text for _, text in doctor_report_rows(report) if "uncertain" in text]

    busy = replace(REPORT, load_average=1.26)
    said = "uncertain speeds: the machine is busy (load average 1.3 on 2 cores). Measure again when it is quiet"
    assert caveats(busy) == [said] and busy.as_dict()["load_average"] == 1.26
    assert not caveats(REPORT) and not caveats(replace(busy, backends=[ABSENT]))


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({}, 0),
        ({"backends": [replace(WORKING, works=False, error="boom"), replace(WORKING, name="jax")]}, 3),
        ({"backends": [replace(ABSENT, name="tensorflow"), replace(WORKING, name="jax")]}, 0),
        ({"backends": [replace(ABSENT, name="tensorflow"), ABSENT]}, 3),
        ({"runs_parent_writable": False}, 3),
        ({"backends": [WORKING]}, 0),
    ],
)
def test_the_default_backend_and_a_place_to_write_decide_the_exit_code(changes: dict[str, Any], code: int) -> None:
    report = replace(REPORT, **changes)
    assert report.exit_code == report.as_dict()["exit_code"] == code
    assert doctor_report_rows(report)[-1][1].startswith("ready" if code == 0 else "NOT ready")


def test_without_the_default_backend_the_command_names_the_other() -> None:
    report = replace(REPORT, backends=[replace(ABSENT, name="tensorflow"), replace(WORKING, name="jax")])
    assert doctor_report_rows(report)[-1][1] == "ready: mpt train conf=digits_cnn backend=jax"
    assert doctor_report_rows(REPORT)[-1][1] == "ready: mpt train conf=digits_cnn"


def test_the_report_fits_a_terminal_of_eighty_columns() -> None:
    stream = io.StringIO()
    print_doctor_report(REPORT, Console(file=stream, width=80, force_terminal=True, color_system=None))
    assert max(len(line) for line in stream.getvalue().splitlines()) <= 80


def test_piped_the_report_has_a_whole_line_for_each_row_and_no_control_codes() -> None:
    stream = io.StringIO()
    print_doctor_report(REPORT, Console(file=stream, width=80))
    lines = stream.getvalue().splitlines()
    assert [line[14:] for line in lines] == [text for _, text in doctor_report_rows(REPORT)]
    assert "\x1b" not in stream.getvalue()


def test_a_gpu_that_the_backend_does_not_see_needs_the_cuda_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = {"name": "X", "driver": "1", "memory": "2"}
    monkeypatch.setattr(module, "machine_facts", lambda: {**MACHINE, "gpus": [gpu]})
    answer = {"works": True, "devices": ["cpu:0"]}
    monkeypatch.setattr(module, "probe_backend", lambda name, measure: answer)
    assert doctor(measure=False).missing[-1].install == "pip install 'mpt-cli[cuda]'"


def test_every_extra_that_a_key_or_an_option_needs_is_told_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: None)
    told = {item.name: (item.purpose, item.install) for item in doctor(measure=False).missing}
    assert set(told) == {
        "jax", "jax_cuda12_plugin", "matplotlib", "mlflow", "onnx", "optuna", "ray", "submitit", "tensorboard",
        "tensorflow", "tf2onnx", "wandb",
    }  # fmt: skip
    assert told["jax_cuda12_plugin"][1] == "pip install 'mpt-cli[gpu-plan]'"
    assert told["mlflow"] == ("logger.mlflow=true", "pip install 'mpt-cli[mlflow]'")
    assert told["tf2onnx"] == ("mpt export --format onnx", "pip install tf2onnx")
    assert told["wandb"] == ("logger.wandb=true", "pip install 'mpt-cli[wandb]'")
    assert told["submitit"] == ("mpt sweep --launcher submitit", "pip install 'mpt-cli[slurm]'")
    assert told["matplotlib"][1] == "pip install 'mpt-cli[plots]'"
    assert told["tensorflow"][1] == "pip install 'mpt-cli[tensorflow]'"


@pytest.mark.slow
def test_a_backend_that_breaks_is_reported_and_breaks_nothing() -> None:
    found = probe_backend("nonsense", measure=False)
    assert not found["works"]
    assert "nonsense" in found["error"]


@pytest.mark.slow
def test_the_default_backend_is_probed_and_measured_for_real() -> None:
    found = probe_backend("tensorflow")
    assert found["works"], found
    cpu = [row for row in found["timings"] if row["device"] == "cpu"]
    assert {(row["operation"], row["dtype"]) for row in cpu} >= {("matmul", "float16"), ("conv", "bfloat16")}
    assert all(row["seconds"] > 0 for row in cpu)
