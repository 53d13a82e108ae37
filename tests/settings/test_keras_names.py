"""`trainer.loss` and `trainer.metrics` are known to be names of Keras before Keras is imported."""

import inspect
import operator

import pytest

from mpt_cli.settings.load import load_settings
from mpt_cli.settings.python_references import keras_names
from mpt_cli.user_code import keras_classes


@pytest.mark.parametrize("listing", ["losses", "metrics", "callbacks", "optimizers/schedules"])
def test_the_listing_is_what_keras_has_once_it_is_imported(listing):
    import keras

    classes = keras_classes(operator.attrgetter(listing.replace("/", "."))(keras)).values()
    kinds = {kind.__name__ for kind in classes}
    assert set(keras_names(listing)) == kinds and len(kinds) > 5
    if listing == "metrics":
        assert all("y_true" in inspect.signature(kind.update_state).parameters for kind in classes)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("word", "message"),
    [
        (
            "trainer.loss=mean_squared_eror",
            "trainer.loss: Keras has none of this name. Received: 'mean_squared_eror'. "
            "Did you mean mean_squared_error?",
        ),
        (
            "trainer.loss.price=huber_loss",
            "trainer.loss.price: Keras has none of this name. Received: 'huber_loss'. Did you mean huber?",
        ),
        (
            "trainer.loss={_target_: keras.losses.Huber, delta: 2}",
            "trainer.loss: there is no _target_ beside object and kwargs. Received: {'_target_': 'keras.losses.Huber', "
            "'delta': 2}. Write {object: module:name, kwargs: {…}}.",
        ),
        (
            "trainer.loss={object: huber, kwarg: {delta: 2}}",
            "trainer.loss: there is no kwarg beside object and kwargs. "
            "Received: {'object': 'huber', 'kwarg': {'delta': 2}}. Write {object: module:name, kwargs: {…}}.",
        ),
        (
            "trainer.loss={object: huber, kwargs: 2}",
            "trainer.loss.kwargs: must be a mapping from names to values. Received: 2.",
        ),
        (
            "trainer.loss=3",
            "trainer.loss: must be a Keras name, module:name, or {object: either, kwargs: {…}}. Received: 3.",
        ),
        ("trainer.loss='nets:'", "trainer.loss: must be package.module:function or path/to/file.py:function. "),
        ("trainer.loss_weights={a: much}", "trainer.loss_weights: must be a number for each output, as a mapping or "),
        ("trainer.class_weight=[1]", "trainer.class_weight: must map classes to factors. Received: [1]. "),
        ("trainer.class_weight={cat: 1}", "trainer.class_weight.cat: must be NUMBER_OF_THE_CLASS: FACTOR"),
        (
            "trainer.class_weight={0: -1}",
            "trainer.class_weight.0: must be NUMBER_OF_THE_CLASS: FACTOR, both >= 0. Received: -1.",
        ),
        (
            "optimizer.schedule.object=cosine_dekay",
            "optimizer.schedule: Keras has none of this name. Received: 'cosine_dekay'. Did you mean cosine_decay?",
        ),
        (
            "trainer.loss={price: mse, kind: auto}; trainer.loss_weights={kinds: 2}",
            "trainer.loss_weights: must name outputs that have a loss, not kinds. trainer.loss has price, kind.",
        ),
        (
            "optimizer.schedule.object=nets:f; optimizer.schedule.warmup_steps=3",
            "optimizer.schedule.warmup_steps: must be left out with optimizer.schedule.object=nets:f",
        ),
        (
            "optimizer.schedule.object=nets:f; +optimizer.schedule.kwargs.initial_learning_rate=1; optimizer.learning_rate=2",
            "optimizer.learning_rate: must be left out, or be optimizer.schedule.kwargs.initial_learning_rate=1, which",
        ),
        ("optimizer.schedule.kwargs.alpha=1", "optimizer.schedule.kwargs: must be left out without optimizer.schedule"),
    ],
)
def test_a_wrong_name_is_a_problem_of_the_settings(own, messages, word, message):
    (said,) = messages(own, *word.split("; "))
    assert said.startswith(message)


@pytest.mark.slow
def test_an_optimizer_of_the_users_is_chosen_by_its_object(own, write_recipe):
    chosen = load_settings([own, "optimizer.object=nets:Lookahead", "optimizer.kwargs.k=5"]).optimizer
    assert (chosen.name, chosen.object, chosen.kwargs, chosen.learning_rate) == (
        "object",
        "nets:Lookahead",
        {"k": 5},
        3e-3,
    )
    recipe = write_recipe("optimizer: {object: nets.py:Lookahead, kwargs: {k: 6}}\n", "two.yaml")
    assert load_settings([recipe]).optimizer.kwargs == {"k": 6}
