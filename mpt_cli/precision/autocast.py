"""Layers that Keras runs without calling them, so that their own compute dtype and float8 are not put into force."""

from typing import Any

import keras


def run_without_a_call(layer: Any) -> list[Any]:
    """The layers right inside `layer` that it runs in its own compute dtype.

    TimeDistributed uses their `call`; LSTM and GRU, and Bidirectional around them, take their weights to a fused
    kernel where the device has one.

    >>> inside = keras.layers.Dense(2, name="inside")
    >>> [part.name for part in run_without_a_call(keras.layers.TimeDistributed(inside))]
    ['inside']
    """
    recurrent = layer.forward_layer if isinstance(layer, keras.layers.Bidirectional) else layer
    if isinstance(layer, keras.layers.TimeDistributed) or getattr(recurrent, "use_cudnn", False):
        return list(layer._flatten_layers(include_self=False, recursive=False))
    return []


def refuse_what_cannot_act(policies: dict[Any, str], layers: list[Any]) -> None:
    """ValueError where a policy would give a layer another compute dtype than the one among `layers` that runs it."""
    for owner in layers:
        computes = keras.dtype_policies.get(policies.get(owner, owner.dtype_policy)).compute_dtype
        for part in run_without_a_call(owner):
            if part in policies and keras.dtype_policies.get(policies[part]).compute_dtype != computes:
                raise ValueError(
                    f"layer {part.path or part.name!r} can't have {policies[part]}: {type(owner).__name__} "
                    f"{owner.name!r} runs it in its own {computes}. Name {owner.name!r} in policy.overrides instead."
                )
