from dataclasses import replace

import pytest

from mpt_cli.precision import DynamicScale, FixedScale, LogMaxScale
from mpt_cli.telemetry.console.plain import PlainConsole
from mpt_cli.telemetry.record_types import Event, Scaling


def _skips(first: int, last: int, scale: float, backoff: float = 0.5, **more):
    return [
        Event(step, 1, "overflow", scale * backoff**index, scale * backoff ** (index + 1), **more)
        for index, step in enumerate(range(first, last + 1))
    ]


DYNAMIC, FIXED, LOGMAX = Scaling(DynamicScale(2.0**15, 40)), Scaling(FixedScale(1024.0)), Scaling(LogMaxScale(1024.0))


def _growths(*steps: int):
    return [Event(step, 1, "growth", 2.0**power, 2.0 ** (power + 1)) for power, step in enumerate(steps)]


def _stays(**more):
    return _skips(7, 7, 1024.0, backoff=1.0, inf=1, **more)


TOLD = [
    (
        DYNAMIC,
        _skips(12, 12, 65536.0, inf=3, variable="conv1/kernel"),
        "step 12: 1 skipped (inf in conv1/kernel), scale 2**16 → 2**15",
    ),
    (
        DYNAMIC,
        _skips(20, 31, 2.0**30, inf=3, variable="conv1/kernel"),
        "steps 20-31: 12 skipped (inf in conv1/kernel), scale 2**30 → 2**18",
    ),
    (
        FIXED,
        _stays(nan=2, variable="head/bias"),
        "step 7: 1 skipped (inf and nan in head/bias), scale 2**10 → 2**10",
    ),
    (
        DYNAMIC,
        [*_growths(40), *_skips(41, 41, 2.0, inf=1)],
        "steps 40-41: 1 skipped (inf), scale 1 → 1",
    ),
    (DYNAMIC, _growths(40, 80, 120), "steps 40-120: scale 1 → 8"),
    (
        FIXED,
        _skips(4, 4, 8.0, nan=9, layer="net/block_3", fault="inf", cause="forward"),
        "step 4: 1 skipped (inf in the forward pass, first in net/block_3), scale 8 → 4",
    ),
    (Scaling(), _stays(), "step 7: 1 overflowed, applied all the same (inf)"),
    (
        LOGMAX,
        [Event(7, 1, "growth", 1024.0, 2048.0), Event(9, 1, "decline", 2048.0, 512.0)],
        "steps 7-9: scale 2**10 → 2**9",
    ),
]


@pytest.fixture
def begun(header, clock):
    """The lines of a console whose run began with this scaling, and the console."""

    def console(scaling: Scaling = DYNAMIC, **more):
        lines: list[str] = []
        found = PlainConsole(lambda line: lines.append(line.strip()), clock)
        found.start(replace(header, scaling=scaling, **more))
        lines.clear()
        return lines, found

    return console


def test_what_happened_in_plain_words(begun):
    for scaling, events, sentence in TOLD:
        lines, console = begun(scaling)
        console.events(events)
        assert lines == [sentence]


def test_frequent_overflows_are_gathered_the_first_is_told_at_once(begun, clock):
    (lines, console), start = begun(), clock.now
    for second in range(20):
        clock.now = start + second
        console.events(_skips(second + 1, second + 1, 4.0))
    assert [line.partition(":")[0] for line in lines] == ["step 1", "steps 2-6", "steps 7-11", "steps 12-16"]
