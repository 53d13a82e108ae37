"""The figures that `mpt reproduce --update` writes, and what it leaves as it is."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from stub_runs import RECIPE, SUMMARY

from mpt_cli.cli import main
from mpt_cli.errors import DataError
from mpt_cli.runs.expectations import first_figures, new_figures
from mpt_cli.settings.recipe_edit import format_yaml_value


def test_bounds_leave_a_margin_that_comes_from_the_seeds() -> None:
    expect = {"a": {"min": 1.0, "max": 2.0}, "b": {"value": 5.0, "tolerance": 0.1}, "c": {"max": 10}, "d": 7, "e": 0.5}
    reached = {"a": [0.1, 0.12, 0.14], "b": [7.0, 7.2, 7.4], "c": [12, 14, 13], "d": [8, 8, 8], "e": [0.25, 0.25, 0.25]}
    # three deviations of 0.02, 0.2 and 1; counters that are equal are exact; half a percent where seeds agree
    assert new_figures(expect, reached) == {
        ("a", "min"): 0.06,
        ("b", "tolerance"): 0.6,
        ("b", "value"): pytest.approx(7.2),
        ("c", "max"): 16,
        ("d",): 8,
        ("e",): {"value": 0.25, "atol": 0.00125},
    }


def test_a_value_that_seeds_do_not_agree_on_is_not_written() -> None:
    with pytest.raises(DataError, match=r"its seeds came to healthy, stalled, which no one value stands for"):
        new_figures({"verdict": "fine"}, {"verdict": ["healthy", "stalled"]})


def test_a_first_block_has_bounds_on_the_side_that_matters() -> None:
    seeds = [
        {"metrics": {"loss": 0.1, "val_loss": loss, "val_accuracy": 0.96}, "steps_seen": 5, "skipped_steps": 1}
        for loss in (0.2, 0.3, 0.4)
    ]
    found = first_figures(seeds)
    assert found == {
        ("val_loss", "max"): 0.6,
        ("val_accuracy", "min"): 0.9552,
        ("steps_seen",): 5,
        ("skipped_steps", "max"): 1,
    }


def test_update_leaves_an_expectation_that_came_to_nan_and_says_so(outcome, tmp_path, monkeypatch, capsys) -> None:
    """What came to a number is written all the same."""
    monkeypatch.chdir(tmp_path)
    (mine := Path("mine.yaml")).write_text(RECIPE)
    outcome["summary"] = {**SUMMARY, "metrics": {"val_accuracy": 0.5, "val_loss": "NaN"}}
    assert main(["reproduce", "./mine.yaml", "--update"]) == 5
    assert mine.read_text() == RECIPE.replace("0.97}  #", "0.4975} #")
    assert "expect.val_loss.max is not written: it would be nan, which nothing meets" in capsys.readouterr().err


@pytest.mark.parametrize(
    "value", ["ends\n", "a\rb", "a\u2028b", ["two\nlines", 1e-3], "loss went up " * 10, {"two\nlines": "b\nc"}]
)
def test_a_value_with_line_breaks_is_written_whole_and_on_one_line(value: Any) -> None:
    written = format_yaml_value(value)
    assert len(written.splitlines()) == 1 and yaml.safe_load(written) == value
