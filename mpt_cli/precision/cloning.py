"""A model made anew with the same weights, where a policy changes the dtype of variables that exist already."""

from typing import Any

import keras

from mpt_cli.precision.global_policy import global_policy


def clone_in(model: Any, policies: dict[Any, str], moved: Any) -> Any:
    """A copy of `model`, in which the variables of layer `moved` change dtype, with layers in `policies`.

    Models inside it are copied layer by layer too. Raises ValueError for a subclassed model, where a layer can't be
    made anew, and where one inside another one gets variables of another dtype than asked for.
    """
    if not isinstance(model, keras.Sequential) and not hasattr(model, "operations"):
        raise ValueError(
            f"the variables of layer {moved.name!r} are {moved.variable_dtype} and can't change dtype after the "
            f"subclassed model {type(model).__name__} is built. Give the layer a dtype where the model makes it."
        )

    def clone(layer: Any) -> Any:
        if layer not in policies:
            twin = _make_anew(layer)
            if isinstance(layer, keras.Layer):  # and not an operation of the graph, which has nothing inside
                _give_to_inside(twin, layer, policies)
            return twin
        with global_policy(policies[layer]):  # for what the layer makes inside it without a dtype
            twin = _make_anew(layer, dtype=policies[layer])
            _give_to_inside(twin, layer, policies)
            if layer._layers and type(layer).build is not keras.Layer.build:
                twin.build_from_config(layer.get_build_config())
        return twin

    copy = keras.models.clone_model(model, clone_function=clone, recursive=True)
    copy.set_weights(model.get_weights())
    for layer, twin in zip(_inside(model), _inside(copy), strict=True):
        if layer in policies and twin.dtype_policy.name != policies[layer]:
            _change(twin, policies[layer])
    return copy


def _make_anew(layer: Any, **changes: Any) -> Any:
    try:
        return type(layer).from_config({**_unbuilt(layer.get_config()), **changes})
    except (TypeError, NotImplementedError) as error:
        raise ValueError(
            f"layer {layer.name!r} can't be made anew, which a change of its variables' dtype needs: "
            f"{type(layer).__name__}.from_config does not take its get_config with a dtype. Write get_config, pass "
            "**kwargs on in its __init__, or use a mixed policy, which leaves the variables as they are."
        ) from error


def _unbuilt(config: Any) -> Any:
    """`config` without what would build layers in it, a wrapper's for one, before they have their policy."""
    if isinstance(config, dict):
        return {key: _unbuilt(value) for key, value in config.items() if key != "build_config"}
    return [_unbuilt(value) for value in config] if isinstance(config, list) else config


def _give_to_inside(twin: Any, layer: Any, policies: dict[Any, str]) -> None:
    """Policies for what `twin` has inside before it is built; what its `build` will add comes last in `layer`."""
    for part, copied in zip(layer._layers, twin._layers, strict=False):
        if part in policies and not copied.weights:
            copied.dtype_policy = policies[part]
        _give_to_inside(copied, part, policies)


def _inside(layer: Any) -> list[Any]:
    return list(layer._flatten_layers(include_self=False, recursive=True))


def _change(layer: Any, policy: str) -> None:
    if layer.weights and keras.dtype_policies.get(policy).variable_dtype != layer.variable_dtype:
        raise ValueError(
            f"layer {layer.path!r} can't have {policy}: its variables are {layer.variable_dtype}, as the layer around "
            "it makes them. Name the layer around it in policy.overrides, or give it a dtype where the model makes it."
        )
    layer.dtype_policy = policy
