"""Sums over the devices of a mesh on JAX, in float32 where layers compute in half precision: of gradients, and of what
layers that are divided over devices exchange.

XLA adds the parts of a gradient up where they arise, in the dtype of the operation that made them: a product in float16
makes parts in float16, of which two that are finite can be inf together, and small ones are lost beside large ones. The
cast to float32 comes after the sum, where nothing can be done any more. So the traced program of the gradients is
followed from each gradient back to the operations that sum over the batch, and these are given results in float32: a
product adds up in float32 anyway, and is only not rounded before the devices' parts are added.

Not followed is a weight that is itself repeated before it is used: of its gradient only the last sum is in float32.

Where layers are divided over devices as well (the mesh has an axis beside that of the batch), a product that sums along
a divided axis has parts on several devices, of activations or of their gradients. XLA decides which products those are,
after tracing: so each product and sum in half precision has a result in float32 there, and is rounded where it is used,
which is behind XLA's sum over devices. What is only added to its like, as the slopes of several layers of one input,
is rounded after that, so that it goes between devices once. Products with a weight that is divided along an axis that
they do not sum along are left as they are: each device has whole sums of these. Not followed are convolutions, which
cuDNN gives in the dtype of what they are given, and loops without a gradient (`jax.lax.while_loop`).
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Var
from jax.sharding import Mesh, NamedSharding, PartitionSpec

Tensor = Any
Equation = Any

HALF = ("float16", "bfloat16")
CONVOLUTION = "conv_general_dilated"
PRODUCTS = ("dot_general", "ragged_dot_general", CONVOLUTION)
SCATTERS = ("scatter-add", "scatter_add")
CAST, SUM, TRANSPOSE = "convert_element_type", "reduce_sum", "transpose"
LINEAR = {"add_any", "add", "sub", "neg", "mul", "div", "transpose", "reshape", "squeeze", "expand_dims", "copy", "pad",
          "copy_p", "concatenate", "select_n", "slice", "dynamic_slice", "rev", "broadcast_in_dim", SUM}  # fmt: skip
PLACED = {"transpose", "reshape", "squeeze", "expand_dims", "copy", "add", "add_any"}  # may be rounded after it
CALLS = {"jit": "jaxpr", "pjit": "jaxpr", "closed_call": "call_jaxpr"}
REMAT = ("remat2", "checkpoint", "remat")
DRAWS = ("random_", "threefry", "rng_")  # names begin so of what makes random numbers, perhaps as many as examples


@dataclass(frozen=True)
class BatchSplit:
    """The devices of a `mesh` along whose `axis` a batch is split. `axes_of` gives for a variable the axis of the mesh
    that divides each axis of it, None for one that is not divided; without it each device has all of each variable."""

    mesh: Mesh
    axis: str
    axes_of: Callable[[Any], Sequence[str | None]] = lambda variable: ()

    @property
    def size(self) -> int:
        """How many parts a batch has."""
        return int(self.mesh.shape[self.axis])

    @property
    def divides_layers(self) -> bool:
        """Whether devices share the work on an example: the mesh has more than the axis of the batch."""
        return bool(self.mesh.size > self.size)

    def gives_whole_sums(self, divided: Sequence[str | None], summed: Sequence[int]) -> bool:
        """Whether each device has whole sums of a product of a weight, whose axes are `divided` by these of the mesh,
        along the `summed` ones of its axes: all that can divide the sums divides the columns."""
        columns = {axis for index, axis in enumerate(divided) if index not in summed}
        return {*self.mesh.axis_names} - {self.axis} <= columns

    def gradient_place(self, variable: Any) -> NamedSharding:
        """Where the gradient of a variable is added up: divided as that is, but not along the axis of the batch, by
        which products would be divided before their sum as well."""
        axes = [None if axis == self.axis else axis for axis in self.axes_of(variable)]
        return NamedSharding(self.mesh, PartitionSpec(*axes))


def sum_in_float32(function: Callable[..., Any], split: BatchSplit, variables: Sequence[Any]) -> Callable[..., Any]:
    """`function(weights, *others, batch)` as `jax.value_and_grad` gives it, with gradients that are summed in float32;
    `weights` are the values of `variables`.

    Those of weights in half precision come in float32 as well, where they are not rounded once more.
    """

    def summed(*given: Any) -> Any:
        traced, shapes = jax.make_jaxpr(function, return_shape=True)(*given)
        wanted = [place == 1 for place, part in enumerate(shapes) for _ in jax.tree.leaves(part)]
        values = _rewritten(traced, given, _Rewriter.of(split, traced, variables), wanted)
        places = map(split.gradient_place, variables)
        values = [jax.lax.with_sharding_constraint(value, next(places)) if flag else value
                  for value, flag in zip(values, wanted, strict=True)]  # fmt: skip
        return jax.tree.unflatten(jax.tree.structure(shapes), values)

    return summed


def exchange_in_float32(
    function: Callable[..., Any], split: BatchSplit, variables: Sequence[Any]
) -> Callable[..., Any]:  # fmt: skip
    """`function(state, batch)`, without gradients, with what divided layers exchange added up in float32.

    `state` begins with the values of `variables`.
    """
    if not split.divides_layers:
        return function

    def exchanged(*given: Any) -> Any:
        traced, shapes = jax.make_jaxpr(function, return_shape=True)(*given)
        wanted = [False] * len(traced.jaxpr.outvars)
        values = _rewritten(traced, given, _Rewriter.of(split, traced, variables), wanted)
        return jax.tree.unflatten(jax.tree.structure(shapes), values)

    return exchanged


def _rewritten(traced: Any, given: Sequence[Any], rewriter: "_Rewriter", wanted: Sequence[bool]) -> list[Tensor]:
    """The outputs of a traced program, in its dtypes but for the `wanted` ones; the last of what it is given is the
    batch."""
    data = [index == len(given) - 1 for index, part in enumerate(given) for _ in jax.tree.leaves(part)]
    values = rewriter.evaluate(traced.jaxpr, [*traced.consts, *jax.tree.leaves(given)],
                               [False] * len(traced.consts) + data, wanted)  # fmt: skip
    return _rounded_but(values, traced.jaxpr.outvars, wanted)


def _is_half(value: Any) -> bool:
    return str(getattr(value, "dtype", "")) in HALF


def _widened(value: Tensor) -> Tensor:
    return jnp.asarray(value, jnp.float32) if _is_half(value) else value


def _is_variable(atom: Any) -> bool:
    return not hasattr(atom, "val")


@dataclass(frozen=True)
class _Rewriter:
    """Evaluates a jaxpr with the values that it is given, of which those on the way to a gradient, and between layers
    that are divided, may be float32 where the jaxpr has half precision; all else gets them rounded as ever. `divided`
    are, of variables of jaxprs that are weights or casts and transposes of them, the axes of the mesh by their own."""

    split: BatchSplit
    divided: dict[Any, tuple[str | None, ...] | None] = field(default_factory=dict)

    @classmethod
    def of(cls, split: BatchSplit, traced: Any, variables: Sequence[Any]) -> "_Rewriter":
        """For a program whose first inputs are the values of `variables`."""
        if not split.divides_layers:
            return cls(split)
        return cls(split, {v: tuple(split.axes_of(each))
                           for v, each in zip(traced.jaxpr.invars, variables, strict=False)})  # fmt: skip

    def evaluate(
        self, jaxpr: Any, values: Sequence[Tensor], data: Sequence[bool], wanted: Sequence[bool]
    ) -> list[Tensor]:
        """The outputs, which may be wider than `jaxpr` says; the `wanted` ones are gradients. `values` are those of its
        constants and inputs; `data` says which of them are made of examples."""
        inputs = [*jaxpr.constvars, *jaxpr.invars]
        depends = _made_of_data(jaxpr, [v for v, flag in zip(inputs, data, strict=True) if flag])
        way = _way_to(jaxpr, depends, [v for v, flag in zip(jaxpr.outvars, wanted, strict=True) if flag])
        known: dict[Any, Tensor] = dict(zip(inputs, values, strict=True))

        def read(atom: Any) -> Tensor:
            return known[atom] if _is_variable(atom) else atom.val

        for each in jaxpr.eqns:
            given = [read(atom) for atom in each.invars]
            flags = [_is_variable(atom) and atom in depends for atom in each.invars]
            marked = [v in way for v in each.outvars]
            self._follow_weights(each)
            known.update(zip(each.outvars, self._results(each, given, flags, marked), strict=True))
        return [read(v) for v in jaxpr.outvars]

    def _follow_weights(self, each: Equation) -> None:
        axes = [self.divided.get(atom) if _is_variable(atom) else None for atom in each.invars]
        if each.primitive.name in CALLS:
            # one jaxpr may be called with other weights, too
            self.divided.update(zip(each.params[CALLS[each.primitive.name]].jaxpr.invars, axes, strict=True))
        elif each.primitive.name in (CAST, TRANSPOSE):
            own = axes[0]
            order = each.params.get("permutation", range(len(own or ())))
            self.divided[each.outvars[0]] = own and tuple(own[index] for index in order)

    def _gives_whole_sums(self, each: Equation) -> bool:
        """Whether it is a product with a weight of which each device has whole sums."""
        summed = each.params["dimension_numbers"][0] if each.primitive.name == "dot_general" else ()
        sides = [(self.divided.get(atom), axes) for atom, axes in zip(each.invars, summed, strict=False)
                 if _is_variable(atom)]  # fmt: skip
        return any(own is not None and self.split.gives_whole_sums(own, axes) for own, axes in sides)

    def _results(self, each: Equation, given: list[Tensor], data: list[bool], wanted: list[bool]) -> list[Tensor]:
        """Of an operation; of one that has operations inside, with those rewritten."""
        name, rounded = each.primitive.name, _rounded_but(given, each.invars)
        if not (any(wanted) or self.split.divides_layers):
            return _as_it_is(each, rounded)
        if name in CALLS:
            inner = each.params[CALLS[name]]
            with _named(each):
                return self.evaluate(inner.jaxpr, [*inner.consts, *given], [False] * len(inner.consts) + data, wanted)
        if name == "scan":
            return self._scan(each, given, data, wanted)
        if name == "cond":
            return self._cond(each, rounded, data, wanted)
        if name in REMAT:
            return self._remat(each, rounded, data, wanted)
        if not (each.outvars and _is_half(each.outvars[0].aval)):
            return _as_it_is(each, given if name == CAST else rounded)
        return self._on_the_way(each, given, data) if any(wanted) else self._between_layers(each, given)

    def _between_layers(self, each: Equation, given: list[Tensor]) -> list[Tensor]:
        """The result of an operation in half precision on no way to a gradient; in float32 where devices may have parts
        of it, and where parts that were added up are only moved or added."""
        name, rounded = each.primitive.name, _rounded_but(given, each.invars)
        if not self.split.divides_layers:
            return _as_it_is(each, rounded)
        if name in PRODUCTS and name != CONVOLUTION:
            return _as_it_is(each, rounded) if self._gives_whole_sums(each) else _wide_product(each, rounded)
        if name == SUM or (name in PLACED and all(map(_is_wide, given, each.invars))):
            return _as_it_is(each, [_widened(value) for value in given])
        return _as_it_is(each, rounded)

    def _on_the_way(self, each: Equation, given: list[Tensor], data: list[bool]) -> list[Tensor]:
        """The result of an operation in half precision on the way to a gradient, in float32 where that can be."""
        name, rounded = each.primitive.name, _rounded_but(given, each.invars)
        if name in PRODUCTS:
            return self._product(each, rounded) if all(data[:2]) else self._between_layers(each, rounded)
        if name in SCATTERS:
            return [_scattered(each, given)]
        if name == CAST:
            return given if any(map(_is_wide, given, each.invars)) else _as_it_is(each, given)
        if name == SUM or (name in LINEAR and any(map(_is_wide, given, each.invars))):
            return _as_it_is(each, [_widened(value) for value in given])
        return _as_it_is(each, rounded)

    def _product(self, each: Equation, given: list[Tensor]) -> list[Tensor]:
        return self._convolution(each, given) if each.primitive.name == CONVOLUTION else _wide_product(each, given)

    def _convolution(self, each: Equation, given: list[Tensor]) -> list[Tensor]:
        """cuDNN's convolutions give what they are given, and XLA would cast images to float32 for another result: so
        each device convolves its own examples, and casts what it made. Along other axes of the mesh XLA divides it."""
        left, right, _ = each.params["dimension_numbers"]
        axis, places = self.split.axis, (left[1], right[1])  # where a gradient's convolution has the examples
        uneven = any(value.shape[place] % self.split.size for value, place in zip(given, places, strict=True))
        if uneven or self.split.size == 1:
            return _as_it_is(each, given)
        parts_of = tuple(PartitionSpec(*[None] * place, axis) for place in places)

        def convolve(*parts: Tensor) -> Tensor:
            made = _as_it_is(each, list(parts))[0]
            with _named(each):
                return jax.lax.psum(jnp.asarray(made, jnp.float32), axis)

        return [jax.shard_map(convolve, mesh=self.split.mesh, in_specs=parts_of, out_specs=PartitionSpec(),
                              axis_names={axis})(*given)]  # fmt: skip

    def _scan(self, each: Equation, given: list[Tensor], data: list[bool], wanted: list[bool]) -> list[Tensor]:
        """Where gradients are added up from step to step, that is in float32 too."""
        body, (first, count) = each.params["jaxpr"], (each.params["num_consts"], each.params["num_carry"])
        last = first + count
        flags = [*data[:first], *[any(data)] * count, *data[last:]]
        begin = [_widened(value) if flag else _rounded(value, atom) for value, atom, flag in
                 zip(given[first:last], each.invars[first:last], wanted, strict=False)]  # fmt: skip
        constants, rows = (
            [_rounded(value, atom) for value, atom in zip(given[part], each.invars[part], strict=True)]
            for part in (slice(first), slice(last, None))
        )

        def step(carry: list[Tensor], row: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
            made = self.evaluate(body.jaxpr, [*body.consts, *constants, *carry, *row],
                                 [False] * len(body.consts) + flags, wanted)  # fmt: skip
            rows = _rounded_but(made[count:], body.jaxpr.outvars[count:], wanted[count:])
            return [jnp.asarray(new, old.dtype) for new, old in zip(made[:count], carry, strict=True)], rows

        chosen = {name: each.params[name] for name in ("length", "reverse", "unroll")}
        with _named(each):
            carry, rows = jax.lax.scan(step, begin, rows, **chosen)
        return [*carry, *rows]

    def _cond(self, each: Equation, given: list[Tensor], data: list[bool], wanted: list[bool]) -> list[Tensor]:
        def outputs(branch: Any, *inputs: Tensor) -> list[Tensor]:
            made = self.evaluate(branch.jaxpr, [*branch.consts, *inputs], [False] * len(branch.consts) + data[1:],
                                 wanted)  # fmt: skip
            made = _rounded_but(made, branch.jaxpr.outvars, wanted)
            return [_widened(value) if flag else value for value, flag in zip(made, wanted, strict=True)]

        branches = [partial(outputs, branch) for branch in each.params["branches"]]
        with _named(each):
            return list(jax.lax.switch(given[0], branches, *given[1:]))

    def _remat(self, each: Equation, given: list[Tensor], data: list[bool], wanted: list[bool]) -> list[Tensor]:
        """Still behind the barrier that keeps what is computed twice from being kept."""
        inner = each.params["jaxpr"]

        def evaluate(*inputs: Tensor) -> list[Tensor]:
            return _rounded_but(self.evaluate(inner, inputs, data, wanted), inner.outvars, wanted)

        again = jax.make_jaxpr(evaluate)(*given)
        whole = again.jaxpr.replace(constvars=[], invars=[*again.jaxpr.constvars, *again.jaxpr.invars])
        return _as_it_is(each.replace(params={**each.params, "jaxpr": whole}), [*again.consts, *given])


def _named(each: Equation) -> AbstractContextManager[Any]:
    """Inside, operations are named as this one, by which layers are found in compiled programs."""
    names = str(each.source_info.name_stack)
    return jax.named_scope(names) if names else nullcontext()


def _rounded(value: Tensor, atom: Any) -> Tensor:
    """In the dtype that the program has for it."""
    return jnp.asarray(value, atom.aval.dtype) if _is_wide(value, atom) else value


def _rounded_but(values: Sequence[Tensor], atoms: Sequence[Any], wanted: Sequence[bool] | None = None) -> list[Tensor]:
    """In the dtypes that the program has for them, but for the `wanted` ones."""
    flags = wanted or [False] * len(values)
    return [value if flag else _rounded(value, atom) for value, atom, flag in zip(values, atoms, flags, strict=True)]


def _is_wide(value: Tensor, atom: Any) -> bool:
    return _is_half(atom.aval) and not _is_half(value)


def _as_it_is(each: Equation, given: list[Tensor]) -> list[Tensor]:
    """One operation, named and placed as in the program that it is of, on values in dtypes of their own."""
    inputs = [Var(atom.aval) for atom in each.invars]
    alone = _nothing().replace(invars=inputs, outvars=each.outvars, eqns=[each.replace(invars=inputs)],
                               effects=each.effects)  # fmt: skip
    return list(jax.core.eval_jaxpr(alone, [], *given))


@cache
def _nothing() -> Any:
    """A program without operations: JAX wants to be told where one comes from."""
    return jax.make_jaxpr(lambda: ())().jaxpr


def _wide_product(each: Equation, given: list[Tensor]) -> list[Tensor]:
    wide = {**each.params, "preferred_element_type": jnp.dtype("float32")}
    return _as_it_is(each.replace(params=wide), given)


def _scattered(each: Equation, given: list[Tensor]) -> Tensor:
    names = ("dimension_numbers", "indices_are_sorted", "unique_indices", "mode")
    operand, indices, updates = given
    with _named(each):
        return jax.lax.scatter_add(_widened(operand), indices, _widened(updates),
                                   **{name: each.params[name] for name in names})  # fmt: skip


def _made_of_data(jaxpr: Any, inputs: Iterable[Any]) -> set[Any]:
    """The variables that examples, given as `inputs`, or random numbers have a part in."""
    found = set(inputs)
    for each in jaxpr.eqns:
        if each.primitive.name.startswith(DRAWS) or any(_is_variable(v) and v in found for v in each.invars):
            found.update(each.outvars)
    return found


def _way_to(jaxpr: Any, data: set[Any], outputs: Iterable[Any]) -> set[Any]:
    """The variables between `outputs` and the sums over examples that they come from, the results of those included."""
    way = {v for v in outputs if _is_variable(v)}
    for each in reversed(jaxpr.eqns):
        if any(v in way for v in each.outvars) and not _sums_examples(each, data):
            way.update(v for v in each.invars if _is_variable(v) and v in data)
    return way


def _sums_examples(each: Equation, data: set[Any]) -> bool:
    """Whether this is where examples are added up: a product of two things that are made of them, a sum over an axis
    that is more than one long, rows added to the places that examples name, and what adds them up in float32 itself."""
    name, of_data = each.primitive.name, [_is_variable(v) and v in data for v in each.invars]
    if name == SUM:
        return any(each.invars[0].aval.shape[axis] > 1 for axis in each.params["axes"])
    if name in SCATTERS:
        return of_data[1]
    return name in PRODUCTS and all(of_data[:2])
