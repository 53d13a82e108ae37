import math

import pytest
from strict import loads

from mpt_cli.errors import DataError
from mpt_cli.files import write_json
from mpt_cli.runs.directory import read_json, read_summary, write_summary
from mpt_cli.telemetry.record_types import Summary

CONTRACT = {"status", "exit_code", "verdict", "steps_seen", "applied_steps", "skipped_steps", "final_loss_scale"}
CONTRACT |= {"min_loss_scale", "max_loss_scale", "metrics", "best_metrics", "examples_per_second"}
CONTRACT |= {"peak_memory_bytes", "seconds", "schema_version"}


def _summary(**metrics: float):
    return Summary("failed", 4, "collapsed", "why", 10, 7, 3, 4.0, 2.0, 8.0, metrics, {}, None, None, 1.5)


def test_a_summary_reads_back_with_the_fields_scripts_rely_on(tmp_path):
    """NaN is written so that strict parsers read it."""
    write_summary(tmp_path / "summary.json", _summary(val_loss=0.5, loss=math.nan))
    found = read_summary(tmp_path / "summary.json")
    assert found == loads((tmp_path / "summary.json").read_text())
    assert set(found) >= CONTRACT
    assert (found["schema_version"], found["applied_steps"]) == (1, 7)
    assert found["metrics"] == {"val_loss": 0.5, "loss": "NaN"}


def test_a_summary_that_cannot_be_used_says_why(tmp_path):
    path = tmp_path / "summary.json"
    with pytest.raises(DataError, match="can't be read: No such file"):
        read_summary(path)
    for text, words in (
        ("{", "is damaged: Expecting"),
        ("[]", "is damaged: it must hold a JSON object"),
        ('{"schema_version": 2}', "schema_version must be 1. Received: 2"),
    ):
        path.write_text(text)
        with pytest.raises(DataError, match=words):
            read_summary(path)


def test_what_no_file_or_terminal_should_get_is_written_out(tmp_path):
    write_json(tmp_path / "x.json", {"text": "half \ud800, code \x9b2J, turned \u202e"})
    assert "half \\ud800, code \\u009b2J, turned \\u202e" in (tmp_path / "x.json").read_text()
    found = read_json(tmp_path / "x.json")
    assert found["schema_version"] == 1 and found["text"] == "half \ud800, code \x9b2J, turned \u202e"
