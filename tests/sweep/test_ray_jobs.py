"""Jobs of a sweep on Ray, whose client is a stand-in: what is handed over. `test_on_ray.py` asks a real one."""

import os
import pickle
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sweep_stubs import STUB

from mpt_cli.jobs.ray_executor import RayCluster
from mpt_cli.sweep.run import train_command


@dataclass
class Client:
    """A stand-in for Ray's, which keeps what it is given and runs the job at once."""

    sent: list[bytes] = field(default_factory=list)

    def submit_job(self, entrypoint: str, **options: Any):
        self.sent.append(pickle.dumps((entrypoint, options)))
        subprocess.run(entrypoint, shell=True, check=True, env={"PYTHONPATH": os.pathsep.join(sys.path)})
        return "job"

    def list_jobs(self):
        return [SimpleNamespace(submission_id="job", status="SUCCEEDED", message="")]


def stub_of_train(job: Any, run_dir: Path):
    """The stub, with all that the command of a real job holds behind it."""
    return [
        sys.executable,
        "-S",
        "-c",
        f"import runpy, sys; sys.argv[1:] = ['good', {str(run_dir)!r}, '0.5']; "
        f"runpy.run_path({str(STUB)!r}, run_name='__main__')",
        *train_command(job, run_dir),
    ]


@pytest.mark.slow
def test_a_job_is_handed_to_ray_without_the_secrets_of_the_environment(stubs, tmp_path, monkeypatch):
    client = Client()
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "ray.job_submission", SimpleNamespace(JobSubmissionClient=lambda: client))
    monkeypatch.setenv("RAY_ADDRESS", "ray://me:pa55-pa55@host:1")
    monkeypatch.setenv("DB_PASSWORD", "hunter2-hunter2")
    monkeypatch.setenv("WANDB_API_KEY", "hunter2-hunter3")
    words = ["conf=digits_mlp", "seed=0", "description='${oc.env:DB_PASSWORD}'", "sweep_dir=s"]
    found, code = stubs.start(words, launch=stub_of_train, launcher=RayCluster())
    assert code == 0 and found.results[0].status == "finished"
    (job,) = client.sent  # all that is handed over, but for a file
    assert b"hunter2" not in job and b"pa55" not in job
    written = [path for path in (tmp_path / "s").rglob("*") if path.is_file() and path.suffix != ".environment"]
    assert [str(path) for path in written if b"hunter2" in path.read_bytes() or b"pa55" in path.read_bytes()] == []
    (handed_over,) = (tmp_path / "s" / "logs" / "ray").iterdir()
    assert b"${oc.env:DB_PASSWORD}" in handed_over.read_bytes()
