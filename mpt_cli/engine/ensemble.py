"""Runs in one process that share their compiled programs, as they differ in numbers alone that are state of the step.

Each is a whole run in a thread of its own, where Keras keeps names, policy and seeds apart; but only one thread runs at
a time, and another only where a run has ended or waits for its steps. On an accelerator all take their steps at once,
in one program: `jax.vmap` over the whole training state. On a CPU one run after the other calls the program of one,
which is the same to the bit and less work: there a step of 2, 4 and 16 digits_mlp at once took 2.0, 2.9 and 1.5 times
as long, for each of them, as one alone (2 cores, busy with other work too).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from threading import Semaphore, Thread
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mpt_cli.data.examples import DataSet, Examples
from mpt_cli.engine.loop import BatchIndices, LoopControl, LoopResult
from mpt_cli.engine.loop_jax import JaxEngine
from mpt_cli.precision.step_jax import TrainState
from mpt_cli.precision.train_step import metric_variables, own_steps

Trained = tuple[TrainState, LoopResult]


@dataclass
class Call:
    """A call for steps, as `JaxEngine.train` makes it, and what came of it."""

    state: TrainState
    source: Any
    batch_indices: BatchIndices
    packed: Any
    trained: Trained | None = None
    error: Exception | None = None

    @property
    def kind(self) -> tuple[Any, ...]:
        """The same of calls that one program can answer together."""
        return (np.shape(self.batch_indices), *map(id, jax.tree.leaves(self.source)))

    def of_steps(self, count: int) -> Any:
        """What its control says, for so many steps."""
        return LoopControl.unpack(np.asarray(self.packed))._replace(count=count).pack()


class Turn:
    """A run in its thread, which goes on only where it is told to."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._mine, self._back = Semaphore(0), Semaphore(0)
        self._work = work
        self.has_begun = self.is_over = False
        self.call: Call | None = None

    def go_on(self) -> None:
        """Until it is over or waits for its steps; in the main thread."""
        if not self.has_begun:
            self.has_begun = True
            Thread(target=self._run, daemon=True).start()
        self._mine.release()
        self._back.acquire()

    def wait(self, call: Call) -> Trained:
        """For the steps, while others have their turn; in its own thread."""
        self.call = call
        self._back.release()
        self._mine.acquire()
        self.call = None
        if call.error is not None:
            raise call.error
        assert call.trained is not None
        return call.trained

    def _run(self) -> None:
        self._mine.acquire()
        try:
            self._work()
        finally:
            self.is_over = True
            self._back.release()


@dataclass
class Ensemble:
    """At most `size` runs. `at_once` None: where there is an accelerator."""

    size: int
    at_once: bool | None = None
    leader: JaxEngine | None = None
    _kept: list[tuple[Any, Any]] = field(default_factory=list)  # arrays of the host, and the same on the device
    _data: tuple[int | None, DataSet] | None = None  # of the run that loaded it last, and its seed
    _turn: Turn | None = None
    _together: Any = None  # the compiled program of steps at once

    def run(self, works: Sequence[Callable[[], None]], stops: Callable[[], bool]) -> None:
        """All of them to their ends; none is begun once `stops()`. To be called in the main thread."""
        turns = [Turn(work) for work in works]
        while turns := [turn for turn in turns if not turn.is_over and (turn.has_begun or not stops())]:
            for turn in turns:
                if turn.has_begun or not stops():
                    self._turn = turn
                    turn.go_on()
            self._answer([turn.call for turn in turns if turn.call is not None])

    def join(self, engine: Any) -> None:
        """Before its feeds are built: data that another one has on the device already is not sent again."""
        assert isinstance(engine, JaxEngine)
        if self.at_once is None:
            self.at_once = jax.default_backend() != "cpu"
        engine.ensemble = self

    def adopt(self, engine: Any) -> str:
        """Once its model has its optimizer: let it call the programs of the first. Why it keeps its own, if it does."""
        why = self._obstacle(engine)
        if why:
            engine.ensemble = None
        elif self.leader is None:
            self.leader = engine
            together = jax.jit(lambda *given: engine.train_at_once(*given), donate_argnums=0)
            self._together = together
        else:
            engine.share_programs(self.leader)
        return why

    def _obstacle(self, engine: JaxEngine) -> str:
        steps = own_steps(engine.model)
        if steps is not None and steps.optimizers:
            return "its train_step is its own"
        if self.leader is not None and form_of(engine.model) != form_of(self.leader.model):
            return "its variables have not the names, shapes and dtypes of those of the first"
        return ""

    def data_of(self, seed: int | None, load: Callable[[], DataSet]) -> DataSet:
        """What was loaded for this seed; a stream is read anew by each run."""
        if self._data is None or self._data[0] != seed:
            data = load()
            self._data = (seed, data) if isinstance(data.train, Examples) else None
            return data
        return self._data[1]

    def keep(self, arrays: Any, to_device: Callable[[Any], Any]) -> Any:
        """`arrays` on the device, where runs have the same ones once for all."""
        for known, there in self._kept:
            if _is_same(known, arrays):
                return there
        there = to_device(arrays)
        self._kept.append((arrays, there))
        return there

    def train(self, state: TrainState, source: Any, batch_indices: Any, packed: Any) -> Trained:
        """As the compiled loop of an engine, but at once with the others, and perhaps fewer steps than asked for: as
        many as each of them wants."""
        assert self._turn is not None
        return self._turn.wait(Call(state, source, batch_indices, packed))

    def _answer(self, calls: list[Call]) -> None:
        while calls:
            alike = [call for call in calls if call.kind == calls[0].kind]
            calls = [call for call in calls if call.kind != alike[0].kind]
            try:
                self._train(alike)
            except Exception as error:  # each run says it, and ends with it
                for call in alike:
                    call.error = error

    def _train(self, calls: list[Call]) -> None:
        """Idle places are filled, so that no other program is needed when runs have ended."""
        count = min(int(LoopControl.unpack(np.asarray(call.packed)).count) for call in calls)
        idle, first = self.size - len(calls), calls[0]
        states = [call.state for call in calls] + [jax.tree.map(jnp.copy, first.state) for _ in range(idle)]
        packed = [call.of_steps(count) for call in calls] + [first.of_steps(0)] * idle
        indices = np.stack([np.asarray(call.batch_indices) for call in calls + [first] * idle])
        trained = self._together(states, first.source, indices, np.stack(packed))
        for call, each in zip(calls, trained, strict=False):
            call.trained = each


def form_of(model: Any) -> list[Any]:
    """The names, shapes and dtypes of the variables that are state of a step, in its order."""
    lists = (model.trainable_variables, model.non_trainable_variables, model.optimizer.variables,
             metric_variables(model))  # fmt: skip
    return [[(v.path, tuple(v.shape), str(v.dtype)) for v in variables] for variables in lists]


def _is_same(one: Any, other: Any) -> bool:
    (first, form), (second, other_form) = jax.tree.flatten(one), jax.tree.flatten(other)
    return str(form) == str(other_form) and all(
        isinstance(a, np.ndarray) and isinstance(b, np.ndarray) and a.dtype == b.dtype and np.array_equal(a, b)
        for a, b in zip(first, second, strict=True)
    )
