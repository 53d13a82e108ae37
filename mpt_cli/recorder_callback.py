"""A run directory for Keras's own `fit`: a callback that records every step, checks the run and gives a verdict.

The optimizer keeps a log of steps inside the compiled step (`precision.scale_state`); the callback reads it between two
calls, so that `steps_per_execution` hides no step.
"""

import atexit
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any, TextIO

import keras
import numpy as np

from mpt_cli.engine.faults import FaultSearch
from mpt_cli.errors import ConfigError, Problem, Say, config_error, raise_problems, summarise_error
from mpt_cli.precision import LossScaleOptimizer, computes_in_float16, has_custom, keep_skips_whole
from mpt_cli.precision.gradient_check import are_finite, on_jax, on_tensorflow
from mpt_cli.precision.keras_internals import build_before_tracing, lacks_variables, optimizer_values_in_fit
from mpt_cli.precision.train_step import check_replicas, optimizers_in, state_to_keep, unwrapped
from mpt_cli.python_api import RunArguments, arguments_checked, given_settings
from mpt_cli.report.run import Run
from mpt_cli.runs.directory import RunDirectory, numbered_path
from mpt_cli.samples.latest_step import LatestBatch, TapedCalls
from mpt_cli.samples.value_ranges import is_rounded
from mpt_cli.settings.model_data_optimizer_keys import GivenModel
from mpt_cli.settings.schema import Settings, acts_on_record, unknown_key_problem
from mpt_cli.step_recording import (
    NO_LOSS,
    Recording,
    RecordingOptions,
    SampleBudget,
    policy_on_record,
    scaling_on_record,
)
from mpt_cli.telemetry.health_and_verdict import Stop
from mpt_cli.telemetry.record_types import Event, RunHeader, Scaling
from mpt_cli.telemetry.run_state import RunState
from mpt_cli.training.build_run_parts import count_parameters, warn_of_half_head
from mpt_cli.training.callbacks import metrics_in, why_ended
from mpt_cli.training.loss_and_optimizer import warn_of_scaling
from mpt_cli.training.model import loss_not_scaled_problem
from mpt_cli.training.run_from_model import rule_of

LEAST_CAPACITY = 256  # rows of the ring: with the usual 50 steps between two reads it never overflows
NO_RESUME = "checkpoints: mpt.fit writes them and resumes from one, also in the middle of an epoch"
NO_SPEED = "examples per second: fit does not tell a callback how many a step has (see steps_per_second)"
NOT_WHOLE = "in skipped steps: the model's own train_step updates them"


def scaling_of(model: Any, settings: Settings) -> Scaling:
    """Return how the loss of a compiled model is scaled: by its optimizer if that scales, else by the settings."""
    needed = computes_in_float16(model)
    return Scaling(rule_of(model.optimizer) or settings.loss_scale.rule_for(needed), needed)


def _ending_the_record_on_error(hook: Callable[..., None]) -> Callable[..., None]:
    """Return a callback hook that is called with the record, if there is one; an error in it ends only the record."""

    @wraps(hook)
    def called(recorder: "Recorder", *arguments: Any, **named: Any) -> None:
        if recorder._session:
            try:
                hook(recorder, recorder._session, *arguments, **named)
            except Exception as error:
                recorder.give_up(summarise_error(error))

    return called


class Recorder(keras.callbacks.Callback):  # type: ignore[misc]
    """A callback that gives Keras's own `fit` a run directory, a record of every skip and scale, health rules, a
    verdict.

    At the beginning of `fit`, an optimizer that does not scale the loss is wrapped in a LossScaleOptimizer. Unless the
    model has its own `train_step`, a skipped step leaves the whole model unchanged. Both stay with the model, so that
    its next `fit` need not be traced again.
    A model file has the optimizer that `compile` was given: compile with LossScaleOptimizer to save the scale as well.
    What could not be recorded is in `environment.json` under `not_recorded`. `run` is the latest `Run`, `runs` are all;
    a run begins with the first step. If recording fails, that is printed once on standard error and ends the record,
    never `fit`. A `train_step` that does not scale its loss trains with unscaled gradients, and a message says so.

    Raises ConfigError for arguments out of range and, in `fit` before its first step, for several replicas with XLA or
    several steps per execution, which Keras itself does not support.

    Args:
        run_dir: directory of the run; None for runs/MODEL/TIME. A second `fit` writes to RUN_DIR-2.
        on_unhealthy: what happens if a health rule is broken: "stop" ends `fit`, "go_on" only prints a message.
        loss_scale: as in `mpt.fit`, for an optimizer that does not scale the loss yet.
        name: name of the run, in runs/NAME/TIME; None for the model's name.
        settings: keys of loss scale, logger and health rules by their paths, as in {"logger.console": "quiet"}.

    >>> import mpt_cli as mpt, numpy as np, tempfile
    >>> model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    >>> model.compile("sgd", "mse")
    >>> recorder = mpt.Recorder(run_dir=f"{tempfile.mkdtemp()}/run", loss_scale=8.0)
    >>> x = np.float32([[1.0], [np.inf], [1.0]])
    >>> options = dict(batch_size=1, shuffle=False, verbose=2, callbacks=[recorder])
    >>> _ = model.fit(x, np.ones((3, 1)), **options)  # doctest: +ELLIPSIS
    3/3 - ...
    >>> recorder.run.summary["skipped_steps"], [event["step"] for event in recorder.run.events]
    (1, [2])
    """

    @arguments_checked("mpt.Recorder")
    def __init__(
        self,
        run_dir: str | Path | None = None,
        *,
        on_unhealthy: str = "stop",
        loss_scale: Any = None,
        settings: Mapping[str, Any] | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__()
        rule = "must be left to the program: it has no effect in Keras's own fit (mpt.fit takes it)."
        problems = [
            unknown_key_problem(path, value) or Problem(path, rule, value)
            for path, value in (settings or {}).items()
            if not acts_on_record(path)
        ]
        if on_unhealthy not in ("stop", "go_on"):
            problems.append(Problem("on_unhealthy", "must be stop or go_on.", on_unhealthy))
        raise_problems(problems)
        self.run_dir, self.on_unhealthy = run_dir, on_unhealthy
        self.asked = RunArguments(loss_scale=loss_scale, name=name, more=dict(settings or {}))
        self.command: Sequence[str] = ()  # the words behind `mpt` that run the script it is in
        self.others: Sequence[Any] = ()  # the callbacks beside it, where they are known
        self.calls: TapedCalls | None = None  # that a train_step of the model's own makes, where they are seen
        self.budget = SampleBudget()
        self.say: Say = lambda sentence: print(f"mpt: {sentence}", file=sys.stderr)
        self.stream: TextIO | None = None  # of a console that was asked for; None: standard output, where fit is silent
        self.next_path: Callable[[str], Path] = lambda recipe: (
            self.folder / numbered_path(self.run_dir, recipe, len(self.runs) + 1)
        )
        self.is_alone = True  # no one else records the optimizers of the model
        self.folder = Path.cwd()  # of relative paths, wherever the program goes
        self.runs: list[Run] = []
        self._session: _FitRecording | None = None

    @property
    def run(self) -> Run:
        """Return the latest run; IndexError before the first."""
        return self.runs[-1]

    def on_train_begin(self, logs: Any = None) -> None:
        self.fail(None)  # an exception ended the last fit
        model = self._model
        asked = replace(self.asked, trainer={"epochs": int(self.params["epochs"])})
        settings = given_settings(model, asked)
        settings = replace(settings, loss_scale=scaling_on_record(model.optimizer, settings.loss_scale))
        if self.command:
            settings = replace(
                settings,
                model=GivenModel(class_name=type(model).__name__, command=[*self.command]),
                policy=policy_on_record(settings.policy),
            )
        try:
            self._session = _FitRecording(self, model, settings)
        except ConfigError:
            raise
        except Exception as error:
            self.give_up(summarise_error(error))
        atexit.register(self.fail, None)

    @_ending_the_record_on_error
    def on_epoch_begin(self, session: "_FitRecording", epoch: int, logs: Any = None) -> None:
        session.start_epoch(epoch + 1)

    @_ending_the_record_on_error
    def on_train_batch_end(self, session: "_FitRecording", batch: int, logs: Any = None) -> None:
        session.after_batch(batch + 1, logs or {})

    @_ending_the_record_on_error
    def on_epoch_end(self, session: "_FitRecording", epoch: int, logs: Any = None) -> None:
        if session.is_announced:
            session.finish_epoch(logs or {})

    @_ending_the_record_on_error
    def on_train_end(self, session: "_FitRecording", logs: Any = None) -> None:
        if session.is_announced:
            session.finish()
        self._session = None

    def fail(self, error: BaseException | None) -> None:
        """End the record of a `fit` that did not finish; `error` is the cause, if known."""
        session, self._session = self._session, None
        try:
            if session and session.is_announced:
                session.fail(error)
        except Exception as failed:  # `error` matters
            self.say(f"not recorded to its end: {summarise_error(failed)}")

    def give_up(self, reason: str) -> None:
        """Stop recording for the rest of this `fit`; print the reason, if one is given."""
        if reason:
            self.say(f"not recorded: {reason}")
        session, self._session = self._session, None
        if session and session.is_announced:
            with suppress(Exception), session.stack:
                session.fail(None)


class _FitRecording(Recording):
    def __init__(self, recorder: Recorder, model: Any, settings: Settings) -> None:
        self.recorder, self.model, scaling = recorder, model, scaling_of(model, settings)
        missing = self._take_over(settings, scaling)
        quiet = recorder.stream is not None and settings.logger.console == "auto"
        subject = RecordingOptions(
            "Recorder",
            settings,
            scaling,
            self._make_run,
            recorder.on_unhealthy == "stop",
            bool(model.jit_compile),
            is_rounded(model),
            quiet or bool(recorder.params.get("verbose")),
            recorder.stream,
        )
        super().__init__(subject, model.optimizer, missing)
        self.asked_before_epoch = self.asked = self.asked_at_line = 0  # steps
        self.spoiled_state: list[str] = []
        self.fault_search = FaultSearch(model, lambda sentence: self.telemetry.message(sentence))
        self.no_loss = NO_LOSS + (
            "JAX does not report it" if on_jax() else "the train_step does not hand it to optimizer.scale_loss"
        )
        self.watch_weights()

    def _make_run(self) -> RunDirectory:
        run = RunDirectory.create(self.recorder.next_path(self.settings.recipe), self.settings.recipe)
        self.recorder.runs.append(Run(run.path))
        return run

    def _take_over(self, settings: Settings, scaling: Scaling) -> list[str]:
        """Put scaling, step log and whole skips into the model; return what is not possible."""
        model = self.model
        try:  # Keras's `fit` would fail inside TensorFlow, with any optimizer
            check_replicas(model)
        except ValueError as error:
            raise config_error("Recorder", str(error)) from None
        if not isinstance(model.optimizer, LossScaleOptimizer):
            model.optimizer = LossScaleOptimizer(unwrapped(model.optimizer), rule=scaling.rule)
        capacity = max(LEAST_CAPACITY, 2 * model.steps_per_execution + settings.trainer.log_every_steps)
        strategy = getattr(model, "distribute_strategy", None)
        with nullcontext() if strategy is None else strategy.scope():  # where variables get a copy on each replica
            log = model.optimizer.keep_step_log(capacity)
            if model.built and model.trainable_variables and not model.optimizer.built:
                model.optimizer.build(model.trainable_variables)
        self.own_step = has_custom(model, "train_step")
        model.optimizer.allows_unscaled = self.own_step
        if not self.own_step and "train_step" not in vars(model):
            keep_skips_whole(model)
        self.latest = LatestBatch.of(model, self.recorder.calls if self.own_step else None)
        self.latest.train_with(log)
        if not self.own_step and on_tensorflow() and lacks_variables(model):
            build_before_tracing(model)
        lost = "metrics and normalisation" if self.recorder.calls is None else "metrics"
        return [NO_RESUME, NO_SPEED] + [f"{lost} {NOT_WHOLE}"] * self.own_step

    def _begin(self, logs: Mapping[str, Any]) -> bool:
        """Begin the record after the first call; return whether the optimizer of `compile` made a step."""
        if self.optimizer.scale_state is None or len(self.rows().floats) == 0:
            return False
        name = type(self.model).__name__
        if self.optimizer.was_unscaled and self.scaling.scales:
            problem = loss_not_scaled_problem(name)
            self.miss(f"loss scaling: {problem.rule} {problem.remedy}")
            self.recorder.say(f"not scaled: {problem.rule} {problem.remedy}")
        others = [each for each, optimizer, _ in optimizers_in(self.model) if each != "optimizer" and optimizer.built]
        if others and self.recorder.is_alone:
            self.miss(
                f"steps of {', '.join(others)}, whose loss is not scaled either: a Recorder sees the optimizer "
                "of compile alone (mpt.fit all of them)"
            )
        self._metric_names = [name for name in logs if name != "loss"]  # TensorFlow has none before the first call
        self.announce()
        return True

    @property
    def variables(self) -> Sequence[Any]:
        return list(self.model.trainable_variables)  # a subclassed model has them only after its first batch

    def header(self) -> RunHeader:
        model, names, epochs = self.model, self._metric_names, self.settings.trainer.epochs
        steps = self.recorder.params.get("steps")
        return self.build_header(
            description=f"Keras's own fit of {type(model).__name__} {model.name}",
            model=f"{type(model).__name__} {model.name}, {count_parameters(model):,} parameters",
            data="of fit",
            execution=f"Keras's fit, {model.steps_per_execution} steps per call",
            epochs=epochs,
            steps_per_epoch=steps,
            total_steps=None if steps is None else steps * epochs,
            warnings=[*warn_of_scaling(self.scaling), *warn_of_half_head(model)],
            metric_names=(*names, *(f"val_{name}" for name in ["loss", *names])),
        )

    def start_epoch(self, epoch: int) -> None:
        self.progress.epoch = epoch
        self.asked_before_epoch = self.asked
        self.losses: list[float] | None = []  # of the steps of this epoch, as long as none is applied
        self.counters.start_epoch()

    def after_batch(self, steps_in_epoch: int, logs: Mapping[str, Any]) -> None:
        """Read the step log if a line is due, a step was skipped, or the loss is not finite."""
        if not self.is_announced and not self._begin(logs):
            reason = "the train_step does not use the optimizer that the model is compiled with"
            self.recorder.give_up(reason if self.recorder.is_alone else "")
            return
        every = self.settings.trainer.log_every_steps
        self.asked = self.asked_before_epoch + steps_in_epoch
        self.pace.note(self.asked)
        is_line = self.asked // every > self.asked_at_line // every
        is_spoiled = self.stop is None and not math.isfinite(logs.get("loss", 0.0))
        if is_line or is_spoiled or self.latest.skipped is not None:
            self._look()
        if is_line:
            self.asked_at_line = self.asked
            self.snapshot({name: float(value) for name, value in logs.items()})

    def run_state(self) -> RunState:
        return replace(super().run_state(), spoiled_state=self.spoiled_state, is_inspectable=not self.own_step)

    def finish_epoch(self, logs: dict[str, Any]) -> None:
        """Record the end of an epoch, and put the mean loss of all its steps into `logs` for Keras's progress bar."""
        self._look()
        if self.own_step and self.counters.skipped:
            self.spoiled_state = [v.path for v in state_to_keep(self.model) if not are_finite([v])]
        self.pace.pause()
        self.apply_rule(self.check_epoch(self.variables))
        metrics = metrics_in(logs)
        self.watch_weights()  # now at the latest the model is built
        self.look_at_weights()
        self.progress.update(metrics)
        self.progress.epochs_completed = self.progress.epoch
        self.snapshot(metrics, epoch_end=True)
        if self.losses and "loss" in logs:
            logs["loss"] = float(np.mean(self.losses))

    def finish(self) -> None:
        latest, can_repeat = self.latest.take(), not self.own_step or self.recorder.calls is not None
        self.sample(latest if can_repeat else [], self.recorder.budget)
        super().finish()

    def _look(self) -> None:
        self.progress.step_in_epoch = self.asked - self.asked_before_epoch
        rows = self.rows()
        if self.losses is not None:
            is_told = self.tells_loss and not rows.ints[:, 0].any()
            self.losses = [*self.losses, *rows.floats[:, 0]] if is_told else None
        self.take(rows)

    def explained(self, events: list[Event]) -> list[Event]:
        """Return the events, adding the layer that failed in the forward pass for the step whose batch is known."""
        batch, self.latest.skipped = self.latest.skipped, None
        if batch is None:
            return super().explained(events)
        if on_jax():
            self.model.jax_state_sync()
        return self.fault_search.name_layers(
            super().explained(events), lambda step: batch[1] if step == batch[0] - self.offset else None
        )

    def ring(self) -> tuple[list[Any], Any]:
        values, state, log = optimizer_values_in_fit(self.model), self.optimizer.scale_state, self.optimizer.step_log
        if values is None:
            return super().ring()
        assert state is not None and log is not None
        return values[-len(log.variables) :], values[list(state.by_name).index("tally")]

    def apply_rule(self, stop: Stop | None) -> bool:
        ends = super().apply_rule(stop)
        if ends:
            self.model.stop_training = True
        return ends

    def why_ended(self) -> str:
        if not self.model.stop_training or self.progress.epoch >= self.settings.trainer.epochs:
            return ""
        stopped = [
            each
            for each in self.recorder.others
            if isinstance(each, keras.callbacks.EarlyStopping) and each.stopped_epoch
        ]
        return why_ended(stopped[0], "on_epoch_end") if stopped else "model.stop_training was set"

    def fail(self, error: BaseException | None) -> None:
        with suppress(Exception):  # JAX may have taken what the step that was broken off was given; `error` matters
            if self.optimizer.scale_state is not None:
                self._look()
        super().fail(error)
