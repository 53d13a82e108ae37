"""A window is safe only where every layer is: what real float16 passes lose names the layer, not the average."""

from dataclasses import replace

import pytest
from examined import diagnosed

from mpt_cli.diagnose.report import config_lines, diagnosis_content, sentences
from mpt_cli.samples.lost_digits import LostDigits
from mpt_cli.telemetry.health_and_verdict import NOT_CAST


def said(found, label):
    return " ".join(text for name, text in sentences(found) if name == label)


@pytest.fixture
def nothing_helps(monkeypatch):
    """Not even the layers in float32, neither for their range nor for their digits."""
    monkeypatch.setattr("mpt_cli.diagnose.diagnosis.ROUNDS", 0)
    monkeypatch.setattr("mpt_cli.diagnose.float32_examination.measure_digits", lambda *_: None)


@pytest.mark.slow
def test_layers_that_vanish_in_the_forward_pass_make_no_window_safe(nothing_helps):
    found = diagnosed("vanishing", batches=1)
    last = [name.rpartition("/")[2] for name, fault in found.faults.items() if fault == "vanished"]
    assert "h9" in last and "h3" not in last and not found.is_safe
    assert "no scale for every layer" in said(found, "safe")
    assert "vanished in the forward pass" in said(found, "layers") and "policy.overrides" in said(found, "layers")
    assert diagnosis_content(found)["safe_window"]["is_empty"]


def test_a_loss_that_alone_overflows_is_the_finding():
    found = diagnosed("penalised", batches=1)
    assert said(found, "finding") == "no loss scale keeps the loss itself finite in float16 at step 0"
    assert (
        said(found, "set")
        == "no loss scale alone helps; mixed_bfloat16, or inputs and targets scaled to about 1, may (not tried)"
    )


def test_what_to_set_is_what_mends_the_lost_digits():
    found = replace(diagnosed("penalised", batches=1), recommended=512.0, digits=LostDigits(0.3, ("*",)))
    assert said(found, "set") == "policy=float32: no loss scale brings lost digits back"
    assert config_lines(found) == ["policy:", "  name: float32"]
    found = replace(found, digits=LostDigits(0.3, ("the inputs", "targets")))
    assert said(found, "set").startswith(f"{NOT_CAST}, policy.head=float32, loss_scale.")
    assert config_lines(found)[1:] == ["  head: float32", "loss_scale:", "  initial_scale: 2**9", f"# and {NOT_CAST}"]


@pytest.mark.slow
def test_what_overflows_in_the_forward_pass_is_kept_in_float32_with_what_takes_it():
    found = diagnosed("hot", batches=1)
    assert {name.rpartition("/")[2]: fault for name, fault in found.mended.items()} == {"hot": "overflowed"}
    assert [name.rpartition("/")[2] for name in found.keep_in_float32] == ["hot", "cool"]
    assert found.is_safe and found.faults == {} and found.recommended is not None
    assert "hot overflowed in the forward pass" in said(found, "finding") and "policy.overrides={" in said(found, "set")
    assert said(found, "evidence").startswith("tried in real float16 passes at scale ")
    assert config_lines(found)[0] == "policy:" and diagnosis_content(found)["verification"]["mended"] == found.mended
