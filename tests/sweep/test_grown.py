"""A sweep that goes on: as it was begun, and with more jobs."""

from pathlib import Path

import pytest
from sweep_stubs import started

from mpt_cli.cli import main
from mpt_cli.errors import ConfigError
from mpt_cli.settings.load import load_settings, resolved_yaml
from mpt_cli.sweep.directory import SweepDirectory


@pytest.mark.slow
def test_what_was_said_of_the_jobs_is_said_again_when_the_sweep_is_resumed(stubs, tmp_path):
    assert stubs.start(["conf=digits_mlp", "seed=1", "sweep_dir=s"], objective="skipped_steps")[1] == 0
    assert "  skipped_steps 3.0000, 3 skipped, healthy" in stubs.said
    next((tmp_path / "s").glob("logs/*.json")).unlink()
    stubs.manners = {1: "hangs"}
    found, code = stubs.resume(tmp_path / "s", timeout_seconds=0.5)
    assert (code, [result.status for result in found.results]) == (143, ["timed out"])
    assert found.results[0].reason.endswith(" s (--timeout)") and found.objective.name == "skipped_steps"


@pytest.mark.slow
def test_a_finished_sweep_grows_and_runs_nothing_twice(stubs, tmp_path, capsys):
    stubs.start(["conf=digits_mlp", "seed=1,2", f"sweep_dir={tmp_path}/s"])
    found, code = stubs.resume(tmp_path / "s", ["seed=2,3"])
    assert code == 0 and "1 job left out: given twice, or in the sweep already" in stubs.said
    assert [job.overrides for job in found.plan.jobs] == [{"seed": "1"}, {"seed": "2"}, {"seed": "3"}]
    assert [name[:3] for name in started(tmp_path / "s")] == ["003"]
    plan = (tmp_path / "s" / "sweep.json").read_text()
    assert main(["sweep", "--resume", "s", "trainer.batch_size=16", "--dry-run"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert len(shown) == 5 and shown[0].split()[0] == "004-seed-1_batch_size-16"
    assert (tmp_path / "s" / "sweep.json").read_text() == plan
    found, _ = stubs.resume(tmp_path / "s", ["trainer.batch_size=16,64"])  # what was the same for all is varied now
    assert found.plan.varied == ["seed", "trainer.batch_size"]
    rows = {row.overrides["trainer.batch_size"]: len(row.results) for row in found.configurations}
    assert rows == {"16": 2, "64": 3}  # of the seeds it began with, and 64 is the recipe's
    stubs.resume(tmp_path / "s", ["policy=float32", "trainer.batch_size=16", "seed=9"])
    assert "  seed=9 trainer.batch_size=16 policy=float32\n1 job\nNo seed is common" in stubs.said


@pytest.mark.slow
def test_groups_that_give_keys_of_one_section_keep_their_order_in_jobs_that_are_added(stubs, tmp_path):
    Path("mine.py").write_text("def net(input_shape, **kwargs): ...\n")
    for name in ("head/a", "head/b", "noise/c"):
        (file := Path(f"conf/{name}.yaml")).parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"# @package model.kwargs\n{file.parent.name}: {file.stem}\n")
    Path("mine.yaml").write_text("model: {builder: 'mine:net'}\n")
    stubs.start(["conf=mine.yaml", "head=a,b", "noise=c", "seed=1,2", f"sweep_dir={tmp_path}/s"])
    found, _ = stubs.resume(tmp_path / "s", ["head=b", "seed=1,2,3"])
    assert [job.overrides for job in found.plan.jobs[4:]] == [{"head": "b", "seed": "3"}]


@pytest.mark.slow
def test_a_sweep_goes_on_from_anywhere_and_only_with_its_files_as_they_were(stubs, tmp_path, monkeypatch, capsys):
    own, begun = Path("mine.yaml").absolute(), "trainer: {epochs: 1, batch_size: 8}\n"
    own.write_text(begun)
    stubs.manners = {2: "raises"}
    found, _ = stubs.start(["conf=mine.yaml", "policy=mixed_float16,float32", "sweep_dir=s"])
    first = found.results[0]
    first.run_dir.joinpath("config.yaml").write_text(resolved_yaml(load_settings(first.job.words)))
    first.run_dir.joinpath("environment.json").write_text('{"mpt": "0.0", "schema_version": 1}')
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    own.write_text("description: the same\ntrainer: {epochs: 2, batch_size: 16}\n")
    rule = r"trainer\.batch_size: must be as it was when 001-\S+ ran: 8\. Received: 16\. Put .*\n.*trainer\.epochs"
    with pytest.raises(ConfigError, match=rule):
        stubs.resume(tmp_path / "s", ["policy=mixed_bfloat16"])
    assert main(["sweep", "--resume", str(tmp_path / "s"), "--dry-run"]) == 2
    said = capsys.readouterr().err
    assert "must be as it was when 001-" in said and "mine.yaml:2:" in said
    assert started(tmp_path / "s") == [] and len(SweepDirectory.open(tmp_path / "s").read_plan().jobs) == 2
    own.write_text(begun)
    stubs.resume(tmp_path / "s", ["policy=mixed_bfloat16"])
    assert "changed since jobs ran: mpt: 0.0 -> " in stubs.said
    assert [name[:3] for name in started(tmp_path / "s")] == ["002", "003"]
