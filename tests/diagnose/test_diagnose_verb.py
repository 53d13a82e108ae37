"""`mpt diagnose conf=…` as a user has it: what it prints and writes, and what it refuses."""

import json
import re
from pathlib import Path

import pytest
import yaml
from backends import BACKEND, only_on
from examined import NETS

from mpt_cli.cli import main

LAYER_KEYS = {"name", "compute_dtype", "safe_window"}


@pytest.mark.slow
def test_where_no_scale_fits_the_layers_to_keep_in_float32_are_named_in_every_output(here, capsys):
    words = [f"model.builder={NETS}:torn_apart", "policy=mixed_float16", "trainer.save_model=false", "optimizer=sgd"]
    assert main(["diagnose", "conf=digits_mlp", f"backend={BACKEND}", *words, "--batches", "2"]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    # the gradient of the output of `low` is computed by `gate`, and flushed there as long as that one is in float16
    assert re.search(r"finding +no loss scale fits all layers as they are", out)
    assert re.search(r"set +policy.overrides=\{\S*low: float32, \S*gate: float32\}, loss_scale", out)
    assert re.search(r"config +loss_scale:\nconfig +initial_scale: 2\*\*\d+\n", out)
    [directory] = Path("runs/digits_mlp").iterdir()
    assert directory.name.startswith("diagnose-")

    content = json.loads((directory / "diagnosis.json").read_text(), parse_constant=lambda name: pytest.fail(name))
    assert (content["schema_version"], content["kind"], content["status"]) == (1, "loss_scale", "ok")
    assert content["directory"] == str(directory) and not content["safe_window"]["is_empty"]
    names = [layer["name"].rpartition("/")[2] for layer in content["layers"]]
    assert names == ["low", "gate", "high", "head"] and set(content["layers"][0]) == LAYER_KEYS
    trials = {trial["scale"]: trial for trial in content["verification"]["trials"]}
    recommended = content["recommended_initial_scale"]
    assert trials.keys() >= {1.0, recommended, content["safe_window"]["highest_scale"]}
    assert trials[recommended]["overflows"] == 0 and trials[recommended]["flushed"] < 0.001

    Path("mine.yaml").write_text("\n".join(["defaults: [digits_mlp]", *content["config"]]))
    overrides = yaml.safe_load(Path("mine.yaml").read_text())["policy"]["overrides"]
    assert {name.rpartition("/")[2] for name in overrides} == {"low", "gate"} and {*overrides.values()} == {"float32"}
    assert main(["check", "conf=./mine.yaml"]) == 0


REFUSED = [
    (["conf=digits_mlp", "--after-steps", "-1"], 2, "--after-steps: must be >= 0. Received: -1."),
    (["conf=digits_mlp", "--batches", "0"], 2, "--batches: must be >= 1. Received: 0."),
    (["conf=digits_mlp", "--step", "3"], 2, "--step: must be given with a run directory: mpt diagnose RUN_DIR."),
    (["conf=digits_mpl"], 2, "must name a recipe"),
    (["conf=digits_mlp", "--out", "full"], 3, "full is not empty. Nothing in it was changed"),
    (["full"], 3, "full is not a run directory"),
    (
        ["full", "seed=1"],
        2,
        "RUN_DIR: must be given alone, without keys: the run has its configuration. Received: 'seed=1'.",
    ),
    (["prices.py"], 2, "prices.py: must be a recipe or a run directory: only the script can make its model."),
    (["full", "--trial-steps", "-1"], 2, "--trial-steps: must be >= 0. Received: -1."),
    (["full", "--batches", "2"], 2, "must be given with a recipe: mpt diagnose conf=full/config.yaml."),
    (["nowhere"], 3, "run directory nowhere does not exist"),
    (["digits_mlp"], 2, "digits_mlp: must be of the form key=value. Write conf=digits_mlp."),
]


@only_on("tensorflow")
def test_what_is_refused_is_a_sentence_and_leaves_nothing(here, capsys):
    Path("full").mkdir()
    Path("full/file").touch()
    for words, code, said in REFUSED:
        assert main(["diagnose", *words]) == code
        error = capsys.readouterr().err
        assert said in error and "Traceback" not in error
        assert sorted(path.name for path in here.rglob("*")) == ["file", "full"]
