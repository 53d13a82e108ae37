"""A run directory for Keras's own `fit`: a callback that records every step, watches the run and says how it went.

The optimizer keeps the records of the steps inside the compiled step (`precision.step_log`); the callback takes them
from there between two calls, so that `steps_per_execution` hides none.
"""

import atexit
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import yaml

from mpt_cli.engine.backend import memory_in_use, peak_memory, running_platform
from mpt_cli.errors import BUG, ConfigError, Problem
from mpt_cli.front import Asked, given_settings
from mpt_cli.precision import LossScaleOptimizer, computes_in_float16, has_own_train_step, keep_skips_whole
from mpt_cli.precision.finite import all_finite
from mpt_cli.precision.keras_internals import optimizer_values_in_fit
from mpt_cli.precision.optimizer import backend_step
from mpt_cli.precision.own_step import unwrapped
from mpt_cli.precision.step_log import StepRows
from mpt_cli.report.run import Run
from mpt_cli.runs.directory import RunDirectory, write_atomic, write_json, write_summary
from mpt_cli.runs.presence import header_dict
from mpt_cli.runs.provenance import FrameworkFacts, collect_environment
from mpt_cli.settings import resolved_yaml
from mpt_cli.settings.schema import Settings
from mpt_cli.telemetry.health import GOOD_VERDICTS, STOPPED, HealthRules, Stop, judge
from mpt_cli.telemetry.ledger import Ledger, LedgerOptions, StepRecords
from mpt_cli.telemetry.records import RunHeader, Scaling, Summary
from mpt_cli.telemetry.setup import build_telemetry
from mpt_cli.telemetry.signs import observe
from mpt_cli.training.loss_and_optimizer import describe_scaling, warn_of_scaling, wrap_optimizer
from mpt_cli.training.model_program import rule_of
from mpt_cli.training.outcome import Conclusion, Outcome, counted, status_of
from mpt_cli.training.progress import Progress

LEAST_CAPACITY = 256  # rows of the ring: at the usual 50 steps between two looks it never goes round
OF_FIT_ALONE = ("batch_size", "shuffle", "steps_per_execution", "feed", "drop_remainder", "max_steps", "jit_compile",
                "deterministic", "loss", "metrics", "from_logits")  # fmt: skip
NO_RESUME = "checkpoints: Keras's fit can't be gone on with in the middle of an epoch (mpt.fit can)"
NO_SPEED = "examples per second: fit does not tell a callback how many examples a step has"
NOT_WHOLE = ("whole skips: the model's own train_step moves metrics and statistics of normalisation in skipped steps "
             "too")  # fmt: skip
NO_LOSS = "the loss of each step, and so whether an overflow began in the forward pass: JAX tells it to no one"


def scaling_of(model: Any, settings: Settings) -> Scaling:
    """How the loss of a compiled model is scaled: as its own optimizer does it, else as the settings say."""
    optimizer, needed = model.optimizer, computes_in_float16(model)
    if isinstance(optimizer, LossScaleOptimizer):
        return Scaling(optimizer.rule, optimizer.on_overflow, needed)
    rule = rule_of(optimizer) or settings.loss_scale.rule_for(needed)
    return Scaling(rule, settings.loss_scale.on_overflow, needed)


def scaled(optimizer: Any, settings: Settings, scaling: Scaling) -> LossScaleOptimizer:
    """The optimizer in our loss scaling, itself where it is in it already."""
    if isinstance(optimizer, LossScaleOptimizer):
        return optimizer
    return wrap_optimizer(unwrapped(optimizer), settings.loss_scale, scaling)


class Recorder(keras.callbacks.Callback):  # type: ignore[misc]
    """Gives Keras's own `fit` what a run of mpt has: run directory, every skip and scale, health rules, verdict.

    An optimizer that scales no loss is put into a LossScaleOptimizer at the beginning of `fit`. Where the model has no
    `train_step` of its own, a skipped step leaves the whole model alone (`whole_skips=False` leaves that to Keras).
    A model file has the optimizer that `compile` was given: compile with LossScaleOptimizer to have the scale in it.
    What `fit` can't give is said in `environment.json` under `not_recorded`.

    Args:
        run_dir: where it writes; None for runs/MODEL/TIME. The second `fit` with it writes beside it, to RUN_DIR-2.
        on_unhealthy: what a broken health rule does: "stop" ends `fit`, "go_on" only says so.
        loss_scale: as in `mpt.fit`, for an optimizer that scales no loss yet.
        name: of the run, in runs/NAME/TIME; None for the model's.
        settings: any other key of a configuration, as in {"trainer.log_every_steps": 10, "logger.tensorboard": True}.

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

    def __init__(
        self, run_dir: str | Path | None = None, *, on_unhealthy: str = "stop", loss_scale: Any = None,
        whole_skips: bool = True, settings: Mapping[str, Any] | None = None, name: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        if on_unhealthy not in ("stop", "go_on"):
            raise ConfigError(Problem("on_unhealthy", "must be stop or go_on.", on_unhealthy))
        self.run_dir, self.on_unhealthy, self.whole_skips = run_dir, on_unhealthy, whole_skips
        self.asked = Asked(loss_scale=loss_scale, name=name, more=dict(settings or {}))
        self.runs: list[Run] = []
        self._session: _Session | None = None
        self._logs: dict[str, Any] = {}

    @property
    def run(self) -> Run:
        """The latest run; IndexError before the first."""
        return self.runs[-1]

    def on_train_begin(self, logs: Any = None) -> None:
        self.fail(None)  # a fit that an exception ended
        model = self._model
        asked = replace(self.asked, tree={"trainer": {"epochs": int(self.params["epochs"])}})
        settings = given_settings(model, asked)
        self._session = _Session(self, model, settings, self._place(), bool(self.params.get("verbose")))
        self.runs.append(Run(self._session.run.path))
        atexit.register(self.fail, None)

    def _place(self) -> str | Path | None:
        return self.run_dir if self.run_dir is None or not self.runs else f"{self.run_dir}-{len(self.runs) + 1}"

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        assert self._session is not None
        self._session.start_epoch(epoch + 1)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        assert self._session is not None
        self._session.after_batch(batch + 1, logs or {})

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        assert self._session is not None
        self._session.finish_epoch(logs or {})

    def on_train_end(self, logs: Any = None) -> None:
        assert self._session is not None
        session, self._session = self._session, None
        session.finish()

    def fail(self, error: BaseException | None) -> None:
        """End the record of a `fit` that did not come to its end; `error` is what ended it, where that is known."""
        session, self._session = self._session, None
        if session is not None:
            session.fail(error)


@dataclass
class _Watch:
    """Where a `fit` is: steps whose records were taken, steps that were asked for, and the last line of the log."""

    offset: int  # steps of the optimizer before this fit
    taken: int = 0
    asked_before_epoch: int = 0
    asked: int = 0
    line: int = 0
    began: float = 0.0


class _Session:
    """One `fit` on record."""

    def __init__(self, recorder: Recorder, model: Any, settings: Settings, place: Any, verbose: bool) -> None:
        self.recorder, self.model, self.settings = recorder, model, settings
        self.scaling = scaling_of(model, settings)
        self.missing = self._take_over()
        self.optimizer: LossScaleOptimizer = model.optimizer
        self.watch = _Watch(int(self.optimizer.seen_steps), began=time.perf_counter())
        self.ledger = Ledger(self._ledger_options(), window_steps=settings.loss_scale.skip_rate_window)
        self.health = HealthRules(settings.loss_scale, settings.trainer, self.scaling)
        self.progress = Progress()
        self.stop: Stop | None = None
        self.all_finite = backend_step().compiled(all_finite)
        self.stack = ExitStack()
        self.run = RunDirectory.create(place, settings.recipe)
        self._open(verbose)

    def _take_over(self) -> list[str]:
        """Put scaling, step log and whole skips into the model; returns what can't be had."""
        model, settings = self.model, self.settings
        strategy = getattr(model, "distribute_strategy", None)
        if strategy is not None and strategy.num_replicas_in_sync > 1:
            raise ConfigError(Problem("Recorder", "records one replica. mpt train has distribute=mirrored.",
                                      strategy.num_replicas_in_sync))
        model.optimizer = scaled(model.optimizer, settings, self.scaling)
        capacity = max(LEAST_CAPACITY, 2 * model.steps_per_execution + settings.trainer.log_every_steps)
        model.optimizer.keep_step_log(capacity)
        if model.built and model.trainable_variables and not model.optimizer.built:
            model.optimizer.build(model.trainable_variables)
        self.own_step, self.was_whole = has_own_train_step(model), "train_step" in vars(model)
        whole = not self.own_step and self.recorder.whole_skips
        if whole and not self.was_whole:
            keep_skips_whole(model)
        model.train_function = None  # it may have been traced with another optimizer
        model.make_train_function()
        self.tells_loss = keras.backend.backend() == "tensorflow" or whole or self.was_whole
        missing = [NO_RESUME, NO_SPEED]
        return missing + [NOT_WHOLE] * (not whole and not self.was_whole) + [NO_LOSS] * (not self.tells_loss)

    def _open(self, verbose: bool) -> None:
        self.stack.enter_context(self.run.lock())
        logger = replace(self.settings.logger, console="quiet") if verbose else self.settings.logger
        self.telemetry = self.stack.enter_context(build_telemetry(self.run.telemetry_files, logger))
        self._write_record()
        self._is_announced = False

    def _announce(self, metric_names: Iterable[str]) -> None:
        """Once, after the first call: before it Keras on TensorFlow has not made the metrics, and so no names."""
        if self._is_announced:
            return
        self._is_announced = True
        self.ledger.rules = self._ledger_options()  # a subclassed model has its variables only now
        header = self._header([name for name in metric_names if name != "loss"])
        write_json(self.run.header_json, header_dict(header))
        self.telemetry.start(header)
        for sentence in self.missing:
            self.telemetry.message(f"not recorded: {sentence}")

    def _write_record(self) -> None:
        platform = running_platform()
        facts = FrameworkFacts(platform.backend, bool(self.model.jit_compile), platform.devices, 0, "",
                               policy=self.settings.policy.name)  # fmt: skip
        environment = collect_environment(facts, sys.argv)
        for unknown in ("seed", "dataset_fingerprint"):
            environment[unknown] = None
        write_json(self.run.environment_json, {**environment, "recorded_by": "Recorder", "not_recorded": self.missing})
        kept = replace(self.settings, run_dir=None, resume=None, seed=None)
        tree = yaml.safe_load(resolved_yaml(kept))
        for name in OF_FIT_ALONE:
            del tree["trainer"][name]
        write_atomic(self.run.config_yaml, yaml.safe_dump(tree, sort_keys=False))

    def _ledger_options(self) -> LedgerOptions:
        rule, variables = self.scaling.rule, tuple(v.path for v in self.model.trainable_variables)
        return LedgerOptions(variables, rule.lowest, rule.highest, self.optimizer.on_overflow == "apply")

    def _header(self, names: list[str]) -> RunHeader:
        model, platform, settings = self.model, running_platform(), self.settings
        inner, steps = unwrapped(model.optimizer), self.recorder.params.get("steps")
        total = None if steps is None else steps * settings.trainer.epochs
        return RunHeader(
            recipe=settings.recipe, description="Keras's own fit, recorded", run_dir=str(self.run.path),
            policy=settings.policy.name, loss_scale=describe_scaling(self.scaling, model),
            model=f"{type(model).__name__} {model.name}, {_count(model):,} parameters", data="of fit",
            optimizer=f"{type(inner).__name__}, learning rate {settings.optimizer.learning_rate:g}",
            backend=platform.backend, device=platform.device,
            execution=f"Keras's fit, {model.steps_per_execution} steps per call", epochs=settings.trainer.epochs,
            steps_per_epoch=steps, total_steps=total, warnings=tuple(warn_of_scaling(self.scaling, model)),
            scaling=self.scaling, metric_names=(*names, *(f"val_{name}" for name in ["loss", *names])),
        )  # fmt: skip

    def start_epoch(self, epoch: int) -> None:
        self.progress.epoch = epoch
        self.watch.asked_before_epoch = self.watch.asked
        self.ledger.start_epoch()

    def after_batch(self, steps_in_epoch: int, logs: Mapping[str, Any]) -> None:
        """Look at the records where a line of the log is due."""
        self._announce(logs)
        watch, every = self.watch, self.settings.trainer.log_every_steps
        watch.asked = watch.asked_before_epoch + steps_in_epoch
        if watch.asked // every > watch.line // every:
            self._take(logs)
            watch.line = watch.asked
            self._snapshot(logs, epoch_end=False)

    def finish_epoch(self, logs: Mapping[str, Any]) -> None:
        self._take(logs)
        signs = replace(self._signs(), weights_are_finite=bool(self.all_finite([v.value for v in self._weights()])))
        self._obey(self.health.check_epoch(signs))
        metrics = {name: float(value) for name, value in logs.items()}
        self.progress.record(metrics)
        self.progress.epochs_completed = self.progress.epoch
        self._snapshot(metrics, epoch_end=True)

    def _weights(self) -> list[Any]:
        return list(self.model.trainable_variables)

    def _take(self, logs: Mapping[str, Any]) -> None:
        """The records since the last look, into ledger, events and health rules."""
        rows = self._rows()
        if rows.lost:
            self.telemetry.message(f"{rows.lost} steps went by without a look at them; their events are lost")
        self.watch.taken += len(rows.floats) + rows.lost
        floats = rows.floats if self.tells_loss else np.where([True, False, False, False], 0.0, rows.floats)
        events = self.ledger.absorb(StepRecords(floats.astype("float32"), rows.ints, {}), self.progress.epoch)
        self.telemetry.events(events if self.tells_loss else [replace(event, cause=None) for event in events])
        self.progress.step_in_epoch = self.watch.asked - self.watch.asked_before_epoch
        self.telemetry.progress(self.ledger.seen, self.progress.epoch)
        if len(rows.floats):
            self._obey(self.health.check(self._signs()))

    def _rows(self) -> StepRows:
        log, state = self.optimizer.step_log, self.optimizer.scale_state
        assert log is not None and state is not None
        values = optimizer_values_in_fit(self.model)  # on JAX, which holds them itself
        if values is None:
            tally, ring = state.by_name["tally"].value, [variable.value for variable in log.variables]
        else:
            tally, ring = values[list(state.by_name).index("tally")], values[-len(log.variables) :]
        return log.read(ring, tally, self.watch.offset + self.watch.taken)

    def _signs(self) -> Any:
        progress = self.progress
        return observe(self.ledger, self.telemetry.tally, self.scaling, progress.metrics, val_loss=progress.val_loss)

    def _obey(self, stop: Stop | None) -> None:
        if stop is None or self.stop is not None:
            return
        self.stop = stop
        self.telemetry.message(str(stop))
        if self.recorder.on_unhealthy == "stop":
            self.model.stop_training = True

    def _snapshot(self, logs: Mapping[str, Any], epoch_end: bool) -> None:
        ledger, metrics = self.ledger, {name: float(value) for name, value in logs.items()}
        mean = ledger.take_mean_loss()
        loss = metrics.pop("loss", None) if epoch_end or not self.tells_loss else mean
        metrics.pop("loss", None)
        self.telemetry.snapshot(ledger.snapshot(
            epoch=self.progress.epoch, loss=loss, examples_per_second=None, metrics=metrics, epoch_end=epoch_end,
            step_in_epoch=self.progress.step_in_epoch,
            memory_bytes=memory_in_use(),
        ))  # fmt: skip

    def finish(self) -> None:
        """At the end of `fit`."""
        verdict, explanation = judge(self._signs())
        stopped = self.stop is not None and self.recorder.on_unhealthy == "stop"
        if self.stop is not None:
            explanation = f"{'Stopped' if stopped else 'Went on'}: {self.stop}"
            verdict = STOPPED if verdict in GOOD_VERDICTS else verdict
        status, exit_code = status_of(Outcome(self.progress, self.stop if stopped else None), verdict)
        self._end(Conclusion(status, exit_code, verdict, explanation))

    def fail(self, error: BaseException | None) -> None:
        words = "fit did not come to its end" if error is None else f"{type(error).__name__}: {error}"
        self._end(Conclusion("failed", BUG, judge(self._signs())[0], words))

    def _end(self, ending: Conclusion) -> None:
        self._announce([])
        summary = Summary(
            **ending._asdict(), **counted(self.ledger, self.progress), examples_per_second=None,
            peak_memory_bytes=peak_memory(), seconds=time.perf_counter() - self.watch.began,
            recipe=self.settings.recipe, run_dir=str(self.run.path), repeatable=False,
        )  # fmt: skip
        self.telemetry.finish(summary)
        write_summary(self.run.summary_json, summary)
        self.stack.close()
        self._give_back()

    def _give_back(self) -> None:
        """The model's own step, so that a later fit without a recorder is Keras's own."""
        if not self.own_step and not self.was_whole:
            for name in ("train_step", "get_metrics_result"):
                vars(self.model).pop(name, None)
            self.model.train_function = None


def _count(model: Any) -> int:
    return int(model.count_params()) if model.built else 0
