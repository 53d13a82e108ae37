"""What the advice of verdicts and rules names is taken where the run was begun: each setting of each text is tried."""

import re
from dataclasses import replace
from typing import Any

import keras
import pytest

from mpt_cli import LossScaleOptimizer, Recorder
from mpt_cli.precision import DynamicScale, FixedScale, LogMaxScale
from mpt_cli.python_api import Asked, given_settings
from mpt_cli.settings.load import load_settings
from mpt_cli.telemetry.health import CAUSES, RULES, HealthRules, Stop, judge
from mpt_cli.telemetry.records import Scaling, StreakCounts, UnmovedWeights
from mpt_cli.telemetry.signs import LossTrend, Signs
from mpt_cli.telemetry.spelling import (
    ANY,
    FIT,
    RECIPE,
    RECORDER,
    SCALED_RECORDER,
    SCALED_SCRIPT,
    SCRIPT,
    SETTING,
    Spelling,
)
from mpt_cli.training.assembly import warn_of_half_head
from mpt_cli.training.loss_and_optimizer import warn_of_scaling
from mpt_cli.verbs.run import _settings as settings_of_script

MODES = {"dynamic": Scaling(DynamicScale()), "fixed": Scaling(FixedScale(2.0**24)), "logmax": Scaling(LogMaxScale()),
         "none": Scaling(is_needed=True)}  # fmt: skip
NOT_IN = {  # modes in which a cause is never found
    "fixed too high": ("dynamic", "logmax", "none"), "fixed too low": ("dynamic", "logmax", "none"),
    "flushed without scale": ("dynamic", "fixed", "logmax"), "beyond any scale": ("fixed", "none"),
    "unsettled": ("fixed", "none"), "too high": ("fixed", "none"), "too low": ("fixed", "none"),
    "nan in every step": ("none",), "no room": ("fixed", "none"),
}  # fmt: skip
VALUES = {"initial_scale": 1024.0, "max_scale": 2.0**20, "growth_steps": 100, "let_through_after": 3,
          "policy.overrides": {"last": "float32"}, "trainer.early_stopping.patience": 3}  # fmt: skip


def model(dtype: str = "mixed_float16", optimizer: Any = "sgd") -> Any:
    layers = [keras.Input((2,)), keras.layers.Dense(2, name="first"), keras.layers.Dense(1, name="last", dtype=dtype)]
    made = keras.Sequential(layers, name="net")
    made.compile(optimizer, "mse")
    return made


def texts(mode: str, spelling: Spelling) -> list[str]:
    """All that is advised in runs of this mode."""
    scaling = MODES[mode]
    base = Signs(scaling, 1000, 1000, scale=2.0**15, loss=0.5, spelling=spelling)
    found = [base.spell(text) for name, cause in CAUSES.items() if mode not in NOT_IN.get(name, ())
             for text in (cause.advise(base), cause.explain(base))]  # fmt: skip
    unmoved = UnmovedWeights(0, 1e-9)
    others = [
        replace(base, val_loss=LossTrend(0.31, 4, 9, (0.4, 0.45, 0.52))), replace(base, unmoved=unmoved),
        replace(base, faults={"a": "dead"}), replace(base, faults={"a": "unmoved"}),
        replace(base, skip_steps=(1, 600), skip_scales=(1.0, 1.0), unprovoked_steps=(600,), applied_steps=998),
        replace(base, bad_steps=2), replace(base, scaling=Scaling(is_needed=True)),
    ]  # fmt: skip
    warned = [*warn_of_scaling(Scaling(is_needed=True), model()), *warn_of_half_head(model())]
    return [*found, *(judge(signs)[1] for signs in others), *(base.spell(text) for text in warned)]


def phrases(spelling: Spelling, mode: str, pattern: str) -> set[Any]:
    return {each for text in texts(mode, spelling) for each in re.findall(pattern, text)}


def words_of(spelling: Spelling, mode: str) -> set[tuple[str, str]]:
    """Path and value, which may be empty, of what is written as a command line has it."""
    found = [match for text in texts(mode, spelling) for match in SETTING.finditer(text)]
    named = {(f"{section}.{key}" if key else section, value or "") for section, key, value in (
        match.groups() for match in found) if key or value}  # fmt: skip
    return named - {("loss_scale.mode", "none")}  # what the run has, and no advice


def tried(words: set[tuple[str, str]], mode: str) -> set[tuple[str, str]]:
    """What hangs on the mode, and once all else."""
    return words if mode == "dynamic" else {word for word in words if word[0].startswith("loss_scale")}


def override(path: str, value: str) -> str:
    """With a value of the reader's choice where the text has none."""
    more = {"policy.overrides": "{last: float32}", "trainer.early_stopping": "{patience: 3}"}
    chosen = more.get(path) or str(VALUES.get(path.partition(".")[2], 3))
    return f"{path}={value or chosen}"


def python(text: str) -> Any:
    """The value of an expression in which a value may be left to the reader."""
    for name, value in VALUES.items():
        text = text.replace(f'"{name}": {ANY}', f'"{name}": {value!r}').replace(f"{name}={ANY}", f"{name}={value!r}")
    assert ANY not in text, text
    return eval(text, {"Recorder": Recorder, "LogMaxScale": LogMaxScale, "keras": keras,
                       "LossScaleOptimizer": lambda **named: LossScaleOptimizer(keras.optimizers.SGD(), **named)})


def check_of_optimizer(spelling: Spelling, mode: str) -> None:
    """What is said of the optimizer is an argument of Keras's."""
    found = phrases(spelling, mode, r"(\w+)(?:=([\d.]+))? of the optimizer")
    assert ("learning_rate", "") in found
    for name, value in found:
        keras.optimizers.SGD(**{name: float(value or 0.5)})


def check_in_script(spelling: Spelling, mode: str) -> None:
    """What is said of layers and `fit` is what Keras takes."""
    assert phrases(spelling, mode, r'dtype="float32" of that layer')
    assert phrases(spelling, mode, r"keras\.callbacks\.EarlyStopping")
    keras.layers.Dense(1, dtype="float32")
    keras.callbacks.EarlyStopping()


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_a_recipe_takes_what_its_advice_names(mode):
    words = words_of(RECIPE, mode)
    assert {("optimizer.learning_rate", ""), ("policy.overrides", "")} < words
    groups = {"policy": "mixed_float16", "loss_scale": mode}
    for path, value in tried(words, mode):
        given = [f"{group}={name}" for group, name in groups.items() if group != path]
        load_settings(["conf=digits_mlp", *given, override(path, value)])


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_a_script_takes_what_its_advice_names(mode):
    """Before its name, or itself."""
    words = words_of(SCRIPT, mode)
    assert ("policy", "mixed_bfloat16") in words
    for path, value in tried(words, mode):
        settings_of_script([*([] if path == "loss_scale" else [f"loss_scale={mode}"]), override(path, value)])
    check_of_optimizer(SCRIPT, mode)
    check_in_script(SCRIPT, mode)


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_a_script_that_scales_its_loss_itself_is_told_what_to_give_its_class(mode):
    for spelling in (SCALED_SCRIPT, SCALED_RECORDER):
        assert not any(path.startswith("loss_scale") for path, _ in words_of(spelling, mode))
        calls = phrases(spelling, mode, r"LossScaleOptimizer\((?:[^()]|\([^()]*\))*\)")
        assert calls
        for call in calls:
            assert python(with_scale(call)).initial_scale >= 1.0


def with_scale(call: str) -> str:
    """A fixed scale has no default."""
    fixed = "dynamic=False" in call and "initial_scale" not in call
    return call.replace("dynamic=False", "dynamic=False, initial_scale=8.0") if fixed else call


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_fit_takes_what_its_advice_names(mode):
    said = " ".join(texts(mode, FIT))
    assert all(f'{{"{path}' in said and not value for path, value in words_of(FIT, mode))
    check_of_optimizer(FIT, mode)
    for name, given in phrases(FIT, mode, r'(policy|loss_scale|settings)=("\w+"|\{[^{}]*\})'):
        value = python(given)
        if name == "policy":
            assert keras.dtype_policies.get(value).name == value
        asked = Asked(loss_scale=value if name == "loss_scale" else mode, more=value if name == "settings" else {})
        given_settings(model(), asked)


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_a_recorder_takes_what_its_advice_names(mode):
    calls = phrases(RECORDER, mode, r"Recorder\([^()]*\)")
    policies = phrases(RECORDER, mode, r"keras\.config\.set_dtype_policy\(\"(\w+)\"\)")
    assert calls and policies
    for call in calls:
        given_settings(model(), python(call).asked)
    assert all(keras.dtype_policies.get(name).name == name for name in policies)
    check_of_optimizer(RECORDER, mode)
    check_in_script(RECORDER, mode)


def test_a_rule_that_stops_is_advised_in_the_same_words_and_changes_no_command():
    peaks = StreakCounts(50, 0, 0, 0, 0)
    signs = Signs(MODES["fixed"], 60, 10, scale=8.0, skip_steps=range(11, 61), peaks=peaks, streaks=peaks)
    settings = load_settings(["conf=digits_mlp", "policy=mixed_float16", "loss_scale=fixed"])
    found = {}
    for spelling in (RECIPE, FIT, SCRIPT):
        rules = HealthRules(settings.loss_scale, settings.trainer, signs.scaling, spelling)
        stop = rules.check(replace(signs, spelling=spelling))
        assert isinstance(stop, Stop)
        found[spelling] = stop.remedy, stop.change
    assert found[RECIPE] == ("The fixed scale is too high for this model: try loss_scale.initial_scale=2**-5 or "
                             "loss_scale=dynamic.", "loss_scale=dynamic")  # fmt: skip
    assert found[FIT] == ('The fixed scale is too high for this model: try loss_scale={"mode": "fixed", '
                          '"initial_scale": 2**-5} or loss_scale="dynamic".', "")  # fmt: skip
    assert found[SCRIPT] == (found[RECIPE][0], "")
    assert len(RULES) > 10


def test_a_head_in_float16_is_named_and_one_in_float32_is_not():
    (said,) = warn_of_half_head(model())
    assert said == (
        "layer net/last makes the output of the model in float16: what the loss gets has 11 bits, and is inf above "
        "65504. Keep it in float32: policy.head=float32."
    )
    assert warn_of_half_head(model("float32")) == [] == warn_of_half_head(model("mixed_bfloat16"))
    softmax = keras.layers.Dense(2, "softmax", name="last", dtype="mixed_bfloat16")
    (said,) = warn_of_half_head(keras.Sequential([keras.Input((2,)), softmax]))
    assert "in bfloat16: probabilities in bfloat16: their gradient is inf or nan near 0" in said
