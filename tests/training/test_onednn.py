"""TensorFlow is imported without oneDNN where that has no float16 kernels, and nowhere else."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from backends import only_on

from mpt_cli import machine
from mpt_cli.engine import backend
from mpt_cli.engine.backend import import_variables
from mpt_cli.settings.load import load_settings

pytestmark = only_on("tensorflow")
OFF = {"TF_ENABLE_ONEDNN_OPTS": "0"}


@pytest.fixture
def cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A function that makes this the machine of a CPU with these instructions."""
    monkeypatch.delenv("TF_ENABLE_ONEDNN_OPTS", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")

    def of(flags: str):
        info = tmp_path / "cpuinfo"
        info.write_text(f"model name\t: A CPU\nflags\t\t: fpu {flags}\n")
        monkeypatch.setattr(machine, "CPU_INFO", info)

    return of


def variables(*words: str, environment: dict[str, str] | None = None):
    given = {"CUDA_VISIBLE_DEVICES": ""} if environment is None else environment
    return import_variables(load_settings(["conf=digits_mlp", *words]), given)


def test_what_the_policy_computes_in_decides(cpu):
    cpu("avx512f avx512_fp16")
    for words in (
        ["policy=mixed_float16"],
        ["policy=auto_float16"],
        ["policy=mixed_bfloat16", "policy.head=float16"],
        ["policy=float32", "policy.overrides={dense*: mixed_float16}"],
    ):
        assert variables(*words) == OFF, words
    assert variables("policy=mixed_bfloat16") == variables("policy=mixed_float16", "backend=jax") == {}


def test_another_processor_keeps_it(cpu):
    cpu("avx2 f16c avx512f avx512_bf16")
    assert variables("policy=mixed_float16") == {}


def test_a_gpu_and_the_users_own_variable_keep_it(cpu):
    cpu("avx512_fp16")
    assert variables("policy=mixed_float16", environment={"TF_ENABLE_ONEDNN_OPTS": "1"}) == {}
    assert variables("policy=mixed_float16", environment={"CUDA_VISIBLE_DEVICES": "0"}) == {}
    assert variables("policy=mixed_float16", "backend.device=cpu", environment={"CUDA_VISIBLE_DEVICES": "0"}) == OFF


def test_what_was_done_is_said_and_what_can_no_longer_be_done(cpu, monkeypatch):
    cpu("avx512_fp16")
    settings = load_settings(["conf=digits_mlp", "policy=mixed_float16"])
    (too_late,) = backend.onednn_notices(settings)
    assert "set TF_ENABLE_ONEDNN_OPTS=0 before TensorFlow is imported" in too_late
    monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", "0")
    (done,) = backend.onednn_notices(settings)
    assert done.startswith("oneDNN is left out (TF_ENABLE_ONEDNN_OPTS=0)")
    assert not list(backend.onednn_notices(load_settings(["conf=digits_mlp", "policy=float32"])))


@pytest.mark.long
def test_tensorflow_is_imported_with_it(tmp_path):
    """In a process of its own, which takes the CPU for one of that kind; the header says so."""
    info = tmp_path / "cpuinfo"
    info.write_text("model name\t: A CPU\nflags\t\t: fpu avx512_fp16\n")
    program = (
        "import pathlib\nfrom mpt_cli import machine\n"
        f"machine.CPU_INFO = pathlib.Path({str(info)!r})\nfrom mpt_cli.__main__ import main\nmain()\n"
    )
    words = ["train", "conf=digits_mlp", "policy=mixed_float16", "trainer.epochs=1", f"run_dir={tmp_path / 'run'}"]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    environment.pop("TF_ENABLE_ONEDNN_OPTS", None)
    done = subprocess.run(
        [sys.executable, "-c", program, *words],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert "oneDNN is left out" in done.stdout, done.stdout + done.stderr
    assert '"TF_ENABLE_ONEDNN_OPTS": "0"' in (tmp_path / "run" / "environment.json").read_text()
