"""Jobs that run through submitit and Ray: the same sweeps, and nothing left running when they end."""

import importlib.util
from dataclasses import replace
from pathlib import Path

import pytest
from command import wait_for
from sweep_stubs import processes_of, submitit_here

from mpt_cli.errors import ConfigError, DataError
from mpt_cli.jobs.launchers import choose_launcher, recorded_launcher
from mpt_cli.sweep.job_list import Search
from mpt_cli.sweep.run import Options, plan_new
from mpt_cli.telemetry.console import PrintableConsole


def wait_until_none_is_left(folder: Path):
    wait_for(lambda: not processes_of(folder, "stub_job.py"))


@pytest.mark.long
def test_each_job_ends_as_it_would_here(stubs, tmp_path):
    stubs.manners = {2: "raises", 3: "killed", 4: "hangs", 5: "deaf"}
    given = {
        "launcher": submitit_here({"timeout_min": "5"}),
        "workers": 5,
        "timeout_seconds": 3.0,
        "grace_seconds": 10.0,
    }
    found, code = stubs.start(["conf=digits_mlp", "seed=range(5)", f"sweep_dir={tmp_path / 's'}"], **given)
    ends = [(result.status, result.exit_code) for result in found.results[:4]]
    assert ends == [("finished", 0), ("failed", 2), ("killed", 143), ("timed out", 143)], found.results
    assert found.results[1].reason == "model.builder: build_net raised ValueError: no."
    assert found.results[3].summary["status"] == "terminated"  # it was asked, and saved
    assert found.results[4].status == "timed out"
    assert code == 2
    assert found.plan.facts["launcher"] == {"name": "submitit", "settings": {"timeout_min": "5"}}
    wait_until_none_is_left(tmp_path)


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("submitit", {"timeout_min": "long"}, "launcher: must have settings of submitit."),
        ("submitit", {"nodes": "two"}, 'Parameter "nodes" expected type'),
        ("submitit", {"partiton": "gpu"}, "Unknown argument 'partiton' for executor 'slurm'"),
        (
            "ray",
            {"num_cpu": "1"},
            "launcher.num_cpu: must be a number for num_cpus or num_gpus. Received: '1'.",
        ),
        (
            "ray",
            {"num_cpus": "x"},
            "launcher.num_cpus: must be a number for num_cpus or num_gpus. Received: 'x'.",
        ),
        ("local", {"qos": "high"}, "launcher: settings are for another launcher than local."),
    ],
)
def test_what_is_wrong_with_a_launcher_is_said(name, settings, message, monkeypatch, here):
    monkeypatch.setattr(importlib.util, "find_spec", lambda package: package)
    monkeypatch.setattr("shutil.which", lambda program: f"/usr/bin/{program}")
    with pytest.raises(ConfigError) as caught:
        choose_launcher(name, settings)
    assert message in str(caught.value) and [*here.iterdir()] == []


@pytest.mark.parametrize(("name", "extra"), [("submitit", "slurm"), ("ray", "ray")])
def test_a_missing_package_names_its_extra(monkeypatch, name, extra):
    monkeypatch.setattr(importlib.util, "find_spec", lambda package: None)
    with pytest.raises(ConfigError, match=rf"{name} is not installed\. Received: .*pip install 'mpt-cli\[{extra}\]'"):
        choose_launcher(name, {})


@pytest.mark.parametrize(
    "found", [{"name": "pbs", "settings": {}}, {"name": "ray"}, {"name": "ray", "settings": {"a": 1}}]
)
def test_a_record_of_another_launcher_is_damage(found):
    with pytest.raises(DataError, match=r"sweep\.json is damaged: launcher must not be \{'name'"):
        recorded_launcher({"launcher": found})


def test_slurm_has_to_be_here(monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ConfigError, match="must have Slurm on this machine: there is no sbatch, srun"):
        choose_launcher("submitit", {})


def test_a_search_or_a_timeout_is_not_left_alone_whether_optuna_is_here_or_not(monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "optuna" else find(name))
    alone = Options(launcher=submitit_here({}), detach=True)
    for word, options, search in (
        ("optimizer.learning_rate=interval(0.1,1)", alone, Search(2)),
        ("seed=0,1", replace(alone, timeout_seconds=5.0), None),
    ):
        with pytest.raises(ConfigError, match="--detach: is for a grid on Slurm, without --timeout: a search chooses"):
            plan_new(["conf=digits_mlp", word], options, search, PrintableConsole(None))


def test_what_a_launcher_gives_a_job(monkeypatch):
    monkeypatch.setattr("shutil.which", lambda program: f"/usr/bin/{program}")
    monkeypatch.setattr(importlib.util, "find_spec", lambda package: package)
    slurm = choose_launcher("submitit", {"cpus_per_task": "8", "sbatch.mail-type": "FAIL"})
    assert not slurm.is_here and slurm.workers(500, True) == 16
    assert slurm.environment(16)["OMP_NUM_THREADS"] == "8"
    cluster = choose_launcher("ray", {"num_gpus": "0.5"})
    assert not cluster.is_here and cluster.environment(2) == {}
