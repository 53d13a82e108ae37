import json
import math
from pathlib import Path
from typing import Any

import pytest

from mpt_cli.errors import DataError
from mpt_cli.runs.directory import read_json, read_summary, write_json, write_summary
from mpt_cli.telemetry.records import Summary

CONTRACT = {"status", "exit_code", "verdict", "steps_seen", "applied_steps", "skipped_steps", "final_loss_scale"}
CONTRACT |= {"min_loss_scale", "max_loss_scale", "metrics", "best_metrics", "examples_per_second"}
CONTRACT |= {"peak_memory_bytes", "seconds", "schema_version"}


def _summary(**metrics: float) -> Summary:
    return Summary("failed", 4, "collapsed", "why", 10, 7, 3, 4.0, 2.0, 8.0, metrics, {}, None, None, 1.5)


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def test_a_summary_reads_back_with_the_fields_scripts_rely_on(tmp_path: Path) -> None:
    write_summary(tmp_path / "summary.json", _summary(val_loss=0.5))
    found = read_summary(tmp_path / "summary.json")
    assert set(found) >= CONTRACT
    assert (found["schema_version"], found["applied_steps"], found["metrics"]) == (1, 7, {"val_loss": 0.5})


def test_nan_is_written_so_that_strict_parsers_read_it(tmp_path: Path) -> None:
    write_summary(tmp_path / "summary.json", _summary(loss=math.nan))
    found = json.loads((tmp_path / "summary.json").read_text(), parse_constant=_refuse)
    assert found["metrics"] == {"loss": "NaN"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "can't be read: No such file"),
        ("{", "is damaged: Expecting"),
        ("[]", "is damaged: it must hold a JSON object"),
        ('{"schema_version": 2}', "schema_version must be 1. Received: 2"),
        ("{}", "schema_version must be 1. Received: None"),
    ],
)
def test_a_summary_that_cannot_be_used_says_why(tmp_path: Path, text: str | None, words: str) -> None:
    path = tmp_path / "summary.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(DataError, match=words):
        read_summary(path)


def test_what_no_file_or_terminal_should_get_is_written_out(tmp_path: Path) -> None:
    write_json(tmp_path / "x.json", {"text": "half \ud800, code \x9b2J, turned \u202e"})
    assert "half \\ud800, code \\u009b2J, turned \\u202e" in (tmp_path / "x.json").read_text()
    assert read_json(tmp_path / "x.json")["text"] == "half \ud800, code \x9b2J, turned \u202e"


def test_every_json_file_has_its_schema_version(tmp_path: Path) -> None:
    write_json(tmp_path / "environment.json", {"seed": 0})
    assert json.loads((tmp_path / "environment.json").read_text()) == {"schema_version": 1, "seed": 0}
