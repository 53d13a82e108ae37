"""What is printed at the end of a run can be copied into a shell, whatever the run's directory is called."""

import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from mpt_cli.settings.load import load_settings
from mpt_cli.telemetry.console.plain import next_commands


@pytest.mark.parametrize("run_dir", ["it's, a=b", "-x"])
def test_what_is_printed_can_be_run(run_dir, tmp_path, monkeypatch, summary):
    monkeypatch.chdir(tmp_path)
    Path(run_dir).mkdir()
    (Path(run_dir) / "config.yaml").write_text("recipe: own\n")

    def words(**changes: object):
        return [*map(shlex.split, next_commands(replace(summary, run_dir=run_dir, **changes)))]

    [resume] = words(status="interrupted", exit_code=130)
    settings = load_settings(resume[2:])
    assert (settings.recipe, settings.resume) == ("own", run_dir)
    [repeat] = words()  # without a model there is no more
    assert load_settings(repeat[2:]).recipe == "own"
    (Path(run_dir) / "model.keras").touch()
    evaluate, repeat = words()
    assert evaluate[:2] == ["mpt", "evaluate"]
    diagnose, report = words(status="stopped", exit_code=4, skipped_steps=3)
    assert all(Path(looks[2]) == Path(run_dir) for looks in (evaluate, diagnose, report))
    assert load_settings(repeat[2:]).recipe == "own"
