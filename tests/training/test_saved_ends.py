"""Whether the end of a run is saved, and what is left of a past that was given up."""

import os
import signal
from pathlib import Path

import pytest
from test_health_runs import NAN_TO_THE_END, TINY, train

from mpt_cli import training_run
from mpt_cli.errors import BAD_DATA, NUMERICAL, TERMINATED
from mpt_cli.settings.load import load_settings
from mpt_cli.telemetry.sink_interface import Sink
from mpt_cli.training.checkpoint import CheckpointStore

pytestmark = pytest.mark.slow
UNSAVED = "the loss or a gradient of the last applied step was not finite"


class Terminate(Sink):
    """Sends SIGTERM after step 30, once."""

    def __init__(self):
        self.sent = False

    def progress(self, step: int, epoch: int, phase: str):
        if step >= 30 and not self.sent:
            self.sent = True
            os.kill(os.getpid(), signal.SIGTERM)


def terminated(run_dir: Path, *words: str):
    settings = load_settings([*TINY, "policy=float32", "trainer.steps_per_execution=1", *words, f"run_dir={run_dir}"])
    return training_run.train(settings, reporters=training_run.Reporters(sinks=[Terminate()]))


def newest_step(run_dir: Path):
    found = CheckpointStore(run_dir / "checkpoints").newest()
    return None if found is None else found.step


def test_a_run_terminated_at_a_step_without_gradients_is_saved_there(tmp_path):
    summary = terminated(tmp_path / "run", "fault=overflow", "fault.kind=zero", "fault.at_steps=[30]")
    assert (summary.exit_code, summary.steps_seen, summary.applied_steps) == (TERMINATED, 30, 30)
    assert newest_step(tmp_path / "run") == 30


def test_a_run_terminated_in_a_spoiled_state_does_not_promise_that_it_was_saved(tmp_path):
    spoiled = ["fault=overflow", "fault.at_steps=[25]", "trainer.checkpoint_every_steps=20"]
    summary = terminated(tmp_path / "run", *NAN_TO_THE_END, *spoiled)
    assert (summary.exit_code, summary.steps_seen, summary.applied_steps) == (BAD_DATA, 30, 30)
    assert summary.explanation == f"It ended on SIGTERM and could not be saved: {UNSAVED}"
    assert newest_step(tmp_path / "run") == 20


def test_a_finished_run_whose_end_could_not_be_saved_says_so(tmp_path):
    summary, run_dir = train(tmp_path, *NAN_TO_THE_END, "fault=overflow", "fault.at_steps=[25]")
    assert (summary.status, summary.exit_code, summary.applied_steps) == ("finished", NUMERICAL, 80)
    ending = f" Its last state could not be saved ({UNSAVED}): more epochs would repeat steps."
    assert summary.explanation.endswith(ending)
    assert newest_step(run_dir) is None


@pytest.mark.long
def test_the_fingerprint_of_the_weights_is_of_every_bit_of_a_deterministic_run(tmp_path):
    first, again, other, free = (
        train(tmp_path / str(number), *words)[0]
        for number, words in enumerate([(), (), ("seed=5",), ("trainer.deterministic=false",)])
    )
    assert first.applied_steps == again.applied_steps == other.applied_steps == first.steps_seen
    assert first.weights_fingerprint == again.weights_fingerprint != other.weights_fingerprint
    assert first.weights_fingerprint is not None and free.weights_fingerprint is None
