"""The JSON Schema of a recipe, held against recipes by a library of its own."""

import json
from typing import Any

import jsonschema
import pytest
import yaml

from mpt_cli.cli import main
from mpt_cli.jobs.launchers import LAUNCHERS
from mpt_cli.settings import json_schema as of_schema
from mpt_cli.settings.json_schema import json_schema
from mpt_cli.settings.load import load_settings, resolved_yaml
from mpt_cli.settings.search_path import recipe_paths
from mpt_cli.sweep import PRUNERS, SAMPLERS
from mpt_cli.sweep.block import PARTS, read_block


@pytest.fixture(scope="module")
def validator() -> Any:
    schema = json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def faults(validator: Any, text: str) -> list[str]:
    return ["/".join(map(str, error.absolute_path)) for error in validator.iter_errors(yaml.safe_load(text))]


@pytest.mark.long
def test_every_shipped_recipe_and_what_a_run_writes_of_one_keep_it(validator) -> None:
    for path in recipe_paths().values():
        assert faults(validator, path.read_text(encoding="utf-8")) == [], path
    assert faults(validator, resolved_yaml(load_settings(["conf=cifar10_resnet"]))) == []


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("trainr: {epochs: 1}", [""]),
        ("loss_scale: {mode: fixed, growth_steps: 3}", ["loss_scale"]),
        ("model: {name: mlp, filters: [8]}", ["model"]),
        ("defaults: [{model: mpl}]", ["defaults/0"]),
        ("expect: {loss: {mni: 1}}", ["expect/loss"]),
        ("hydra: {run: {dir: x}}", ["hydra"]),
        ("sweep: {gird: {seed: [1]}}", ["sweep"]),
        (
            "sweep: {search: {trials: 0, sampler: tpee, space: [1]}}",
            ["sweep/search/sampler", "sweep/search/space", "sweep/search/trials"],
        ),
        ("sweep: {grid: {seed: [1]}, search: {trials: 3}}", ["sweep"]),
        ("sweep: {points: [{}, 3]}", ["sweep/points/0", "sweep/points/1"]),
        ("sweep: {launcher: {partition: gpu}, jobs: two}", ["sweep/jobs", "sweep/launcher"]),
    ],
)
def test_what_the_strict_load_refuses_breaks_it(text, at, validator) -> None:
    assert sorted(set(faults(validator, text))) == at


@pytest.mark.parametrize(
    "text",
    [
        "seed: null\ntrainer: {epochs: '${vars.n}', max_steps: 1e3}\nvars: {n: 3}",
        "loss_scale: {mode: dynamic, growth_steps: 3, initial_scale: 2**10}",
        "defaults: [./base.yaml, {model: cnn}, _self_, {override /trainer: quick}]\nmodel: {filters: [8, '2**4']}",
        "defaults: [{experiment: mine}]\nhydra: {searchpath: [../far]}\ntags: [a]\nseeds: 3",
        "trainer: {metrics: [accuracy, {object: 'm:f', kwargs: {k: 1}}], loss: null, early_stopping: {patience: 3}}",
        "phases: [{epochs: 2, learning_rate: 0.001, freeze: [base]}]\ntrainer:",
        "sweep: {grid: {seed: [1, 2]}, objective: 'seconds:min', points: [{optimizer: sgd}, {seed: 3}], jobs: 2}",
        "sweep: {search: {trials: 3, sampler: gp, sampler_seed: 1, pruner: asha, space: {seed: 'range(3)'}}, seeds: 2,"
        " objective: val_loss, timeout_seconds: 60, sweep_dir: s,"
        " launcher: {name: submitit, sbatch: {mail-type: FAIL}}}",
        "expect: {loss: 0.5, val_loss: {value: 1, rtol: 0.1}, steps_seen: 2**5}",
    ],
)
def test_what_may_be_written_keeps_it(text, validator) -> None:
    assert faults(validator, text) == []


@pytest.mark.slow
def test_the_command_prints_it_and_lists_keys_with_fields(capsys) -> None:
    assert main(["list", "keys", "--schema"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads(json.dumps(json_schema()))
    assert main(["list", "models", "--schema"]) == 2
    assert "--schema: is of keys. Write `mpt list keys --schema`." in capsys.readouterr().err
    for words, said in (("models x", "SECTION: is of keys. Received: 'x'"), ("keys optimzer", "mean optimizer?")):
        assert main(["list", *words.split()]) == 2 and said in capsys.readouterr().err
    assert main(["list", "keys", "optimizer.schedule"]) == 0
    assert {line.partition(".")[0] for line in capsys.readouterr().out.splitlines()} == {"optimizer"}
    assert main(["list", "keys", "--json"]) == 0
    keys = {key["name"]: key for key in json.loads(capsys.readouterr().out)["keys"]}
    found = keys["loss_scale.max_skip_rate"]
    assert (found["default"], found["range"], found["optional"]) == (0.5, {"above": 0, "at_most": 1}, True)
    assert (keys["trainer.max_steps"]["unit"], keys["policy.name"]["choices"][0]) == ("steps", "float32")


def test_the_names_of_a_sweep_are_those_that_it_has() -> None:
    assert (tuple(SAMPLERS), PRUNERS, tuple(LAUNCHERS)) == (of_schema.SAMPLERS, of_schema.PRUNERS, of_schema.LAUNCHERS)
    assert set(json_schema()["properties"]["sweep"]["properties"]) == set(PARTS)


def test_the_examples_of_a_sweep_are_what_its_block_takes(tmp_path, validator) -> None:
    def example(part: dict[str, Any]) -> Any:
        own = {name: example(inner) for name, inner in part.get("properties", {}).items()}
        return own or part["examples"][0]

    block = example(json_schema()["properties"]["sweep"])
    search = {"search": block.pop("search")}
    for each in (block, search):
        recipe = tmp_path / "mine.yaml"
        recipe.write_text(yaml.safe_dump({"model": {"name": "mlp"}, "sweep": each}))
        found = read_block([f"conf={recipe}"])
        assert faults(validator, recipe.read_text()) == []
    assert found.search == {name: value for name, value in search["search"].items() if name != "space"}
