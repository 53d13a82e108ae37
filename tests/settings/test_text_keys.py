"""What takes text gets it as it was written, also where Hydra would read a number or a truth value."""

import pytest

from mpt_cli.settings import load_settings
from mpt_cli.settings.overrides import parse_override


@pytest.mark.slow
@pytest.mark.parametrize("text", ["2024_11_21", "true"])
def test_a_number_or_truth_value_is_the_text_that_was_written(text, own) -> None:
    given = [f"run_dir={text}", f"++resume={text}", f"data.path={text}"]
    settings = load_settings([own, "data=csv", "data.target=y", *given])
    assert (settings.run_dir, settings.resume, settings.data.path) == (text, text, text)


@pytest.mark.slow
def test_null_is_none_and_a_quoted_one_text(own) -> None:
    assert load_settings([own, "run_dir=null"]).run_dir is None
    assert load_settings([own, "run_dir='null'"]).run_dir == "null"


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("requires=[auto,1_0, true]", ["auto", "1_0", "true"]),
        ("run_dir='a,1_0,b'", "a,1_0,b"),
        ("run_dir=${seed}", "${seed}"),
        ("seed=1_0", 10),
        ("trainer.jit_compile=true", True),
        ("trainer.steps_per_execution=1_0", 10),
        ("model.kwargs={a: 1_0}", {"a": 10}),
    ],
)
def test_nothing_else_is_read_otherwise(word, value) -> None:
    assert parse_override(word).value() == value


def test_a_number_in_a_recipe_is_not_made_text(write_recipe, messages) -> None:
    recipe = write_recipe("recipe: own\nrun_dir: 2024_11_21\n")
    assert messages(recipe) == ["run_dir: must be text. Received: 20241121. Put it in quotes."]


def test_a_kind_of_fault_called_like_a_number(own) -> None:
    assert load_settings([own, "fault.kind=nan", "fault.at_steps=[1]"]).fault.kind == "nan"
