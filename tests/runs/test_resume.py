"""Which run is gone on with, whether it may be, and what its files hold then."""

import errno
import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from stub_job import FINISHED

from mpt_cli.errors import ConfigError, DataError
from mpt_cli.files import write_json
from mpt_cli.runs.directory import LockHolder, RunDirectory, read_holder, write_holder
from mpt_cli.runs.resume import (
    check_checkpoints,
    check_resumable,
    find_run,
    finished_summary,
    forbidden_changes,
    stored_settings,
    truncate_telemetry,
    with_stored_choices,
)
from mpt_cli.settings.load import load_settings, resolved_yaml
from mpt_cli.settings.schema import DistributeSettings, Settings

pytestmark = pytest.mark.usefixtures("here")

WORDS = ["conf=digits_mlp", "trainer.epochs=3"]


def _run(path: Path, *words: str, **summary: object):
    run = RunDirectory(path)
    path.mkdir(parents=True)
    run.config_yaml.write_text(resolved_yaml(load_settings([*WORDS, *words])))
    if summary:
        write_json(run.summary_json, {**FINISHED, **summary})
    return run


def _settings(*words: str):
    return load_settings([*WORDS, *words])


@pytest.mark.slow
def test_auto_takes_the_newest_unfinished_run_that_fits():
    parent = Path("runs/digits_mlp")
    _run(parent / "1")
    _run(parent / "2", status="terminated")
    _run(parent / "3", "seed=5", status="terminated")
    _run(parent / "4", status="finished", epochs_completed=3)
    found = find_run(_settings("resume=auto"))
    assert found is not None and found.path == parent / "2"
    other = find_run(_settings("resume=auto", "seed=5"))
    assert other is not None and other.path == parent / "3"
    drawn = find_run(_settings("resume=auto", "seed=null"))
    assert drawn is not None and drawn.path == parent / "3"
    assert find_run(_settings("resume=auto", "seed=6")) is None
    assert find_run(_settings()) is None


@pytest.mark.parametrize(
    ("words", "facts", "is_done"),
    [
        ([], {"epochs_completed": 3}, True),
        ([], {"epochs_completed": 2}, False),
        ([], {"epochs_completed": 2, "ended_early": "early stopping"}, True),
        ([], {"epochs_completed": 3, "status": "stopped"}, False),
        (["trainer.max_steps=40"], {"epochs_completed": 2, "steps_seen": 40}, True),
        (["trainer.max_steps=40"], {"epochs_completed": 2, "steps_seen": 39}, False),
    ],
)
def test_a_run_is_done_where_its_epochs_or_steps_are(words, facts, is_done):
    found = finished_summary(_run(Path("run"), *words, **facts), _settings(*words))
    assert (found is not None) == is_done
    assert found is None or found.epochs_completed == facts["epochs_completed"]


def test_auto_with_a_run_dir_looks_there_only():
    """A run that was killed before it began makes way for the same command."""
    assert find_run(_settings("resume=auto", "run_dir=none")) is None
    assert find_run(_settings("resume=auto", "run_dir=there")) is None
    found = find_run(_settings("resume=auto", f"run_dir={_run(Path('there')).path}"))
    assert found is not None and found.path == Path("there")
    Path("here").mkdir()
    for name in (".lock", "console.log", "metrics.jsonl", ".config.yaml.12.tmp"):
        Path("here", name).write_text("loading")
    with RunDirectory(Path("here")).lock(), pytest.raises(DataError, match="another process is writing in here"):
        find_run(_settings("resume=auto", "run_dir=here"))
    assert Path("here/metrics.jsonl").exists()  # it is just beginning
    assert find_run(_settings("resume=auto", "run_dir=here")) is None
    assert {path.name for path in Path("here").iterdir()} == {".lock"}
    RunDirectory.create("here", "digits_mlp")


def test_a_folder_with_anything_else_in_it_is_left_alone():
    Path("here").mkdir()
    for name in (".lock", "metrics.jsonl", "thesis.tex"):
        Path("here", name).write_text("mine")
    assert find_run(_settings("resume=auto", "run_dir=here")) is None
    assert Path("here", "metrics.jsonl").exists()
    with pytest.raises(DataError, match="already exists and is not empty"):
        RunDirectory.create("here", "digits_mlp")


def test_a_run_whose_record_lacks_a_secret_is_gone_on_with_where_that_is_given_again():
    secret = ("model=builder", "model.builder=parts.py:net", "model.kwargs={api_key: sk-71045, at: 'https://a:b1b2@h'}")
    run = _run(Path("here"), *secret)
    assert "sk-71045" not in run.config_yaml.read_text()
    assert check_resumable(run, _settings(*secret)) == {}
    assert find_run(_settings(*secret, "resume=auto", "run_dir=here")) == run
    with pytest.raises(
        ConfigError, match=r"model\.kwargs\.api_key: was left out of the record of the run, because it is a secret"
    ):
        stored_settings(run)


def test_a_lock_that_is_a_pipe_or_a_device_is_said_and_not_waited_for():
    run = _run(Path("here"))
    for make in (os.mkfifo, lambda path: path.symlink_to("/dev/null")):
        run.lock_file.unlink(missing_ok=True)
        make(run.lock_file)
        with pytest.raises(DataError, match="here can't be written: "), run.lock():
            pass


def test_without_locks_the_name_in_the_file_says_who_writes(monkeypatch):
    def no_locks(*_: object):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    run = _run(Path("here"))
    monkeypatch.setattr(fcntl, "flock", no_locks)
    with run.lock():
        pass
    other = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    with run.lock_file.open("a") as file:
        write_holder(file, LockHolder.for_process(other.pid))
    named = rf"another process is writing in here \(process {other.pid} of .*, by its .lock\)"
    with pytest.raises(DataError, match=named), run.lock():
        pass
    other.communicate(b"\n")  # it left its name, as one that was killed does
    with run.lock():
        assert read_holder(run.lock_file) == LockHolder.for_process(os.getpid())
    run.lock_file.write_text(run.lock_file.read_text() or json.dumps({"pid": 5, "host": "elsewhere", "started": "7"}))
    with pytest.raises(DataError, match=r"process 5 of elsewhere.*has ended, remove that file"), run.lock():
        pass


@pytest.mark.slow
def test_what_may_change_is_told_and_what_may_not_is_refused_all_at_once():
    run = _run(Path("here"))
    drawn = ["seed=null"]  # keeps the seed that was drawn
    allowed = check_resumable(
        run, _settings("trainer.epochs=9", "optimizer.learning_rate=0.5", "logger.console=quiet", *drawn)
    )
    assert allowed == {"trainer.epochs": (3, 9), "optimizer.learning_rate": (0.001, 0.5)}
    with pytest.raises(ConfigError) as error:
        check_resumable(run, _settings("seed=4", "model.hidden_units=[8]", "trainer.batch_size=8"))
    assert [problem.key for problem in error.value.problems] == ["model.hidden_units", "seed", "trainer.batch_size"]
    assert "seed: can't change in the middle of a run. Received: 4. The run was started with 0" in str(error.value)


@pytest.mark.slow
def test_auto_float16_is_what_it_came_to_when_the_run_began():
    run = _run(Path("here"), "policy=mixed_float16", "policy.overrides={a: float32, b: mixed_float16}")
    for asked in ([], ["policy.overrides={b: mixed_float16}"]):
        settings = with_stored_choices(_settings("policy=auto_float16", *asked), stored_settings(run))
        assert settings.policy.overrides == {"a": "float32", "b": "mixed_float16"}
        assert check_resumable(run, settings) == {}
    other = with_stored_choices(_settings("policy=auto_float16", "policy.overrides={c: float32}"), stored_settings(run))
    assert other.policy.is_auto
    plain = _run(Path("plain"), "policy=mixed_float16")
    settings = with_stored_choices(_settings("policy=auto_float16"), stored_settings(plain))
    assert check_resumable(plain, settings)["policy.name"] == ("mixed_float16", "auto_float16")


def test_a_run_whose_checkpoints_are_gone_does_not_begin_again_by_itself():
    run = _run(Path("here"))
    check_checkpoints(run, None)
    write_json(run.environment_json, {"attempts": [{"attempt": 1, "from_step": 0}, {"attempt": 2, "from_step": 40}]})
    with pytest.raises(DataError, match="the checkpoints that here had are gone"):
        check_checkpoints(run, None)


def test_what_lies_after_the_checkpoint_is_cut_off():
    run = _run(Path("here"))
    rows = [{"step": step, "epoch": 1 + (step > 15), "epoch_end": step in (15, 30)} for step in (7, 14, 15, 21, 30)]
    for step, epochs, kept in ((15, 1, [7, 14, 15]), (15, 0, [7, 14]), (20, 1, [7, 14, 15]), (0, 0, [])):
        run.metrics_jsonl.write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"step": 3')
        truncate_telemetry(run, step, epochs)
        lines = run.metrics_jsonl.read_text().splitlines()
        assert [json.loads(line)["step"] for line in lines if line[-1] == "}"] == kept


def test_a_damaged_record_is_named():
    run = _run(Path("here"))
    run.metrics_jsonl.write_text('{"step": 1}\nrubbish\n')
    with pytest.raises(DataError, match=r"metrics.jsonl is damaged, see line 2. Take out the damaged line"):
        truncate_telemetry(run, 1, 0)


def test_the_devices_of_a_run_may_not_change():
    one, two = Settings(), Settings(distribute=DistributeSettings("data_parallel", 2))
    for before, now in ((one, two), (two, one)):
        assert [problem.key for problem in forbidden_changes(before, now)] == ["distribute.devices", "distribute.name"]
