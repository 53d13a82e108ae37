import pytest

from mpt_cli.telemetry.format import format_count, format_number, format_scale, format_seconds, format_share


@pytest.mark.parametrize(
    ("scale", "words"),
    [
        (65536.0, "65536"),
        (2.0**20, "1048576"),
        (2.0**21, "2^21"),
        (3.0e7, "3e+07"),
        (0.5, "2^-1"),
        (2.0**-14, "2^-14"),
        (1234.5, "1234.5"),
        (float("inf"), "inf"),
        (0.0, "0"),
        (None, "none"),
    ],
)
def test_a_scale_is_plain_up_to_two_to_the_twenty_and_a_power_beyond(scale: float | None, words: str) -> None:
    assert format_scale(scale) == words


@pytest.mark.parametrize(
    ("value", "words"),
    [(float("nan"), "nan"), (float("-inf"), "-inf"), (-0.5, "-0.5000"), (123456.0, "1.23e+05"), (9.9e-4, "9.90e-04")],
)
def test_numbers_stay_short_whatever_their_size(value: float, words: str) -> None:
    assert format_number(value) == words


def test_a_minute_is_where_seconds_become_a_clock() -> None:
    assert [format_seconds(59.9), format_seconds(60.0), format_seconds(86400.0)] == ["59.9 s", "1:00", "24:00:00"]


def test_small_shares_are_not_rounded_to_none() -> None:
    assert [format_share(1, 100_000), format_share(50, 100), format_count(99.5)] == ["0.001%", "50.0%", "99.5"]
