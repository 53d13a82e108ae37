"""Run an unchanged Keras script in mixed precision: patch Keras while the script runs, and undo that afterwards.

The dtype policy is set before the script builds anything, optimizers get loss scaling at `compile`, and every `fit`
gets a `Recorder`. In the script's own training loop (TensorFlow) a `GradientTape` seeds its backward pass with the loss
scale and divides the gradients by it, so that the script sees true gradients; the optimizer then skips steps that are
not finite and moves the scale, and its log of steps becomes a run directory.
"""

import inspect
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field, replace
from functools import wraps
from pathlib import Path
from typing import Any

import keras

from mpt_cli import python_api
from mpt_cli.errors import OK, summarise_error
from mpt_cli.precision import LossScaleOptimizer, computes_in_float16
from mpt_cli.precision.gradient_check import NARROW, on_tensorflow
from mpt_cli.precision.keras_internals import direct_trainable_variables
from mpt_cli.precision.policy import policy_inside, set_global_policy
from mpt_cli.precision.train_step import unwrapped
from mpt_cli.recorder_callback import NO_RESUME, NO_SPEED, Recorder
from mpt_cli.report.run import Run
from mpt_cli.runs.directory import RunDirectory, numbered_path
from mpt_cli.samples.latest_step import TapedCalls
from mpt_cli.settings.model_data_optimizer_keys import GivenData, GivenModel, LossScaleSettings
from mpt_cli.settings.schema import RECORDED_TRAINER_KEYS, BackendSettings, Settings
from mpt_cli.signals import at_forced_end
from mpt_cli.step_recording import (
    NO_SETTINGS,
    RING_ROWS,
    DrainThread,
    LoopRecording,
    RecordingOptions,
    SampleBudget,
    policy_on_record,
    scaling_on_record,
)
from mpt_cli.telemetry.health_and_verdict import GOOD_VERDICTS, UNCHECKED
from mpt_cli.telemetry.record_types import Scaling
from mpt_cli.training.build_run_parts import warn_of_half_head
from mpt_cli.training.run_from_model import described_optimizer, rule_of

ON_REPLICAS = "its own training loop on several replicas: steps are scaled and skipped, but there is no run directory"
REPLACED = "the script's own loss scaling is replaced by mpt's, which counts its skips"
OWN_LOOP = "the script's own LossScaleOptimizer is used as it is, and its loop is not recorded (on TensorFlow it is)"
NOT_SCALED = "not scaled: gradients of something other than a float tensor"
JAX_LOOP = (
    "not scaled and not recorded: a loop of the script's own on JAX. Use mpt_cli.LossScaleOptimizer and its "
    "scale_loss there, or policy=mixed_bfloat16"
)

_in_backward = ContextVar("in_backward", default=False)  # whether this thread takes gradients


@dataclass
class ScriptRun:
    """A running script: the models, optimizers and loops that mpt watches, and their runs."""

    settings: Settings
    title: str
    command: tuple[str, ...]  # the words behind `mpt` that run it again
    folder: Path  # where it was started
    is_seeded: bool = False  # by the settings, in place of the script
    process: int = field(default_factory=os.getpid)  # that imported Keras
    notes: list[str] = field(default_factory=list)
    plain: list[Any] = field(default_factory=list)  # optimizers that the script made, without those of loss scaling
    own_scalings: list[Any] = field(default_factory=list)  # and those, but for what `compile` of Keras makes
    wrappers: dict[int, LossScaleOptimizer] = field(default_factory=dict)  # by the id of the optimizer inside
    passes: Any = None  # `BackwardPasses` of the script, on TensorFlow
    loops: dict[int, LoopRecording] = field(default_factory=dict)  # of those that a loop of the script's own used
    begun: list[Run] = field(default_factory=list)  # of fits and calls of `mpt.fit`, then of loops
    drain: DrainThread = field(default_factory=DrainThread)
    fits: list[Any] = field(default_factory=list)  # models in fits that have a record; None for a fit of mpt's
    calls: TapedCalls = field(default_factory=TapedCalls)
    budget: SampleBudget = field(default_factory=SampleBudget)
    path_count: int = 0  # run directories so far

    @contextmanager
    def fitting(self, model: Any = None) -> Iterator[None]:
        """Mark a block with its own record: of the steps of the optimizer of `model`, or of all optimizers."""
        self.fits.append(model)
        try:
            yield
        finally:
            self.fits.pop()

    @contextmanager
    def noting(self, recorders: Sequence[Recorder]) -> Iterator[None]:
        """Collect the runs of these recorders after the block, a fit, also if an exception ends it."""

        def fail(error: BaseException) -> None:
            for recorder in recorders:
                recorder.fail(error)

        try:
            with at_forced_end(lambda end: fail(end.error)):
                yield
        except BaseException as error:
            fail(error)
            raise
        finally:
            self.begun += [run for each in recorders for run in each.runs if run not in self.begun]

    def note(self, sentence: str) -> None:
        """Note a sentence for the end of the script, once."""
        if sentence not in self.notes:
            self.notes.append(sentence)

    def wrapper_of(self, optimizer: Any, model: Any = None) -> LossScaleOptimizer:
        """Return the optimizer wrapped in mpt's loss scaling, always the same wrapper; the script's own scaling keeps
        its numbers."""
        inner = unwrapped(optimizer)
        if None in self.fits and isinstance(optimizer, LossScaleOptimizer):  # that of `mpt.fit`, which has the record
            self.wrappers[id(inner)] = optimizer
        if id(inner) not in self.wrappers:
            own = next((each for each in self.own_scalings if each.inner_optimizer is inner), inner)
            if isinstance(own, LossScaleOptimizer):
                self.wrappers[id(inner)] = own
                return own
            if (rule := rule_of(own)) is not None:
                self.note(REPLACED)
            else:
                is_half = keras.config.dtype_policy().compute_dtype == "float16"
                rule = self.settings.loss_scale.rule_for(is_half or (model is not None and computes_in_float16(model)))
            self.wrappers[id(inner)] = _outside(lambda: LossScaleOptimizer(inner, rule=rule))
        return self.wrappers[id(inner)]

    def first_scale(self, has_any_of: Callable[[list[Any]], bool]) -> float | None:
        """Return the initial scale for gradients of variables: that of the optimizers built for them, or before their
        first step that of the optimizers not yet built. None if no optimizer will move it.
        """
        mine = [inner for inner in self.plain if inner.built and has_any_of(direct_trainable_variables(inner))]
        wrappers = [self.wrapper_of(inner) for inner in mine or self.plain if mine or not inner.built]
        scales: list[float] = _outside(lambda: [float(each.loss_scale) for each in wrappers if each.scales])
        return min(scales, default=None)

    @property
    def is_seeing_script(self) -> bool:
        """Return whether the script is the caller, rather than mpt or a backward pass with its own tapes
        (`tf.recompute_grad`).
        """
        return not _in_backward.get() and not _calling_module().startswith("mpt_cli.")

    def step(self, optimizer: Any, grads: Iterable[Any], variables: Any) -> None:
        """Apply true gradients, and record the step unless a `fit` does."""
        wrapper = self.wrapper_of(optimizer)
        is_loop = not any(model is None or model.optimizer is wrapper for model in self.fits)
        if is_loop:
            self.record_loop(wrapper)
        given = direct_trainable_variables(wrapper.inner_optimizer) if variables is None else variables

        def if_skipped(optimizer: Any) -> list[tuple[Any, Any]]:
            if _replicas() > 1:
                return []
            trained = [variable for each in self.wrappers.values() for variable in each.trained_variables]
            inputs = self.calls.inputs_if_skipped(optimizer) if is_loop else []
            return inputs + self.calls.state_if_skipped(trained)

        self.passes.apply(wrapper, list(grads), list(given), if_skipped)

    def record_loop(self, wrapper: LossScaleOptimizer) -> None:
        """Begin the record of the script's own loop at its first step, when that step is traced."""
        if id(wrapper) in self.loops:
            return
        if _replicas() > 1:
            self.note(f"not recorded: {ON_REPLICAS}")
            return
        try:
            _outside(lambda: wrapper.keep_step_log(RING_ROWS))
            subject = self._subject_of(wrapper)
            recording = _outside(lambda: LoopRecording(subject, wrapper, self.calls, self.budget))
            self.loops[id(wrapper)] = recording
        except Exception as error:  # an error of the record must not reach the script
            self.note(f"not recorded: a loop of the script's own. {summarise_error(error)}")
            return
        self.drain.add(self.loops[id(wrapper)])

    def _subject_of(self, wrapper: LossScaleOptimizer) -> RecordingOptions:
        settings = replace(
            self.settings,
            recipe=self.title,
            data=GivenData(),
            model=GivenModel(class_name="of the script", command=[*self.command]),
            policy=policy_on_record(self.settings.policy),
            optimizer=_outside(lambda: described_optimizer(wrapper)),
            backend=BackendSettings(keras.backend.backend()),
            loss_scale=scaling_on_record(wrapper, self.settings.loss_scale),
        )
        dtype = keras.config.dtype_policy().compute_dtype
        scaling = Scaling(wrapper.rule, dtype == "float16")
        return RecordingOptions(
            "mpt run, from the optimizer",
            settings,
            scaling,
            lambda: RunDirectory.create(self.next_path(self.title), self.title),
            stops=False,
            is_rounded=dtype in NARROW,
            is_quiet=settings.logger.console == "auto",
            stream=sys.stderr,
        )

    def next_path(self, title: str) -> Path:
        """Return the next run directory, below the folder in which the script was started."""
        self.path_count += 1
        return self.folder / numbered_path(self.settings.run_dir, title, self.path_count)

    def end_loops(self, error: BaseException | None) -> None:
        """Read the last steps of the script's loops and end their records, at the end of the script."""
        self.drain.close()
        for model in self.calls.heads.values():
            self.note_head(model)
        for loop in self.loops.values():
            try:
                self.begun += [run] if (run := loop.close(error)) is not None else []
            except Exception as failed:  # an error of the record must not reach the script
                self.note(f"not recorded to its end: a loop of the script's own. {summarise_error(failed)}")

    @property
    def exit_code(self) -> int:
        """Return the most severe exit code of the runs that ended normally; the script handled the errors of others."""
        return max((run.exit_code for run in self.ended_runs), default=OK)

    @property
    def ended_runs(self) -> list[Run]:
        """Return the runs that ended normally, or by a health rule."""
        return [run for run in self.runs if run.status in ("finished", "stopped")]

    def why_not_good(self, allow_unchecked: bool) -> str:
        """Return a sentence on the verdicts that are not good; empty if all are."""
        good = (*GOOD_VERDICTS, *([UNCHECKED] if allow_unchecked else []))
        bad = [f"{self._shown(run)} is {run.verdict}" for run in self.ended_runs if run.verdict not in good]
        return f"not every verdict is {' or '.join(good)}: {', '.join(bad)}" if bad else ""

    @property
    def runs(self) -> list[Run]:
        """Return the runs whose record has an end."""
        return [run for run in self.begun if (run.path / "summary.json").is_file()]

    def note_head(self, model: Any) -> None:
        """Note a model whose output layer is in half precision."""
        if model.built:
            for sentence in warn_of_half_head(model):
                self.note(sentence)

    def _shown(self, run: Run) -> Path:
        return run.path.relative_to(self.folder) if run.path.is_relative_to(self.folder) else run.path

    def _unused_scaling(self) -> list[str]:
        """Return a sentence that the given loss-scale settings had no effect; none if none were given."""
        asked = self.settings.loss_scale.rule_for(True)
        rules = [each.rule for each in self.wrappers.values()]
        if not rules or asked in rules or asked == LossScaleSettings().rule_for(True):
            return []
        why = "the script sets its own" if any(rule.scales for rule in rules) else "nothing computes in float16"
        return [f"the settings of loss_scale had no effect: {why}"]

    def sentences(self) -> list[str]:
        """Return the sentences for the end of the script."""
        found = [*self.notes, *self._unused_scaling()]
        found += [
            f"{self._shown(run)} ({run.summary['description']}): {run.verdict}. {run.explanation}" for run in self.runs
        ]
        missing = dict.fromkeys(
            re.split(r": | \(", sentence)[0]
            for run in self.runs
            for sentence in run.summary.get("not_recorded", [])
            if sentence not in (NO_RESUME, NO_SPEED, NO_SETTINGS)
        )
        found += [f"not recorded: {', '.join(missing)} (summary.json says why)"] if missing else []
        if not self.runs:
            return found
        seen, skipped = (sum(run.summary[name] for run in self.runs) for name in ("steps_seen", "skipped_steps"))
        bad = [run for run in self.ended_runs if run.verdict not in (*GOOD_VERDICTS, UNCHECKED)]
        guide = "; see docs/guides/script-overflow.md" if bad else ""
        shown = self._shown([*bad, self.runs[-1]][0])
        together = " in all runs together" * (len(self.runs) > 1)
        return [*found, f"{skipped} of {seen} steps skipped{together}", f"next: mpt report {shown}{guide}"]


def _outside(make: Callable[[], Any]) -> Any:
    """Return `make()`, called outside of the function that is being traced."""
    if not on_tensorflow():
        return make()
    from mpt_cli.precision.apply_or_skip_tensorflow import outside

    return outside(make)


def _replicas() -> int:
    from mpt_cli.precision.apply_or_skip_tensorflow import replicas

    return replicas()


Patch = tuple[Any, str, Callable[[Any], Any]]  # the arguments of `_replaced`


@contextmanager
def watched(seen: ScriptRun) -> Iterator[None]:
    """Set the dtype policy and watch the script's models and optimizers, until the end of the context."""
    with policy_inside(seen.settings.policy.name), ExitStack() as stack:
        stack.callback(keras.config.set_floatx, keras.config.floatx())
        for patches in (_policies, _seeds, _compiles, _fits, _runs_of_ours, _tapes, _optimizers):
            for patch in patches(seen):
                stack.enter_context(_replaced(*patch))
        yield


@contextmanager
def _replaced(holder: Any, name: str, make: Callable[[Any], Any]) -> Iterator[None]:
    """Replace the attribute of this name by `make(attribute)`, until the end of the context.

    An attribute of a class is replaced in the class that defines it: Keras compiles a loaded model only if its
    `compile` is that of Keras's base class.
    """
    if isinstance(holder, type):
        holder = next((kind for kind in holder.__mro__ if name in vars(kind)), holder)
    before = getattr(holder, name, None)
    setattr(holder, name, make(before))
    try:
        yield
    finally:
        setattr(holder, name, before) if before is not None else delattr(holder, name)


def _policies(seen: ScriptRun) -> Iterator[Patch]:
    """Let a script set its own policy, and note that; keep the policy of mpt after `clear_session`."""
    set_policy, clear = keras.config.set_dtype_policy, keras.backend.clear_session
    set_floatx, floatx = keras.config.set_floatx, keras.config.floatx()
    own: list[Any] = []

    def set_told(policy: Any) -> None:
        by_script = sys._getframe(1).f_code is set_global_policy.__code__
        if by_script or not _calling_module().startswith("mpt_cli."):  # mpt sets it to build a model or measure one
            seen.note(f"the script sets the dtype policy itself and runs under it: {getattr(policy, 'name', policy)}")
            own.append(policy)
        set_policy(policy)

    def cleared(*arguments: Any, **named: Any) -> None:
        clear(*arguments, **named)
        if not own:
            seen.note(f"clear_session forgets the dtype policy: it was set to {seen.settings.policy.name} again")
            set_policy(seen.settings.policy.name)

    def set_floatx_told(value: str) -> None:
        set_floatx(value)
        if value != floatx or own:
            set_told(value)

    yield from _in_all_places(set_policy, set_told)
    yield from _in_all_places(clear, cleared)
    yield from _in_all_places(set_floatx, set_floatx_told)


def _seeds(seen: ScriptRun) -> Iterator[Patch]:
    """Use the seed given to mpt instead of the script's."""
    set_seed, seed = keras.utils.set_random_seed, seen.settings.seed

    def seeded(of_script: int) -> None:
        seen.note(f"the seed is {seed}, in place of the script's {of_script}")
        set_seed(seed)

    if seen.is_seeded and seed is not None:
        set_seed(seed)
        yield from _in_all_places(set_seed, seeded)


def _in_all_places(function: Any, new: Any) -> list[Patch]:
    """Replace a public function in all modules that have it: keras.config and keras.mixed_precision, keras.utils and
    keras.backend, and those of tf.keras."""
    modules = [
        module
        for path, module in list(sys.modules.items())
        if path.partition(".")[0] == "keras" and not path.startswith("keras.src.")
    ]
    return [
        (module, name, lambda _: new)
        for module in modules
        for name, value in list(vars(module).items())
        if value is function
    ]


def _compiles(seen: ScriptRun) -> Iterator[Patch]:
    """Compile every model with its optimizer wrapped in loss scaling."""

    def make(compile_model: Any) -> Any:
        @wraps(compile_model)
        def compiled(model: Any, *arguments: Any, **named: Any) -> None:
            known = len(seen.own_scalings)
            compile_model(model, *arguments, **named)
            del seen.own_scalings[known:]
            if isinstance(model.optimizer, keras.optimizers.Optimizer):
                model.optimizer = seen.wrapper_of(model.optimizer, model)

        return compiled

    yield keras.Model, "compile", make


def _fits(seen: ScriptRun) -> Iterator[Patch]:
    """Give every `fit` a Recorder; note that `train_on_batch` on JAX has no record."""

    def make(fit: Any) -> Any:
        @wraps(fit)
        def recorded(model: Any, *arguments: Any, **named: Any) -> Any:
            bound = inspect.signature(fit).bind(model, *arguments, **named)
            callbacks = bound.arguments.get("callbacks")
            given = list(keras.tree.flatten(callbacks)) if callbacks is not None else []
            has_optimizer = isinstance(model.optimizer, keras.optimizers.Optimizer)
            if has_optimizer:
                model.optimizer = seen.wrapper_of(model.optimizer, model)  # it may have come after `compile`
            if isinstance(callbacks, keras.callbacks.CallbackList) or any(isinstance(c, Recorder) for c in given):
                seen.note("a fit has a Recorder or a CallbackList of its own, to which nothing was added")
                with seen.fitting(model), seen.noting([each for each in given if isinstance(each, Recorder)]):
                    return fit(model, *arguments, **named)
            if not has_optimizer:
                return fit(model, *arguments, **named)
            recorder = _recorder(seen)
            recorder.others = given
            bound.arguments["callbacks"] = [*given, recorder]
            with seen.fitting(model), seen.noting([recorder]):
                try:
                    return fit(*bound.args, **bound.kwargs)
                finally:
                    seen.note_head(model)

        return recorded

    def make_batches(train_on_batch: Any) -> Any:
        @wraps(train_on_batch)
        def said(model: Any, *arguments: Any, **named: Any) -> Any:
            if not on_tensorflow():
                seen.note("not recorded: train_on_batch on JAX, whose steps are scaled and skipped")
            return train_on_batch(model, *arguments, **named)

        return said

    yield keras.Model, "fit", make
    yield keras.Model, "train_on_batch", make_batches


def _runs_of_ours(seen: ScriptRun) -> Iterator[Patch]:
    """Don't record `mpt.fit` and `mpt.diagnose`: the first has its own record, the second needs none."""

    def make(function: Any) -> Any:
        @wraps(function)
        def called(*arguments: Any, **named: Any) -> Any:
            with seen.fitting():
                found = function(*arguments, **named)
            seen.begun += [found] if isinstance(found, Run) else []
            return found

        return called

    yield python_api, "fit", make
    yield python_api, "diagnose", make


def _recorder(seen: ScriptRun) -> Recorder:
    settings = seen.settings
    more = {f"logger.{name}": value for name, value in asdict(settings.logger).items()}
    more |= {f"trainer.{name}": getattr(settings.trainer, name) for name in RECORDED_TRAINER_KEYS}
    recorder = Recorder(loss_scale=asdict(settings.loss_scale), settings=more, name=seen.title)
    recorder.command, recorder.say, recorder.stream, recorder.is_alone = seen.command, seen.note, sys.stderr, False
    recorder.budget, recorder.next_path = seen.budget, seen.next_path
    recorder.calls = seen.calls if seen.passes is not None else None
    return recorder


def _optimizers(seen: ScriptRun) -> Iterator[Patch]:
    """Watch the optimizers that the script makes. On TensorFlow each applies through its wrapper, and a loss that the
    script scales itself is not scaled twice."""
    base, scaling = keras.optimizers.Optimizer, keras.optimizers.LossScaleOptimizer

    def make_init(init: Any) -> Any:
        def made(optimizer: Any, *arguments: Any, **named: Any) -> None:
            init(optimizer, *arguments, **named)
            (seen.own_scalings if isinstance(optimizer, scaling) else seen.plain).append(optimizer)

        return made

    def make_apply(apply: Any) -> Any:
        def applied(optimizer: Any, grads: Any, trainable_variables: Any = None, **named: Any) -> None:
            module, scales = _calling_module(), isinstance(optimizer, scaling)
            by_wrapper = not scales and module.startswith(("mpt_cli.precision", scaling.__module__))
            if by_wrapper or (module.startswith("mpt_cli.") and not module.startswith("mpt_cli.precision")):
                if seen.passes is None and not seen.fits and by_wrapper and id(optimizer) not in seen.wrappers:
                    seen.note(OWN_LOOP)
            elif seen.passes is not None:
                seen.step(optimizer, grads, trainable_variables)
                return
            elif not scales:
                seen.note(JAX_LOOP)
            apply(optimizer, grads, trainable_variables, **named)

        return _as_it_is(applied)

    def make_identity(method: Any) -> Any:
        def same(optimizer: Any, value: Any) -> Any:
            return method(optimizer, value) if _calling_module().startswith("mpt_cli.precision") else value

        return _as_it_is(same)

    yield base, "__init__", make_init
    for kind in (base, scaling, LossScaleOptimizer):
        yield kind, "apply", make_apply
    for kind in (scaling, LossScaleOptimizer) if seen.passes is not None else ():
        for name in ("scale_loss", "get_scaled_loss", "get_unscaled_gradients"):
            yield kind, name, make_identity


def _as_it_is(function: Any) -> Any:
    """Return the function, which TensorFlow's autograph must not rewrite."""
    if not on_tensorflow():
        return function
    import tensorflow as tf

    return tf.autograph.experimental.do_not_convert(function)


def _calling_module() -> str:
    """Return the module that called our patch of Keras, skipping the frames of autograph."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        name = str(frame.f_globals.get("__name__", ""))
        if name != __name__ and not name.startswith("tensorflow.python.autograph"):
            return name
        frame = frame.f_back
    return ""


def _tapes(seen: ScriptRun) -> Iterator[Patch]:
    """Compute the gradients that the script, or a library for it, asks for from the scaled loss, and divide them."""
    if not on_tensorflow():
        return
    import tensorflow as tf

    from mpt_cli.precision.backward_pass import BackwardPasses, is_scalable

    seen.passes = BackwardPasses()

    def make(gradient: Any) -> Any:
        def taken(*arguments: Any, **named: Any) -> Any:
            before = _in_backward.set(True)
            try:
                return gradient(*arguments, **named)
            finally:
                _in_backward.reset(before)

        def scaled(tape: Any, target: Any, sources: Any, output_gradients: Any = None, **named: Any) -> Any:
            flat = tf.nest.flatten(sources)
            if not seen.is_seeing_script or not any(isinstance(each, (keras.Variable, tf.Variable)) for each in flat):
                seen.calls.derive()
                return taken(tape, target, sources, output_gradients, **named)
            found = seen.passes.find(target, flat, seen.first_scale)
            seen.calls.derive(tape)
            calls = seen.calls.calls_with(flat) if _replicas() == 1 else []

            def take(seeds: Any) -> Any:
                outputs = [out for call in calls for out in call.outputs]
                gradients, beside = taken(tape, target, [sources, outputs], seeds, **named)
                seen.calls.keep(calls, beside, found.scale)
                return gradients

            if found.scales and not is_scalable(target):
                seen.note(NOT_SCALED)
            return found.take(take, target, output_gradients)

        return _as_it_is(scaled)

    yield tf.GradientTape, "gradient", make
    yield from _calls_under_tapes(seen)


def _calls_under_tapes(seen: ScriptRun) -> Iterator[Patch]:
    """Note the models that are called while a tape is open, and derivatives taken there, for samples."""
    import tensorflow as tf

    def make_enter(enter: Any) -> Any:
        def entered(tape: Any) -> Any:
            if seen.is_seeing_script:
                seen.calls.open(tape)
            return enter(tape)

        return entered

    def make_exit(leave: Any) -> Any:
        def left(tape: Any, *error: Any) -> Any:
            seen.calls.close(tape)
            return leave(tape, *error)

        return left

    def make_call(call: Any) -> Any:
        @wraps(call)  # as part of Keras, which autograph leaves as it is
        def noted(layer: Any, *inputs: Any, **named: Any) -> Any:
            is_model = isinstance(layer, keras.Model)
            if is_model:
                seen.calls.keep_state(layer)
            if not is_model or len(inputs) != 1 or named.keys() - {"training"}:
                return call(layer, *inputs, **named)
            return seen.calls.note(layer, lambda: call(layer, *inputs, **named), inputs[0])

        return noted

    def make_jvp(jvp: Any) -> Any:
        def taken(*arguments: Any, **named: Any) -> Any:
            seen.calls.derive()
            return jvp(*arguments, **named)

        return _as_it_is(taken)

    yield tf.autodiff.ForwardAccumulator, "jvp", make_jvp
    yield tf.GradientTape, "__enter__", make_enter
    yield tf.GradientTape, "__exit__", make_exit
    yield keras.Layer, "__call__", make_call
