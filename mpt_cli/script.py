"""An unchanged Keras script in mixed precision: what is put around Keras while it runs, and taken away afterwards.

The dtype policy is set before the script builds anything, optimizers are put into loss scaling at `compile`, and every
`fit` gets a `Recorder`. In a training loop of the script's own (TensorFlow) a `GradientTape` seeds its backward pass
with the loss scale and divides what comes out, so that the script sees true gradients whatever it does with them; the
optimizer then skips what is not finite and moves the scale, and what it notes of its steps becomes a run directory.
"""

import inspect
import os
import runpy
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import wraps
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import ops

from mpt_cli import python_api
from mpt_cli.data.examples import Batch
from mpt_cli.errors import NUMERICAL, OK
from mpt_cli.precision import LossScaleOptimizer, computes_in_float16, has_own_train_step
from mpt_cli.precision.finite import unscale
from mpt_cli.precision.keras_internals import own_trainable_variables
from mpt_cli.precision.policy import policy_inside, set_global_policy
from mpt_cli.precision.rounded_weights import NARROW
from mpt_cli.precision.scale_rules import ScaleRule
from mpt_cli.precision.scale_state import ScaleState
from mpt_cli.precision.train_step import optimizers_in, unwrapped
from mpt_cli.recorder import Recorder
from mpt_cli.recording import RING_ROWS, Drain, LoopRecording, Subject, policy_on_record, scaling_on_record
from mpt_cli.report.run import Run
from mpt_cli.runs.directory import RunDirectory
from mpt_cli.samples.digits import first_examples
from mpt_cli.settings.schema import RECORDED_TRAINER_KEYS, BackendSettings, Settings
from mpt_cli.settings.variants import GivenData, GivenModel
from mpt_cli.signals import heard_by_script
from mpt_cli.telemetry.format import format_scale
from mpt_cli.telemetry.health import GOOD_VERDICTS, UNCHECKED
from mpt_cli.telemetry.records import Scaling
from mpt_cli.training.assembly import warn_of_half_head
from mpt_cli.training.loss_and_optimizer import scaling_for, wrap_optimizer
from mpt_cli.training.model_program import described_optimizer

LIBRARIES = ("keras", "tensorflow", "mpt_cli", "jax")  # whose own calls of a tape are left alone
ON_REPLICAS = "its own training loop on several replicas: steps are scaled and skipped, but there is no run directory"
OWN_SCALING = "the script's own LossScaleOptimizer is used as it is"
OWN_LOOP = f"{OWN_SCALING}, and its loop is not recorded (one with mpt_cli.LossScaleOptimizer is, on TensorFlow)"
JAX_LOOP = ("not scaled and not recorded: a loop of the script's own on JAX, where gradients are taken by functions "
            "that know no optimizer. Put it into mpt_cli.LossScaleOptimizer and call its scale_loss, or use a policy "
            "that needs none, such as mixed_bfloat16")  # fmt: skip


@dataclass(frozen=True)
class ScriptTarget:
    """A script by its path, or a module by its name, and the words after it."""

    name: str
    arguments: tuple[str, ...] = ()
    is_module: bool = False

    @property
    def title(self) -> str:
        """The script's name, for its runs."""
        return self.name.rpartition(".")[2] if self.is_module else Path(self.name).stem


@dataclass
class ScriptRun:
    """What was put around the script, and what it came to."""

    settings: Settings
    title: str
    command: tuple[str, ...]  # the words behind `mpt`
    recorders: list[Recorder] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    plain: list[Any] = field(default_factory=list)  # optimizers that the script made
    own_scalings: list[Any] = field(default_factory=list)  # and those of loss scaling
    wrappers: dict[int, LossScaleOptimizer] = field(default_factory=dict)  # by the id of the optimizer inside
    loops: dict[int, LoopRecording] = field(default_factory=dict)  # of those that a loop of the script's own used
    loop_runs: list[Run] = field(default_factory=list)  # of loops that are over
    fit_runs: list[Run] = field(default_factory=list)  # that `mpt.fit` has made and shown
    drain: Drain = field(default_factory=Drain)
    batches: dict[int, Any] = field(default_factory=dict)  # models by their id, in train_on_batch on JAX
    fits: int = 0  # that are going on, one inside the other
    losses: list[tuple[set[int], Any]] = field(default_factory=list)  # the latest, by the variables they were for
    places: int = 0  # run directories so far
    scaled_by_script: set[int] = field(default_factory=set)
    pending: list[tuple[set[int], ScaleState]] = field(default_factory=list)  # by variables whose optimizer is unknown
    adopted: dict[int, list[ScaleState]] = field(default_factory=dict)  # that follow the scale of a wrapper, by its id

    @contextmanager
    def fitting(self) -> Iterator[None]:
        """Around what has a record of its own, whose steps are none of a loop."""
        self.fits += 1
        try:
            yield
        finally:
            self.fits -= 1

    @contextmanager
    def noting(self, recorders: Sequence[Recorder]) -> Iterator[None]:
        """Around a fit with these, each of which has the verdict of it then; also of one that an exception ends."""
        self.recorders += [each for each in recorders if each not in self.recorders]
        try:
            yield
        except BaseException as error:
            for recorder in recorders:
                recorder.fail(error)
            raise

    def note(self, sentence: str) -> None:
        """Something to be said at the end, once."""
        if sentence not in self.notes:
            self.notes.append(sentence)

    def wrapper_of(self, optimizer: Any, model: Any = None) -> LossScaleOptimizer:
        """The optimizer in loss scaling, the same each time; as it is where the script has put it into ours itself."""
        if isinstance(optimizer, LossScaleOptimizer):
            if id(optimizer.inner_optimizer) not in self.wrappers:
                self.note(OWN_SCALING)
                self.wrappers[id(optimizer.inner_optimizer)] = optimizer
            return optimizer
        inner = unwrapped(optimizer)
        if id(inner) not in self.wrappers:
            scaling = self._scaling(model)
            self.wrappers[id(inner)] = self._watched(wrap_optimizer(inner, self.settings.loss_scale, scaling))
        return self.wrappers[id(inner)]

    def _scaling(self, model: Any) -> Scaling:
        needed = keras.config.dtype_policy().compute_dtype == "float16"
        needed = needed or (model is not None and computes_in_float16(model))
        return scaling_for(self.settings.loss_scale, needed)

    def _watched(self, wrapper: LossScaleOptimizer) -> LossScaleOptimizer:
        """The wrapper, which tells gradients of a loss that `scale_loss` scaled from true ones."""
        scale_loss, apply, key = wrapper.scale_loss, wrapper.apply, id(wrapper)

        def scale(loss: Any) -> Any:
            self.scaled_by_script.add(key)
            if keras.backend.backend() == "tensorflow":
                wrapper.note_loss(ops.convert_to_tensor(loss))
            return scale_loss(loss)

        def apply_either(grads: Any, trainable_variables: Any = None) -> None:
            if not self.fits and keras.backend.backend() == "tensorflow":
                self.record_loop(wrapper)  # the optimizer of a compiled model, in a loop of the script's own
            if key in self.scaled_by_script or keras.backend.backend() != "tensorflow":
                self.scaled_by_script.discard(key)
                apply(grads, trainable_variables)
            else:
                self.apply_true(wrapper, list(grads), trainable_variables)

        if keras.backend.backend() == "tensorflow":
            apply_either = _as_it_is(apply_either)
        for name, function in (("scale_loss", scale), ("apply", apply_either)):
            setattr(wrapper, name, function)
        return wrapper

    def apply_true(self, wrapper: LossScaleOptimizer, grads: list[Any], variables: Any) -> None:
        """Apply gradients that are divided by the scale already."""
        variables = list(own_trainable_variables(wrapper.inner_optimizer) if variables is None else variables)
        if (loop := self.loops.get(id(wrapper))) is not None:
            self._tell_loss(loop, variables)
        if not wrapper.built:
            self._adopt(wrapper, variables)
            wrapper._build_at_first_step(variables)
        wrapper._apply_where_finite(grads, variables, True)
        for state in self.adopted.get(id(wrapper), []):
            state.scale.assign(wrapper.loss_scale)

    def record_own(self, optimizer: LossScaleOptimizer) -> None:
        """A loop with an optimizer that the script put into our loss scaling itself: scaled and applied as it does."""
        if not self.fits and keras.backend.backend() == "tensorflow":
            self.record_loop(optimizer)

    def record_loop(self, wrapper: LossScaleOptimizer) -> None:
        """From the first step that a loop of the script's own makes with it, seen where that step is traced."""
        if id(wrapper) in self.loops:
            return
        if _replicas() > 1:
            self.note(f"not recorded: {ON_REPLICAS}")
            return
        with _outside():
            wrapper.keep_step_log(RING_ROWS)
            run = RunDirectory.create(self.place(), self.title)
            self.loops[id(wrapper)] = LoopRecording(self._subject_of(wrapper), wrapper, run)
        self.drain.add(self.loops[id(wrapper)])

    def _subject_of(self, wrapper: LossScaleOptimizer) -> Subject:
        settings = replace(
            self.settings, recipe=self.title, description="a training loop of the script's own", data=GivenData(),
            model=GivenModel(class_name="of the script", command=[*self.command]),
            policy=policy_on_record(self.settings.policy),
            optimizer=described_optimizer(wrapper), backend=BackendSettings(keras.backend.backend()),
            loss_scale=scaling_on_record(wrapper, self.settings.loss_scale),
        )  # fmt: skip
        dtype = keras.config.dtype_policy().compute_dtype
        scaling = Scaling(wrapper.rule, wrapper.on_overflow, dtype == "float16")
        return Subject("mpt run, from the optimizer", settings, scaling, stops=False, is_rounded=dtype in NARROW)

    def place(self) -> str | None:
        """The next run directory, where one was asked for."""
        self.places += 1
        place = self.settings.run_dir
        return f"{place}-{self.places}" if place is not None and self.places > 1 else place

    def end_loops(self, error: BaseException | None = None) -> None:
        """At the end of the script: what was not yet taken of its loops, and how they went."""
        self.drain.close()
        self.loop_runs += [run for loop in self.loops.values() if (run := loop.close(error)) is not None]

    def note_loss(self, ids: set[int], loss: Any) -> None:
        """Of gradients that were taken of these variables, until they are applied."""
        self.losses = [pair for pair in self.losses if not pair[0] & ids] + [(ids, loss)]

    def _tell_loss(self, loop: LoopRecording, variables: list[Any]) -> None:
        ids = _ids_of(variables)
        mine = [loss for known, loss in self.losses if known & ids]
        self.losses = [pair for pair in self.losses if not pair[0] & ids]
        if len(mine) == 1:
            loop.optimizer.note_loss(mine[0])

    def _adopt(self, wrapper: LossScaleOptimizer, variables: list[Any]) -> None:
        """Go on with the scale that gradients of these variables had before their optimizer was known."""
        ids = _ids_of(variables)
        mine = [pair for pair in self.pending if pair[0] & ids]
        self.pending = [pair for pair in self.pending if not pair[0] & ids]
        if mine and wrapper.scale_state is None:
            wrapper.scale_state = mine[0][1]
        self.adopted[id(wrapper)] = [state for _, state in mine if state is not wrapper.scale_state]

    def scale_for(self, sources: list[Any]) -> Any:
        """The scale of the loss whose gradients these variables get; None where it is not to be scaled.

        That of the optimizer that was built for them. Before its first step it is not known which one will be: their
        scale is then one of its own, with which that optimizer goes on.
        """
        ids = _ids_of(sources)
        ours = [inner for inner in self.plain if not self.is_left_alone(inner)]
        for inner in ours:
            if inner.built and ids & _ids_of(own_trainable_variables(inner)):
                wrapper = self.wrapper_of(inner)
                if not wrapper.built:  # the script has built its optimizer itself; a scale to be must not be a constant
                    wrapper._build_at_first_step(own_trainable_variables(inner))
                return wrapper.loss_scale if wrapper.scales and id(wrapper) not in self.scaled_by_script else None
        rule = self._scaling(None).rule
        if self.scaled_by_script or not rule.scales or all(inner.built for inner in ours):
            return None
        if not any(pending == ids for pending, _ in self.pending):
            self.pending.append((ids, _state_outside(rule)))
        return next(state for pending, state in self.pending if pending == ids).read("scale")

    def is_left_alone(self, optimizer: Any) -> bool:
        """Whether the script has it in a loss scaling of its own, and in no model that it compiled."""
        return id(optimizer) not in self.wrappers and self._own_scaling_of(optimizer) is not None

    def _own_scaling_of(self, optimizer: Any) -> Any:
        return next((own for own in self.own_scalings if getattr(own, "inner_optimizer", None) is optimizer), None)

    def note_left_alone(self, optimizer: Any) -> None:
        """That the script scales its loss itself, and whether it is on record all the same."""
        self.note(OWN_SCALING if id(self._own_scaling_of(optimizer)) in self.loops else OWN_LOOP)

    @property
    def exit_code(self) -> int:
        """The gravest of the runs that came to their end; what ended another the script has caught itself. 4 where
        `train_on_batch` on JAX applied nothing.
        """
        idle = any(int(model.optimizer.applied_steps) == 0 for model in self.batches.values())
        return max([*[run.exit_code for run in self.ended_runs], NUMERICAL if idle else OK])

    @property
    def ended_runs(self) -> list[Run]:
        """Those that came to their end, which a rule may have brought about."""
        return [run for run in self.runs if run.summary["status"] in ("finished", "stopped")]

    def why_not_good(self, allow_unchecked: bool = False) -> str:
        """Which verdict is not a good one, in a sentence; empty where all are, and there is one at least."""
        good = (*GOOD_VERDICTS, *([UNCHECKED] if allow_unchecked else []))
        bad = [f"{run.path} is {run.verdict}" for run in self.ended_runs if run.verdict not in good]
        if not self.ended_runs:
            return "there is no verdict, as nothing that the script trained was recorded to its end"
        return f"not every verdict is {' or '.join(good)}: {', '.join(bad)}" if bad else ""

    @property
    def runs(self) -> list[Run]:
        """Of its fits, of its calls of `mpt.fit`, then of its own loops."""
        return [*(run for recorder in self.recorders for run in recorder.runs), *self.fit_runs, *self.loop_runs]

    def note_head(self, model: Any, recorder: Recorder) -> None:
        """Where its output layer is in half precision, and no console has said so."""
        if model.built and not recorder.shown:
            for sentence in warn_of_half_head(model):
                self.note(sentence)

    def sentences(self) -> list[str]:
        """How it went, for the end."""
        found = list(self.notes)
        if self.drain.error is not None:
            found.append(f"steps of its own loop were taken only at the end: {self.drain.error}")
        for loop in self.loops.values():
            ledger = loop.ledger
            if ledger.seen:
                name = type(loop.optimizer.inner_optimizer).__name__
                found.append(f"{name} in the script's own loop: {ledger.skipped} of {ledger.seen} steps skipped, loss "
                             f"scale {format_scale(ledger.scale)}")
        for model in self.batches.values():
            optimizer = model.optimizer
            found.append(f"not recorded: train_on_batch on JAX. {type(unwrapped(optimizer)).__name__} skipped "
                         f"{int(optimizer.skipped_steps)} of {int(optimizer.seen_steps)} steps there, loss scale "
                         f"{format_scale(float(optimizer.loss_scale))}")  # fmt: skip
        shown = {path for recorder in self.recorders for path in recorder.shown} | {run.path for run in self.fit_runs}
        found += [f"{run.path}: {run.verdict}" + ("" if run.path in shown else f". {run.explanation}")
                  for run in self.runs]  # fmt: skip
        missing: dict[str, list[str]] = {}
        for run in self.runs:
            for sentence in run.summary.get("not_recorded", []):
                missing.setdefault(sentence, []).append(str(run.path))
        return found + [f"not recorded in {', '.join(paths)}: {sentence}" for sentence, paths in missing.items()]


def _ids_of(variables: Iterable[Any]) -> set[int]:
    """Of Keras's variables and of TensorFlow's inside them, which a script may take gradients of just as well."""
    return {id(each) for variable in variables for each in (variable, getattr(variable, "value", None))
            if each is not None}  # fmt: skip


def _state_outside(rule: ScaleRule) -> ScaleState:
    """A scale of its own, made outside of the function that is being traced."""
    with _outside():
        return ScaleState(rule)


def _outside() -> Any:
    """Outside of the function that is being traced."""
    import tensorflow as tf

    return tf.init_scope()


def _replicas() -> int:
    import tensorflow as tf

    return int(tf.distribute.get_strategy().num_replicas_in_sync)


def run_script(
    target: ScriptTarget, settings: Settings, command: Sequence[str] = ()
) -> tuple[ScriptRun, BaseException | None]:  # fmt: skip
    """Run it as Python would; returns what was seen of it, and what it raised (SystemExit included).

    `command` are the words behind `mpt` that run it again.
    """
    seen = ScriptRun(settings, target.title, tuple(command))
    error: BaseException | None = None
    with ExitStack() as stack:
        stack.enter_context(policy_inside(settings.policy.name))
        for patch in (_policies, _compiles, _fits, _runs_of_ours, _optimizers, _own_scalings, _tapes):
            stack.enter_context(patch(seen))
        stack.enter_context(_as_main(target))
        try:
            with heard_by_script():
                if target.is_module:
                    runpy.run_module(target.name, run_name="__main__", alter_sys=True)
                else:
                    runpy.run_path(target.name, run_name="__main__")
        except (Exception, SystemExit, KeyboardInterrupt) as raised:
            error = raised
        seen.end_loops(None if isinstance(error, SystemExit) else error)
    return seen, error


@contextmanager
def _as_main(target: ScriptTarget) -> Iterator[None]:
    """`sys.argv` and `sys.path` as Python has them for a script or a module."""
    argv, path = sys.argv, list(sys.path)
    sys.argv = [target.name, *target.arguments]
    sys.path.insert(0, os.getcwd() if target.is_module else str(Path(target.name).resolve().parent))
    try:
        yield
    finally:
        sys.argv, sys.path[:] = argv, path


@contextmanager
def _replaced(holder: Any, name: str, make: Callable[[Any], Any]) -> Iterator[None]:
    """`make(what is there)` under this name, until the end.

    In a class it stands where it is defined: Keras compiles a loaded model only where its `compile` is that of Keras's
    own base class.
    """
    if isinstance(holder, type):
        holder = next(kind for kind in holder.__mro__ if name in vars(kind))
    before = getattr(holder, name)
    setattr(holder, name, make(before))
    try:
        yield
    finally:
        setattr(holder, name, before)


@contextmanager
def _policies(seen: ScriptRun) -> Iterator[None]:
    """A script that sets a policy of its own has it; that is said. What it clears between two models is not the policy
    that was asked for.
    """
    set_policy, clear = keras.config.set_dtype_policy, keras.backend.clear_session
    own: list[Any] = []

    def make_setter(_: Any) -> Any:
        def told(policy: Any) -> None:
            by_script = sys._getframe(1).f_code is set_global_policy.__code__
            if not by_script and _calling_module().startswith("mpt_cli."):  # while it builds a model or measures one
                set_policy(policy)
                return
            seen.note(f"the script sets the dtype policy {getattr(policy, 'name', policy)} itself, which it has")
            own.append(policy)
            set_policy(policy)

        return told

    def make_clear(_: Any) -> Any:
        def cleared(*arguments: Any, **named: Any) -> None:
            clear(*arguments, **named)
            if not own:
                seen.note(f"clear_session forgets the dtype policy: it was set to {seen.settings.policy.name} again")
                set_policy(seen.settings.policy.name)

        return cleared

    with ExitStack() as stack:
        for function, make in ((set_policy, make_setter), (clear, make_clear)):
            for module, name in _public_names_of(function):
                stack.enter_context(_replaced(module, name, make))
        yield


def _public_names_of(function: Any) -> list[tuple[Any, str]]:
    """Where Keras offers it: keras.config and keras.mixed_precision, keras.utils and keras.backend, tf.keras's too."""
    modules = [module for path, module in list(sys.modules.items())
               if path.partition(".")[0] == "keras" and not path.startswith("keras.src.")]  # fmt: skip
    return [(module, name) for module in modules for name, value in list(vars(module).items()) if value is function]


@contextmanager
def _compiles(seen: ScriptRun) -> Iterator[None]:
    """Every model is compiled with its optimizer in our loss scaling."""

    def make(compile_model: Any) -> Any:
        @wraps(compile_model)
        def compiled(model: Any, *arguments: Any, **named: Any) -> None:
            compile_model(model, *arguments, **named)
            given = inspect.signature(compile_model).bind(model, *arguments, **named).arguments.get("optimizer")
            if isinstance(given, keras.optimizers.LossScaleOptimizer) and not isinstance(given, LossScaleOptimizer):
                seen.note("the script's own loss scaling is replaced by mpt's, which counts its skips")
            if isinstance(model.optimizer, keras.optimizers.Optimizer):
                model.optimizer = seen.wrapper_of(model.optimizer, model)

        return compiled

    with _replaced(keras.Model, "compile", make):
        yield


def _first_examples(x: Any = None, y: Any = None, sample_weight: Any = None, **_: Any) -> Batch | None:
    """Those of the first batch that a fit on NumPy arrays may train on; None of anything else, which may be read once.
    """
    examples = Batch(x, y, sample_weight)
    arrays = [array for array in keras.tree.flatten(examples) if array is not None]
    if x is None or not all(isinstance(array, np.ndarray) and array.ndim for array in arrays):
        return None
    return Batch(*map(first_examples, examples))


@contextmanager
def _fits(seen: ScriptRun) -> Iterator[None]:
    """Every `fit` has a Recorder among its callbacks; of `train_on_batch` on JAX the optimizer's counters tell."""

    def make(fit: Any) -> Any:
        @wraps(fit)
        def recorded(model: Any, *arguments: Any, **named: Any) -> Any:
            bound = inspect.signature(fit).bind(model, *arguments, **named)
            callbacks = bound.arguments.get("callbacks")
            given = list(keras.tree.flatten(callbacks)) if callbacks is not None else []
            if isinstance(callbacks, keras.callbacks.CallbackList) or any(isinstance(c, Recorder) for c in given):
                seen.note("a fit has a Recorder or a CallbackList of its own, to which nothing was added")
                with seen.fitting(), seen.noting([each for each in given if isinstance(each, Recorder)]):
                    return fit(model, *arguments, **named)
            if others := _other_optimizers(model):
                seen.note(f"the train_step of {type(model).__name__} has optimizers of its own ({', '.join(others)}): "
                          "each that it uses is recorded by itself, as in a loop of the script's own")
                return fit(model, *arguments, **named)
            recorder = _recorder(seen)
            recorder.others, recorder.examples = given, _first_examples(**bound.arguments)
            bound.arguments["callbacks"] = [*given, recorder]
            with seen.fitting(), seen.noting([recorder]):
                try:
                    return fit(*bound.args, **bound.kwargs)
                finally:
                    seen.note_head(model, recorder)

        return recorded

    def make_batches(train_on_batch: Any) -> Any:
        @wraps(train_on_batch)
        def counted(model: Any, *arguments: Any, **named: Any) -> Any:
            if keras.backend.backend() != "tensorflow" and isinstance(model.optimizer, LossScaleOptimizer):
                seen.batches[id(model)] = model
            return train_on_batch(model, *arguments, **named)

        return counted

    with _replaced(keras.Model, "fit", make), _replaced(keras.Model, "train_on_batch", make_batches):
        yield


@contextmanager
def _runs_of_ours(seen: ScriptRun) -> Iterator[None]:
    """`mpt.fit` has its own record, and what `mpt.diagnose` measures needs none."""

    def make(function: Any) -> Any:
        @wraps(function)
        def called(*arguments: Any, **named: Any) -> Any:
            with seen.fitting():
                found = function(*arguments, **named)
            seen.fit_runs += [found] if isinstance(found, Run) else []
            return found

        return called

    with _replaced(python_api, "fit", make), _replaced(python_api, "diagnose", make):
        yield


def _other_optimizers(model: Any) -> list[str]:
    """Beside the one that the model is compiled with, where its own train_step may use them."""
    own = optimizers_in(model) if has_own_train_step(model) else ()
    return [name for name, *_ in own if name != "optimizer"]


def _recorder(seen: ScriptRun) -> Recorder:
    settings = seen.settings
    more = {f"logger.{name}": value for name, value in asdict(settings.logger).items()}
    more |= {f"trainer.{name}": getattr(settings.trainer, name) for name in RECORDED_TRAINER_KEYS}
    recorder = Recorder(seen.place(), loss_scale=asdict(settings.loss_scale), settings=more, name=seen.title)
    recorder.command = seen.command
    return recorder


@contextmanager
def _optimizers(seen: ScriptRun) -> Iterator[None]:
    """Optimizers that the script makes are known; one that is used without `compile` works through its wrapper."""
    base = keras.optimizers.Optimizer

    def make_init(init: Any) -> Any:
        def made(optimizer: Any, *arguments: Any, **named: Any) -> None:
            init(optimizer, *arguments, **named)
            scales = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
            (seen.own_scalings if scales else seen.plain).append(optimizer)

        return made

    def make_apply(apply: Any) -> Any:
        def applied(optimizer: Any, grads: Any, trainable_variables: Any = None) -> None:
            inside = _calling_module().startswith("mpt_cli.precision")  # its wrapper
            if inside or isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
                if not seen.fits and seen.is_left_alone(optimizer):
                    seen.note_left_alone(optimizer)
                apply(optimizer, grads, trainable_variables)
            elif seen.is_left_alone(optimizer):
                seen.note_left_alone(optimizer)
                apply(optimizer, grads, trainable_variables)
            elif keras.backend.backend() != "tensorflow":
                seen.note(JAX_LOOP)
                apply(optimizer, grads, trainable_variables)
            else:
                wrapper = seen.wrapper_of(optimizer)
                seen.record_loop(wrapper)
                seen.apply_true(wrapper, list(grads), trainable_variables)

        return applied

    with _replaced(base, "__init__", make_init), _replaced(base, "apply", lambda apply: _as_it_is(make_apply(apply))):
        yield


@contextmanager
def _own_scalings(seen: ScriptRun) -> Iterator[None]:
    """A loop in which the script scales its loss by our optimizer itself is on record from its first step."""

    def make(method: Any) -> Any:
        @wraps(method)
        def recorded(optimizer: Any, *arguments: Any, **named: Any) -> Any:
            seen.record_own(optimizer)
            return method(optimizer, *arguments, **named)

        return _as_it_is(recorded)

    with _replaced(LossScaleOptimizer, "scale_loss", make), _replaced(LossScaleOptimizer, "apply", make):
        yield


def _as_it_is(function: Any) -> Any:
    """The function, which TensorFlow's autograph must not rewrite."""
    if keras.backend.backend() != "tensorflow":
        return function
    import tensorflow as tf

    return tf.autograph.experimental.do_not_convert(function)


def _calling_module() -> str:
    """The module that called what is put around Keras here, through whatever autograph has in between."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        name = str(frame.f_globals.get("__name__", ""))
        if name != __name__ and not name.startswith("tensorflow.python.autograph"):
            return name
        frame = frame.f_back
    return ""


@contextmanager
def _tapes(seen: ScriptRun) -> Iterator[None]:
    """Gradients that the script itself takes are of the scaled loss, and divided again."""
    if keras.backend.backend() != "tensorflow":
        yield
        return
    import tensorflow as tf

    def make(gradient: Any) -> Any:
        def scaled(tape: Any, target: Any, sources: Any, output_gradients: Any = None, **named: Any) -> Any:
            flat, scale = tf.nest.flatten(sources), None
            of_script = _calling_module().partition(".")[0] not in LIBRARIES
            is_loss = output_gradients is None and tf.is_tensor(target) and target.shape.rank == 0
            if of_script and is_loss and all(isinstance(v, (keras.Variable, tf.Variable)) for v in flat):
                seen.note_loss(_ids_of(flat), target)
                scale = seen.scale_for(flat)
            if scale is None:
                return gradient(tape, target, sources, output_gradients, **named)
            found = gradient(tape, target, sources, ops.cast(scale, target.dtype), **named)
            return tf.nest.pack_sequence_as(sources, unscale(tf.nest.flatten(found), flat, scale))

        return _as_it_is(scaled)

    with _replaced(tf.GradientTape, "gradient", make):
        yield
