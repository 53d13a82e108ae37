import pytest

from mpt_cli.telemetry.console.words import count_words, number_words, scale_words, seconds_words, share_words


@pytest.mark.parametrize(
    ("scale", "words"),
    [
        (65536.0, "65536"),
        (2.0**20, "1048576"),
        (2.0**21, "2^21"),
        (2.0**30, "2^30"),
        (1000.0, "1000"),
        (3.0e7, "3e+07"),
        (1.0, "1"),
        (0.5, "2^-1"),
        (2.0**-14, "2^-14"),
        (0.3, "0.3"),
        (1234.5, "1234.5"),
        (float("inf"), "inf"),
        (0.0, "0"),
        (None, "none"),
    ],
)
def test_a_scale_is_plain_up_to_two_to_the_twenty_and_a_power_beyond(scale: float | None, words: str) -> None:
    assert scale_words(scale) == words


@pytest.mark.parametrize(
    ("value", "words"),
    [(float("nan"), "nan"), (float("-inf"), "-inf"), (-0.5, "-0.5000"), (123456.0, "1.23e+05"), (9.9e-4, "9.90e-04")],
)
def test_numbers_stay_short_whatever_their_size(value: float, words: str) -> None:
    assert number_words(value) == words


def test_a_minute_is_where_seconds_become_a_clock() -> None:
    assert [seconds_words(59.9), seconds_words(60.0), seconds_words(86400.0)] == ["59.9 s", "1:00", "24:00:00"]


def test_small_shares_are_not_rounded_to_none() -> None:
    assert [share_words(1, 100_000), share_words(50, 100), count_words(99.5)] == ["0.001%", "50.0%", "99.5"]
