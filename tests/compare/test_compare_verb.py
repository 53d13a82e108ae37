"""`mpt compare` as a command; the last test runs real trainings."""

import json
from pathlib import Path

import pytest
from command import mpt

from mpt_cli.cli import main


def test_bad_usage_is_a_sentence_and_leaves_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for words, code, message in (
        (["conf=digits_mlp", "-j", "0"], 2, "mpt compare: --jobs: must be >= 1. Received: 0."),
        (["conf=digits_mlp", "--tolerance", "nan"], 2, "mpt compare: --tolerance: must be >= 0."),
        (["conf=digits_mlp", "--timeout", "0"], 2, "mpt compare: --timeout: must be > 0 seconds."),
        (["--resume", "x", "-j", "2"], 2, "mpt compare: --resume: must be given without overrides, -j, --seeds"),
        ([], 2, "mpt compare: conf: must be given"),
        (["--resume", "nowhere"], 3, "nowhere is not a compare directory: it does not exist"),
    ):
        assert main(["compare", *words]) == code
        assert message in capsys.readouterr().err and list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_digits_cnn_is_as_good_in_every_precision_and_the_speed_is_not_guessed(tmp_path: Path):
    words = "conf=digits_cnn", "trainer.epochs=4", "compare_dir=c", "--json", "--tolerance", "0.03"
    done = mpt("compare", *words, cwd=tmp_path, fresh=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [row["label"] for row in found["configurations"]] == ["float32", "mixed_float16", "mixed_bfloat16"]
    for row in found["configurations"]:
        assert row["metrics"]["val_accuracy"] > 0.9 and row["skipped_steps"] == 0 and row["step_seconds"] > 0
        assert row["quality"] is None or row["quality"]["kind"] == "unclear"  # of one seed nothing is known
    faster = [row["label"] for row in found["configurations"][1:] if row["speed_up"]["is_faster"]]
    assert " pays: " not in found["verdict"] or found["verdict"].split()[0] in faster
    assert (tmp_path / "c" / "report.html").exists()
