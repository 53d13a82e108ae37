"""Interpolations that compute."""

from pathlib import Path

import pytest

from mpt_cli.settings.key_type import evaluate
from mpt_cli.settings.load import load_settings, resolved_yaml

RECIPE = """
defaults: [{model: mlp}, {data: digits}]
vars: {width: 3}
trainer:
  batch_size: ${eval:'2 ** (${vars.width} + 2)'}
  epochs: ${eval:${vars.width}*2}
optimizer:
  learning_rate: ${eval:'1e-3 * ${trainer.batch_size} / 64'}
"""


def test_keys_are_computed_from_others_with_their_types_and_again_in_the_record(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text(RECIPE)
    settings = load_settings(["conf=./mine.yaml"])
    assert (settings.trainer.batch_size, settings.trainer.epochs, settings.optimizer.learning_rate) == (32, 6, 0.0005)
    words = ["vars.width=4", "trainer.epochs=\"${eval:'${vars.width} // 2'}\""]
    changed = load_settings(["conf=./mine.yaml", *words])
    assert (changed.trainer.batch_size, changed.trainer.epochs) == (64, 2)
    Path("record.yaml").write_text(resolved_yaml(settings))
    assert load_settings(["conf=./record.yaml"]).trainer.batch_size == 32


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("__import__('os').getcwd()", "must be numbers, + - * / // % **, parentheses or one of abs,"),
        ("a", "must be numbers"),
        ("max(1, key=2)", "must be numbers"),
        ("'1'", "must be"),
        ("True", "must be numbers"),
        ("1 if 2 else 3", "must be numbers"),
        ("9**9**9", "has no value"),
        ("(-8)**0.5", "has no value"),
        ("1/0", "division by zero"),
        ("exp(1e9)", "has no value"),
        ("sqrt(1, 2)", "has no value"),
        ("3 +", "is no expression of numbers"),
        ("(" * 400 + ")" * 400, "is no expression of numbers"),
    ],
)
def test_nothing_but_numbers_is_ever_computed(text: str, said: str) -> None:
    with pytest.raises(ValueError) as caught:
        evaluate(text)
    assert said in str(caught.value)
