import math

import numpy as np
import pytest
from strict import loads

from mpt_cli.telemetry.format import strict_json


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (math.nan, '"NaN"'),
        (math.inf, '"Infinity"'),
        (-math.inf, '"-Infinity"'),
        (None, "null"),
        (True, "true"),
        (0, "0"),
        (2.0**-14, "6.103515625e-05"),
        (np.float32("nan"), '"NaN"'),
        (np.float32(0.5), "0.5"),
        (np.int64(7), "7"),
        ([1.0, (math.inf, {"a": math.nan})], '[1.0, ["Infinity", {"a": "NaN"}]]'),
        ("65536 → 32768", '"65536 → 32768"'),
    ],
)
def test_every_value_is_written_so_that_strict_parsers_read_it(value: object, text: str) -> None:
    assert strict_json(value) == text
    loads(text)


def test_what_json_has_no_words_for_is_refused() -> None:
    with pytest.raises(TypeError, match="not JSON serializable"):
        strict_json(object())
