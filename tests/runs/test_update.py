"""The figures that `mpt reproduce --update` writes, and what it leaves as it is."""

from typing import Any

import pytest
import yaml

from mpt_cli.runs.expectations import ExpectationCheck, new_figures, updated_text
from mpt_cli.settings.recipe_edit import format_yaml_value


def test_bounds_are_rounded_outwards() -> None:
    expect = {"a": {"min": 1.0, "max": 2.0}, "b": {"value": 5.0, "tolerance": 0.1}, "c": {"max": 10}}
    missed = [
        ExpectationCheck("a", "", 0.123456, False),
        ExpectationCheck("b", "", 7.123456, False),
        ExpectationCheck("c", "", 12, False),
    ]
    assert new_figures(expect, missed) == {("a", "min"): 0.1234, ("b", "value"): 7.123456, ("c", "max"): 12}
    assert new_figures({"a": {"max": 1e4}}, [ExpectationCheck("a", "", 123456.0, False)]) == {("a", "max"): 123500.0}


def test_new_figures_keep_comments_order_and_style() -> None:
    text = "expect:\n  loss: {value: 1.0, tolerance: 0.1}  # why\n  x:  7 # y\nseed: 3\n"
    updated = updated_text(text, {("loss", "value"): 2.5, ("x",): 8})
    assert updated == "expect:\n  loss: {value: 2.5, tolerance: 0.1}  # why\n  x:  8 # y\nseed: 3\n"


def test_a_new_figure_of_many_words_is_written_whole() -> None:
    got = "loss went up " * 9 + "twice"  # 122 characters
    assert updated_text("expect:\n  verdict: fine\n", {("verdict",): got}) == f"expect:\n  verdict: {got}\n"


@pytest.mark.parametrize("value", ["two\nlines", "ends\n", "\n", "a\rb", "a\x85b", "a\u2028b", ["two\nlines", 1e-3],
                                   {"two\nlines": "b\nc"}])
def test_a_value_with_line_breaks_is_written_whole_and_on_one_line(value: Any) -> None:
    written = format_yaml_value(value)
    assert len(written.splitlines()) == 1 and yaml.safe_load(written) == value
