from dataclasses import replace

import pytest

from mpt_cli.precision import DynamicScale, FixedScale, LogMaxScale
from mpt_cli.telemetry.console.plain import Narrator
from mpt_cli.telemetry.record_types import Event, Scaling


def _skips(first: int, last: int, scale: float, backoff: float = 0.5, **more) -> list[Event]:
    return [
        Event(step, 1, "overflow", scale * backoff**index, scale * backoff ** (index + 1), **more)
        for index, step in enumerate(range(first, last + 1))
    ]


DYNAMIC, FIXED, LOGMAX = Scaling(DynamicScale(2.0**15, 40)), Scaling(FixedScale(1024.0)), Scaling(LogMaxScale(1024.0))
LOWEST = 2.0**-14


def _growths(*steps: int) -> list[Event]:
    return [Event(step, 1, "growth", 2.0**power, 2.0 ** (power + 1)) for power, step in enumerate(steps)]


def _stays(**more) -> list[Event]:
    return _skips(7, 7, 1024.0, backoff=1.0, inf=1, **more)


TOLD = [
    (
        DYNAMIC,
        _skips(12, 12, 65536.0, inf=3, variable="conv1/kernel"),
        "step 12: gradients overflowed (inf in conv1/kernel), step skipped, scale 65536 → 32768: normal while the "
        "scale settles; 1 of 12 steps so far",
    ),
    (
        DYNAMIC,
        _skips(20, 31, 2.0**30, inf=3, variable="conv1/kernel"),
        "steps 20-31: 12 skipped (inf in conv1/kernel), scale 1073741824 → 262144: normal while the scale settles; 12 of "
        "31 steps so far",
    ),
    (
        FIXED,
        _stays(nan=2, variable="head/bias"),
        "step 7: gradients overflowed (inf and nan in head/bias), step skipped, scale stays 1024; 1 of 7 steps so far",
    ),
    (
        DYNAMIC,
        [*_growths(40), *_skips(41, 41, 2.0)],
        "steps 40-41: 1 skipped, 1 growth, scale back at 1; 1 of 41 steps so far",
    ),
    (DYNAMIC, _growths(40), "step 40: 40 applied steps without overflow, scale 1 → 2"),
    (DYNAMIC, _growths(40, 80, 120), "steps 40-120: 3 growths, scale 1 → 8"),
    (
        DYNAMIC,
        _skips(5, 5, 65536.0, nan=1, cause="forward"),
        "step 5: nan in the forward pass, step skipped, scale 65536 → 32768: the loss itself was not finite, which is "
        "not the scale's fault; 1 of 5 steps so far",
    ),
    (
        FIXED,
        _skips(4, 4, 8.0, nan=9, layer="net/block_3", fault="inf", cause="forward"),
        "step 4: inf in the forward pass, first in net/block_3, step skipped, scale 8 → 4: the loss itself was not "
        "finite, which is not the scale's fault; 1 of 4 steps so far",
    ),
    (
        replace(FIXED, on_overflow="apply"),
        _stays(),
        "step 7: gradients overflowed (inf), step applied all the same, scale stays 1024; 1 of 7 steps so far",
    ),
    (Scaling(), _stays(), "step 7: gradients overflowed (inf), step applied all the same; 1 of 7 steps so far"),
    (
        LOGMAX,
        [Event(7, 1, "growth", 1024.0, 2048.0), Event(9, 1, "decline", 2048.0, 512.0)],
        "steps 7-9: the scale follows the gradients, scale 1024 → 512",
    ),
    (
        LOGMAX,
        _skips(90, 90, LOWEST, backoff=1.0, nan=1),
        "step 90: gradients overflowed (nan), step skipped, scale stays 2^-14; 1 of 90 steps so far",
    ),
    (
        LOGMAX,
        _skips(90, 90, LOWEST, backoff=1.0, inf=1),
        "step 90: gradients overflowed (inf), step skipped, scale stays 2^-14; 1 of 90 steps so far",
    ),
    (
        LOGMAX,
        _skips(90, 90, 2 * LOWEST, nan=1),
        "step 90: gradients overflowed (nan), step skipped, scale 2^-13 → 2^-14; 1 of 90 steps so far",
    ),
]


@pytest.fixture
def begun(header, clock):
    """A narrator of a run that began with this scaling."""

    def narrator(scaling: Scaling = DYNAMIC, wait_seconds: float = 5.0) -> Narrator:
        found = Narrator(wait_seconds, clock)
        found.start(replace(header, scaling=scaling))
        return found

    return narrator


def test_what_happened_in_plain_words(begun) -> None:
    for scaling, events, sentence in TOLD:
        narrator = begun(scaling)
        narrator.add(events)
        assert narrator.sentences() == [sentence]


def test_frequent_overflows_are_gathered_and_the_wait_doubles_up_to_a_minute(begun, clock) -> None:
    narrator, told = begun(), {}
    for second in range(300):
        clock.now = second
        narrator.add(_skips(second + 1, second + 1, 4.0))
        for sentence in narrator.sentences():
            told[second] = sentence
    assert [*told] == [0, 10, 30, 70, 130, 190, 250] and told[10].startswith("steps 2-11: 10 skipped")


def test_a_resumed_run_goes_on_counting(header) -> None:
    narrator = Narrator(5.0)
    narrator.start(replace(header, scaling=DYNAMIC, skipped_steps=3))
    for skips, count in ((_skips(41, 41, 8.0), "4 of 41"), (_skips(42, 43, 8.0), "6 of 43")):
        narrator.add(skips)
        assert narrator.sentences(at_once=True)[0].endswith(f"{count} steps so far")


def test_nan_without_inf_is_not_called_normal(begun):
    """At 65536 and 32768 steps had been applied before: lowering the scale cures nothing."""
    narrator, told = begun(), []
    for step, scale in ((10, 65536.0), (20, 32768.0), (30, 16384.0)):
        narrator.add(_skips(step, step, scale, nan=4, variable="a/kernel", layer="a", fault="nan", cause="backward"))
        told += narrator.sentences(at_once=True)
    assert not any("normal" in line for line in told) and "(nan in a/kernel)" in told[2]
