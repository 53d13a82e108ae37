"""The first layer that overflowed in a run is found again from what the run left behind."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml
from backends import BACKEND, only_on
from examined import NETS

from mpt_cli import training_run
from mpt_cli.cli import main
from mpt_cli.diagnose.replay import BACKWARD, FORWARD, INPUT, OUTPUT, ObservedTensor, _layer_sentences
from mpt_cli.settings.load import load_settings

pytestmark = pytest.mark.slow
TINY = [
    "conf=digits_mlp",
    f"backend={BACKEND}",
    "backend.device=cpu",
    "trainer.jit_compile=false",
    "trainer.epochs=1",
    "trainer.max_steps=12",
    "trainer.checkpoint_every_steps=5",
    "trainer.keep_checkpoints=9",
    "trainer.save_model=false",
    "logger=quiet",
    "expect={}",
]


def trained(run_dir: Path, *words: str):
    training_run.train(load_settings([*TINY, f"run_dir={run_dir}", *words]))
    return run_dir


def found(run_dir: Path, capsys: pytest.CaptureFixture[str], *words: str, code: int = 0):
    capsys.readouterr()
    assert main(["diagnose", str(run_dir), "--json", "--trial-steps", "0", *words]) == code
    content: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert content["schema_version"] == 1 and content["kind"] == "overflow"
    assert json.loads((Path(content["directory"]) / "diagnosis.json").read_text()) == content
    return content


def net(name: str):
    return [f"model.builder={NETS}:{name}", "policy=mixed_float16"]


def test_a_layer_that_overflows_in_the_forward_pass(tmp_path, capsys):
    run = trained(tmp_path / "r", *net("hot"))
    content = found(run, capsys, "--step", "8")
    assert content["layer"].endswith("/hot") and content["first"]["phase"] == "forward"
    assert content["first"]["place"] == "output" and content["first"]["infs"] > 0
    assert content["overflowed_again"] and content["loss_scale"] == content["loss_scale_in_the_run"]
    assert content["replayed_from_step"] == 5
    assert content["remedies"][0]["words"] == ["policy.overrides={" + content["layer"] + ": float32}"]


def test_a_gradient_that_overflows_on_its_way_back(tmp_path, capsys):
    scale = ["loss_scale=fixed", "loss_scale.initial_scale=2**15", "loss_scale.max_consecutive_skips=null"]
    content = found(trained(tmp_path / "r", *net("steep"), *scale), capsys)
    assert content["layer"].endswith("/gate") and content["first"]["phase"] == "backward"
    assert content["first"]["place"] == "input"  # it arrives in order and leaves 2**12 times as large
    assert content["step"] == 12
    assert ["loss_scale=dynamic"] in [remedy["words"] for remedy in content["remedies"]]


@only_on("tensorflow")
def test_a_fault_is_replayed_from_the_newest_checkpoint_before_it_and_what_cannot_be_ends_with_5(tmp_path, capsys):
    run = trained(tmp_path / "r", "fault=overflow", "fault.at_steps=[3,9]", "fault.every_steps=null")
    content = found(run, capsys, "--out", str(tmp_path / "d"))
    assert (content["step"], content["replayed_from_step"], content["overflowed_again"]) == (9, 5, True)
    assert (tmp_path / "d" / "diagnosis.json").is_file() and content["first"]["phase"] == "backward"
    said = " ".join(content["explanation"])
    assert "makes numbers wrong on purpose" in said and "no layer caused it: it comes from the loss" in said
    assert main(["diagnose", str(run), "--step", "4"]) == 2
    assert "--step: must be a step that overflowed: 3, 9. Received: 4." in capsys.readouterr().err

    config = run / "config.yaml"
    config.write_text(yaml.safe_dump({**yaml.safe_load(config.read_text()), "fault": {"kind": "none"}}))
    content = found(run, capsys, "--step", "3", code=5)
    assert content["status"] == "not_found" and content["layer"] is None and not content["overflowed_again"]
    assert content["replayed_from_step"] == 0
    assert any("it cannot be reproduced" in text for text in content["explanation"])

    (run / "events.jsonl").write_text("")
    assert main(["diagnose", str(run)]) == 0
    said = capsys.readouterr().out
    assert "no step of" in said and said.endswith(f"mpt diagnose conf={run}/config.yaml\n")
    assert main(["diagnose", str(run), "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert (content["status"], content["step"], content["layer"]) == ("ok", None, None)


@pytest.mark.long
@only_on("tensorflow")
def test_weights_that_were_lost_before_are_named(tmp_path, capsys):
    run = trained(
        tmp_path / "r",
        "policy=float32",
        "loss_scale=none",
        "fault=overflow",
        "fault.at_steps=[3]",
        "trainer.max_nonfinite_losses=null",
        "trainer.stop_on_nonfinite_weights=false",
    )
    content = found(run, capsys, "--step", "6")
    assert content["bad_weights"] and all(np.char.count(content["bad_weights"], "/"))


@pytest.mark.parametrize(("phase", "place", "side"), [(FORWARD, INPUT, "before"), (BACKWARD, OUTPUT, "after")])
def test_a_layer_that_only_receives_a_bad_value_is_not_named_as_its_cause(phase, place, side):
    first = ObservedTensor(phase, "norm", "Norm", "float16", place, 1, 0)
    whole = replace(first, infs=0)
    (said,) = _layer_sentences(SimpleNamespace(first=first, observed=[whole, first]))
    assert said.startswith(f"{side} norm (Norm): the ")
