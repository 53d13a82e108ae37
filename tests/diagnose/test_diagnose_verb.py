"""`mpt diagnose conf=…` as a user has it: real processes, files, JSON, the recipe it writes, and what it refuses."""

import json
import re
from pathlib import Path

import pytest
import yaml
from backends import only_on
from command import mpt, run_program
from examined import NETS

from mpt_cli.cli import main

LAYER_KEYS = {"name", "kind", "compute_dtype", "variable_dtype", "safe_window", "activation_gradients",
              "weight_gradients"}  # fmt: skip


def trained(cwd, *words):
    done = mpt("train", *words, "--json", cwd=cwd)
    return json.loads(done.stdout)


@pytest.mark.slow
@only_on("tensorflow")
def test_the_files_and_the_json_contract_on_jax_without_tensorflow(tmp_path):
    words = ("conf=digits_mlp", "backend=jax", "policy=mixed_float16", "--at-steps", "0,20", "--batches", "2")
    program = tmp_path / "loads.py"
    program.write_text("import sys; from mpt_cli.cli import main; code = main(sys.argv[1:])\n"
                       "print('tensorflow' in sys.modules, file=sys.stderr); sys.exit(code)")  # fmt: skip
    done = run_program(str(program), "diagnose", *words, "--json", backend="jax", cwd=tmp_path, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[-1] == "False"
    content = json.loads(done.stdout, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert content["schema_version"] == 1 and content["kind"] == "loss_scale" and content["status"] == "ok"
    assert set(content["layers"][0]) == LAYER_KEYS and [p["step"] for p in content["points"]] == [0, 20]
    assert [layer["name"] for layer in content["layers"]] == ["hidden_1", "activation_1", "hidden_2", "activation_2",
                                                              "head"]  # fmt: skip
    assert {trial["scale"] for trial in content["verification"]["trials"]} >= {
        1.0, content["recommended_initial_scale"], 2 * content["safe_window"]["highest_scale"]}  # fmt: skip
    directory = tmp_path / content["directory"]
    assert directory.parent == tmp_path / "runs" / "digits_mlp" and directory.name.startswith("diagnose-")
    assert {path.name for path in directory.iterdir()} == {"diagnosis.json", "gradients.png", "gradients.svg"}
    assert json.loads((directory / "diagnosis.json").read_text()) == content
    assert (directory / "gradients.png").read_bytes().startswith(b"\x89PNG")
    assert "zero in float16" in (directory / "gradients.svg").read_text()
    assert trained(tmp_path, "conf=digits_mlp", "trainer.max_steps=2", "resume=auto")["steps_seen"] == 2  # no run there


@pytest.mark.slow
@only_on("tensorflow")
def test_piped_output_is_plain_and_complete(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = [f"model.builder={NETS}:torn_apart", "policy=mixed_float16", "trainer.save_model=false", "optimizer=sgd"]
    assert main(["diagnose", "conf=digits_mlp", *words, "--batches", "1", "--out", "d",
                 "--write", "mine.yaml"]) == 0  # fmt: skip
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert re.search(r"float32 +no scale fits all layers as they are. Keep in float32: \S*low, \S*gate\n", out)
    assert re.search(r"config +loss_scale:\nconfig +initial_scale: 2\*\*\d+\n", out)
    assert Path("d/gradients.png").is_file()
    written = yaml.safe_load(Path("mine.yaml").read_text())
    assert list(written["policy"]["overrides"].values()) == ["float32", "float32"]
    assert main(["check", "conf=./mine.yaml"]) == 0


@only_on("tensorflow")
@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["conf=digits_mlp", "--at-steps", "0,x"], 2, "--at-steps: must be whole numbers with commas between them"),
        (["conf=digits_mlp", "--batches", "0"], 2, "--batches: must be at least 1. Received: 0."),
        (["conf=digits_mlp", "--step", "3"], 2, "--step: must be given with a run directory: mpt diagnose RUN_DIR."),
        (["conf=digits_mpl"], 2, "no recipe has this name"),
        (["conf=digits_mlp", "--write", "there.yaml"], 3, "there.yaml exists already. Nothing was changed"),
        (["conf=digits_mlp", "--write", "no/where.yaml"], 3, "there is no folder no"),
        (["conf=digits_mlp", "--write", "n" * 300], 3, "can't be written: File name too long. Give another --write."),
        (["conf=digits_mlp", "--out", "full"], 3, "full is not empty. Nothing in it was changed"),
        (["full"], 3, "full is not a run directory"),
        (["full", "seed=1"], 2, "RUN_DIR: must stand alone: a run has its own configuration. Received: 'seed=1'."),
        (["full", "--batches", "2"], 2, "must be given with a recipe: mpt diagnose conf=full/config.yaml."),
        (["nowhere"], 2, "nowhere: there is no such directory. A configuration is given as conf=RECIPE or conf=path"),
        (["digits_mlp"], 2, "digits_mlp: must be of the form key=value. Write conf=digits_mlp."),
    ],
)
def test_what_is_refused_is_a_sentence_and_leaves_nothing(words, code, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("there.yaml").touch()
    Path("full").mkdir()
    Path("full/file").touch()
    assert main(["diagnose", *words]) == code
    captured = capsys.readouterr()
    assert said in captured.err and "Traceback" not in captured.err
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "full", "there.yaml"]
