"""Stopwatch, counting of steps, words and resolution of scaling, signals, memory, the saved model."""

import json
import os
import signal
import zipfile
from types import SimpleNamespace

import keras
import pytest
from tiny import compile_tiny, sgd, tiny_model

from mpt_cli.errors import DataError
from mpt_cli.precision import DynamicScale, LogMaxScale, LossScaleOptimizer, computes_in_float16
from mpt_cli.settings.load import load_settings
from mpt_cli.settings.model_data_optimizer_keys import LossScaleSettings
from mpt_cli.settings.schema import Settings, TrainerSettings
from mpt_cli.signals import Interruption
from mpt_cli.telemetry.record_types import Scaling
from mpt_cli.training import progress as stopwatch_module
from mpt_cli.training.build_run_parts import call_capacity, count_steps, warn_of_no_head
from mpt_cli.training.loss_and_optimizer import describe_scaling, warn_of_scaling
from mpt_cli.training.model_saving import save_trained
from mpt_cli.training.progress import Stopwatch


class TestStopwatch:
    @pytest.fixture
    def call(self, monkeypatch):
        now = [0.0]
        monkeypatch.setattr(stopwatch_module, "time", SimpleNamespace(perf_counter=lambda: now[0]))
        watch = Stopwatch()

        def run(seconds: float, steps: int, batch: int = 10):
            watch.start()
            now[0] += seconds
            watch.stop(steps, batch)
            return watch

        run.watch = watch
        return run

    def test_leaves_out_the_call_that_compiles_each_shape(self, call):
        assert call(9.0, 1).examples_per_second is None
        assert call(2.0, 4).examples_per_second == 20.0
        assert call(9.0, 1, batch=3).examples_per_second == 20.0
        assert call(1.0, 4).examples_per_second == 80 / 3

    def test_calls_last_about_a_second(self, call):
        assert call.watch.steps_per_call(64) == 1  # compiles
        assert call(9.0, 1).steps_per_call(64) == 1  # nothing is known of its steps yet
        assert call(0.5, 4).steps_per_call(64) == 8
        assert call(0.5, 4).steps_per_call(3) == 3
        assert call(40.0, 1).steps_per_call(64) == 1

    def test_an_immeasurably_short_call_divides_nothing_by_zero(self, call):
        call(1.0, 1)
        assert call(0.0, 1).steps_per_call(64) == 64

    def test_the_rate_of_a_window_is_that_since_it_was_last_asked(self, call):
        call(9.0, 1)
        assert call.watch.window_rate() is None
        call(1.0, 4)
        assert call.watch.window_rate() == 40.0
        call(1.0, 1)
        assert call.watch.window_rate() == call.watch.window_rate() == 10.0  # a second line in the same call

    def test_a_resumed_run_counts_on_from_its_checkpoint(self, call):
        first = call.watch
        first.begin()
        call(9.0, 1)
        call(2.0, 4)
        at_checkpoint = json.loads(json.dumps(first.position()))
        call(100.0, 4)  # lost
        again = Stopwatch()
        again.resume(at_checkpoint)
        assert (again.earlier_seconds, again.run_seconds, again.examples_per_second) == (11.0, 11.0, 20.0)
        again.begin()
        call(3.0, 1)
        assert (again.run_seconds, again.window_rate()) == (14.0, None)


def test_steps_of_a_run():
    for epochs, most, per_epoch, expected in (
        (3, None, 7, 21),
        (3, 10, 7, 10),
        (3, 50, 7, 21),
        (3, 10, None, 10),
        (3, None, None, None),
    ):
        assert count_steps(Settings(trainer=TrainerSettings(epochs=epochs, max_steps=most)), per_epoch) == expected


def test_the_most_steps_of_a_call():
    assert call_capacity(TrainerSettings(steps_per_execution=7), resident=True) == 7
    assert call_capacity(TrainerSettings(log_every_steps=3), resident=True) == 256
    assert call_capacity(TrainerSettings(log_every_steps=3), resident=False) == 64


def scaling_of(settings, policy="float32"):
    needed = computes_in_float16(tiny_model(policy))
    return Scaling(settings.rule_for(needed), needed)


class TestScaling:
    def test_auto_is_dynamic_where_something_computes_in_float16(self):
        for policy, mode in (("mixed_float16", "dynamic"), ("mixed_bfloat16", "none"), ("float32", "none")):
            assert scaling_of(LossScaleSettings(), policy).rule.mode == mode

    def test_each_mode_takes_every_number(self):
        settings = LossScaleSettings("dynamic", 8.0, 5, 4.0, 0.25, 2.0, 64.0, 3)
        expected = DynamicScale(
            8.0, 5, growth_factor=4.0, backoff_factor=0.25, min_scale=2.0, max_scale=64.0, hysteresis=3
        )
        assert scaling_of(settings).rule == expected
        numbers = {"log_max": 15.0, "beta1": 0.5, "beta2": 0.75, "deviations": 2.0}
        settings = LossScaleSettings("logmax", 8.0, min_scale=2.0, max_scale=64.0, **numbers)
        assert scaling_of(settings).rule == LogMaxScale(8.0, 15.0, 0.5, 0.75, 2.0, 2.0, 64.0)
        settings = LossScaleSettings("fixed", 1000.0)
        optimizer = LossScaleOptimizer(sgd(), rule=scaling_of(settings).rule)
        assert (optimizer.dynamic, optimizer.initial_scale) == (False, 1000.0)

    def test_words(self):
        for settings, policy, words, warnings in (
            (
                LossScaleSettings("dynamic", growth_steps=9),
                "float16",
                "dynamic from 2**15, grows after 9 applied steps",
                [],
            ),
            (LossScaleSettings("fixed", 2.0**30), "float16", "fixed at 2**30, overflow steps are skipped", []),
            (LossScaleSettings("logmax"), "float16", "logmax from 2**15, follows the largest gradient", []),
            (LossScaleSettings(), "float32", "none (nothing computes in float16)", []),
            (
                LossScaleSettings("none"),
                "mixed_float16",
                "none, though layers compute in float16",
                [
                    "loss_scale.mode=none: layers compute in float16, where gradients below 2**-24 become 0. "
                    "loss_scale=dynamic keeps them (docs/explanation/loss-scaling.md)."
                ],
            ),
            (
                LossScaleSettings("dynamic"),
                "float32",
                "dynamic from 2**15, grows after 2000 applied steps",
                ["loss_scale.mode=dynamic has no use here: nothing computes in float16."],
            ),
        ):
            scaling = scaling_of(settings, policy)
            assert describe_scaling(scaling) == words
            found = warn_of_scaling(scaling)
            assert len(found) == len(warnings) and all(map(str.startswith, found, warnings))


class TestInterruption:
    def test_a_second_ctrl_c_stops_at_once(self):
        with Interruption(), pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)

    def test_ctrl_c_after_sigterm_waits_for_the_end_of_the_call(self):
        with Interruption() as interruption:
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGINT)
            assert interruption.requested == signal.SIGINT

    def test_handlers_are_put_back_after_an_exception(self):
        before = signal.getsignal(signal.SIGINT)
        with pytest.raises(RuntimeError), Interruption():
            raise RuntimeError
        assert signal.getsignal(signal.SIGINT) is before


class TestSavedModel:
    def test_opens_in_plain_keras_and_the_model_can_train_on_afterwards(self, tmp_path):
        model = compile_tiny(tiny_model(), LossScaleOptimizer(sgd()))
        optimizer = model.optimizer
        save_trained(model, tmp_path / "model.keras")
        assert b"mpt_cli" not in zipfile.ZipFile(tmp_path / "model.keras").read("config.json")
        assert not keras.models.load_model(tmp_path / "model.keras").compiled
        assert [path.name for path in tmp_path.iterdir()] == ["model.keras"]
        with pytest.raises(DataError, match=r"model\.keras can't be written: "):
            save_trained(model, tmp_path / "missing" / "model.keras")
        assert model.optimizer is optimizer and model.compiled


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.first, self.last = (
            keras.layers.Dense(2, name="first"),
            keras.layers.Dense(1, name="last", dtype="mixed_float16"),
        )

    def call(self, x):
        return self.last(self.first(x))


def test_a_head_that_is_not_known_is_said_with_the_last_layers():
    settings = load_settings(["conf=digits_mlp", "policy=mixed_float16"])
    assert warn_of_no_head(settings, Subclassed()) == [
        "policy.head=float32 does nothing: Subclassed has no layer that is known as its head. Set "
        "policy.overrides.NAME=float32 (last layers: first, last; docs/guides/policy.md)."
    ]
    for dtype in ("float32", "mixed_float16"):
        x = keras.layers.Dense(2)(inputs := keras.Input((3,)))
        heads = [keras.layers.Dense(1, name=name, dtype=dtype)(x) for name in ("low", "high")]
        said = warn_of_no_head(settings, keras.Model(inputs, keras.ops.cumsum(keras.ops.concatenate(heads))))
        assert ("low, high;" in str(said)) == bool(said) == (dtype != "float32")
