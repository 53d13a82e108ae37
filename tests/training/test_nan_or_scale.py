"""Whether nan in the gradients is the scale's doing or a bug: what the console and the verdict say of it."""

from dataclasses import fields

import keras
import numpy as np
import pytest
from backends import BACKEND
from keras import layers, ops

import mpt_cli as mpt
from mpt_cli.precision import DynamicScale, FixedScale, LogMaxScale
from mpt_cli.telemetry import health as v
from mpt_cli.telemetry.console.plain import Narrator
from mpt_cli.telemetry.records import Event, Scaling
from mpt_cli.telemetry.signs import EventTally

BUG = "a bug of the model or data"
SETTINGS = {"logger.console": "plain", "trainer.gradient_health_every_steps": None, "trainer.log_every_steps": 1,
            "trainer.jit_compile": BACKEND == "jax", "trainer.save_model": False, "trainer.monitor": None}  # fmt: skip
RULES = {"dynamic": DynamicScale, "fixed": FixedScale, "logmax": LogMaxScale}
STEPS, BATCH = 32, 4
BAD = (6, 13, 20, 27)  # steps with an example of zeros


def mlp():
    return [keras.Input((6, 4)), layers.Flatten(), layers.Dense(16, "relu"), layers.Dense(16, "relu")]


def recurrent():
    return [keras.Input((6, 4)), layers.GRU(8)]


def compiled(net, seed=1):
    keras.utils.set_random_seed(seed)
    model = keras.Sequential([*net(), layers.Dense(2, dtype="float32")])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-3), loss)
    return model


def examples(bad=()):
    x = np.random.default_rng(0).normal(size=(STEPS * BATCH, 6, 4)).astype("float32")
    y = (x.sum((1, 2)) > 0).astype("int32")
    for step in bad:
        x[(step - 1) * BATCH] = 0.0
    return x, y


def fit(net, folder, bad=(), epochs=1, batch_size=BATCH, **scaling):
    x, y = examples(bad)
    return mpt.fit(compiled(net), x, y, batch_size=batch_size, epochs=epochs, shuffle=False, policy="mixed_float16",
                   loss_scale={"mode": "dynamic", **scaling}, run_dir=folder / "run", settings=SETTINGS)  # fmt: skip


def told(run, rule):
    """What the console says of each step that had an event, one by one."""
    narrator = Narrator(0.0)
    narrator._scaling, narrator._tally = Scaling(rule), EventTally(Scaling(rule))
    said, names = {}, {field.name for field in fields(Event)}
    for event in run.events:
        narrator.add([Event(**{name: value for name, value in event.items() if name in names})])
        said[event["step"]] = " ".join(narrator.sentences(at_once=True))
    return said


class Spoiling(layers.Layer):
    """Finite; its gradient is nan where the input is 0,."""

    def __init__(self, kind):
        super().__init__(dtype="float32")
        self.kind = kind

    def call(self, x):
        if self.kind == "norm":
            return x + ops.sqrt(ops.sum(ops.square(x), axis=-1, keepdims=True))
        return x + ops.where(ops.equal(x, 0.0), 0.0, ops.log(ops.abs(x)))


def buggy(kind):
    spoiled = [layers.Dense(8, use_bias=False), Spoiling(kind), layers.Dense(8)]
    return lambda: [keras.Input((6, 4)), layers.Flatten(), *spoiled]


@pytest.mark.slow
@pytest.mark.parametrize(("net", "power"), [
    (recurrent, 40), *(pytest.param(*case, marks=pytest.mark.long) for case in (
        (recurrent, 32), (recurrent, 60), (mlp, 32), (mlp, 40), (mlp, 60))),
])  # fmt: skip
def test_skips_while_a_scale_comes_down_from_far_above_are_no_bug(net, power, tmp_path, capsys):
    run = fit(net, tmp_path, epochs=2, batch_size=2, initial_scale=2.0**power, max_scale=2.0**power)
    summary, said = run.summary, capsys.readouterr().out
    skips = [event for event in run.events if event["kind"] == "overflow"]
    # more than three had nan and no inf, or the net shows nothing
    assert sum(not event["inf"] for event in skips) > 3 or power == 32 or net is mlp
    assert summary["applied_steps"] == 4 * STEPS - len(skips) > 0 and run.verdict in (v.WARM_UP, v.HEALTHY)
    assert BUG not in said.partition("verdict")[2] and "third time" not in said
    lines = told(run, DynamicScale(2.0**power, max_scale=2.0**power))
    assert not any("third time" in line for line in lines.values())


@pytest.mark.slow
def test_a_recurrent_net_that_probes_its_highest_scale_is_no_bug(tmp_path, capsys):
    """A GRU on TensorFlow leaves nan alone when it overflows there, again and again."""
    run = fit(recurrent, tmp_path, epochs=8, initial_scale=2.0**40, max_scale=2.0**40, growth_steps=4)
    assert run.summary["skipped_steps"] > 40 and run.summary["applied_steps"] > 150
    assert run.verdict not in (v.BAD_VALUES, v.NEVER_TRAINED)
    assert "for the third time" not in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "scaling"), [
    ("norm", {}), *(pytest.param(*case, marks=pytest.mark.long) for case in (
        ("masked logarithm", {}), ("norm", {"mode": "fixed"}), ("norm", {"mode": "logmax"}))),
])  # fmt: skip
def test_a_nan_of_the_model_is_told_at_the_third_time(kind, scaling, tmp_path, capsys):
    run = fit(buggy(kind), tmp_path, bad=BAD, **{"initial_scale": 2.0**8, **scaling})
    assert [e["step"] for e in run.events if e["kind"] == "overflow" and not e["inf"]] == list(BAD)
    lines = told(run, RULES[scaling.get("mode", "dynamic")]())
    assert [step for step, line in lines.items() if "third time" in line] == list(BAD[2:])
    assert "nan without inf for the third time" in capsys.readouterr().out
    assert run.verdict == v.BAD_VALUES and BUG in run.explanation


@pytest.mark.long
def test_a_nan_of_the_model_is_told_after_a_scale_has_come_down(tmp_path, capsys):
    run = fit(buggy("norm"), tmp_path, bad=BAD, epochs=3, initial_scale=2.0**40, max_scale=2.0**40)
    assert BUG in run.explanation and "third time" in capsys.readouterr().out
    told_at = [step for step, line in told(run, DynamicScale(2.0**40, max_scale=2.0**40)).items() if "third" in line]
    assert told_at[0] > STEPS and {(step - 1) % STEPS + 1 for step in told_at} <= {*BAD}


@pytest.mark.long
def test_a_nan_in_every_step_is_in_doubt_until_the_scale_lifts_nothing(tmp_path, capsys):
    run = fit(buggy("norm"), tmp_path, bad=range(1, STEPS + 1), initial_scale=2.0**15)
    lines, doubt = told(run, DynamicScale()), "nan without inf: a scale that is much too high leaves that, or a bug"
    assert [step for step, line in lines.items() if doubt in line] == list(range(3, 16))
    assert "third time" in lines[16]  # at scale 1
    assert "third time" in capsys.readouterr().out and run.summary["applied_steps"] == 0
    assert run.verdict == v.NEVER_TRAINED and "a bug of the model or data than the scale" in run.explanation


@pytest.mark.long
def test_a_recorder_says_the_same(tmp_path, capsys):
    (x, y), said = examples(BAD), []
    for net, data in ((buggy("norm"), (x, y)), (recurrent, examples())):
        with mpt.Policy("mixed_float16").scope():
            model = compiled(net)
        model.jit_compile = BACKEND == "jax"
        scaling = {} if net is not recurrent else {"initial_scale": 2.0**40, "max_scale": 2.0**40}
        recorder = mpt.Recorder(tmp_path / str(len(said)), loss_scale={"mode": "dynamic", **scaling},
                                settings={"logger.console": "plain"})  # fmt: skip
        model.fit(*data, batch_size=BATCH, shuffle=False, verbose=0, callbacks=[recorder])
        assert recorder.run.summary["applied_steps"] > 0
        said.append((recorder.run.verdict, "for the third time" in capsys.readouterr().out))
    assert said[0] == (v.BAD_VALUES, True) and said[1][0] in v.GOOD_VERDICTS and not said[1][1]
