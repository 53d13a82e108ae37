"""What verdicts and rules advise holds at every door: a key is one that `mpt run` takes, or it says what a script does."""

import re
from dataclasses import replace
from typing import Any

import keras
import numpy as np
import pytest

from mpt_cli.precision import DynamicScale, FixedScale, LogMaxScale
from mpt_cli.precision.keras_internals import predict_in_training
from mpt_cli.telemetry import causes
from mpt_cli.telemetry.health_and_verdict import judge
from mpt_cli.telemetry.record_types import Scaling, UnmovedWeights
from mpt_cli.telemetry.run_state import RunState
from mpt_cli.training.build_run_parts import warn_of_half_head
from mpt_cli.training.loss_and_optimizer import warn_of_scaling
from mpt_cli.verbs.run import is_run_key

MODES = {
    "dynamic": Scaling(DynamicScale()),
    "fixed": Scaling(FixedScale(2.0**24)),
    "logmax": Scaling(LogMaxScale()),
    "none": Scaling(is_needed=True),
}
CAUSES = [each for each in vars(causes).values() if isinstance(each, causes.Cause)]
SETTING = re.compile(r"(?<![/\w])(?:loss_scale|policy|optimizer|trainer)(?:\.[a-z_]+|(?==))")


def model(dtype: str = "mixed_float16", optimizer: Any = "sgd"):
    layers = [keras.Input((2,)), keras.layers.Dense(2, name="first"), keras.layers.Dense(1, name="last", dtype=dtype)]
    made = keras.Sequential(layers, name="net")
    made.compile(optimizer, "mse")
    return made


@pytest.mark.parametrize("mode", MODES)
def test_a_key_that_advice_names_is_taken_by_a_script_too(mode):
    base = RunState(MODES[mode], 1000, 1000, scale=2.0**15, loss=0.5)
    others = [
        replace(base, faults={"a": "dead"}),
        replace(base, unmoved=UnmovedWeights(0, 1e-9)),
        replace(base, faults={"a": "unmoved"}),
        replace(base, bad_steps=2),
        replace(base, scaling=Scaling(is_needed=True)),
    ]
    script = replace(base, is_of_program=True, forward_layer="a", scaling=replace(base.scaling, is_needed=True))
    of_script = [cause.advise(script) for cause in CAUSES]
    of_script += [
        judge(replace(script, faults={name: fault}, output_noise=1.0))[1]
        for fault in ("digits", "stale")
        for name in ("a", "targets", "*")
    ]
    assert any('dtype="float32" where you make layer a' in text for text in of_script)
    assert not any(re.search(r"policy\.(overrides|head)", text) for text in of_script)
    texts = [*of_script, *(cause.advise(base) for cause in CAUSES), *(judge(each)[1] for each in others)]
    texts += [*warn_of_scaling(Scaling(is_needed=True)), *warn_of_half_head(model())]
    named = {key for text in texts for key in SETTING.findall(text)}
    assert "loss_scale.initial_scale" in named and "loss_scale" in named
    assert {key for key in named if not is_run_key(key)} <= {"policy.overrides", "policy.head"}


def test_a_head_in_float32_is_not_named_and_one_in_bfloat16_for_its_bits_or_probabilities():
    assert warn_of_half_head(model("float32")) == []
    assert "in bfloat16: the input of the loss has 8 bits. Keep it" in warn_of_half_head(model("mixed_bfloat16"))[0]
    softmax = keras.layers.Dense(2, "softmax", name="last", dtype="mixed_bfloat16")
    (said,) = warn_of_half_head(keras.Sequential([keras.Input((2,)), softmax]))
    assert "in bfloat16: probabilities in bfloat16: those above 0.998 are 1" in said


def test_a_subclassed_model_that_makes_float16_is_named_once_it_was_called():
    class Net(keras.Model):
        def __init__(self):
            super().__init__(name="net", dtype="mixed_float16")
            self.last = keras.layers.Dense(2, dtype="mixed_float16")

        def call(self, x):
            return self.last(x)

    net = Net()
    assert warn_of_half_head(net) == []
    predict_in_training(net, np.ones((1, 2), "float32"))
    (said,) = warn_of_half_head(net)
    assert "output of model net is in float16" in said and "layers before it" in said
