"""Every command the README shows is run, in an empty directory, with the files that the README gives."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from preloaded import mpt

README = (Path(__file__).parents[2] / "README.md").read_text()
FILES = dict(re.findall(r"^`([\w.]+\.(?:py|yaml))`[^\n]*:\n\n```\w+\n(.*?)```", README, re.M | re.S))
COMMANDS = [line[2:] for block in re.findall(r"```console\n(.*?)```", README, re.S) for line in block.splitlines()]


def test_the_readme_has_commands_and_files():
    assert len(COMMANDS) >= 12
    assert set(FILES) == {"my_task.py", "rings.yaml"}


def as_the_shell_reads(command: str, cwd: Path) -> list[str]:
    """Its words, each sent through `sh` once: quotes, comments, patterns of file names."""
    print_each = f"printf '%s\\0' {command}"
    done = subprocess.run(["sh", "-c", print_each], cwd=cwd, capture_output=True, text=True, check=True)
    return done.stdout.split("\0")[:-1]


@pytest.mark.slow
@pytest.mark.long
def test_every_command_of_the_readme_runs(tmp_path):
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    for command in COMMANDS:
        name, *words = as_the_shell_reads(command, tmp_path)
        assert name == "mpt", command
        done = mpt(*words, cwd=tmp_path)
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        assert "\x1b" not in done.stdout, command


@pytest.mark.slow
def test_the_notebook_example_runs(tmp_path):
    block = next(b for b in re.findall(r"```python\n(.*?)```", README, re.S) if "keep_skips_whole(model)" in b)
    fit = "\nimport numpy as np\nmodel.fit(np.ones((8, 4)), np.ones((8, 1)), verbose=0)\n"
    check = "assert int(model.optimizer.seen_steps) == 1\n"  # applied or skipped: the weights are drawn unseeded
    done = subprocess.run([sys.executable, "-c", block + fit + check], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
