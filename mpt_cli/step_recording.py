"""Record steps in a run directory, from the log that an optimizer keeps inside the compiled step.

`mpt.Recorder` reads the log between two batches of Keras's `fit`. A script's own training loop calls nothing of ours:
there another thread reads the log, and the loop never waits.
"""

import math
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, TextIO

import keras
import numpy as np
from omegaconf import OmegaConf

from mpt_cli.engine.backend import running_platform
from mpt_cli.engine.faults import FaultSearch
from mpt_cli.errors import NUMERICAL, summarise_error
from mpt_cli.files import write_atomic, write_json
from mpt_cli.precision import LossScaleOptimizer
from mpt_cli.precision.scale_state import StepRows
from mpt_cli.precision.train_step import unwrapped
from mpt_cli.report.run import Run
from mpt_cli.runs.directory import RunDirectory, write_summary
from mpt_cli.runs.provenance import collect_environment
from mpt_cli.samples.gradient_samples import EAGER_SECONDS, GradientSampler, sample_of_all
from mpt_cli.samples.latest_step import LatestStep, TapedCalls, steps_of
from mpt_cli.settings.load import resolved_tree
from mpt_cli.settings.model_data_optimizer_keys import GivenModel, GivenOptimizer, LossScaleSettings
from mpt_cli.settings.schema import FLOAT_POLICIES, RECORDED_TRAINER_KEYS, PolicySettings, Settings
from mpt_cli.signals import format_end, signal_of
from mpt_cli.telemetry.health_and_verdict import HealthRules, Stop
from mpt_cli.telemetry.record_types import DEAD, Event, RunHeader, Scaling
from mpt_cli.telemetry.run_state import EventTally, RunState
from mpt_cli.telemetry.sinks import build_telemetry
from mpt_cli.telemetry.step_counters import CounterOptions, StepCounters, StepRecords
from mpt_cli.training.loss_and_optimizer import describe_scaling
from mpt_cli.training.progress import Conclusion, Outcome, Stopwatch
from mpt_cli.training.run_record import NO_SAMPLES_ASKED, RunRecord, WeightWatch
from mpt_cli.training.summary_and_exit_code import conclude, conclude_unfinished, status_of_error

APPLIED = {  # keys that have an effect, or are known, if mpt only records, by section; None: all of them
    "policy": ("name",),
    "loss_scale": None,
    "model": ("name", "class_name", "command"),
    "data": ("name",),
    "optimizer": None,
    "trainer": RECORDED_TRAINER_KEYS,
    "backend": ("name",),
    "logger": None,
}

NO_SAMPLES = "effect of half precision on each layer"
UNSEEN = (
    "its step can't be repeated: derivatives in the loss, weights outside of its models, shapes that are unknown while "
    "tracing, several replicas or, on JAX, an own train_step prevent that. mpt compare compares a script with float32."
)
TOO_LONG = "it takes long beside this training. Set trainer.gradient_health_every_steps=10 to check it all the same."
HIDDEN = (
    "gradients of the loss are 0, or nearly 0, before they reach the model. Make the output layers with "
    'dtype="float32" (not tried); a higher loss scale also helps if no step was skipped.'
)
LAST_OVERFLOWED = "the gradients of the last step overflowed."
UNFINISHED = "that is checked when the training ends."
NO_SETTINGS = "settings of the program (loss, data, callbacks, schedule of the rate, seed), and the trained model"


@dataclass(frozen=True)
class RecordingOptions:
    """The settings of a recording: what records, and where; whether a broken health rule ends the run; whether XLA
    compiles the steps; whether anything is in half precision; and the console (None: standard output).
    """

    recorded_by: str
    settings: Settings
    scaling: Scaling
    make_run: Callable[[], RunDirectory]  # at its first step
    stops: bool = True
    jit_compile: bool = False
    is_rounded: bool = False
    is_quiet: bool = True
    stream: TextIO | None = None


@dataclass
class SampleBudget:
    """The seconds that a program trained, and those that samples took; after the first sample, at most `share`."""

    trainings: float = 0.0
    samples: float = 0.0
    share: float = 0.02


class StepRate:
    """The rate of steps, from repeated counts of them: the time between two counts is used unless something other than
    steps filled it. Unknown from fewer than three such times, as one may contain a compilation."""

    def __init__(self) -> None:
        self._steps, self._seconds, self._times = 0, 0.0, 0
        self._last: tuple[int, float] | None = None

    def note(self, seen: int) -> None:
        """Note the time at which the step count is `seen`."""
        now = time.perf_counter()
        if self._last is not None:
            if seen <= self._last[0]:
                return
            self._steps += seen - self._last[0]
            self._times += 1
            self._seconds += now - self._last[1]
        self._last = seen, now

    def pause(self) -> None:
        """Stop the clock, because something other than steps follows, such as validation."""
        self._last = None

    @property
    def steps_per_second(self) -> float | None:
        return self._steps / self._seconds if self._times >= 3 else None


class Recording(RunRecord, ABC):
    """The record of one training. A subclass says what is trained (`variables`, `header`) and when to read the log."""

    no_loss: str  # what can't be recorded if steps do not report their loss

    run: RunDirectory  # once there is a step

    def __init__(self, subject: RecordingOptions, optimizer: LossScaleOptimizer, missing: list[str]) -> None:
        """Begin a record. `missing` lists what this kind can't record, beside what no kind can."""
        settings = subject.settings
        self.subject, self.settings, self.scaling, self.optimizer = subject, settings, subject.scaling, optimizer
        self.missing, self.is_announced = [*missing, NO_SAMPLES, NO_SETTINGS], False
        self.offset, self.taken = int(optimizer.seen_steps), 0
        counters = StepCounters(self.counter_options())
        super().__init__(counters, HealthRules(settings.loss_scale, settings.trainer, self.scaling), Stopwatch())
        self.stopwatch.begin()
        self.pace = StepRate()
        self.unchecked = UNFINISHED if subject.is_rounded else ""
        self.stack = ExitStack()

    @property
    @abstractmethod
    def variables(self) -> Sequence[Any]:
        """Return the variables that the optimizer trains, in the order of its gradients."""

    @abstractmethod
    def header(self) -> RunHeader:
        """Return what is known before the first step."""

    def build_header(self, model: str, data: str, execution: str, **others: Any) -> RunHeader:
        """Return a header with these facts, and `others` of its fields."""
        settings, platform = self.settings, running_platform(self.settings)
        return RunHeader(
            recipe=settings.recipe,
            run_dir=str(self.run.path),
            facts={
                "policy": settings.policy.name,
                "loss scale": describe_scaling(self.scaling),
                "model": model,
                "data": data,
                "optimizer": f"{type(unwrapped(self.optimizer)).__name__}, "
                f"learning rate {settings.optimizer.learning_rate:g}",
                "backend": platform.backend,
                "device": platform.device,
                "execution": execution,
            },
            scaling=self.scaling,
            warnings=(*others.pop("warnings", ()), *platform.notices),
            **others,
        )

    @property
    def tells_loss(self) -> bool:
        """Return whether the steps report their loss, which is known once they are traced."""
        return self.optimizer.step_log is not None and self.optimizer.step_log.tells_loss

    def run_state(self) -> RunState:
        """Return the state after the last step, with the loss of the last epoch where steps do not report theirs."""
        state = super().run_state()
        return state if self.tells_loss else replace(state, loss=self.progress.metrics.get("loss"))

    def ring(self) -> tuple[list[Any], Any]:
        """Return the values of the step log and the optimizer's tally."""
        log, state = self.optimizer.step_log, self.optimizer.scale_state
        assert log is not None and state is not None
        return [variable.value for variable in log.variables], state.by_name["tally"].value

    def rows(self) -> StepRows:
        """Return the rows since the last look."""
        assert self.optimizer.step_log is not None
        return self.optimizer.step_log.read(*self.ring(), self.offset + self.taken)

    def announce(self) -> None:
        """Make and hold the run directory, and write down what is recorded, once all its facts are known."""
        self.is_announced = True
        self.run = self.subject.make_run()
        self.stack.enter_context(self.run.lock())
        logger = replace(self.settings.logger, console="quiet") if self.subject.is_quiet else self.settings.logger
        self.telemetry = self.stack.enter_context(build_telemetry(self.run, logger, self.subject.stream))
        self.telemetry.tally = EventTally(self.scaling)
        platform = running_platform(self.settings)
        facts = {
            "backend": platform.backend,
            "jit_compile": self.subject.jit_compile,
            "devices": platform.devices,
            "seed": None,
            "dataset_fingerprint": None,
            "policy": self.settings.policy.name,
            "distribute": "none",
            "examples": {},
            "keras": platform.keras,
        }
        command = self.settings.model.command if isinstance(self.settings.model, GivenModel) else ()
        environment = collect_environment(facts, ["mpt", *command] if command else sys.argv)
        self.environment = {**environment, "recorded_by": self.subject.recorded_by}
        self._write_environment()
        header = self.header()
        self.settings = replace(self.settings, description=header.description)
        write_atomic(self.run.config_yaml, OmegaConf.to_yaml(OmegaConf.create(_applied_settings(self.settings))))
        self._check_loss()
        self.counters.rules = self.counter_options()
        self.telemetry.start(header)

    def _write_environment(self) -> None:
        write_json(self.run.environment_json, {**self.environment, "not_recorded": self.missing})

    def counter_options(self) -> CounterOptions:
        rule = self.scaling.rule
        trained = self.optimizer.trained_variables
        variables = tuple(getattr(v, "path", v.name) for v in trained)  # a tf.Variable has a name alone
        return CounterOptions(
            variables,
            rule.lowest,
            rule.highest,
            not self.optimizer.scales,
        )

    def miss(self, sentence: str) -> None:
        """Note, once, that this is not recorded."""
        if sentence not in self.missing:
            self.missing.append(sentence)
            if self.is_announced:
                self._write_environment()

    def _check_loss(self) -> None:
        if not self.tells_loss:
            self.miss(self.no_loss)

    def take(self, rows: StepRows) -> None:
        """Take steps into counters and events, and apply the health rules."""
        self._check_loss()
        if rows.lost:
            self.telemetry.message(f"{rows.lost} steps were overwritten before they were read; their events are lost")
        self.taken += len(rows.floats) + rows.lost
        floats = rows.floats if self.tells_loss else np.where([True, False, False, False], 0.0, rows.floats)
        self.counters.rules = self.counter_options()
        self.record_steps(StepRecords(floats.astype("float32"), rows.ints))
        self.telemetry.progress(self.counters.seen, self.progress.epoch)
        if len(rows.floats):
            self.apply_rule(self.health.check(self.run_state()))

    def explained(self, events: list[Event]) -> list[Event]:
        """Return the events; where the loss is unknown, without the pass in which an overflow began."""
        return events if self.tells_loss else [replace(event, cause=None) for event in events]

    def watch_weights(self) -> None:
        """Watch from here on whether the weights move."""
        if self.weight_watch is None and self.optimizer.built:
            self.weight_watch = WeightWatch([self.optimizer], int(self.optimizer.seen_steps) - self.offset)

    def apply_rule(self, stop: Stop | None) -> bool:
        """Note the first broken health rule and say so, unless the run ends by it; return whether it ends."""
        if stop is None or self.stop is not None:
            return False
        self.stop = stop
        self.telemetry.message(
            f"step {self.counters.seen}: stopped by rule {stop.key}" if self.subject.stops else str(stop)
        )
        return self.subject.stops

    def snapshot(self, metrics: Mapping[str, float], epoch_end: bool = False) -> None:
        """Write a line of the log."""
        mean = self.counters.take_mean_loss()
        self.line(metrics.get("loss") if epoch_end or not self.tells_loss else mean, metrics, epoch_end=epoch_end)

    def sample(self, latest: Sequence[LatestStep], budget: SampleBudget) -> None:
        """Sample what half precision does to the latest step, unless that costs too much beside the training."""
        every = self.settings.trainer.gradient_health_every_steps
        if not self.subject.is_rounded:
            self.missing.remove(NO_SAMPLES)  # there is nothing to be sampled
            return
        if every is None:
            self.unchecked = NO_SAMPLES_ASKED
            return
        seconds, steps = self.stopwatch.run_seconds, steps_of(self.variables, latest)
        budget.trainings += seconds
        if not steps or any(step.hides_flushed for step in steps):
            self.unchecked = HIDDEN if steps else UNSEEN
            return
        say = self.telemetry.message
        samplers = [
            GradientSampler(step.model, every, say, is_seeded=step.is_seeded, examples=partial(list, step.recent))
            for step in steps
        ]
        is_spent = every == "auto" and budget.samples > budget.share * budget.trainings
        if is_spent or not all(sampler.is_affordable(seconds, EAGER_SECONDS) for sampler in samplers):
            self.unchecked = TOO_LONG
            return
        self.unchecked = LAST_OVERFLOWED
        started = time.perf_counter()
        looks = []
        for sampler, step in zip(samplers, steps, strict=True):
            with step.as_trained():
                looks.append(self.take_sample(sampler, step.batch))
        budget.samples += time.perf_counter() - started
        if None not in looks:  # of a sample that overflowed, the layers are known
            self.missing.remove(NO_SAMPLES)
            self._write_environment()
        self.counters.sample = None
        found = [look.sample for look in looks if look is not None and look.sample is not None]
        # if the sample finds no gradient, that of the loss may have gone another way
        goes_another_way = steps[0].is_seeded and not self.counters.streaks.zero_steps
        if goes_another_way and not all(sample.norm or sample.flushed_share for sample in found):
            self.unchecked = HIDDEN
        elif len(found) == len(steps):
            sample = sample_of_all(found, [row for look in looks if look is not None for row in look.layers])
            watch = self.weight_watch  # of weights that have changed one batch without a gradient proves nothing
            faults = {
                name: fault
                for name, fault in sample.faults.items()
                if fault != DEAD or watch is None or not watch.has_moved_in(name)
            }
            self.counters.sample = replace(sample, faults=faults)

    def finish(self) -> None:
        """End the record with its verdict."""
        self.look_at_weights()
        state = self.run_state()
        again = self.health.check(state)  # with what is known now
        if self.stop and again and again.key == self.stop.key:
            self.stop = again
        outcome = Outcome(self.progress, self.stop if self.subject.stops else None, ended_early=self.why_ended())
        ending, ended_early = conclude(state, outcome, passed_over=self.stop)
        self.end(ending._replace(exit_code=self.exit_code(ending.exit_code)), ended_early)

    def why_ended(self) -> str:
        """Return why it ended before its last epoch, other than by a rule; empty if it did not."""
        return ""

    def exit_code(self, usual: int) -> int:
        """Return the exit code of a run that ended normally; `usual` is the code for its status and verdict."""
        return usual

    def fail(self, error: BaseException | None) -> None:
        """End the record of a run that did not end normally; `error` is the cause, if known."""
        number = signal_of(error)
        words = "fit did not come to its end" if error is None else summarise_error(error)
        words = words if number is None else f"It was {format_end(number)}."
        self.end(conclude_unfinished(status_of_error(error), self.run_state(), words))

    def end(self, ending: Conclusion, ended_early: str = "") -> None:
        """Write the last line of the log, however few steps it covers, and the summary."""
        if self.counters.seen > self.logged_step:
            self.snapshot({})
        summary = self.summary(
            ending,
            self.settings,
            self.run.path,
            repeatable=False,
            not_recorded=tuple(self.missing),
            ended_early=ended_early,
            steps_per_second=self.pace.steps_per_second,
        )
        self.telemetry.finish(summary)
        write_summary(self.run.summary_json, summary)
        self.stack.close()


def policy_on_record(given: PolicySettings) -> PolicySettings:
    """Return the present policy of a script, which the script may have set."""
    name = keras.config.dtype_policy().name
    return replace(given, name=name, head=None) if name in FLOAT_POLICIES else given


def scaling_on_record(optimizer: Any, given: LossScaleSettings) -> LossScaleSettings:
    """Return the loss-scale settings, from the optimizer if a program gave it a rule."""
    if not isinstance(optimizer, LossScaleOptimizer) or optimizer.rule in (given.rule_for(True), given.rule_for(False)):
        return given
    rule = optimizer.rule
    return LossScaleSettings(
        rule.mode,
        max_consecutive_skips=given.max_consecutive_skips,
        max_skip_rate=given.max_skip_rate,
        **{name: getattr(rule, name) for name in rule.key_names()},
    )


def _applied_settings(settings: Settings) -> dict[str, Any]:
    """Return the settings that took effect or are known; the program that trains decides all others."""
    tree = resolved_tree(settings)
    kept = {name: tree[name] for name in ("recipe", "description")}
    for section, names in APPLIED.items():
        kept[section] = {name: value for name, value in tree[section].items() if names is None or name in names}
    usual, known = asdict(GivenOptimizer()), ("name", "class_name", "learning_rate")
    kept["optimizer"] = {
        name: value for name, value in kept["optimizer"].items() if name in known or value != usual[name]
    }
    return kept


RING_ROWS = 16384  # half a second of steps of 30 microseconds; 0.7 MB
NOT_OF_A_LOOP = [
    "epochs, metrics, validation and examples per second: only fit reports them, so all steps count as one epoch",
    "checkpoints: a custom loop can't be resumed",
    "metrics in skipped steps: the loop itself updates them; weights, optimizer and the state of models that it calls "
    "stay as they were",
]
NO_LOSS = "the loss of each step, and whether an overflow began in the forward pass: "


class LoopRecording(Recording):
    """Records a script's own training loop: another thread reads its steps from time to time, and at the end.

    The ring of the optimizer is long enough for the steps in between. A health rule can't stop the loop; it gives a
    message and the exit code of a stopped run.
    """

    no_loss = NO_LOSS + "gradients were not applied where they were computed"

    def __init__(
        self,
        subject: RecordingOptions,
        optimizer: LossScaleOptimizer,
        calls: TapedCalls,
        budget: SampleBudget,
    ) -> None:
        """Begin the record of a loop that makes these calls of models."""
        super().__init__(subject, optimizer, NOT_OF_A_LOOP)
        self.calls, self.budget = calls, budget
        self.progress.epoch = 1
        self._losses: deque[float] = deque(maxlen=self.settings.trainer.log_every_steps)  # of the last applied steps
        self._lock = threading.Lock()
        self.is_over = False
        self._searches: dict[int, FaultSearch] = {}  # by the ids of models

    @property
    def variables(self) -> Sequence[Any]:
        return self.optimizer.trained_variables

    def exit_code(self, usual: int) -> int:
        return usual if self.stop is None else NUMERICAL

    def run_state(self) -> RunState:
        """Return the state without claims about nan, which clipping by an infinite norm makes of inf, but of inputs."""
        state = super().run_state()
        return state if state.largest_input else replace(state, persistent_nan_steps=[])

    def finish(self) -> None:
        self.sample(self.calls.steps(), self.budget)
        super().finish()

    def explained(self, events: list[Event]) -> list[Event]:
        """Return the events, with the layer where the forward pass of the latest skipped step went wrong."""
        events = super().explained(events)
        for event in events:
            for model, x in self.calls.inputs_of_skipped(self.optimizer, event.step + self.offset):
                search = self._searches.setdefault(id(model), FaultSearch(model, self.telemetry.message))
                events = search.name_layers(events, {event.step: (x,)}.get)
        return events

    def record_steps(self, records: StepRecords) -> None:
        self._losses.extend(records.loss[records.finite | (not self.optimizer.scales)].tolist())
        super().record_steps(records)

    def line(self, loss: float | None, metrics: Mapping[str, float], **others: Any) -> None:
        if loss is not None:  # the only known measure of its quality
            mean = sum(self._losses) / len(self._losses)
            self.progress.update({"loss": mean if math.isfinite(mean) else self.counters.last_mean_loss or mean})
        super().line(loss, metrics, **others)

    def header(self) -> RunHeader:
        optimizer, paths = type(unwrapped(self.optimizer)).__name__, self.counter_options().variables
        return self.build_header(
            description=f"a loop of the script's own: {optimizer} for {paths[0]} to {paths[-1]}",
            data="of the script",
            model=f"{sum(int(np.prod(v.shape)) for v in self.variables):,} parameters",
            execution="the script's own loop",
            epochs=1,
            steps_per_epoch=None,
            total_steps=None,
            metric_names=(),
        )

    def drain(self, at_end: bool = False) -> None:
        """Read the complete steps: while the loop runs, the last one may be half written."""
        with self._lock:
            if self.is_over or not self.optimizer.built:
                return
            rows = self.rows()
            kept = len(rows.floats) if at_end else len(rows.floats) - 1
            if not at_end:
                self.pace.note(kept + self.counters.seen)
            if kept > 0:
                self._absorb(StepRows(rows.floats[:kept], rows.ints[:kept], rows.lost))

    def _absorb(self, rows: StepRows) -> None:
        """Take steps, with a line of the log after the first one and then after every so many."""
        if not self.is_announced:
            self.announce()
            self.watch_weights()
        every, start, lost = self.settings.trainer.log_every_steps, 0, rows.lost
        while start < len(rows.floats):
            end = min(len(rows.floats), start + (every - self.counters.seen % every if self.counters.seen else 1))
            self.progress.step_in_epoch = self.counters.seen + end - start
            self.take(StepRows(rows.floats[start:end], rows.ints[start:end], lost))
            if self.counters.seen % every == 0 or self.counters.seen == 1:
                self.snapshot({})
            start, lost = end, 0

    def close(self, error: BaseException | None) -> Run | None:
        """End the record at the end of the script or of the loop; None where no step was made."""
        self.drain(at_end=True)
        with self._lock:
            self.is_over = True
            if not self.is_announced:
                return None
            self.fail(error) if error is not None else self.finish()
        return Run(self.run.path)


class DrainThread:
    """A thread that drains the recordings twice a second, until `close`."""

    SECONDS = 0.5

    def __init__(self) -> None:
        self.recordings: list[LoopRecording] = []
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, recording: LoopRecording) -> None:
        self.recordings.append(recording)
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="mpt-drain", daemon=True)
            self._thread.start()

    def _work(self) -> None:
        while not self._over.wait(self.SECONDS):
            with suppress(Exception):  # an error of the record must not reach the script: the rest is read at the end
                for recording in list(self.recordings):
                    recording.drain()

    def close(self) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()
