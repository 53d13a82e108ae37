"""Two real processes on this machine train one model: same steps, same scales, one writer; one lost ends the other."""

import json
from typing import Any

import pytest
from command import mpt, start_program, wait_for
from pair import TINY, TWO, start_two, train_two, two_seen
from strict import lines

from mpt_cli.engine.distribution import ProcessInfo, check_process_info, connect, find_process_info
from mpt_cli.errors import ConfigError
from mpt_cli.settings.load import load_settings

slow = pytest.mark.slow


def settings(*words: str):
    return load_settings(["conf=digits_mlp", *words])


def test_a_place_comes_from_mpt_or_from_a_slurm_step_and_only_where_it_is_wanted():
    parallel = settings("backend=jax", "distribute=data_parallel")
    assert find_process_info(parallel, {"MPT_PROCESS": "1/2@127.0.0.1:99"}) == ProcessInfo(1, 2, "127.0.0.1:99")
    step = {
        "SLURM_STEP_NUM_TASKS": "4",
        "SLURM_PROCID": "3",
        "SLURM_LOCALID": "1",
        "SLURM_NODEID": "1",
        "SLURM_STEP_TASKS_PER_NODE": "1,2(x2)",
        "SLURM_GPUS_ON_NODE": "8",
    }
    assert find_process_info(parallel, step) == ProcessInfo(3, 4, None, 1, 2, 8)
    mpi = {
        f"OMPI_COMM_WORLD_{name}": value
        for name, value in zip(("SIZE", "RANK", "LOCAL_RANK", "LOCAL_SIZE"), "4312", strict=True)
    }
    found = find_process_info(parallel, {**mpi, "JAX_COORDINATOR_ADDRESS": "a:1"})
    assert found == ProcessInfo(3, 4, "a:1", 1, 2) and found.starter == "mpirun -n 4"
    assert find_process_info(parallel, {"SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"}) is None
    assert find_process_info(settings(), {"MPT_PROCESS": "1/2@127.0.0.1:99"}) is None
    assert ProcessInfo(0, 2).is_rank0 and not ProcessInfo(1, 2).is_rank0


def test_what_slurm_does_not_set_is_said():
    parallel = settings("backend=jax", "distribute=data_parallel")
    for count, rank in (("many", "0"), ("2", "")):
        with pytest.raises(ConfigError, match="SLURM_LOCALID: must be whole numbers, as Slurm and Open MPI set them"):
            find_process_info(parallel, {"SLURM_STEP_NUM_TASKS": count, "SLURM_PROCID": rank})


@pytest.mark.parametrize(("meeting_point", "bound"), [("127.0.0.1:99", "127.0.0.1:99"), ("node7:99", None)])
def test_processes_of_one_machine_meet_at_an_address_that_no_other_reaches(meeting_point, bound, monkeypatch):
    jax = pytest.importorskip("jax")
    from jax.experimental import multihost_utils

    given: dict[str, Any] = {}
    monkeypatch.setattr(jax.distributed, "initialize", lambda *_, **options: given.update(options))
    monkeypatch.setattr(jax.config, "update", lambda *_: None)
    monkeypatch.setattr(multihost_utils, "sync_global_devices", lambda name: None)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")
    connect(ProcessInfo(1, 2, meeting_point, 1, 2), settings())
    assert (given["coordinator_bind_address"], given["local_device_ids"]) == (bound, [2, 3])


def test_processes_that_would_leave_a_gpu_unused_are_refused(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")
    parallel = settings("backend=jax", "distribute=data_parallel")
    check_process_info(parallel, ProcessInfo(0, 4, None, 1, 2))
    with pytest.raises(ConfigError, match=r"divides its 4 GPUs: some would stay unused\. Received: 3\."):
        check_process_info(parallel, ProcessInfo(0, 3, None, 0, 3))


ASKED = """
from mpt_cli.engine.distribution import find_process_info
from mpt_cli.settings.load import load_settings
found = find_process_info(load_settings(["conf=digits_mlp", "backend=jax", "distribute=data_parallel"]))
print(found.rank, found.world_size, found.coordinator)
"""


@slow
def test_the_processes_of_a_tpu_pod_are_recognised_as_jax_recognises_them(tmp_path):
    pod = {
        "JAX_FORCE_TPU_INIT": "1",
        "TPU_WORKER_HOSTNAMES": "a,b",
        "TPU_WORKER_ID": "1",
        "MEGASCALE_NUM_SLICES": "2",
        "MEGASCALE_SLICE_ID": "1",
    }
    (tmp_path / "asked.py").write_text(ASKED)
    process = start_program(str(tmp_path / "asked.py"), backend="jax", cwd=tmp_path, **pod)
    assert process.communicate()[0] == "3 4 None\n"
    alone = start_program(str(tmp_path / "asked.py"), backend="jax", cwd=tmp_path, **{**pod, "MEGASCALE_SLICE_ID": "x"})
    assert "JAX can't tell which process this is: invalid literal" in alone.communicate()[1]


CALLBACKS = (
    "trainer.callbacks: must be empty with several processes: each would call the callbacks and write the "
    "same files. Received: ['history']. trainer.early_stopping works."
)
NO_SEED = "seed: must be a number for 4 processes: otherwise each draws a different one. Received: 'null'. For example seed=0."


def test_a_task_of_a_slurm_step_says_what_its_settings_lack():
    words = ["trainer.callbacks=[history]", "seed=null"]
    with pytest.raises(ConfigError) as refused:
        check_process_info(settings("backend=jax", "distribute=data_parallel", *words), ProcessInfo(3, 4))
    assert [str(problem) for problem in refused.value.problems] == [CALLBACKS, NO_SEED]
    check_process_info(settings("backend=jax", *TWO), ProcessInfo(0, 2, "127.0.0.1:99"))


@pytest.mark.long
def test_both_processes_see_the_same_and_end_with_the_same_weights(tmp_path):
    words = ["trainer.epochs=2", "fault=overflow", "fault.at_steps=[3,7]", "loss_scale.growth_steps=15"]
    first, second = two_seen(tmp_path, *words)
    assert first == second
    assert (first["replicas"], first["seen"], first["skips"]) == (2, 46, [3, 7])
    assert first["is_sampled"]  # by both, though the clock of the second said no
    assert first["scales"] == [2**13, 2**15, 2**15]  # lowest, highest, last: grown at steps 22 and 37


@pytest.mark.long
def test_the_result_is_that_of_one_process_with_the_whole_batch(tmp_path):
    """Within rounding: the sum over a batch is taken in another order."""
    words = [*TINY, "trainer.epochs=2", "logger.console=quiet"]
    train_two(tmp_path, *words[len(TINY) :], "run_dir=both")
    assert mpt("train", *words, "run_dir=one", cwd=tmp_path).returncode == 0
    summary, one = (json.loads((tmp_path / run / "summary.json").read_text()) for run in ("both", "one"))
    for key in ("steps_seen", "applied_steps", "skipped_steps", "final_loss_scale"):
        assert summary[key] == one[key]
    assert summary["metrics"] == pytest.approx(one["metrics"], rel=2e-3, abs=3e-3)  # float16 products, 46 steps
    assert sorted(path.name for path in tmp_path.iterdir()) == ["both", "one"]


@pytest.mark.long
def test_one_process_killed_ends_the_other_with_a_sentence_and_the_run_resumes(tmp_path):
    words = ["trainer.epochs=2000", "trainer.checkpoint_every_steps=20", "run_dir=run"]
    first, second = start_two("mpt_cli", "train", *TINY, *TWO, *words, cwd=tmp_path)
    wait_for(lambda: (tmp_path / "run/metrics.jsonl").exists() and lines(tmp_path / "run/metrics.jsonl"), seconds=120.0)
    second.kill()
    second.communicate()
    first.communicate(timeout=100)
    assert first.returncode
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert (summary["status"], summary["exit_code"]) == ("failed", 3)
    step = max(line["step"] for line in lines(tmp_path / "run/metrics.jsonl"))
    train_two(tmp_path, *words, "resume=auto", f"trainer.max_steps={step + 50}")
    steps = [line["step"] for line in lines(tmp_path / "run/metrics.jsonl") if not line.get("epoch_end")]
    assert steps == list(range(50, steps[-1] + 1, 50)) and steps[-1] >= step
