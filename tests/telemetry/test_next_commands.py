"""What is printed at the end of a run can be copied into a shell, whatever the run's directory is called."""

import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from mpt_cli.settings import load_settings
from mpt_cli.telemetry.console.plain import next_commands


@pytest.fixture(params=["it's, a=b", "-x"])
def run_dir(request, tmp_path, monkeypatch) -> str:
    monkeypatch.chdir(tmp_path)
    Path(request.param).mkdir()
    (Path(request.param) / "config.yaml").write_text("recipe: own\n")
    return request.param


def test_a_run_that_was_broken_off_goes_on_by_what_is_printed(run_dir, summary) -> None:
    [said] = next_commands(replace(summary, run_dir=run_dir, status="interrupted", exit_code=130))
    settings = load_settings(shlex.split(said)[2:])
    assert (settings.recipe, settings.resume) == ("own", run_dir)


def test_the_commands_of_a_good_run_name_its_directory(run_dir, summary) -> None:
    [repeat] = map(shlex.split, next_commands(replace(summary, run_dir=run_dir)))  # without a model there is no more
    (Path(run_dir) / "model.keras").touch()
    *looks, repeat = map(shlex.split, next_commands(replace(summary, run_dir=run_dir)))
    assert [words[:2] for words in looks] == [["mpt", "evaluate"], ["mpt", "export"]]
    assert all(Path(words[2]) == Path(run_dir) for words in looks)
    assert load_settings(repeat[2:]).recipe == "own"


def test_the_commands_of_a_stopped_run_name_it_too(run_dir, summary) -> None:
    stopped = replace(summary, run_dir=run_dir, status="stopped", exit_code=4, change="seed=1", skipped_steps=3)
    diagnose, report, repeat = map(shlex.split, next_commands(stopped))
    assert Path(diagnose[2]) == Path(report[2]) == Path(run_dir)
    assert load_settings(repeat[2:]).seed == 1
