"""The audit of a built model: the combinations known to go wrong."""

import keras
import pytest

from mpt_cli.precision import Policy, apply_policy, find_bad_combinations


def network(policy: str = "float32", last: str | None = None):
    with Policy(policy).scope():
        layers = [keras.layers.Dense(3, name="hidden"), keras.layers.Dense(2, activation=last, name="head")]
        return keras.Sequential([keras.Input((4,)), *layers], name="net")


@pytest.mark.parametrize("activation", ["softmax", "sigmoid"])
@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_probabilities_in_a_narrow_head_are_a_fatal_risk(policy, activation):
    (finding,) = find_bad_combinations(network(policy, last=activation), "sgd")
    assert (finding.key, finding.fatal) == ("policy.head", True)
    assert "layer net/head: probabilities in" in finding.what
    assert find_bad_combinations(apply_policy(network(policy, last=activation), Policy(policy)), "sgd") == []


def test_probabilities_inside_a_wrapper_are_found():
    with Policy("mixed_float16").scope():
        dense = keras.layers.Dense(2, activation="softmax", name="inside")
        model = keras.Sequential([keras.Input((3, 4)), keras.layers.TimeDistributed(dense)], name="net")
    (finding,) = find_bad_combinations(model, "sgd")
    assert (finding.key, finding.fatal) == ("policy.head", True)
    assert "inside: probabilities in float16" in finding.what


@pytest.mark.parametrize(("policy", "bits"), [("float16", 11), ("bfloat16", 8)])
@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw", "nadam", "lamb", "adamax", "adafactor"])
def test_of_optimizers_on_narrow_weights_adaptive_ones_are_fatal(policy, bits, optimizer):
    (finding,) = find_bad_combinations(network(policy), optimizer)
    assert finding.fatal == (optimizer != "sgd")
    words = f"variables are {policy}, in which {optimizer} does not work"
    assert (words if finding.fatal else f"updates below 2**-{bits} of a weight are lost") in finding.what
