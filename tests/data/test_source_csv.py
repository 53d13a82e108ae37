"""CSV files."""

import numpy as np
import pytest

from mpt_cli.data.load import load_data
from mpt_cli.errors import ConfigError, DataError
from mpt_cli.settings.variants import Csv

PETS = "weight,colour,kind\n2,red,cat\n4,blue,dog\n2,red,cat\n4,red,dog\n"


@pytest.fixture
def write(tmp_path):
    def write(content):
        path = tmp_path / "pets.csv"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return str(path)
    return write


def load(path, target="kind", **settings):
    return load_data(Csv(path=path, target=target, **settings), 0)


def test_numbers_are_standardised_and_text_is_one_hot(write):
    data = load(write(PETS), validation_fraction=0)
    # weight: mean 3, deviation 1; colours in sorted order: blue, red
    assert data.train.x.tolist() == [[-1, 0, 1], [1, 1, 0], [-1, 0, 1], [1, 0, 1]]
    assert (data.train.x.dtype, data.train.y.tolist()) == (np.float32, [0, 1, 0, 1])
    assert data.description == "pets.csv: 4 training examples of 3, 2 classes; classes of kind: cat, dog"
    assert data.preprocessing == {
        "inputs": [{"name": "weight", "mean": 3, "deviation": 1}, {"name": "colour", "equals": "blue"},
                   {"name": "colour", "equals": "red"}],
        "classes": ["cat", "dog"]}


@pytest.mark.parametrize("content", [
    PETS.replace(",", ";"), b"\xef\xbb\xbf" + PETS.replace(",", ";").encode(),
    PETS.replace(",", ";").replace("\n", "\r\n"), PETS.replace(",", "; "), PETS.replace(",", ";") + "\n\n",
    PETS.replace("colour", '"colour"').replace("blue", '"blue"').replace(",", ";")])
def test_other_ways_to_write_the_same(write, content):
    same = load(write(PETS), validation_fraction=0).fingerprint
    assert load(write(content), validation_fraction=0, separator=";").fingerprint == same


def test_tabs(write):
    assert load(write(PETS.replace(",", "\t")), separator="\\t").num_classes == 2


def test_a_quoted_cell_may_hold_separator_and_line_end(write):
    data = load(write('a,kind\n"x,\ny",cat\nz,dog\n'), validation_fraction=0)
    assert data.train.x.tolist() == [[1, 0], [0, 1]]


@pytest.mark.parametrize(("cells", "task", "expected", "number"), [
    (["3", "7", "3", "7"], "auto", "classification", 2),
    (["1", "2", "3", "4"], "auto", "regression", 1),
    (["1", "2", "3", "4"], "classification", "classification", 4),
    (["0.5", "1", "0.5", "1"], "auto", "regression", 1),
    (["3", "7", "3", "7"], "regression", "regression", 1),
    (["yes", "no", "no", "no"], "auto", "classification", 2)])
def test_task(write, cells, task, expected, number):
    path = write("a,t\n" + "".join(f"{place},{cell}\n" for place, cell in enumerate(cells)))
    data = load(path, "t", task=task)
    assert (data.task, data.num_classes) == (expected, number)


def test_whole_numbers_as_classes_are_numbered_in_order(write):
    data = load(write("a,t\n1,2000001\n2,7\n3,2000001\n4,-1\n5,7\n6,-1\n"), "t", validation_fraction=0)
    assert data.train.y.tolist() == [2, 1, 2, 0, 1, 0]
    assert data.description.endswith("classes of t: -1, 7, 2000001")
    assert data.preprocessing["classes"] == ["-1", "7", "2000001"]


def test_regression_targets_are_standardised(write):
    data = load(write("a,t\n1,10\n2,30\n"), "t", task="regression", validation_fraction=0)
    assert data.train.y.tolist() == [[-1], [1]]
    assert data.description.endswith("1 target; targets standardised by mean 20 and deviation 10, "
                                     "metrics are in standard deviations")
    assert data.preprocessing == {"inputs": [{"name": "a", "mean": 1.5, "deviation": 0.5}],
                                  "targets": [{"name": "t", "mean": 20, "deviation": 10}]}


def test_a_long_list_of_classes_is_cut(write):
    rows = "".join(f"1,c{number:02}\n" for number in range(12))
    assert load(write("a,t\n" + rows), "t").description.endswith("c08, c09, …")


@pytest.mark.parametrize(("content", "settings", "message"), [
    (PETS, {"target": "knd"}, r"data\.target: .*pets\.csv has no column 'knd'\. It has: weight, colour, kind\. "
                               r"Did you mean kind\?"),
    ("kind\ncat\ndog\n", {}, r"has no column beside the target 'kind'"),
    ("a,kind\n", {}, r"has a header line and no rows"),
    ("a,a,kind\n1,2,cat\n", {}, r"has two columns named 'a'\. Is its first line the header\?"),
    (PETS + "3,red\n", {}, r"line 6, has 2 values; the header has 3\. Is data\.separator right"),
    (PETS, {"separator": ";"}, r"has no column 'kind'\. It has: weight,colour,kind"),
    (PETS + ",red,cat\n", {}, r"column 'weight' holds numbers, but 1 of its values are missing, infinite or text, "
                              r"first '' in line 6"),
    (PETS + "NaN,red,cat\ninf,red,cat\n", {}, r"column 'weight' .* 2 of its values .* first 'NaN' in line 6"),
    (PETS + "heavy,red,cat\n" + "2,red,cat\n" * 9, {}, r"column 'weight' .* first 'heavy' in line 6"),
    ("a,kind\n,cat\n,dog\n", {}, r"column 'a' is empty in every row"),
    (PETS + "2,red,\n", {}, r"column 'kind' has 1 empty values, first in line 6"),
    ("a,kind\n1,cat\n2,cat\n", {}, r"column 'kind' has the same value in every row"),
    (PETS, {"task": "regression"}, r"column 'kind' holds text, which data\.task=regression can't predict"),
    ("a,kind\n1,0.5\n2,1\n", {"task": "classification"}, r"numbers that aren't whole; use data\.task=regression"),
    ("a,kind\n" + "".join(f"n{i},{i % 2}\n" for i in range(1001)), {},
     r"column 'a' has 1,001 different texts, too many to encode"),
    (b"a,kind\n\xff\xfe,cat\n", {}, r"is not UTF-8 text \(invalid start byte at byte \d+\)"),
    ('a,kind\n"1,cat\n2,dog\n', {}, r"line \d, can't be read as CSV: unexpected end of data"),
    (f"a,kind\n{'x' * 200_000},cat\n2,dog\n", {}, r"line 2, can't be read as CSV: field larger than field limit"),
    ("", {}, r"pets\.csv is empty"),
])
def test_bad_files(write, content, settings, message):
    with pytest.raises(DataError, match=message):
        load(write(content), **settings)


@pytest.mark.parametrize("separator", ["", ",,", '"', "\n"])
def test_bad_separators(write, separator):
    with pytest.raises(ConfigError, match=r"data\.separator: must be one character\."):
        load(write(PETS), separator=separator)
