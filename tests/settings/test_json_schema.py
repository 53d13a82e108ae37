"""The JSON Schema of a recipe, held against recipes by a library of its own."""

import json
from typing import Any

import jsonschema
import pytest
import yaml

from mpt_cli.cli import main
from mpt_cli.settings.json_schema import json_schema
from mpt_cli.settings.load import load_settings, resolved_yaml
from mpt_cli.settings.search_path import recipe_paths


@pytest.fixture(scope="module")
def validator():
    schema = json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def faults(validator: Any, text: str):
    return ["/".join(map(str, error.absolute_path)) for error in validator.iter_errors(yaml.safe_load(text))]


@pytest.mark.long
def test_every_shipped_recipe_and_what_a_run_writes_of_one_keep_it(validator):
    for path in recipe_paths().values():
        assert faults(validator, path.read_text(encoding="utf-8")) == [], path
    assert faults(validator, resolved_yaml(load_settings(["conf=cifar10_resnet"]))) == []


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("trainr: {epochs: 1}", [""]),
        ("loss_scale: {mode: fixed, growth_steps: 3}", ["loss_scale"]),
        ("model: {name: mlp, filters: [8]}", ["model"]),
        ("expect: {loss: {mni: 1}}", ["expect/loss"]),
        ("hydra: {run: {dir: x}}", ["hydra"]),
    ],
)
def test_what_the_strict_load_refuses_breaks_it(text, at, validator):
    assert sorted(set(faults(validator, text))) == at


@pytest.mark.parametrize(
    "text",
    [
        "seed: null\ntrainer: {epochs: '${vars.n}', max_steps: 1e3}\nvars: {n: 3}",
        "loss_scale: {mode: dynamic, growth_steps: 3, initial_scale: 2**10}",
        "defaults: [./base.yaml, {model: cnn}, _self_, {override /trainer: quick}]\nmodel: {filters: [8, '2**4']}",
        "defaults: [{experiment: mine}]\nhydra: {searchpath: [../far]}\ntags: [a]",
        "trainer: {metrics: [accuracy, {object: 'm:f', kwargs: {k: 1}}], loss: null, early_stopping: {patience: 3}}",
        "model: {freeze: [base]}\ntrainer:",
        "expect: {loss: 0.5, val_loss: {value: 1, rtol: 0.1}, steps_seen: 2**5}",
    ],
)
def test_what_may_be_written_keeps_it(text, validator):
    assert faults(validator, text) == []


@pytest.mark.slow
def test_the_command_prints_it_and_lists_keys_with_fields(capsys):
    assert main(["list", "keys", "--schema"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads(json.dumps(json_schema()))
    for words, said in (
        ("models --schema", "KIND: must be keys with a SECTION or --schema. Received: 'models'"),
        ("models x", "KIND: must be keys with a SECTION or --schema."),
        ("keys optimzer", "mean optimizer?"),
    ):
        assert main(["list", *words.split()]) == 2 and said in capsys.readouterr().err
    assert main(["list", "keys", "optimizer.weight_decay"]) == 0
    assert "default 0.004 of adamw" in (said := capsys.readouterr().out)
    assert len(said.splitlines()) == 1
    assert main(["list", "keys", "optimizer.schedule"]) == 0
    assert {line.partition(".")[0] for line in capsys.readouterr().out.splitlines()} == {"optimizer"}
    assert main(["list", "keys", "--json"]) == 0
    keys = {key["name"]: key for key in json.loads(capsys.readouterr().out)["keys"]}
    found = keys["loss_scale.max_consecutive_skips"]
    assert (found["default"], found["range"], found["optional"]) == (50, {"at_least": 1}, True)
    assert keys["policy.name"]["choices"][0] == "float32"
