"""`trainer.loss` and `trainer.metrics` are known to be names of Keras before Keras is imported."""

import subprocess
import sys

import pytest

from mpt_cli.settings.load import load_settings
from mpt_cli.settings.references import keras_names


@pytest.mark.parametrize("listing", ["losses", "metrics"])
def test_the_listing_is_what_keras_has_once_it_is_imported(listing) -> None:
    import keras

    from mpt_cli.training.loss_and_optimizer import can_be_named

    kinds = {kind.__name__ for kind in vars(getattr(keras, listing)).values() if can_be_named(kind)}
    assert set(keras_names(listing)) == kinds and len(kinds) > 20


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("trainer.loss=mean_squared_eror", "trainer.loss: Keras has none of this name. Received: 'mean_squared_eror'. "
                                           "Did you mean mean_squared_error?"),
        ("trainer.metrics=[auto,acuracy]", "trainer.metrics: Keras has none of this name. Received: 'acuracy'. "
                                           "Did you mean accuracy?"),
        ("trainer.metrics=[mean]", "trainer.metrics: Keras has none of this name. Received: 'mean'. "),
    ],
)  # fmt: skip
def test_a_wrong_name_is_a_problem_of_the_settings(own, messages, word, message) -> None:
    (said,) = messages(own, word)
    assert said.startswith(message)


@pytest.mark.parametrize("loss", ["auto", "mse", "MeanSquaredError", "mean_squared_error", "kl_divergence", "CTC"])
def test_names_of_every_form_are_known(own, loss) -> None:
    assert load_settings([own, f"trainer.loss={loss}", "trainer.metrics=[mae,AUC]"]).trainer.loss == loss


def test_where_keras_lists_nothing_the_name_is_left_to_the_run(own, monkeypatch) -> None:
    monkeypatch.setattr("mpt_cli.settings.checks.keras_names", lambda listing: ())
    assert load_settings([own, "trainer.loss=nonsense"]).trainer.loss == "nonsense"


def test_the_names_are_checked_without_keras() -> None:
    code = ("import sys; from mpt_cli.cli import main; main(['check', 'conf=digits_mlp', 'trainer.loss=mse']); "
            "sys.exit('keras' in sys.modules)")  # fmt: skip
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
