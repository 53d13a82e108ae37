"""config.yaml: what resolved_yaml writes loads back to equal settings."""

from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, example, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from mpt_cli.errors import ConfigError
from mpt_cli.settings.load import load_settings, resolved_yaml
from mpt_cli.settings.model_data_optimizer_keys import Builder, Schedule
from mpt_cli.settings.schema import Settings

_CHARACTERS = st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"])
_MUST_BE_GIVEN = "???"  # OmegaConf's mark, no text
_TEXT = st.text(_CHARACTERS, min_size=1, max_size=12).filter(lambda text: text != _MUST_BE_GIVEN)


def _reloaded(settings):
    Path("config.yaml").write_text(resolved_yaml(settings), encoding="utf-8")
    return load_settings(["conf=./config.yaml"])


@pytest.mark.slow
def test_settings_of_every_type_come_back(own):
    settings = load_settings(
        [
            own,
            "policy=mixed_float16",
            "policy.head=null",
            "policy.overrides={conv*: float32}",
            "optimizer=muon",
            "optimizer.schedule.object=piecewise_constant_decay",
            "optimizer.schedule.kwargs={boundaries: [1], values: [1, 1e-7]}",
            "data.loader=a.py:f",
            "data.kwargs={a: [1, {b: null}], c: 1e-9, d: '2**3'}",
            "run_dir='on'",
            "resume='1e3'",
            "trainer.jit_compile=true",
            "trainer.steps_per_execution=3",
            "seed=null",
            "loss_scale.min_scale=2**-100",
            r"description='\${seed}'",
            "recipe=2024_11_21",
        ]
    )
    assert (settings.description, settings.recipe, settings.run_dir) == ("${seed}", "2024_11_21", "on")
    assert _reloaded(settings) == settings


@pytest.mark.slow
@hypothesis_settings(max_examples=2, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts=st.lists(_TEXT, max_size=30), numbers=st.lists(st.floats(0, 1e300), max_size=30), name=_TEXT)
@example(texts=["\\\\${a}", "\\${", "${a", "$\\{", "\\", "\\\\n"], numbers=[], name="\\${")
def test_any_text_and_number_comes_back(texts, numbers, name, write_recipe):
    settings = Settings(recipe="x", description=name)  # lists, since a load costs a tenth of a second
    settings.model = Builder(builder="a:b", kwargs={"texts": texts, "numbers": numbers, name: name})
    settings.optimizer.schedule = Schedule(object="a:b", kwargs={"values": numbers})
    assert _reloaded(settings) == settings


def test_a_record_may_hold_keys_that_are_gone_and_were_not_set(tmp_path):
    record = yaml.safe_load(resolved_yaml(load_settings(["conf=digits_mlp"])))
    record["phases"], record["distribute"]["mesh"], record["optimizer"]["schedule"]["decay_rate"] = [], {}, None
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(record))
    assert load_settings([f"conf={path}"]) == load_settings(["conf=digits_mlp"])
    path.write_text(yaml.safe_dump({**record, "phases": [{"epochs": 2}]}))
    with pytest.raises(ConfigError, match="phases: there is no such key"):
        load_settings([f"conf={path}"])
