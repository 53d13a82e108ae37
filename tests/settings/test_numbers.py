"""Every way of writing a number, and what is none."""

import pytest

from mpt_cli.settings.key import read_number
from mpt_cli.settings.load import load_settings


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("32768", 32768),
        ("2**15", 32768),
        (" 2 ** 15 ", 32768),
        ("3.3e4", 33000.0),
        ("1e-3", 0.001),
        ("2**-10", 0.0009765625),
        ("-2**2", -4),
        ("1.5**2", 2.25),
        ("+7", 7),
        ("1e3", 1000.0),
        ("0**0", 1),
    ],
)
def test_a_number_is_read(text: str, number: float) -> None:
    read = read_number(text)
    assert read == number
    assert type(read) is type(number)


@pytest.mark.parametrize(
    "text", ["", "high", "2**", "**2", "2**2**2", "2**99999", "0**-1", "1e300**3", "2^3", "2**0.5"]
)
def test_a_text_is_no_number(text: str) -> None:
    assert read_number(text) is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("written", "value"),
    [("3.3e4", 33000.0), ("'2**3'", 8.0)],
)
def test_every_form_is_a_scale_on_the_command_line_and_in_a_recipe(written, value, write_recipe) -> None:
    in_recipe = load_settings([write_recipe(f"loss_scale: {{initial_scale: {written}}}\n")])
    in_words = load_settings([write_recipe("recipe: own\n"), f"loss_scale.initial_scale={written}"])
    assert in_recipe.loss_scale.initial_scale == in_words.loss_scale.initial_scale == value
    assert type(in_words.loss_scale.initial_scale) is float


@pytest.mark.parametrize(("written", "value"), [("2**10", 1024), ("1e3", 1000)])
def test_a_whole_value_is_fit_for_a_whole_key(written, value, own) -> None:
    settings = load_settings([own, f"loss_scale.growth_steps={written}", f"model.filters=[{written},2]"])
    assert settings.loss_scale.growth_steps == value and type(settings.loss_scale.growth_steps) is int
    assert settings.model.filters == [value, 2]


@pytest.mark.parametrize("word", ["true", "2**-1", "[1]"])
def test_no_whole_number(word, own, messages) -> None:
    (message,) = messages(own, f"loss_scale.growth_steps={word}")
    assert message.startswith("loss_scale.growth_steps: must be a whole number. Received: ")


def test_true_is_no_number(own, messages) -> None:
    assert messages(own, "loss_scale.initial_scale=true") == [
        "loss_scale.initial_scale: must be a number. Received: True."
    ]


def test_only_finite_numbers_are_within_a_range(own, messages) -> None:
    (message,) = messages(own, "loss_scale.initial_scale=nan")
    assert message == "loss_scale.initial_scale: must be a finite number. Received: nan."
