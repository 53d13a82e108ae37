"""Defaults of the user's own, below every recipe, and what is said of how a run came to its settings."""

from pathlib import Path

import pytest

from mpt_cli.cli import main
from mpt_cli.settings.load import load_with_notes, resolved_yaml
from mpt_cli.settings.search_path import DEFAULTS


@pytest.fixture
def file(here: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv(DEFAULTS)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(here / "config"))
    (path := here / "config" / "mpt" / "defaults.yaml").parent.mkdir(parents=True)
    path.write_text("trainer: {epochs: 2, keep_checkpoints: 5}\nlogger: {console: quiet}\n")
    return path


def test_they_stand_below_the_recipe_and_what_they_decide_is_said(file, capsys):
    settings, notes = load_with_notes(["conf=digits_mlp", "logger.console=plain"])
    assert (settings.trainer.epochs, settings.trainer.keep_checkpoints, settings.logger.console) == (15, 5, "plain")
    assert notes == [f"of {file}: trainer.keep_checkpoints"]
    assert main(["check", "conf=digits_mlp"]) == 0
    assert f"\nof {file}: trainer.keep_checkpoints, logger.console\n" in capsys.readouterr().out
    Path("record.yaml").write_text(resolved_yaml(settings))
    file.write_text("trainer: {keep_checkpoints: 7}\n")
    again, notes = load_with_notes(["conf=./record.yaml"])
    assert again == settings and notes == []  # the record of a run says all


@pytest.mark.parametrize("words", ["compare compare_dir=full", "diagnose --out full", "plan --device h100 --devices 3"])
def test_a_verb_that_reads_them_says_what_they_decide(words, file, capsys):
    """Each ends after that, as what follows can't be."""
    (file.parents[2] / "full").mkdir()
    (file.parents[2] / "full" / "file").touch()
    assert main([*words.split(), "conf=digits_mlp"]) in (2, 3)
    captured = capsys.readouterr()
    assert (captured.out + captured.err).count(f"of {file}: trainer.keep_checkpoints, logger.console\n") == 1


def test_what_is_wrong_with_them_is_said_and_reproduce_does_not_read_them(file, capsys):
    file.write_text("trainer: {epoks: 2}\n")
    assert main(["check", "conf=digits_mlp"]) == 2
    assert f"--> {file}:1:11" in capsys.readouterr().err
    assert main(["reproduce", "digits_mlp", "--dry-run"]) == 0


def test_where_they_cannot_be_read_the_recipe_is_checked_all_the_same(file, write_recipe, messages):
    file.write_text("trainer: [\n")
    own = write_recipe("defaults: [{modell: cnn}]\n")
    unreadable, no_group = messages(own)
    assert unreadable.startswith(f"conf: {file} is not valid YAML")
    assert no_group == "defaults: there is no such group. Received: 'modell'. Did you mean model?"


def test_vars_of_the_command_line_that_nothing_takes_are_said(write_recipe):
    recipe = write_recipe("vars: {n: 1, m: 2}\ntrainer: {epochs: '${vars.n}'}\n")
    notes = load_with_notes([recipe, "vars.n=2", "vars.q=32", "vars.m=3", "seed=${vars.m}"])[1]
    assert notes == ["nothing uses vars.q; a key of the recipe uses it as ${vars.q}"]
