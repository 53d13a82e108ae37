from dataclasses import replace
from typing import Any

import pytest

from mpt_cli import doctor as module
from mpt_cli.doctor import (
    BackendReport,
    DoctorReport,
    doctor,
    doctor_report_rows,
    probe_backend,
)

MACHINE = {
    "os": "Linux",
    "cpu": "A CPU",
    "cpu_cores": 4,
    "usable_cores": 2,
    "cpu_precision_features": ["f16c"],
    "memory_bytes": 2**34,
    "gpus": [],
}
WORKING = BackendReport("tensorflow", True, True, None, ["cpu:0"], ["float32", "mixed_float16"])
ABSENT = BackendReport("jax", False, False, "not installed")
REPORT = DoctorReport(
    versions={"mpt": "1"},
    machine=MACHINE,
    backends=[WORKING, ABSENT],
    missing=[{"name": "jax", "purpose": "backend=jax", "install": "pip install 'mpt-cli[jax]'"}],
    runs_parent="/here/runs",
    runs_parent_writable=True,
)


def test_devices_policies_and_what_is_missing_are_told() -> None:
    rows = doctor_report_rows(REPORT)
    assert ("tensorflow", "works on cpu:0; computes under float32, mixed_float16") in rows
    assert ("jax", "not installed") in rows
    assert ("missing", "jax, for backend=jax: pip install 'mpt-cli[jax]'") in rows


def test_the_default_backend_and_a_place_to_write_decide_the_exit_code() -> None:
    on_jax = [replace(ABSENT, name="tensorflow"), replace(WORKING, name="jax")]
    changes: list[tuple[dict[str, Any], int]] = [
        ({}, 0),
        ({"backends": [replace(WORKING, works=False, error="boom"), replace(WORKING, name="jax")]}, 3),
        ({"backends": on_jax}, 0),
        ({"backends": [replace(ABSENT, name="tensorflow"), ABSENT]}, 3),
        ({"runs_parent_writable": False}, 3),
    ]
    for change, code in changes:
        report = replace(REPORT, **change)
        assert report.exit_code == report.as_dict()["exit_code"] == code
        assert doctor_report_rows(report)[-1][1].startswith("ready" if code == 0 else "NOT ready")
    assert doctor_report_rows(replace(REPORT, backends=on_jax))[-1][1] == "ready: mpt train conf=digits_cnn backend=jax"
    assert doctor_report_rows(REPORT)[-1][1] == "ready: mpt train conf=digits_cnn"


def test_a_gpu_that_the_backend_does_not_see_needs_the_cuda_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = {"name": "X", "driver": "1", "memory": "2"}
    monkeypatch.setattr(module, "machine_facts", lambda: {**MACHINE, "gpus": [gpu]})
    answer = {"works": True, "devices": ["cpu:0"]}
    monkeypatch.setattr(module, "probe_backend", lambda name: answer)
    assert doctor().missing[-1]["install"] == "pip install 'mpt-cli[cuda]'"


def test_every_extra_that_a_key_or_an_option_needs_is_told_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: None)
    told = {item["name"]: (item["purpose"], item["install"]) for item in doctor().missing}
    assert set(told) == {
        "jax",
        "jax_cuda12_plugin",
        "mlflow",
        "optuna",
        "ray",
        "submitit",
        "tensorboard",
        "tensorflow",
        "wandb",
    }
    assert told["jax_cuda12_plugin"][1] == "pip install 'mpt-cli[gpu-plan]'"
    assert told["mlflow"] == ("logger.mlflow=true", "pip install 'mpt-cli[mlflow]'")
    assert told["submitit"] == ("mpt sweep --launcher submitit", "pip install 'mpt-cli[slurm]'")


@pytest.mark.slow
def test_a_backend_that_breaks_is_reported_and_breaks_nothing() -> None:
    found = probe_backend("nonsense")
    assert not found["works"]
    assert "nonsense" in found["error"]


@pytest.mark.long
def test_the_default_backend_is_examined_for_real() -> None:
    found = probe_backend("tensorflow")
    assert found["works"] and found["policies"] == ["float32", "mixed_float16", "mixed_bfloat16"], found
    assert any("cpu" in device for device in found["devices"])
