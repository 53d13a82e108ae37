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
