"""Combinations that cannot work or that would ignore a key, and their neighbours that can."""

from operator import attrgetter

import pytest

from mpt_cli.settings.load import load_settings

# each with what is said of it; words of different sections stand together, as composing takes a tenth of a second
_WRONG = [
    (
        [
            "model.builder=build",
            "data.loader=./mymodel:load",
            "loss_scale.min_scale=8",
            "loss_scale.max_scale=4",
            "trainer.gradient_health_every_steps=0",
            "recipe=a/b",
            "optimizer.clipnorm=1",
            "optimizer.global_clipnorm=2",
            "expect.val_accuracy.mn=0.9",
        ],
        [
            "model.builder: must be package.module:function or path/to/file.py:function. Received: 'build'.",
            "data.loader: must be package.module:function or path/to/file.py:function. Received: './mymodel:load'.",
            "loss_scale.min_scale: must be <= loss_scale.max_scale, which is 4. Received: 8.0.",
            "trainer.gradient_health_every_steps: must be >= 1. Received: 0.",
            "recipe: must be fit for a folder name: it names the folder under runs/. Received: 'a/b'.",
            "optimizer.global_clipnorm: must be the only way of clipping. Also given: optimizer.clipnorm. Received: 2.0. "
            "Keep one of them.",
            "expect.val_accuracy.mn: must be one of min, max, value, rtol, atol. Received: 'mn'. Did you mean min?",
        ],
    ),
    (
        [
            "loss_scale.initial_scale=2**40",
            "model=transformer",
            "model.width=130",
            "trainer.steps_per_execution=0",
            "optimizer.ema_momentum=0.5",
            "data=synthetic",
            "data.task=tokens",
            "data.input_shape=[2,3]",
            "expect.loss=low",
        ],
        [
            "loss_scale.initial_scale: must lie within loss_scale.min_scale=2**-14 and loss_scale.max_scale=2**32. "
            "Received: 1099511627776.0. Move the bound if this is intended.",
            "model.width: must be a multiple of model.heads=4. Received: 130.",
            "trainer.steps_per_execution: must be >= 1 and <= 2**16. Received: 0.",
            "optimizer.ema_momentum: must be left out when optimizer.use_ema is false: nothing uses it. Received: 0.5. "
            "Set optimizer.use_ema=true.",
            "data.input_shape: must be [sequence_length] with data.task=tokens. Received: [2, 3].",
            "expect.loss: must be a finite number. Received: 'low'.",
        ],
    ),
    (
        [
            "loss_scale.mode=fixed",
            "loss_scale.growth_steps=5",
            "model=resnet",
            "model.blocks=[1,1]",
            "optimizer.schedule.decay_steps=5",
            "data=synthetic",
            "data.input_shape=[]",
            "expect.loss={}",
        ],
        [
            "loss_scale.growth_steps: loss_scale=fixed has no such key. Received: 5. It belongs to "
            "loss_scale=auto, loss_scale=dynamic. Choose one of these, or remove it with ~loss_scale.growth_steps.",
            "model.blocks: must have as many entries as model.filters=[16, 32, 64], one per stage, at least one. "
            "Received: [1, 1].",
            "optimizer.schedule.decay_steps: must be left out with optimizer.schedule.name=constant: nothing uses it. "
            "Received: 5. It belongs to optimizer.schedule.name=cosine.",
            "data.input_shape: must have at least one entry. Received: [].",
            "expect.loss: must have at least one of min, max, value, rtol, atol. Received: {}.",
        ],
    ),
    (
        [
            "loss_scale.mode=logmax",
            "loss_scale.hysteresis=5",
            "model=resnet",
            "model.blocks=[]",
            "model.filters=[]",
            "expect.loss={max: nan}",
        ],
        [
            "loss_scale.hysteresis: loss_scale=logmax has no such key. Received: 5. It belongs to "
            "loss_scale=auto, loss_scale=dynamic. Choose one of these, or remove it with ~loss_scale.hysteresis.",
            "model.blocks: must have as many entries as model.filters=[], one per stage, at least one. Received: [].",
            "expect.loss.max: must be a finite number. Received: nan.",
        ],
    ),
    (
        [
            "loss_scale.deviations=2",
            "expect.loss={min: 3, max: 2}",
        ],
        [
            "loss_scale.deviations: loss_scale=auto has no such key. Received: 2. It belongs to "
            "loss_scale=logmax. Choose one of these, or remove it with ~loss_scale.deviations.",
            "expect.loss.min: must be <= expect.loss.max=2. Received: 3.",
        ],
    ),
    (
        ["policy=bfloat16"],
        [
            "policy.name: must not be bfloat16 with optimizer=adam: with variables in bfloat16 the weights would never move. "
            "Received: 'bfloat16'. Use policy.name=mixed_bfloat16, or optimizer=sgd."
        ],
    ),
    (
        ["policy=float16", "optimizer=lamb"],
        [
            "policy.name: must not be float16 with optimizer=lamb: with variables in float16 each step would be "
            "about 1.5 or 0. Received: 'float16'. Use policy.name=mixed_float16, or optimizer=sgd."
        ],
    ),
    (
        ["distribute=data_parallel", "backend=tensorflow"],
        [
            "distribute.name: data_parallel must have backend=jax, here it is tensorflow. Received: 'data_parallel'. "
            "Use backend=jax or distribute=mirrored."
        ],
    ),
    (
        ["distribute=mirrored", "backend=jax"],
        [
            "distribute.name: mirrored must have backend=tensorflow, here it is jax. Received: 'mirrored'. "
            "Use backend=tensorflow or distribute=data_parallel."
        ],
    ),
    (
        ["distribute.devices=2"],
        [
            "distribute.devices: must be left out with distribute=none. Received: 2. "
            "Use distribute=mirrored or data_parallel."
        ],
    ),
    (
        ["distribute=mirrored", "backend=tensorflow", "optimizer.gradient_accumulation_steps=2"],
        [
            "optimizer.gradient_accumulation_steps: must be left out with distribute=mirrored: Keras cannot accumulate there. "
            "Received: 2. Raise trainer.batch_size instead."
        ],
    ),
    (
        ["distribute=mirrored", "backend=tensorflow", "optimizer.clipvalue=2"],
        [
            "optimizer.clipvalue: must be left out with distribute=mirrored: Keras clips on each replica, before gradients "
            "are added up. Received: 2.0. Use backend=jax distribute=data_parallel, or distribute=none."
        ],
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize(("words", "said"), _WRONG)
def test_a_combination_is_refused(words, said, own, messages):
    assert sorted(messages(own, *words)) == sorted(said)


# words, and where the last of them must have arrived
_NEIGHBOURS = [
    (["loss_scale.mode=none", "loss_scale.initial_scale=8"], "loss_scale.mode", "none"),  # the number is left out
    (["distribute=data_parallel", "backend=jax", "optimizer.global_clipnorm=2"], "optimizer.global_clipnorm", 2.0),
    (
        ["expect={loss: {value: 1, atol: 0.5}, steps_seen: 4}"],
        "expect",
        {"val_accuracy": {"min": 0.5}, "loss": {"value": 1, "atol": 0.5}, "steps_seen": 4},
    ),  # merged
]


@pytest.mark.slow
@pytest.mark.parametrize(("words", "key", "value"), _NEIGHBOURS, ids=[" ".join(words) for words, _, _ in _NEIGHBOURS])
def test_its_neighbour_is_accepted(words, key, value, own):
    assert attrgetter(key)(load_settings([own, *words])) == value
