"""CSV files."""

import pytest

from mpt_cli.data.sources import load_data
from mpt_cli.errors import DataError
from mpt_cli.settings.model_data_optimizer_keys import Csv

PETS = "weight,height,kind\n2,1,cat\n4,5,dog\n2,3,cat\n4,3,dog\n"


def load(path, target="kind", **settings):
    return load_data(Csv(path=path, target=target, **settings), 0)


def test_numbers_are_standardised(write):
    data = load(write(PETS), validation_fraction=0)
    assert (data.train.x[:, 0].tolist(), data.train.y.tolist()) == ([-1, 1, -1, 1], [0, 1, 0, 1])
    assert data.description == "data.txt: 4 training examples of 2, 2 classes; classes of kind: cat, dog"
    assert data.preprocessing == {
        "inputs": [
            {"name": "weight", "mean": 3, "deviation": 1},
            {"name": "height", "mean": 3, "deviation": pytest.approx(2**0.5)},
        ],
        "classes": ["cat", "dog"],
    }


@pytest.mark.parametrize(
    "content",
    [
        b"\xef\xbb\xbf" + PETS.replace(",", ";").encode(),
        PETS.replace(",", "; ").replace("\n", "\r\n") + "\r\n",
        PETS.replace("dog", '"dog"').replace(",", ";"),
    ],
)
def test_other_ways_to_write_the_same(write, content):
    same = load(write(PETS), validation_fraction=0).fingerprint
    assert load(write(content), validation_fraction=0, separator=";").fingerprint == same
    assert load(write(PETS.replace(",", "\t")), validation_fraction=0, separator="\\t").fingerprint == same


@pytest.mark.parametrize(
    ("cells", "task", "expected", "number"),
    [
        ("3737", "auto", "classification", 2),
        ("1234", "auto", "regression", 1),
        ("1234", "classification", "classification", 4),
        ("3737", "regression", "regression", 1),
    ],
)
def test_task(write, cells, task, expected, number):
    path = write("a,t\n" + "".join(f"{place},{cell}\n" for place, cell in enumerate(cells)))
    data = load(path, "t", task=task)
    assert (data.task, data.num_classes) == (expected, number)


def test_whole_numbers_as_classes_are_numbered_in_order(write):
    data = load(write("a,t\n1,2000001\n2,7\n3,2000001\n4,-1\n5,7\n6,-1\n"), "t", validation_fraction=0)
    assert data.train.y.tolist() == [2, 1, 2, 0, 1, 0]
    assert data.description.endswith("classes of t: -1, 7, 2000001")
    assert data.preprocessing["classes"] == ["-1", "7", "2000001"]


@pytest.mark.parametrize(
    ("content", "settings", "message"),
    [
        (
            PETS,
            {"target": "knd"},
            r"data\.target: .*data\.txt has no column 'knd'\. It has: weight, height, kind\. "
            r"Did you mean kind\?",
        ),
        ("kind\ncat\ndog\n", {}, r"has no column beside the target 'kind'"),
        ("a,kind\n", {}, r"must have a header line, of names that differ, and rows"),
        ("a,a,kind\n1,2,cat\n", {}, r"must have a header line, of names that differ"),
        (PETS + "3,red\n", {}, r"line 6, has 2 values; the header has 3\. Is data\.separator right"),
        (PETS, {"separator": ";"}, r"has no column 'kind'\. It has: weight,height,kind"),
        *[
            (
                PETS + f"{cell},1,cat\n",
                {},
                rf"column 'weight' must hold finite numbers\. Received: '{cell}' in line 6\. Fill "
                r"or remove such rows; encode text in a data\.loader\.",
            )
            for cell in ("", "NaN")
        ],
        (PETS + "2,3,\n", {}, r"column 'kind' has an empty value in line 6"),
        ("a,kind\n1,cat\n2,cat\n", {}, r"column 'kind' has the same value in every row"),
        ("a,kind\n1,0.5\n2,1\n", {"task": "classification"}, r"numbers that aren't whole; use data\.task=regression"),
        (b"a,kind\n\xff\xfe,cat\n", {}, r"can't be read as CSV in UTF-8 .*: 'utf-8' codec can't decode byte"),
        (
            'a,kind\n"1,cat\n2,dog\n',
            {},
            r"can't be read as CSV in UTF-8 with data\.separator=',': unexpected end of data",
        ),
        (f"a,kind\n{'x' * 200_000},cat\n2,dog\n", {}, r"can't be read as CSV .*: field larger than field limit"),
        ("", {}, r"data\.txt is empty"),
    ],
)
def test_bad_files(write, content, settings, message):
    with pytest.raises(DataError, match=message):
        load(write(content), **settings)


def test_a_bad_separator(write):
    with pytest.raises(DataError, match=r"can't be read as CSV in UTF-8 with data\.separator=',,': .* 1-character"):
        load(write(PETS), separator=",,")
