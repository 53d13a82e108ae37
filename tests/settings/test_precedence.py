"""What comes later wins: of words, of recipes, of choices. The levels themselves are in test_composition.py."""

from mpt_cli.settings.load import load_settings
from mpt_cli.settings.variants import LossScaleSettings


def test_the_last_of_two_words_wins(own) -> None:
    assert load_settings([own, "trainer.epochs=3", "trainer.epochs=4"]).trainer.epochs == 4


def test_keys_of_a_replaced_model_go_with_it_and_shared_keys_stay(own) -> None:
    settings = load_settings([own, "model=mlp", "optimizer=sgd"])
    assert settings.model.hidden_units == [512, 512]
    assert settings.optimizer.name == "sgd" and settings.optimizer.learning_rate == 3e-3


def test_the_numbers_of_all_modes_in_a_file_of_an_earlier_version_are_read(write_recipe) -> None:
    recipe = write_recipe("loss_scale: {mode: fixed, initial_scale: 8.0, growth_steps: 2000, hysteresis: 1, "
                          "beta1: 0.99}\n")
    assert load_settings([recipe]).loss_scale == LossScaleSettings(mode="fixed", initial_scale=8.0)
