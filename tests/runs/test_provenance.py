import subprocess
from pathlib import Path

import pytest
from command import mpt

from mpt_cli import machine
from mpt_cli.files import strict_json
from mpt_cli.runs.provenance import (
    collect_environment,
    git_state,
    installed_packages,
    recorded_variables,
)

FACTS = {"backend": "tensorflow", "jit_compile": "auto", "devices": ["cpu:0"]}


def test_the_environment_holds_what_a_result_depends_on():
    found = collect_environment(FACTS, ["mpt", "train", "conf=tiny"])
    assert (found["backend"], found["jit_compile"], found["devices"]) == ("tensorflow", "auto", ["cpu:0"])
    assert {"tensorflow", "keras", "numpy"} <= set(found["versions"])
    assert found["packages"]["keras"] == found["versions"]["keras"]
    assert {"os", "cpu", "cpu_cores", "memory_bytes", "gpus"} <= set(found["machine"])
    strict_json(found)


def test_packages_are_named_as_pip_names_them(tmp_path, monkeypatch):
    (place := tmp_path / "First_One-1.2.dist-info").mkdir()
    (place / "METADATA").write_text("Metadata-Version: 2.1\nName: First_One\nVersion: 1.2\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    found = installed_packages.__wrapped__()  # without what was read before
    assert found["first-one"] == "1.2" and {"keras", "numpy"} <= found.keys()


def test_variables_that_change_a_computation_are_recorded_and_those_that_may_be_secret_never():
    told = dict.fromkeys(
        [
            "KERAS_BACKEND",
            "XLA_FLAGS",
            "CUDA_VISIBLE_DEVICES",
            "OMP_NUM_THREADS",
            "TF_XLA_FLAGS",
            "TF_USE_LEGACY_KERAS",
        ],
        "1",
    )
    kept = dict.fromkeys(["TF_VAR_password", "TF_TOKEN_app", "AWS_SECRET_ACCESS_KEY", "MY_KERAS_BACKEND", "HOME"], "1")
    assert recorded_variables({**told, **kept}) == told


@pytest.fixture
def checkout(tmp_path: Path):
    (tmp_path / "a.py").write_text("1\n")
    who = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    for words in (["init", "-q"], ["add", "a.py"], [*who, "commit", "-qm", "first"]):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    return tmp_path


def test_each_changed_file_of_a_checkout_is_named_with_its_own_hash(checkout):
    state = git_state(checkout)
    assert state is not None
    assert (len(state["commit"]), state["modified"], state["changes"]) == (40, False, {})
    (checkout / "ü b.py").write_text("1\n")
    subprocess.run(["git", "add", "ü b.py"], cwd=checkout, check=True)
    hashes = set()
    for text in ("2\n", "3\n"):
        (checkout / "a.py").write_text(text)
        state = git_state(checkout)
        assert state is not None and state["modified"] and [*state["changes"]] == ["a.py", "ü b.py"]
        hashes.add(state["changes"]["a.py"])
    assert len(hashes) == 2


@pytest.mark.slow
def test_a_resumed_run_says_that_the_code_has_changed(checkout):
    words = ["train", "conf=digits_mlp", "run_dir=r", "resume=auto", "backend=tensorflow"]
    first, same = (mpt(*words, f"trainer.max_steps={steps}", cwd=checkout) for steps in (2, 4))
    (checkout / "a.py").write_text("2\n")
    changed = mpt(*words, "trainer.max_steps=6", cwd=checkout)
    assert (first.returncode, same.returncode, changed.returncode) == (0, 0, 0)
    said = "changed since: git.working_directory.modified: False -> True"
    assert said in changed.stdout and "changed since: git" not in first.stdout + same.stdout


def test_without_a_checkout_or_without_git_there_is_no_state(tmp_path, monkeypatch):
    assert git_state(tmp_path) is None
    monkeypatch.setenv("PATH", str(tmp_path))
    assert git_state(Path(__file__).parent) is None


def test_gpus_come_from_nvidia_smi(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert machine.nvidia_gpus() == []
    script = tmp_path / "nvidia-smi"
    script.write_text("#!/bin/sh\necho 'NVIDIA X, 570.1, 81559 MiB'\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    assert machine.nvidia_gpus() == [{"name": "NVIDIA X", "driver": "570.1", "memory": "81559 MiB"}]


def test_the_model_and_the_instructions_of_the_cpu_are_read(tmp_path, monkeypatch):
    info = tmp_path / "cpuinfo"
    info.write_text("model name\t: A CPU\nflags\t\t: fpu sse f16c avx512_bf16\n")
    monkeypatch.setattr(machine, "CPU_INFO", info)
    assert (machine.cpu_model(), machine.cpu_features()) == ("A CPU", ["fpu", "sse", "f16c", "avx512_bf16"])
