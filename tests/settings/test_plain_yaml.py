"""YAML of any kind is read by one plain reader: whatever it says is a value that JSON has, or a sentence."""

import json
from pathlib import Path

import pytest

from mpt_cli.cli import main

pytestmark = pytest.mark.usefixtures("here")

BASE = "defaults: [digits_mlp, _self_]\n"
REFUSED = {
    f"seed: {'9' * 20_000}": "cannot be read: ValueError: Exceeds the limit",
    f"seed: 0x{'f' * 5_000}": "cannot be read: ValueError: Exceeds the limit",
    "vars: {a: !!set {x, y}}": "not a supported primitive type",
    "vars: {a: !!int abc}": "cannot be read: ValueError",
    "vars: {a: !!int }": "cannot be read: IndexError",
    "vars: {a: !!bool abc}": "cannot be read: KeyError",
    "expect: {val_loss: {1: 2}}": "expect.val_loss.1: must be one",
    "vars: {a: !mine x}": "the tag '!mine'",
    "vars: {a: 'x\x01'}": "special characters are not allowed: '\\x01'",
}


@pytest.mark.parametrize("line", REFUSED)
def test_what_no_plain_reader_knows_is_refused_with_its_line(line, capsys):
    Path("x.yaml").write_text(BASE + line + "\n")
    assert main(["check", "--show", "conf=./x.yaml", "--json"]) == 2
    [problem] = json.loads(capsys.readouterr().out)["problems"]
    assert REFUSED[line] in f"{problem['key']}: {problem['rule']}"
    if "cannot be read" not in problem["rule"]:  # of which the reader says no place
        assert problem["place"]["file"].endswith("x.yaml") and problem["place"]["line"] == 2


def test_a_date_is_the_text_that_it_is_written_as(capsys):
    Path("x.yaml").write_text(BASE + "vars: {a: 2001-01-01, b: !!str 3}\n")
    assert main(["check", "--show", "conf=./x.yaml", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["settings"]["vars"] == {"a": "2001-01-01", "b": "3"}


@pytest.mark.parametrize("values", ["range(3),3", "choice(1,2),3", "[sort(1,2)]", "[shuffle(1,2)],3"])
@pytest.mark.parametrize("search", [[], ["--trials", "3"]])
def test_values_inside_of_a_list_are_refused_by_a_sweep(values, search, capsys):
    assert main(["sweep", "conf=digits_mlp", f"seed={values}", *search, "--dry-run"]) == 2
    assert "range(), choice() and interval() must stand around all" in capsys.readouterr().err
