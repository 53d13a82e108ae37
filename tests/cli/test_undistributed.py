"""What trains nothing uses one device of one process, whatever trained the model."""

from mpt_cli.cli import main

TWO = ["conf=digits_mlp", "backend=jax", "distribute=data_parallel", "distribute.processes=2"]


def test_verify_resume_says_that_it_is_for_one_process(capsys):
    assert main(["verify-resume", *TWO]) == 2
    assert capsys.readouterr().err == (
        "mpt verify-resume: distribute.processes: must be null or 1 with verify-resume, which kills a run of one "
        "process at an exact step. Received: 2. Use distribute=none.\n")  # fmt: skip
