"""What was done to the raw values reaches the run directory."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from mpt_cli.data.build import RawArrays, build_data_set
from mpt_cli.data.examples import Examples
from mpt_cli.data.load import load_data
from mpt_cli.runs.directory import RunDirectory
from mpt_cli.settings import load_settings
from mpt_cli.settings.variants import DataSettings
from mpt_cli.training.program import Program
from mpt_cli.training_run import Start, _write_record

PIXELS = np.zeros((4, 2, 2), np.uint8)


@pytest.mark.parametrize(("x", "divided"), [
    (PIXELS, {"x": 255}), (list(PIXELS), {"x": 255}), (PIXELS.astype(np.float32), None), (PIXELS.astype(int), None),
    ({"image": PIXELS, "age": np.ones((4, 1))}, {"x['image']": 255}),
    ((np.ones((4, 1)), PIXELS), {"x[1]": 255})])
def test_the_inputs_that_were_scaled_are_named(x, divided):
    data = build_data_set(RawArrays("it", Examples(x, np.arange(4))), DataSettings(name="it"), 0)
    assert data.preprocessing == ({"divided_by": divided} if divided else {})


def written(tmp_path, *words):
    settings = load_settings([*words, "seed=0"])
    data = load_data(settings.data, 0)
    parts = SimpleNamespace(data=data, jit_compile=False, settings=settings)
    run = RunDirectory.create(tmp_path / "run", "it")
    session = SimpleNamespace(assembly=parts, preprocessing=lambda: data.preprocessing)
    _write_record(Start(Program(settings), run), session, {})
    return run.preprocessing_json


def test_a_run_directory_has_it_as_a_file(tmp_path):
    (tmp_path / "t.csv").write_text("weight,kind\n2,cat\n4,größer\n", encoding="utf-8")
    file = written(tmp_path, "conf=digits_mlp", "data=csv", f"data.path={tmp_path}/t.csv", "data.target=kind",
                   "data.validation_fraction=0")
    assert json.loads(file.read_text(encoding="utf-8")) == {
        "schema_version": 1, "inputs": [{"name": "weight", "mean": 3, "deviation": 1}], "classes": ["cat", "größer"]}


def test_there_is_no_file_where_values_are_used_as_they_are(tmp_path):
    assert not written(tmp_path, "conf=digits_mlp", "data=synthetic").exists()
