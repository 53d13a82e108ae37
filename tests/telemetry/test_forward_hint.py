"""A step whose loss was not finite is commented on with what was found: the layer in float32, the data, or neither."""

from dataclasses import replace

import pytest

from mpt_cli.precision import DynamicScale
from mpt_cli.telemetry.console.plain import Narrator
from mpt_cli.telemetry.records import Event, Scaling

FLOAT16, BFLOAT16 = Scaling(DynamicScale(2.0**15, 40), is_needed=True), Scaling(DynamicScale(2.0**15, 40))
UNKNOWN = "look at the data and the learning rate"


@pytest.mark.parametrize(
    ("scaling", "found", "advice"),
    [
        (FLOAT16, {"layer": "cube", "fault": "inf"}, "try policy.overrides={cube: float32} or a lower learning rate"),
        (
            FLOAT16,
            {"layer": "block/cube", "fault": "nan"},
            "try policy.overrides={block/cube: float32} or a lower learning rate",
        ),
        (FLOAT16, {"layer": "data", "fault": "inf"}, "look at the data"),
        (FLOAT16, {}, UNKNOWN),
        (BFLOAT16, {"layer": "cube", "fault": "inf"}, UNKNOWN),
    ],
)
def test_the_comment_follows_what_was_found(header, clock, scaling, found, advice):
    narrator = Narrator(5.0, clock)
    narrator.start(replace(header, scaling=scaling))
    narrator.add([Event(5, 1, "overflow", 65536.0, 32768.0, inf=1, cause="forward", **found)])
    assert narrator.sentences()[0].endswith(
        f": the loss itself was not finite, which is not the scale's fault; {advice}; 1 of 5 steps so far"
    )
