"""No number that passes the schema is beyond what the compiled loop computes with."""

from itertools import product
from typing import get_args

import pytest

from mpt_cli.settings.key import BadValue, read_value
from mpt_cli.settings.schema import all_keys, key_versions

OF_THE_HOST = ("data.max_bytes", "seed")  # never on a device as they are
SCALES = ("initial_scale", "min_scale", "max_scale")


def test_a_whole_number_beyond_what_steps_are_counted_in_is_refused() -> None:
    whole = [key for key in key_versions() if int in (get_args(key.options[0]) if key.is_list else key.options)]
    for key in [key for key in whole if key.path not in OF_THE_HOST]:
        for beyond in (2**30 + 1, "10000000000", 10**400):
            with pytest.raises(BadValue, match=r"must be (each )?(one of|.*<=? )"):
                read_value(key, [beyond] if key.is_list else beyond)


def test_the_largest_whole_number() -> None:
    for path in ("loss_scale.growth_steps", "trainer.log_every_steps", "trainer.max_zero_gradients"):
        assert read_value(all_keys()[path], "2**30") == 2**30
        with pytest.raises(BadValue, match=r"^must be <= 2\*\*30\.$"):
            read_value(all_keys()[path], 2**30 + 1)


def test_what_the_host_alone_uses_may_be_larger() -> None:
    assert read_value(all_keys()["seed"], 2**32 - 1) == 2**32 - 1
    assert read_value(all_keys()["data.max_bytes"], 2**33) == 2**33
    assert read_value(all_keys()["model.kwargs"], {"tokens": 2**40}) == {"tokens": 2**40}


def test_a_scale_or_a_factor_that_no_float32_can_be() -> None:
    for name, value in [*product(SCALES, ("2**-127", "2**130", "1e39")), ("growth_factor", 2.0**128),
                        ("backoff_factor", 2.0**-127)]:  # fmt: skip
        with pytest.raises(BadValue, match=r"2\*\*(-126|127)"):
            read_value(all_keys()[f"loss_scale.{name}"], value)


def test_the_rule_takes_what_the_schema_takes() -> None:
    from mpt_cli.precision import DynamicScale

    extremes = {"initial_scale": 2**127, "growth_steps": 2**30, "growth_factor": 2**127, "backoff_factor": 2.0**-126,
                "min_scale": 2.0**-126, "max_scale": 2**127, "hysteresis": 2**30}  # fmt: skip
    read = {name: read_value(all_keys()[f"loss_scale.{name}"], value) for name, value in extremes.items()}
    assert DynamicScale(**read).initial()["scale"] == 2.0**127
