"""The dtype policy of a run: one frozen value, set globally while a model is built, then on its layers. Some layers
must be cloned for it, and some can't have one, because Keras runs them without calling them.
"""

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import astuple, dataclass, field, fields
from fnmatch import fnmatchcase
from typing import Any, Self

import keras

from mpt_cli.precision.keras_internals import (
    call_behind,
    inner_layers,
    remake_lambda,
    tracked_layers,
    wrap_at_compile,
)
from mpt_cli.precision.optimizer import LossScaleOptimizer


@contextmanager
def policy_inside(name: str) -> Iterator[None]:
    """Set the global policy `name` inside this context; the one before is restored, also after an exception.

    >>> with policy_inside("mixed_bfloat16"):
    ...     keras.layers.Dense(1).compute_dtype
    'bfloat16'
    >>> keras.layers.Dense(1).compute_dtype
    'float32'
    """
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(name)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


def layers_run_uncalled(layer: Any) -> list[Any]:
    """Return the layers right inside `layer` that it runs in its own compute dtype.

    TimeDistributed uses their `call`; LSTM and GRU, and Bidirectional around them, take their weights to a fused
    kernel where the device has one.

    >>> inside = keras.layers.Dense(2, name="inside")
    >>> [part.name for part in layers_run_uncalled(keras.layers.TimeDistributed(inside))]
    ['inside']
    """
    recurrent = layer.forward_layer if isinstance(layer, keras.layers.Bidirectional) else layer
    if isinstance(layer, keras.layers.TimeDistributed) or getattr(recurrent, "use_cudnn", False):
        return inner_layers(layer, recursive=False)
    return []


def refuse_ineffective_policies(policies: dict[Any, str], layers: list[Any]) -> None:
    """Raise ValueError where a policy would give a layer another compute dtype than the one among `layers` that runs
    it."""
    for owner in layers:
        computes = keras.dtype_policies.get(policies.get(owner, owner.dtype_policy)).compute_dtype
        for part in layers_run_uncalled(owner):
            if part in policies and keras.dtype_policies.get(policies[part]).compute_dtype != computes:
                raise ValueError(
                    f"layer {part.path or part.name!r} can't have {policies[part]}: {type(owner).__name__} "
                    f"{owner.name!r} runs it in its own {computes}. Name {owner.name!r} in policy.overrides instead."
                )


def clone_with_policies(model: Any, policies: dict[Any, str], moved: Any) -> Any:
    """Return a copy of `model`, in which the variables of layer `moved` change dtype, with layers in `policies`.

    Models inside it are copied layer by layer too. Raises ValueError for a subclassed model, where a layer can't be
    made anew, and where one inside another one gets variables of another dtype than asked for.
    """
    if not _has_graph(model):
        raise ValueError(
            f"the variables of layer {moved.name!r} are {moved.variable_dtype} and can't change dtype after the "
            f"subclassed model {type(model).__name__} is built. Give the layer a dtype where the model makes it."
        )

    def clone(layer: Any) -> Any:
        if layer not in policies:
            twin = remake_layer(layer)
            if isinstance(layer, keras.Layer):  # and not an operation of the graph, which has nothing inside
                _set_inner_policies(twin, layer, policies)
            return twin
        with policy_inside(policies[layer]):  # for what the layer makes inside it without a dtype
            twin = remake_layer(layer, dtype=policies[layer])
            _set_inner_policies(twin, layer, policies)
            if tracked_layers(layer) and type(layer).build is not keras.Layer.build:
                twin.build_from_config(layer.get_build_config())
        return twin

    copy = keras.models.clone_model(model, clone_function=clone, recursive=True)
    copy.set_weights(model.get_weights())
    for layer, twin in zip(inner_layers(model), inner_layers(copy), strict=True):
        if layer not in policies or twin.dtype_policy.name == (policy := policies[layer]):
            continue
        if twin.weights and keras.dtype_policies.get(policy).variable_dtype != twin.variable_dtype:
            raise ValueError(
                f"layer {twin.path!r} can't have {policy}: its variables are {twin.variable_dtype}, as the layer "
                "around it makes them. Name the layer around it in policy.overrides, or give it a dtype where the "
                "model makes it."
            )
        twin.dtype_policy = policy
    return copy


def _has_graph(model: Any) -> bool:
    return isinstance(model, keras.Sequential) or hasattr(model, "operations")


def remake_layer(layer: Any, **changes: Any) -> Any:
    """Return a layer of the same config, not built; ValueError for one that can't be made anew."""
    if type(layer) is keras.layers.Lambda:
        return remake_lambda(layer, **changes)
    try:
        return type(layer).from_config({**_unbuilt(layer.get_config()), **changes})
    except (TypeError, NotImplementedError) as error:
        raise ValueError(
            f"layer {layer.name!r} can't be made anew, which a change of its variables' dtype needs: "
            f"{type(layer).__name__}.from_config does not take its get_config with a dtype. Write get_config, pass "
            "**kwargs on in its __init__, or use a mixed policy, which leaves the variables as they are."
        ) from error


def _unbuilt(config: Any) -> Any:
    """Return `config` without entries that would build inner layers before they have their policy."""
    if isinstance(config, dict):
        return {key: _unbuilt(value) for key, value in config.items() if key != "build_config"}
    return [_unbuilt(value) for value in config] if isinstance(config, list) else config


def _set_inner_policies(twin: Any, layer: Any, policies: dict[Any, str]) -> None:
    """Set the policies of layers inside `twin` before it is built; those that its `build` adds come last in `layer`."""
    for part, copied in zip(tracked_layers(layer), tracked_layers(twin), strict=False):
        if part in policies and not copied.weights:
            copied.dtype_policy = policies[part]
        _set_inner_policies(copied, part, policies)


@dataclass(frozen=True, eq=False, repr=False)
class Policy(str):
    """A dtype policy: the dtypes in which layers compute and keep their variables.

    It is a string, its `name`, so that Keras accepts it wherever it accepts a policy (`Dense(8, dtype=policy)`,
    `keras.config.set_dtype_policy(policy)`), and files have only the name. Its other fields are for whole models:
    `apply_policy` applies them.

    `name` is a Keras float policy for all layers; `head` one for the output layer (None: as `name`), so that logits
    leave in float32; `overrides` maps patterns of layer names or paths (`conv*`, `block_1/*`) to policies, the last
    match wins. Both hold for all layers inside one (an LSTM's cell, the projections of an attention layer), too.

    >>> Policy("mixed_float16").compute_dtype, Policy("mixed_float16").variable_dtype
    ('float16', 'float32')
    >>> keras.layers.Dense(8, dtype=Policy("mixed_float16")).dtype_policy
    <DTypePolicy "mixed_float16">

    Raises:
        TypeError: `name` is no string, or a Policy already.
        ValueError: Keras knows no policy of that name.

    Source: tf.keras.mixed_precision.Policy, whose documented attributes and methods it has.
    """

    name: str = "float32"
    head: str | None = "float32"
    overrides: dict[str, str] = field(default_factory=dict)

    def __new__(cls, name: str = "float32", *_: Any, **__: Any) -> Self:
        if not isinstance(name, str) or isinstance(name, Policy):
            raise TypeError(f"`name` must be the name of a policy, such as 'mixed_float16'. Received: name={name!r}.")
        keras.dtype_policies.get(name)
        return super().__new__(cls, name)

    def __repr__(self) -> str:
        """Return the name, and whatever else is not the default."""
        rest = [f", {name}={value!r}" for name, value in self.get_config().items() if name != "name"]
        return f'<Policy "{self.name}"{"".join(rest)}>'

    def get_config(self) -> dict[str, Any]:
        """Return the arguments that `from_config` makes an equal policy of, without defaults."""
        known = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: value for name, value in known.items() if name == "name" or value != getattr(Policy(), name)}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """Build from `get_config`, of tf.keras's and Keras 3's policies too."""
        return cls(**config)

    def __eq__(self, other: object) -> bool:
        """Return whether both are equal; a plain string equals a policy of that name."""
        if isinstance(other, Policy):
            return astuple(self) == astuple(other)
        return str(self) == other

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = str.__hash__

    @property
    def compute_dtype(self) -> str:
        """Return the dtype of activations and multiplications, e.g. float16 for mixed_float16."""
        return str(keras.dtype_policies.get(self.name).compute_dtype)

    @property
    def variable_dtype(self) -> str:
        """Return the dtype of the weights, e.g. float32 for mixed_float16."""
        return str(keras.dtype_policies.get(self.name).variable_dtype)

    @property
    def loss_dtype(self) -> str:
        """Return the dtype in which loss and metrics are computed: float32, or float64 where the model is."""
        return "float64" if self.compute_dtype == "float64" else "float32"

    @property
    def head_policy(self) -> str:
        """Return the policy of the output layer; a float64 model keeps a float64 head."""
        return self.name if self.head is None or self.compute_dtype == "float64" else self.head

    def scope(self) -> AbstractContextManager[None]:
        """Set Keras's global policy inside this context; the one before is restored, also after an exception.

        >>> with Policy("mixed_bfloat16").scope():
        ...     keras.layers.Dense(1).compute_dtype
        'bfloat16'
        """
        return policy_inside(self.name)


def global_policy() -> Policy:
    """Return the policy of layers without one of their own, as `tf.keras.mixed_precision.global_policy` does.

    >>> global_policy()
    <Policy "float32">
    """
    return Policy(keras.config.dtype_policy().name)


def set_global_policy(policy: str | None) -> None:
    """Set the policy of all layers and models made from now on, as tf.keras's function of that name does.

    `policy` is a name or a `Policy`, of which only the name is used; None stands for `keras.config.floatx()`. Until
    another policy is set, `Model.compile` under "mixed_float16" wraps the optimizer in mpt's `LossScaleOptimizer`
    instead of Keras's, and says so once. `keras.config.set_dtype_policy` leaves Keras's in place.

    Raise ValueError for a name that Keras does not know, and for a `Policy` with `overrides`, which belong to one
    model: use `apply_policy`.

    >>> set_global_policy("mixed_bfloat16")
    >>> global_policy(), keras.layers.Dense(1).compute_dtype
    (<Policy "mixed_bfloat16">, 'bfloat16')
    >>> set_global_policy("float32")
    """
    if overrides := getattr(policy, "overrides", None):
        raise ValueError(
            "`policy` must have no `overrides`: they are for the layers of one model. Received: "
            f"overrides={overrides}. Use apply_policy."
        )
    keras.config.set_dtype_policy(str(keras.config.floatx() if policy is None else policy))
    wrap_at_compile(keras.config.dtype_policy(), LossScaleOptimizer)


def apply_policy(model: Any, policy: Policy, everywhere: bool = False) -> Any:
    """Apply head and overrides of `policy` to a built `model`; return the model to use.

    With `everywhere` all other layers get `policy.name` too, for a model that was built under another policy (loaded).

    Layers whose variables keep their dtype change in place. If a variable's dtype changes (an override in a pure
    float16 model), a functional or Sequential model is cloned with the same weights. Raises ValueError for an override
    that matches no layer or has no effect, and if a subclassed model, or a layer that can't be made from its config,
    would have to be cloned.

    >>> with Policy("mixed_float16").scope():
    ...     model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), keras.layers.Dense(2)])
    >>> model = apply_policy(model, Policy("mixed_float16"))
    >>> [layer.compute_dtype for layer in model.layers]
    ['float16', 'float32']
    """
    wanted = wanted_policies(model, policy)
    if everywhere:
        own = [] if _has_graph(model) else [model]  # a subclassed model casts its inputs, for its layers and sums
        wanted = dict.fromkeys([*own, *layers_of(model)], policy.name) | wanted
    changed = {layer: name for layer, name in wanted.items() if layer.dtype_policy.name != name}
    moved = [
        layer
        for layer, name in changed.items()
        if layer.weights and keras.dtype_policies.get(name).variable_dtype != layer.variable_dtype
    ]
    if moved:
        with policy.scope():
            model = clone_with_policies(model, wanted, moved[0])
    else:
        for layer, name in changed.items():
            layer.dtype_policy = name
    return model


def layers_of(model: Any) -> list[Any]:
    """Return all layers with none inside, nested ones too, each once, input layers left out.

    >>> inner = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, name="inside")])
    >>> model = keras.Sequential([keras.Input((4,)), inner, keras.layers.Dense(2, name="outside")])
    >>> [layer.name for layer in layers_of(model)]
    ['inside', 'outside']
    """
    found = {id(layer): layer for layer in inner_layers(model)}
    return [layer for layer in found.values() if not isinstance(layer, (keras.layers.InputLayer, keras.Model))]


def outermost(model: Any) -> dict[str, str]:
    """Return, by each layer inside one of Keras's (a projection of an attention layer, an LSTM's cell), the outermost
    such layer around it: the one that a script can set."""
    owners: dict[str, str] = {}
    for owner in filter(_is_of_keras, layers_of(model)):
        name = name_of(owner)
        owners |= dict.fromkeys(map(name_of, layers_of(owner)), owners.get(name, name))
    return owners


def _is_of_keras(layer: Any) -> bool:
    return type(layer).__module__.startswith("keras.")


def made_in_float32(model: Any, policy: str) -> list[Any]:
    """Return the layers that were made with dtype="float32" in a model that is to have `policy`, but for its head.

    The others have the global policy, that of the layer around them, or `policy` already. In a loaded model each layer
    has a policy of its own, which says nothing.
    """
    if policy == "float32":
        return []
    inherited, layers = keras.config.dtype_policy(), {*layers_of(model)} - {*head_layers(model)}
    around = [model, *(x for x in inner_layers(model) if isinstance(x, keras.Model) or not _is_of_keras(x))]
    holders = {x: holder for holder in around for x in inner_layers(holder, recursive=False) if x in layers}
    own = {x: x.dtype_policy for x in holders if x.dtype_policy.name == "float32"}
    given = [x for x, its in own.items() if its is not inherited and its is not holders[x].dtype_policy]
    return given if len(given) <= MOST_GIVEN * len(holders) else []


MOST_GIVEN = 0.75  # of the layers: the base of a model that is loaded, under a few new layers, is more


def parts_of(model: Any) -> list[Any]:
    """Return the layers with none inside, then the plain operations (`x * 2`) of functional models.

    >>> x = keras.Input((4,))
    >>> [part.name for part in parts_of(keras.Model(x, 2 * keras.layers.Dense(3, name="dense")(x)))][0]
    'dense'
    """
    models = [model, *(x for x in inner_layers(model) if isinstance(x, keras.Model))]
    operations = [operation for one in models for operation in getattr(one, "operations", [])]
    plain = {id(operation): operation for operation in operations if not isinstance(operation, keras.Layer)}
    return [*layers_of(model), *plain.values()]


def name_of(part: Any) -> str:
    """Return the path of a layer, the name of an operation."""
    return str(getattr(part, "path", None) or part.name)


def matches(part: Any, pattern: str) -> bool:
    """Return whether the name or path of a layer or operation is of this pattern, as in a shell."""
    return fnmatchcase(part.name, pattern) or fnmatchcase(name_of(part), pattern)


def head_layers(model: Any) -> list[Any]:
    """Return the layers that make the model's outputs: back from each output to the first layer with weights.

    For subclassed models, whose layers form no graph, the layer named "head" where there is one, else none.

    >>> layers = [keras.layers.Dense(3, name="logits"), keras.layers.Softmax(name="softmax")]
    >>> [layer.name for layer in head_layers(keras.Sequential([keras.Input((4,)), *layers]))]
    ['softmax', 'logits']
    """
    if isinstance(model, keras.Sequential):
        return _head_of_chain(reversed(model.layers))
    if not hasattr(model, "operations"):
        return [layer for layer in layers_of(model) if layer.name == "head"]
    return [layer for output in model.outputs for layer in _head_of_chain(_operations_behind(output))]


def _head_of_chain(operations: Iterable[Any]) -> list[Any]:
    """Return the layers among `operations`, which run from the output backwards, up to the first with weights."""
    heads: list[Any] = []
    for operation in operations:
        if isinstance(operation, keras.Model):
            return heads + head_layers(operation)
        if isinstance(operation, keras.layers.InputLayer):
            return heads
        if isinstance(operation, keras.Layer):
            heads.append(operation)
            if isinstance(operation, keras.layers.Wrapper):
                heads += _head_of_chain([operation.layer])
            if operation.weights:
                return heads
    return heads


def _operations_behind(tensor: Any) -> Iterator[Any]:
    """Return the operations that made a symbolic `tensor`, last first, as long as each has one input."""
    while (call := call_behind(tensor)) is not None:
        operation, node = call
        yield operation
        inputs = keras.tree.flatten(node.input_tensors)
        if len(inputs) != 1:
            return
        tensor = inputs[0]


def computes_in_float16(model: Any) -> bool:
    """Return whether any layer of `model` computes in float16, so that its gradients need loss scaling.

    The only place that decides this, from the layers and not from the global policy, so that models with policies of
    single layers, cloned, loaded and pure float16 models count. bfloat16 has float32's range and needs no scaling.

    >>> layers = [keras.layers.Dense(3, dtype="mixed_float16"), keras.layers.Dense(2)]
    >>> computes_in_float16(keras.Sequential([keras.Input((4,)), *layers]))
    True
    """
    return any(layer.compute_dtype == "float16" for layer in layers_of(model))


def wanted_policies(model: Any, policy: Policy) -> dict[Any, str]:
    layers = dict.fromkeys(layers_of(model))
    wanted: dict[Any, str] = {}
    if policy.head_policy != policy.name:
        wanted.update(dict.fromkeys(with_inner_layers(head_layers(model)), policy.head_policy))
    for pattern, name in policy.overrides.items():
        named = with_inner_layers([part for part in inner_layers(model) if matches(part, pattern)])
        matching = [part for part in named if part in layers]  # and no model inside, which computes nothing itself
        if not matching:
            names = ", ".join(sorted({layer.name for layer in layers}))
            raise ValueError(f"no layer matches the pattern {pattern!r}. The model's layers are: {names}.")
        wanted.update(dict.fromkeys(matching, name))
    refuse_ineffective_policies(wanted, [*layers])
    return wanted


def with_inner_layers(layers: list[Any]) -> list[Any]:
    """Return each of them, and after it the layers inside."""
    return [part for layer in layers for part in (layer, *layers_of(layer))]
