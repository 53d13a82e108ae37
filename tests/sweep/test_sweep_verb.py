"""`mpt sweep` and `mpt report` as commands: what they print and what they exit with."""

import json

import pytest

from mpt_cli.cli import main


@pytest.mark.slow
def test_a_dry_run_lists_the_jobs_and_writes_nothing(here, capsys):
    words = ["conf=digits_mlp", "loss_scale.initial_scale=2**8,2**15,32768", "policy=glob(mixed_f*)"]
    assert main(["sweep", *words, "--dry-run"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "1 job left out: given twice, or in the sweep already",
        "001-initial_scale-256  loss_scale.initial_scale=2**8",
        "002-initial_scale-32768  loss_scale.initial_scale=2**15",
        "2 jobs",
        "2 configurations with one seed. To tell two apart, the mean of their differences, one for each seed, must be at "
        "least this many times their standard deviation: 2.5 with 3, 1.2 with 5, 0.7 with 10 seeds, if no job fails. Fewer "
        "than 3 seeds can't tell them apart.",
        "`mpt check --build conf=digits_mlp 'loss_scale.initial_scale=2**8' policy=mixed_float16` also builds the model and reads the data",
    ]
    assert main(["sweep", *words, "--dry-run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["jobs"][1]["command"].startswith("mpt train conf=digits_mlp")
    assert list(here.iterdir()) == []


def test_a_directory_that_is_taken_is_left_alone(here, capsys):
    (here / "taken").mkdir()
    (here / "taken" / "mine.txt").write_text("mine")
    assert main(["sweep", "conf=digits_mlp", "sweep_dir=taken", "seed=0,1"]) == 3
    reason = (
        "sweep_dir taken already exists and is not empty. Nothing in it was changed; go on with it by "
        "`mpt sweep --resume taken`, or choose another."
    )
    assert capsys.readouterr().err == f"mpt sweep: {reason}\n"
