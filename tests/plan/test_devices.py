"""GPUs as they are described, and what is said of a request that can't be planned."""

import json

import pytest
from backends import only_on

from mpt_cli.cli import main
from mpt_cli.errors import ConfigError
from mpt_cli.plan import device as module
from mpt_cli.plan.compiled_program import plan_problems
from mpt_cli.plan.device import FOLDER, Device, check_compiler, device_names, load_device
from mpt_cli.plan.plan import plan
from mpt_cli.settings.load import load_settings


def test_every_shipped_device_has_a_source_and_is_whole():
    for name in device_names():
        first = (FOLDER / f"{name}.yaml").read_text().splitlines()[0]
        device = load_device(name)
        assert first.startswith("# ") and "Source:" in first and isinstance(device, Device)
        assert f"core_count: {device.multiprocessors}" in device.target_config()
    assert load_device("h100").usable_bytes == 60 * 2**30  # the share of memory that JAX takes


def test_an_unknown_device_is_answered_with_those_there_are():
    with pytest.raises(ConfigError, match=r"must be one of a100, .*v100. Received: 'h10'. Did you mean h100\?"):
        load_device("h10")


@pytest.mark.slow
@only_on("tensorflow")
def test_all_that_keeps_a_run_from_being_planned_is_said_at_once():
    settings = load_settings(["conf=digits_mlp", "trainer.jit_compile=false", "trainer.batch_size=60"])
    assert [str(problem) for problem in plan_problems(settings, 8)] == [
        "backend.name: TensorFlow compiles for a GPU only where one is; JAX does so anywhere. Received: 'tensorflow'. "
        "Use backend=jax, which trains the same recipe.",
        "trainer.jit_compile: must be auto or true: what is planned is the compiled program. Received: False.",
        "trainer.batch_size: must be a multiple of the 8 devices it is split over. Received: 60. For example 64.",
    ]
    (problem,) = plan_problems(load_settings(["conf=digits_mlp", "backend=jax"]), 0)
    assert str(problem) == "--devices: must be at least 1. Received: 0."


def test_words_are_those_of_a_grid_and_tensorflow_is_refused_where_it_was_asked_for():
    with pytest.raises(ConfigError, match=r"policy: must agree with policy=float32. Received: 'mixed_float16'"):
        plan(["conf=digits_mlp", "policy=float32", "policy=mixed_float16"], "h100")
    with pytest.raises(ConfigError, match=r"TensorFlow compiles for a GPU only where one is"):
        plan(["conf=digits_mlp", "backend=tensorflow"], "h100")


def test_the_compiler_is_an_extra(monkeypatch):
    monkeypatch.setattr(module, "PLUGINS", ("no_such_plugin",))
    with pytest.raises(
        ConfigError,
        match=r"the compiler for NVIDIA's GPUs is not installed; it needs no GPU. pip "
        r"install 'mpt-cli\[gpu-plan\]'",
    ):
        check_compiler()


def test_the_verb_needs_a_device(capsys):
    assert main(["plan", "conf=digits_mlp"]) == 2
    assert "--device: must be one of a100, a6000, b200, h100, h200, v100" in capsys.readouterr().err
    assert main(["plan", "conf=digits_mlp", "--device", "h1000", "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["problems"][0]["key"] == "--device"
