"""Whatever a killed run leaves, strict parsers read it: every line of every file."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from backends import only_on
from strict import loads

KILLS = 3
ALWAYS = {"config.yaml", "console.log", "environment.json", "events.jsonl", "metrics.csv", "metrics.jsonl"}


def whole_lines(path: Path) -> list[str]:
    """Without the part of a line that a killed run may leave at the end, which is taken away when it is resumed."""
    return path.read_text().split("\n")[:-1]


def check_files(run_dir: Path) -> list[dict]:
    """Read everything; returns the lines of metrics.jsonl."""
    assert {path.name for path in run_dir.iterdir() if path.is_file()} >= ALWAYS
    names = "metrics.jsonl", "events.jsonl"
    records = {name: [loads(line) for line in whole_lines(run_dir / name)] for name in names}
    for line in [line for lines in records.values() for line in lines]:
        assert line["schema_version"] == 1 and line["step"] >= 0
    rows = list(csv.reader(whole_lines(run_dir / "metrics.csv")))
    assert len({len(row) for row in rows}) == 1
    for path in [*run_dir.glob("*.json"), *(run_dir / "checkpoints").glob("*.json")]:
        assert loads(path.read_text())["schema_version"] == 1
    assert yaml.safe_load((run_dir / "config.yaml").read_text())["recipe"] == "digits_mlp"
    steps = [line["step"] for line in records["metrics.jsonl"] if not line["epoch_end"]]
    assert steps == list(range(1, len(steps) + 1))  # no gap and no double, also where it had gone back
    return records["metrics.jsonl"]


@pytest.mark.long
@pytest.mark.slow
@only_on("tensorflow")
def test_every_line_of_a_killed_run_is_strict_json(tmp_path: Path) -> None:
    program = Path(__file__).with_name("killed_writers.py")
    done = subprocess.run(
        [sys.executable, str(program), str(tmp_path), str(KILLS), "11"], capture_output=True, text=True, timeout=300,
        cwd=Path(__file__).parents[2], env={**os.environ, "TMPDIR": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    codes = json.loads(done.stdout.splitlines()[-1])
    assert codes == [-9] * (KILLS + 1) + [0]
    lengths = [len(check_files(tmp_path / str(number))) for number in range(KILLS)]
    assert len(set(lengths)) > 1  # they did end at different moments

    lines = check_files(tmp_path / "whole")
    assert lines[-1]["step"] == 320 and {line["attempt"] for line in lines} == {1, 2}
    assert all((tmp_path / "whole" / name).read_text().endswith("\n") for name in ("metrics.jsonl", "events.jsonl"))
    events = [loads(line) for line in whole_lines(tmp_path / "whole" / "events.jsonl")]
    assert sum(event["kind"] == "rollback" for event in events) == 3
