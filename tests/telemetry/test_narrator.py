from dataclasses import replace

import pytest

from mpt_cli.precision import DynamicScale, FixedScale, LogMaxScale
from mpt_cli.telemetry.console.plain import Narrator
from mpt_cli.telemetry.records import Event, Scaling


def _skips(first: int, last: int, scale: float, backoff: float = 0.5, **more) -> list[Event]:
    return [
        Event(step, 1, "overflow", scale * backoff**index, scale * backoff ** (index + 1), **more)
        for index, step in enumerate(range(first, last + 1))
    ]


INF = {"inf": 3, "variable": "conv1/kernel"}
DYNAMIC = Scaling(DynamicScale(2.0**15, 40))
FIXED = Scaling(FixedScale(1024.0))
SENTENCES = [
    (
        "a single skip",
        DYNAMIC,
        _skips(12, 12, 65536.0, **INF),
        "step 12: gradients overflowed (inf in conv1/kernel), step skipped, scale 65536 → 32768: normal while the "
        "scale settles; 1 of 12 steps so far",
    ),
    (
        "many skips",
        DYNAMIC,
        _skips(20, 31, 2.0**30, **INF),
        "steps 20-31: 12 skipped (inf in conv1/kernel), scale 2^30 → 262144: normal while the scale settles; 12 of "
        "31 steps so far",
    ),
    (
        "the fixed scale stays",
        FIXED,
        _skips(7, 7, 1024.0, backoff=1.0, inf=1, nan=2, variable="head/bias"),
        "step 7: gradients overflowed (inf and nan in head/bias), step skipped, scale stays 1024; 1 of 7 steps so far",
    ),
    (
        "a skip after a growth",
        DYNAMIC,
        [Event(40, 1, "growth", 32768.0, 65536.0), *_skips(41, 41, 65536.0)],
        "steps 40-41: 1 skipped, 1 growth, scale back at 32768: normal, the scale had grown as far as it can; 1 of 41 "
        "steps so far",
    ),
    (
        "a growth",
        DYNAMIC,
        [Event(40, 1, "growth", 32768.0, 65536.0)],
        "step 40: 40 applied steps without overflow, scale 32768 → 65536",
    ),
    (
        "growths",
        DYNAMIC,
        [Event(step, 1, "growth", 2.0**index, 2.0 ** (index + 1)) for index, step in enumerate((40, 80, 120))],
        "steps 40-120: 3 growths, scale 1 → 8",
    ),
    (
        "nan in the loss",
        DYNAMIC,
        _skips(5, 5, 65536.0, nan=1, cause="forward"),
        "step 5: nan in the forward pass, step skipped, scale 65536 → 32768: the loss itself was not finite, which no "
        "scale causes; look at the data and the learning rate; 1 of 5 steps so far",
    ),
    (
        "an overflow that is applied",
        replace(FIXED, on_overflow="apply"),
        _skips(7, 7, 1024.0, backoff=1.0, inf=1),
        "step 7: gradients overflowed (inf), step applied all the same, scale stays 1024; 1 of 7 steps so far",
    ),
    (
        "an overflow that ends the run",
        replace(FIXED, on_overflow="abort"),
        _skips(7, 7, 1024.0, backoff=1.0, inf=1),
        "step 7: gradients overflowed (inf), step skipped, scale stays 1024; 1 of 7 steps so far",
    ),
    (
        "an overflow without scaling",
        Scaling(),
        _skips(7, 7, 1.0, backoff=1.0, inf=1),
        "step 7: gradients overflowed (inf), step applied all the same; 1 of 7 steps so far",
    ),
    (
        "a scale that follows the gradients",
        Scaling(LogMaxScale(1024.0)),
        [Event(7, 1, "growth", 1024.0, 2048.0), Event(9, 1, "decline", 2048.0, 512.0)],
        "steps 7-9: the scale follows the gradients, scale 1024 → 512",
    ),
]


@pytest.mark.parametrize(
    ("scaling", "events", "sentence"), [row[1:] for row in SENTENCES], ids=[row[0] for row in SENTENCES]
)
def test_what_happened_in_plain_words(header, clock, scaling: Scaling, events: list[Event], sentence: str) -> None:
    narrator = Narrator(5.0, clock)
    narrator.start(replace(header, scaling=scaling))
    narrator.add(events)
    assert narrator.sentences() == [sentence]


@pytest.mark.parametrize(("event", "blamed"), [
    (Event(90, 1, "overflow", 2.0**-14, 2.0**-14, nan=1), True),
    (Event(90, 1, "overflow", 2.0**-14, 2.0**-14, inf=1), False),
    (Event(90, 1, "overflow", 2.0**-13, 2.0**-14, nan=1), False),
])  # fmt: skip
def test_the_scale_is_acquitted_by_nan_at_the_floor_alone(header, clock, event: Event, blamed: bool) -> None:
    narrator = Narrator(5.0, clock)
    narrator.start(replace(header, scaling=Scaling(LogMaxScale())))
    narrator.add([event])
    assert ("nan even at the lowest scale" in narrator.sentences()[0]) == blamed


@pytest.mark.parametrize(("first", "last", "frequent"), [(202, 203, False), (201, 203, True), (198, 200, False)])
def test_from_the_third_late_skip_on_overflows_are_not_called_normal(header, clock, first, last, frequent) -> None:
    narrator = Narrator(0.0, clock)
    narrator.start(replace(header, scaling=DYNAMIC))
    narrator.add([Event(190, 1, "growth", 4.0, 8.0)])
    narrator.sentences()
    narrator.add(_skips(first, last, 8.0))
    assert ("more often than normal" in narrator.sentences(at_once=True)[0]) == frequent


def test_the_floor_is_told_once_and_so_is_the_ceiling(header, clock) -> None:
    narrator = Narrator(5.0, clock)
    narrator.start(header)
    floor = [Event(step, 1, "floor", 2.0**-14, 2.0**-14) for step in (30, 31)]
    narrator.add(floor)
    assert narrator.sentences() == ["step 30: the scale is at its floor, 2^-14, and falls no further"]
    narrator.add(floor)
    assert narrator.sentences(at_once=True) == []
    narrator.add([Event(40, 1, "ceiling", 2.0**32, 2.0**32)])
    assert narrator.sentences(at_once=True) == ["step 40: the scale is at its ceiling, 2^32, and grows no further"]


def test_frequent_overflows_are_gathered_and_the_wait_doubles_up_to_a_minute(header, clock) -> None:
    narrator = Narrator(5.0, clock)
    narrator.start(header)
    told_at = []
    for second in range(300):
        clock.now = second
        narrator.add(_skips(second + 1, second + 1, 4.0))
        told_at += [second] * len(narrator.sentences())
    assert told_at == [0, 10, 30, 70, 130, 190, 250]


def test_nothing_is_lost_by_waiting(header, clock) -> None:
    narrator = Narrator(5.0, clock)
    narrator.start(header)
    narrator.add(_skips(1, 1, 8.0))
    narrator.sentences()
    narrator.add(_skips(2, 3, 4.0))
    assert narrator.sentences() == []
    assert narrator.sentences(at_once=True)[0].startswith("steps 2-3: 2 skipped, scale 4 → 1")


def test_a_resumed_run_goes_on_counting_from_the_trainers_count(header, clock, snapshot) -> None:
    narrator = Narrator(5.0, clock)
    narrator.start(header)
    narrator.recount(snapshot)
    narrator.add(_skips(41, 41, 8.0))
    assert narrator.sentences()[0].endswith("4 of 41 steps so far")


def test_a_nan_that_comes_a_third_time_is_no_warm_up():
    """At 65536 and 32768 steps had been applied before: lowering the scale cures nothing."""
    narrator = Narrator(0.0)
    narrator._scaling = DYNAMIC
    told = []
    for step, scale in ((10, 65536.0), (20, 32768.0), (30, 16384.0)):
        narrator.add(_skips(step, step, scale, nan=4, variable="a/kernel", layer="a", fault="nan", cause="backward"))
        told += narrator.sentences(at_once=True)
    assert [": normal while the scale settles" in line for line in told] == [True, True, False]
    assert "nan without inf for the third time, which the scale does not explain: a bug of the model or data" in (
        told[2])  # fmt: skip


def test_a_forward_pass_that_went_wrong_names_its_layer():
    narrator = Narrator(0.0)
    narrator.add(_skips(4, 4, 8.0, nan=9, layer="net/block_3", fault="inf", cause="forward"))
    assert "step 4: inf in the forward pass, first in net/block_3, step" in narrator.sentences(at_once=True)[0]
