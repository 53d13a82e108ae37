"""Sweeps on a real Slurm of two nodes, which `make test-cluster` starts here: the jobs belong to it."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from command import is_alive, wait_for
from sweep_stubs import begun_sweep, cluster, started

from mpt_cli.jobs.job_process import read_note
from mpt_cli.jobs.launchers import choose_launcher
from mpt_cli.sweep.directory import SweepDirectory
from mpt_cli.sweep.progress import find_cluster, job_states

pytestmark = [pytest.mark.long, pytest.mark.skipif("CLUSTER" not in os.environ, reason="make test-cluster")]
TINY = ["conf=digits_mlp", "model.hidden_units=[16]", "backend=jax", "distribute=data_parallel"]


@pytest.fixture(params=[[], ["--accounting"]], ids=["alone", "with accounting"], scope="module")
def variables(request, tmp_path_factory):
    with cluster("slurm", tmp_path_factory.mktemp("slurm"), *request.param) as found:
        yield found


@pytest.fixture
def ask(variables, monkeypatch):
    """Runs a program of Slurm's; the test's own process reaches it too."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    yield lambda *command: subprocess.run(command, capture_output=True, text=True).stdout
    subprocess.run(["scancel", "--user=root"])
    wait_for(lambda: not subprocess.run(["squeue", "-h"], capture_output=True).stdout)


def begin(stubs, words=(), settings=(), **options):
    launcher = choose_launcher("submitit", dict(text.split("=", 1) for text in settings))
    return stubs.start(["conf=digits_mlp", "sweep_dir=s", *words], launcher=launcher, **options)


def later(*steps):
    """Does these one after another beside the test."""
    thread = threading.Thread(target=lambda: [step() for step in steps], daemon=True)
    thread.start()


def note_of(number: int, kind: str):
    return read_note(next(Path("s/logs").glob(f"00{number}-*.{kind}"), Path("none")))


def job(number: int = 1):
    wait_for(lambda: note_of(number, "submitted"))
    return note_of(number, "submitted")["job_id"]


def wait_until_it_runs(number: int = 1):
    wait_for(lambda: note_of(number, "began"))
    wait_for(lambda: any(name.startswith(f"00{number}") for name in started(Path("s"))))
    time.sleep(0.5)
    return note_of(number, "began")["pid"]


def test_a_grid_ends_as_it_would_here_and_its_ids_and_nodes_are_kept(stubs, ask):
    stubs.manners = {2: "raises", 3: "killed"}
    found, code = begin(stubs, ["seed=range(4)"])
    ends = [(result.status, result.exit_code) for result in found.results]
    assert ends == [("finished", 0), ("failed", 2), ("killed", 143), ("finished", 0)] and code == 2
    assert found.results[1].reason == "model.builder: build_net raised ValueError: no."
    assert {note_of(number, "began")["node"] for number in range(1, 5)} <= {"node1", "node2"}
    assert len({job(number) for number in range(1, 5)}) == 4


def test_a_detached_sweep_is_one_array_that_can_be_watched_and_collected(stubs, ask):
    stubs.manners = {1: "once", 3: "raises"}
    stubs.values = {1: 3.0}
    found, code = begin(stubs, ["seed=range(5)"], ["sbatch.hold=true", "sbatch.requeue=false"], workers=2, detach=True)
    assert code == 0 and [result.status for result in found.results] == ["not run"] * 5
    array = job().partition("_")[0]
    assert f"5 jobs submitted as {array}, 2 at a time" in stubs.said
    assert ask("squeue", "-h", "-o", "%i").split() == [f"{array}_[0-4%2]"]
    sweep = SweepDirectory.open("s")
    states = job_states(sweep, find_cluster(sweep))
    assert [state.reason for state in states][:1] == [f"Slurm job {array}_0: PENDING (JobHeldUser)"]
    ask("scontrol", "release", array)
    found, code = stubs.resume(Path("s"), launcher=choose_launcher("submitit", {}))
    assert code == 2 and sum(result.is_good for result in found.results) == 4 and len(started(Path("s"))) == 5


def test_the_job_of_a_driver_that_was_killed_is_waited_for_and_not_submitted_again(stubs, ask, tmp_path):
    driver = begun_sweep(tmp_path, 2, "once", "submitit")
    driver.kill()
    driver.wait()
    ids = job(1), job(2)
    _, code = stubs.resume(tmp_path / "s", launcher=choose_launcher("submitit", {}))
    assert code == 0 and started(tmp_path / "s") == [] and (job(1), job(2)) == ids
    assert "2 jobs of them were submitted before and are waited for" in stubs.said


def test_where_the_guard_of_a_job_is_killed_with_the_driver_the_job_ends_and_is_run_again(stubs, ask, tmp_path):
    driver = begun_sweep(tmp_path, 2, "deaf", "submitit")
    pids = [wait_until_it_runs(number) for number in (1, 2)]
    driver.kill()
    driver.wait()
    for pid in pids:
        os.kill(int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]), signal.SIGKILL)
    wait_for(lambda: not any(map(is_alive, pids)) and not ask("squeue", "-h"))
    _, code = stubs.resume(tmp_path / "s", launcher=choose_launcher("submitit", {}))
    assert code == 0 and len(started(tmp_path / "s")) == 2, stubs.said


@pytest.mark.parametrize("runs", [False, True])
def test_a_job_that_someone_cancels_is_told_in_the_words_of_slurm_within_seconds(stubs, ask, runs):
    stubs.manners = {1: "deaf"}
    times = []
    later(wait_until_it_runs if runs else job, lambda: times.append(time.monotonic()), lambda: ask("scancel", job()))
    found, code = begin(stubs, ["seed=0"], [] if runs else ["sbatch.begin=now+1hour"])
    assert code == 143 and found.results[0].status == "killed" and "CANCELLED" in found.results[0].reason
    assert time.monotonic() - times[0] < 60


def test_a_job_whose_time_is_over_goes_on_and_its_seconds_are_not_those_in_the_queue(stubs, ask):
    stubs.manners = {1: "goes on"}
    found, code = begin(stubs, ["seed=0"], ["timeout_min=1"])
    assert code == 0 and found.results[0].status == "finished" and found.results[0].seconds < 5
    assert started(Path("s")) == ["001-only"] * 2


def test_a_job_that_has_ended_is_not_started_once_more_where_slurm_puts_it_back(stubs, ask):
    begin(stubs, ["seed=0"])
    wait_for(lambda: not ask("squeue", "-h"))
    assert started(Path("s")) == ["001-only"]
    ask("scontrol", "requeue", job())
    wait_for(lambda: "COMPLETED" in ask("squeue", "-h", "-t", "all", "-j", job(), "-o", "%T"))
    assert started(Path("s")) == ["001-only"]


def test_a_line_of_shell_another_python_and_srun_options_reach_the_job(stubs, ask):
    settings = [
        "setup=export FROM_SETUP=yes",
        f"python=env FROM_PREFIX=yes {sys.executable}",
        "srun.label=true",
        "cpus_per_task=2",
        "gpus_per_task=2",
        "nodes=1",
        "tasks_per_node=1",
        "sbatch.comment=tried",
    ]
    found, code = begin(stubs, ["seed=0"], settings)
    assert code == 0, found.results
    environment = json.loads(next(Path("s").glob("*.environment")).read_text())
    expected = {"FROM_SETUP": "yes", "FROM_PREFIX": "yes", "OMP_NUM_THREADS": "2", "CUDA_VISIBLE_DEVICES": "0,1"}
    assert expected.items() <= environment.items()


def test_what_sbatch_refuses_is_said_whole(stubs, ask):
    found, code = begin(stubs, ["seed=0"], ["partition=gpu"])
    assert code == 3 and found.results[0].reason.startswith(
        "it could not be started: sbatch: error: invalid partition specified: gpu sbatch: error: Batch job submission"
    )


PLACE = """
import os
from mpt_cli.engine.distribution import find_process_info
from mpt_cli.settings.load import load_settings
found = find_process_info(load_settings(["conf=digits_mlp", "backend=jax", "distribute=data_parallel"]))
print(found.rank, found.local_count, found.own_gpus(len(os.environ["CUDA_VISIBLE_DEVICES"].split(","))))
"""


@pytest.mark.parametrize(
    ("options", "seen"),
    [
        ("--nodes 2 --ntasks 2 --gpus-per-node 4", {"0 1 [0, 1, 2, 3]", "1 1 [0, 1, 2, 3]"}),
        ("--nodes 1 --ntasks 2 --gpus-per-node 4", {"0 2 [0, 1]", "1 2 [2, 3]"}),
        ("--nodes 1 --ntasks 2 --gpus-per-task 2", {"0 2 [0, 1]", "1 2 [0, 1]"}),  # each sees two of its own
    ],
)
def test_no_gpu_of_a_step_stays_unused(ask, options, seen):
    assert {*ask("srun", *options.split(), sys.executable, "-c", PLACE).splitlines()} == seen


def several(monkeypatch, *words: str):
    """A command of two nodes. Their names lead nowhere here, where all are one machine."""
    monkeypatch.setenv("JAX_COORDINATOR_ADDRESS", "127.0.0.1:61234")
    return [
        "srun",
        "--nodes=2",
        "--ntasks=2",
        "--kill-on-bad-exit=0",
        sys.executable,
        "-m",
        "mpt_cli",
        "train",
        *TINY,
        *words,
    ]


def test_a_step_ends_at_once_where_its_first_task_has_nothing_to_train(ask, monkeypatch, tmp_path):
    (tmp_path / "taken/folder").mkdir(parents=True)
    step = subprocess.run(several(monkeypatch, "run_dir=taken"), cwd=tmp_path, capture_output=True, text=True)
    assert "task 0: Exited with exit code 3" in step.stderr and "task 1" not in step.stderr
    assert "run_dir taken already exists and is not empty" in step.stderr


def test_a_rank_that_is_killed_ends_the_other_at_once_with_its_own_exit_code(ask, monkeypatch, tmp_path):
    step = subprocess.Popen(
        several(monkeypatch, "trainer.epochs=9999", "run_dir=run"),
        cwd=tmp_path,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    wait_for(lambda: (tmp_path / "run/metrics.jsonl").exists() and (tmp_path / "run/metrics.jsonl").read_text(), 180)
    ranks = {environment[b"SLURM_PROCID"]: pid for pid, environment in processes_in(tmp_path)}
    os.kill(ranks[b"1"], signal.SIGKILL)
    said, _ = step.communicate(timeout=60)
    assert "task 0: Exited with exit code 3" in said and "another process of this run broke" in said
    assert "Stack trace" not in said and "*** Aborted" not in said
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert (summary["exit_code"], summary["starter"]) == (3, "srun --nodes 2 --ntasks 2")


def processes_in(folder: Path):
    """The tasks of a step with this working directory, and their environments."""
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parts = (path / "environ").read_bytes().split(b"\0")
            environment = dict(part.split(b"=", 1) for part in parts if b"=" in part)
            is_task = b"SLURM_PROCID" in environment and b"mpt_cli" in (path / "cmdline").read_bytes()
            if is_task and (path / "cwd").resolve() == folder:
                yield int(path.name), environment
        except OSError:
            continue


def test_a_run_of_two_nodes_that_is_requeued_goes_on(ask, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("JAX_COORDINATOR_ADDRESS", "127.0.0.1:61235")
    words = [
        *TINY,
        "sweep_dir=s",
        "trainer.epochs=400",
        "trainer.checkpoint_every_steps=50",
        "seed=0",
        "--launcher",
        "submitit",
        "launcher.nodes=2",
        "launcher.tasks_per_node=1",
    ]
    sweep = subprocess.Popen([sys.executable, "-m", "mpt_cli", "sweep", *words], text=True, stdout=subprocess.PIPE)
    wait_for(lambda: [*Path("s").glob("*/checkpoints/step-*")], 180)
    ask("scancel", "--signal=USR2", job())  # as before the end of its time
    said, _ = sweep.communicate(timeout=400)
    assert sweep.returncode == 0, said
    environment = json.loads(next(Path("s").glob("*/environment.json")).read_text())
    assert [attempt["attempt"] for attempt in environment["attempts"]] == [1, 2]
    assert environment["attempts"][1]["from_step"] > 0 and environment["cluster"]["job_id"] == job()
