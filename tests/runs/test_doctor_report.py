"""What `mpt doctor` finds, on machines made up for it and on this one."""

import pytest

from mpt_cli import doctor as module
from mpt_cli.doctor import doctor, doctor_report_rows, probe_backend

MACHINE = {
    "os": "Linux",
    "cpu": "A CPU",
    "cpu_cores": 4,
    "usable_cores": 2,
    "memory_bytes": 2**34,
    "gpus": [{"name": "X", "driver": "1", "memory": "2"}],
}
WORKS, BROKEN = {"installed": True, "works": True, "devices": ["cpu:0"]}, {"works": False, "error": "boom"}
ABSENT = {"installed": False, "works": False, "error": "not installed"}


@pytest.fixture
def rows(monkeypatch, here):
    """Gives what is said on a machine with these backends, and holds the exit code against it."""
    monkeypatch.setattr(module, "machine_facts", lambda: MACHINE)

    def said(tensorflow, jax, code):
        monkeypatch.setattr(module, "probe_backend", {"tensorflow": tensorflow, "jax": jax}.get)
        report = doctor()
        assert report["exit_code"] == code
        return doctor_report_rows(report)

    return said


def test_devices_and_what_is_missing_are_told_and_what_a_run_would_have_decides_the_exit_code(rows):
    ready = rows(WORKS, ABSENT, 0)
    assert ("tensorflow", "works on cpu:0") in ready and ("jax", "not installed") in ready
    assert ("missing", "CUDA libraries, for the GPU of this machine: pip install 'mpt-cli[cuda]'") in ready
    assert ready[-1] == ("result", "ready: mpt train conf=digits_cnn backend=tensorflow")
    assert rows(ABSENT, WORKS, 0)[-1] == ("result", "ready: mpt train conf=digits_cnn backend=jax")
    broken = rows({"installed": True, **BROKEN}, WORKS, 3)
    assert ("tensorflow", "boom") in broken and broken[-1] == ("result", "NOT ready: see above")


def test_every_extra_that_a_key_or_an_option_needs_is_told_where_it_is_missing(monkeypatch):
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: None)
    told = {each["name"]: (each["purpose"], each["install"]) for each in doctor()["missing"]}
    assert told.keys() == module.OPTIONAL_PACKAGES.keys()
    assert told["submitit"] == ("mpt sweep --launcher submitit", "pip install 'mpt-cli[slurm]'")


@pytest.mark.slow
def test_a_backend_that_breaks_is_reported_and_breaks_nothing():
    found = probe_backend("json")  # which is installed, and no backend of Keras
    assert not found["works"] and "json" in found["error"]


@pytest.mark.long
def test_the_default_backend_is_examined_for_real():
    found = probe_backend("tensorflow")
    assert found["works"] and any("cpu" in device for device in found["devices"]), found
