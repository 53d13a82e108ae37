import math

import numpy as np
import pytest
from strict import loads

from mpt_cli.files import strict_json


def test_every_value_is_written_so_that_strict_parsers_read_it() -> None:
    value = [
        math.nan,
        (-math.inf, {"a": math.inf}),
        None,
        True,
        0,
        2.0**-14,
        np.float32("nan"),
        np.float32(0.5),
        np.int64(7),
        "65536 → 32768",
    ]
    text = strict_json(value)
    assert text == (
        '["NaN", ["-Infinity", {"a": "Infinity"}], null, true, 0, 6.103515625e-05, "NaN", 0.5, 7, "65536 → 32768"]'
    )
    loads(text)
    with pytest.raises(TypeError, match="not JSON serializable"):
        strict_json(object())
