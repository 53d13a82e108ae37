"""Loss scaling of the gradients that a program takes with `tf.GradientTape` itself: a scale belongs to a backward pass.

A pass is seeded with its scale, and its gradients are divided by it, so that the program gets true gradients. Whether
they are finite is noted before anything is computed from them. All optimizers that use a pass share its scale and its
decision; if a step of several passes is skipped, its changes of weights are put back.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import tensorflow as tf
from keras import ops

from mpt_cli.precision.apply_or_skip_tensorflow import (
    apply,
    are_made_here,
    build_outside,
    is_readable,
    native,
    outside,
    replicas,
    then_nothing,
)
from mpt_cli.precision.gradient_check import GradientMeasurement, Tensor, dense, describe_gradients, unscale
from mpt_cli.precision.keras_internals import direct_trainable_variables, step_options
from mpt_cli.precision.optimizer import LossScaleOptimizer
from mpt_cli.precision.train_step import assign, ids_of

FirstScale = Callable[[Callable[[list[Any]], bool]], float | None]  # gets a test for lists of them
USED = 2.0  # is added to whether a pass was bad once an optimizer has used it: the next gradients begin anew


def is_scalable(target: Any) -> bool:
    """Return whether `target` is one float tensor, or several."""
    return all(tf.is_tensor(each) and each.dtype.is_floating for each in tf.nest.flatten(target))


class BackwardPass:
    """The gradients of some variables, taken once or several times until an optimizer uses them."""

    def __init__(self, sources: Sequence[Any], scale: float | None) -> None:
        """Begin a pass; `scale` is that of the first gradients, None if they are not scaled."""
        self._sources, self.ids, self.scales = list(sources), ids_of(sources), scale is not None
        self._scale = outside(lambda: tf.Variable(scale or 1.0, trainable=False, dtype="float32", name="pass_scale"))
        self._state = outside(lambda: tf.Variable(USED, trainable=False, dtype="float32", name="pass_state"))
        self._compiled_finish = tf.function(self._finish, autograph=False, reduce_retracing=True)
        self._own = [each for each in map(native, sources) if hasattr(each, "assign")]
        self._kept: list[Any] = []  # what may be put back
        self.given: list[Tensor] = []  # gradients since its last use, known to be finite or not
        self._optimizers: list[LossScaleOptimizer] = []  # that have used it
        self.loss: Tensor = None  # of the first gradients of a step
        self._before: list[tuple[Any, Tensor]] = []  # what the first of several passes of a step found
        self._count = 0  # of passes since an optimizer used one
        self.is_over = False  # used, and later gradients have begun another step: its decision does not hold there

    def take(self, gradient: Callable[[Any], Any], target: Any, output_gradients: Any) -> Any:
        """Return the true gradients of `target`, summed. `gradient` returns those for `output_gradients`."""
        if not self.scales or not is_scalable(target):
            return gradient(output_gradients)
        targets = tf.nest.flatten(target)
        output_gradients = [None] * len(targets) if output_gradients is None else tf.nest.flatten(output_gradients)
        scale = self.scale
        found = gradient(
            [
                ops.cast(scale, each.dtype) * (tf.ones_like(each) if given is None else given)
                for each, given in zip(targets, output_gradients, strict=True)
            ]
        )
        begins = replicas() == 1 and self._begins_step()
        finish = self._compiled_finish if tf.executing_eagerly() else self._finish
        gradients, values = finish(tf.nest.flatten(found), scale, begins)
        if begins:
            self._before = list(zip(self._kept, values, strict=True))
        self.given = [*(self.given if self._count > 1 else []), *gradients]
        return tf.nest.pack_sequence_as(found, gradients)

    def _finish(self, gradients: list[Tensor], scale: Tensor, begins: bool) -> tuple[list[Tensor], list[Tensor]]:
        """Return `gradients` divided by `scale`, with the values to put back if the step that `begins` with them is
        skipped; note whether they are finite."""
        values = [tf.identity(variable) for variable in self._kept] if begins else []
        gradients = unscale(gradients, self._sources, scale)
        if replicas() == 1:
            bad = tf.cast(tf.logical_not(_are_finite(gradients)), "float32")
            self._state.assign(tf.where(self._state < USED, tf.maximum(self._state, bad), bad))
        return gradients, values

    @property
    def scale(self) -> Tensor:
        """Return the scale of the next gradients."""
        return self._scale.read_value()

    def end_unless(self, begun: "BackwardPass") -> None:
        """Note that another step begins with the gradients of `begun`."""
        self.is_over = self is not begun and self._count == 0

    @property
    def goes_on(self) -> bool:
        """Return whether the present step has taken gradients already."""
        return self._count > 0 and is_readable(self._before[0][1])

    def _begins_step(self) -> bool:
        """Return whether these are the first gradients of a step. In a graph, keeping the values of variables costs
        nothing unless they are put back."""
        self._count = self._count + 1 if self.goes_on else 1
        if self._count == 1:
            graph = tf.compat.v1.get_default_graph()
            others = [] if tf.executing_eagerly() else [v for v in graph.variables if v.dtype.is_floating]
            self._kept = list({id(each): each for each in [*self._own, *others]}.values())
        return self._count == 1

    def is_finite(self) -> Tensor:
        """Return whether all gradients since its last use were."""
        return tf.equal(self._state % USED, 0)

    def take_changed(self, ids: set[int]) -> list[tuple[Any, Tensor]]:
        """Return the variables that the step may have changed between its passes, with their earlier values; forget
        them, and the gradients if the update is of all sources."""
        changed = self._before if self.goes_on and self._count > 1 else []
        self._before, self._count = [], 0
        if self.ids <= ids:
            self.given = []
        return changed

    def given_for(self, variables: list[Any]) -> list[Tensor]:
        """Return what the tape gave for the variables; empty after several passes, or in another function."""
        if len(self.given) != len(self._sources) or not all(is_readable(dense(g)) for g in self.given if g is not None):
            return []
        given = {id(native(v)): gradient for v, gradient in zip(self._sources, self.given, strict=True)}
        return [given.get(id(native(v))) for v in variables]

    def is_used_by(self, optimizer: LossScaleOptimizer) -> int:
        """Note that `optimizer` makes steps with its gradients; return how many do."""
        if optimizer not in self._optimizers:
            self._optimizers.append(optimizer)
        return len(self._optimizers)

    def set_next_scale(self) -> None:
        """Set the scale of the next gradients, after a step with these."""
        if replicas() == 1:
            self._state.assign(USED + self._state % USED)
        self._scale.assign(tf.reduce_min(tf.stack([each.loss_scale for each in self._optimizers if each.scales])))


class BackwardPasses:
    """The backward passes of a program, found by what they are gradients of."""

    def __init__(self) -> None:
        self._by_ids: dict[frozenset[int], BackwardPass] = {}
        self._steps: dict[Any, Callable[..., None]] = {}  # compiled, of eager loops

    def find(self, target: Any, sources: Sequence[Any], first_scale: FirstScale) -> BackwardPass:
        """Return the pass for gradients of `target` with respect to `sources`; `first_scale` is called until it returns
        a scale."""
        ids = frozenset(ids_of(sources))
        known = self._by_ids.get(ids)
        if known is None or not known.scales:
            first = first_scale(lambda variables: bool(ids & ids_of(variables)))
            if known is None or first is not None:
                known = self._by_ids[ids] = BackwardPass(sources, first)
        if not known.goes_on:
            for each in self._by_ids.values():
                each.end_unless(known)
        if is_scalable(target) and not known.goes_on:
            means = [_mean(each) for each in tf.nest.flatten(target)]
            known.loss = means[0] if len(means) == 1 else tf.add_n(means)
        return known

    def apply(
        self,
        optimizer: LossScaleOptimizer,
        gradients: list[Tensor],
        variables: list[Any],
        if_skipped: Callable[[Any], list[tuple[Any, Tensor]]],
    ) -> None:
        """Make a step with true gradients, applied if all of its passes were finite. `if_skipped` returns, for the
        optimizer, further variables with their values for a skipped step."""
        if not optimizer.built:
            _build(optimizer, variables)
        ids = ids_of(variables)
        passes = [each for each in self._by_ids.values() if each.ids & ids]
        losses = [p.loss for p in passes if not p.is_over and p.loss is not None and is_readable(p.loss)]
        scaled = [each for each in passes if each.scales]
        uses = [each.is_used_by(optimizer) for each in scaled]
        current = [each for each in scaled if not each.is_over]
        known = {id(gradient) for each in current for gradient in each.given}
        is_known = replicas() == 1 and all(id(each) in known for each in gradients) and not optimizer.rule.reads_largest
        is_sought = replicas() == 1 == len(current) and not is_known
        taken = current[0].given_for(variables) if is_sought else []
        changed = [pair for each in scaled for pair in each.take_changed(ids)] + if_skipped(optimizer)
        changed_variables = [variable for variable, _ in changed]
        options = step_options(optimizer.inner_optimizer)

        def step(gradients: list[Tensor], taken: list[Tensor], losses: list[Tensor], values: list[Tensor]) -> None:
            if len(losses) == 1:
                optimizer.note_loss(losses[0])
            measured = (
                GradientMeasurement(tf.constant(True), tf.zeros(()))
                if is_known
                else optimizer.measure(gradients, variables, True)
            )
            if replicas() == 1:
                finite = [measured.finite, *(each.is_finite() for each in current)]
                measured = measured._replace(finite=tf.reduce_all(finite))
                if changed_variables:
                    put_back = then_nothing(lambda: assign(changed_variables, values))
                    tf.cond(optimizer.applies(measured.finite), lambda: tf.constant(0), put_back)
            describe = partial(describe_gradients, measured=measured, cond=tf.cond)
            defects = None
            if taken:  # clipping by a norm of inf makes nan of every gradient
                given, own = partial(describe, taken), partial(describe, gradients)
                defects = tf.cond(current[0].is_finite(), own, given)
            apply(optimizer, gradients, variables, True, measured, defects)
            for each in scaled:
                each.set_next_scale()

        if tf.executing_eagerly() and options is not None and replicas() == 1:
            # an eager step of Adam has a dozen small operations for each variable, and one of ours a hundred beside
            parts = [
                *uses,
                is_known,
                *(each.is_over for each in scaled),
                *map(id, (optimizer, optimizer.step_log, *variables, *scaled, *changed_variables)),
            ]
            if (key := (*options, *parts)) not in self._steps:
                self._steps[key] = tf.function(step, autograph=False, reduce_retracing=True)
            step = self._steps[key]
        step(gradients, taken, losses, [value for _, value in changed])


def _build(optimizer: LossScaleOptimizer, variables: list[Any]) -> None:
    """Build the optimizer for the variables of its first step, or those of an inner optimizer that is built."""
    inner = optimizer.inner_optimizer
    trained = direct_trainable_variables(inner) if inner.built else variables
    if replicas() == 1 and not are_made_here(trained):  # one trace will do: the scale is that of the pass
        outside(lambda: optimizer.build(trained))
    else:
        build_outside(lambda: optimizer.build(trained), trained)


def _are_finite(gradients: list[Tensor]) -> Tensor:
    """Return whether all gradients are finite, in few operations: without XLA each takes microseconds."""
    present = [dense(g) for g in gradients if g is not None]
    return tf.reduce_all([True, *(tf.reduce_all(tf.math.is_finite(g)) for g in present)])


def _mean(target: Tensor) -> Tensor:
    target = tf.cast(target, "float32")
    return target if target.shape.rank == 0 else tf.reduce_mean(target)
