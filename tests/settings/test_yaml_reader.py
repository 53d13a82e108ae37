"""What no recipe needs is refused at once, in a sentence, before anything is built of it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mpt_cli import settings
from mpt_cli.cli import main
from mpt_cli.report.history import read_history
from mpt_cli.runs import directory
from mpt_cli.runs.directory import RunDirectory
from mpt_cli.settings.yaml_reader import MOST_PROBLEMS

LAUGHS = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{name}: &{name} [{','.join([f'*{before}'] * 9)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
MANY = "must hold at most 10,000 values, and 50 lists and mappings within each other."
FILES = {
    "model: {kwargs: {a: " + "[" * 300 + "]" * 300 + "}}": MANY,
    "model:\n  kwargs: &k {a: *k}\n": MANY,
    LAUGHS: MANY,
    "- 1\n": "must hold keys and values at its top level.",
    "#" * (2**20 + 1): "cannot be read: [Errno 27] it must be at most 1,048,576 bytes: ",
}


@pytest.mark.slow
@pytest.mark.parametrize(("text", "rule"), FILES.items(), ids=range(len(FILES)))
def test_a_file_that_is_no_recipe_is_refused_without_showing_it(text, rule, tmp_path, capsys):
    (tmp_path / "x.yaml").write_text(text)
    assert main(["check", f"conf={tmp_path}/x.yaml"]) == 2
    assert capsys.readouterr().err.startswith(f"mpt check: conf: {tmp_path}/x.yaml {rule}")


WORDS = {
    "seed=" + "9" * 5000: "seed: cannot be read",
    "seed=" + "9" * 4000: "seed: must be >= 0 and <= 4294967295.",
    "model.kwargs=" + "{a:" * 400: "model.kwargs: cannot be read: no viable alternative",
    "run_dir=a\udcff": "run_dir: must be valid UTF-8.",
    "run_dir=a\0": "run_dir: must hold no NUL.",
    "x\x1b[31m=1": "x\\x1b[31m: there is no such key.",
}


@pytest.mark.slow
@pytest.mark.parametrize(("word", "rule"), WORDS.items(), ids=range(len(WORDS)))
def test_a_word_beyond_the_limits_is_refused_and_brings_no_control_code_to_the_terminal(word, rule, capsys):
    assert main(["check", "conf=digits_mlp", word]) == 2
    err = capsys.readouterr().err
    assert f"mpt check: {rule}" in err
    assert not {sign for sign in err if ord(sign) < 32} - {"\n"} and len(err) < 2000


@pytest.mark.slow
def test_many_problems_are_shown_in_part(tmp_path, capsys):
    (tmp_path / "x.yaml").write_text("".join(f"k{number}: 1\n" for number in range(1000)))
    assert main(["check", f"conf={tmp_path}/x.yaml"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "mpt check: 1,000 problems:" and lines[-1] == ("  … and 950 more")
    assert len([line for line in lines if "there is no such key" in line]) == MOST_PROBLEMS


def test_what_was_received_is_shown_in_part(capsys):
    assert main(["check", "conf=digits_mlp", f"seed={'x' * 1000}"]) == 2
    assert capsys.readouterr().err == (
        f"mpt check: seed: must be a whole number. Received: 'xx{'x' * 497}… (1,002 characters).\n"
    )


@pytest.mark.slow
def test_a_working_directory_that_is_gone_is_said(tmp_path):
    gone = tmp_path / "gone"
    gone.mkdir()
    where = {"PYTHONPATH": str(Path(settings.__file__).parents[2])}
    script = f'cd "{gone}" && rmdir "{gone}" && exec {sys.executable} -m mpt_cli train conf=digits_mlp'
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, env=os.environ | where)
    assert (done.returncode, done.stderr.strip()) == (
        3,
        "mpt train: the working directory is gone. Change to one that exists.",
    )


def test_a_line_that_is_too_long_is_left_out_and_said(tmp_path, monkeypatch):
    (tmp_path / "config.yaml").write_text("recipe: x\n")
    run = RunDirectory(tmp_path)
    long = '{"step": 2, "loss": 2.0, "more": "' + "x" * 1000 + '"}\n'
    run.metrics_jsonl.write_text('{"step": 1, "loss": 1.0}\n' + long + '{"step": 3, "loss": 3.0}\n')
    assert list(read_history(tmp_path).steps["loss"].ys) == [1.0, 2.0, 3.0]
    monkeypatch.setattr(directory, "LONGEST_LINE", 100)
    story = read_history(tmp_path)
    assert list(story.steps["loss"].ys) == [1.0, 3.0]
    assert "metrics.jsonl: damaged lines left out: 1." in story.gaps
