"""Every way of writing a number, and what is none."""

import pytest

from mpt_cli.settings.key_type import read_number


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("2**15", 32768),
        (" 2 ** 15 ", 32768),
        ("1e-3", 0.001),
        ("2**-10", 0.0009765625),
        ("-2**2", -4),
        ("1.5**2", 2.25),
        ("1e3", 1000.0),
        ("0**0", 1),
    ],
)
def test_a_number_is_read(text, number):
    read = read_number(text)
    assert read == number
    assert type(read) is type(number)


@pytest.mark.parametrize("text", ["", "high", "2**", "**2", "2**2**2", "2**99999", "0**-1", "1e300**3", "2**0.5"])
def test_a_text_is_no_number(text):
    assert read_number(text) is None
