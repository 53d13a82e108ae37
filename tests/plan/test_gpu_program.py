"""What the programs of runs hold on GPUs that are not here: which dtypes are multiplied, what goes between devices.
`make test-gpu-program` has the compiler for it."""

import importlib.util

import pytest
from backends import only_on

from mpt_cli.plan.device import PLUGINS
from mpt_cli.plan.plan import plan

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(
        not any(map(importlib.util.find_spec, PLUGINS)),
        reason="the compiler for NVIDIA's GPUs (extra gpu-plan) is not installed",
    ),
    only_on("jax"),
]
GPT = [
    "conf=gpt2_small_synthetic",
    "seed=0",
    "data.examples=64",
    "optimizer.schedule.warmup_steps=1",
    "trainer.batch_size=8",
]


def plans_of(*words: str, device: str = "h100", devices: int = 1):
    return plan(words, device, devices)


@pytest.fixture(scope="module")
def gpt():
    return plans_of(*GPT)[0]


def test_gpt2_multiplies_in_float16_but_for_its_head(gpt):
    assert {*gpt.products_by_dtype} == {"float16", "tf32"}
    assert [(each.layer, each.dtype) for each in gpt.wide_products] == [("head", "tf32")]


def test_gpt2_fits_an_h100_with_less_memory_than_in_float32(gpt):
    (float32,) = plans_of(*GPT, "policy=float32")
    assert gpt.fits and float32.fits and gpt.memory.peak < float32.memory.peak
    assert {*float32.products_by_dtype} == {"tf32"} and float32.wide_products == []


def test_eight_devices_sum_every_gradient_once():
    found = plans_of("conf=digits_cnn", "policy=mixed_float16", "seed=0", devices=8)[0]
    assert found.products_by_dtype["float16"] > 0
    elements = sum(each.elements for each in found.exchanges if each.opcode == "all-reduce")
    assert elements == pytest.approx(found.parameters, abs=64)
