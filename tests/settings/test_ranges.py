"""No number that passes the schema is beyond what the compiled loop computes with."""

import pytest

from mpt_cli.settings.key_type import BadValue, read_value
from mpt_cli.settings.schema import all_keys


def test_what_the_host_alone_uses_may_be_larger_and_a_number_is_finite_and_no_truth_value():
    keys = all_keys()
    assert read_value(keys["seed"], 2**32 - 1) == 2**32 - 1
    assert read_value(keys["model.kwargs"], {"tokens": 2**40}) == {"tokens": 2**40}
    assert read_value(keys["loss_scale.growth_steps"], "1e3") == 1000
    for path, value, rule in (
        ("loss_scale.growth_steps", "2**-1", "must be a whole number."),
        ("loss_scale.initial_scale", True, "must be a number."),
        ("loss_scale.initial_scale", "nan", "must be a finite number."),
        ("run_dir", 20241121, "must be text."),
    ):
        with pytest.raises(BadValue) as caught:
            read_value(keys[path], value)
        assert caught.value.rule == rule


def test_the_rule_takes_what_the_schema_takes():
    from mpt_cli.precision import DynamicScale

    extremes = {
        "initial_scale": 2**127,
        "growth_steps": 2**30,
        "growth_factor": 2**127,
        "backoff_factor": 2.0**-126,
        "min_scale": 2.0**-126,
        "max_scale": 2**127,
        "hysteresis": 2**30,
    }
    read = {name: read_value(all_keys()[f"loss_scale.{name}"], value) for name, value in extremes.items()}
    assert DynamicScale(**read).initial()["scale"] == 2.0**127
