"""A disk on which nothing can be written for a while, for which a limit on the size of files stands."""

import io
import resource

import pytest
from strict import lines

from mpt_cli import training_run
from mpt_cli.runs.directory import RunDirectory, read_summary
from mpt_cli.settings.load import load_settings
from mpt_cli.telemetry.sink_interface import Sink
from mpt_cli.training.checkpoint import CheckpointStore

STEPS = 46
WORDS = [
    "conf=digits_mlp",
    "model.hidden_units=[16]",
    "trainer.jit_compile=false",
    "trainer.epochs=2",
    "trainer.checkpoint_every_steps=4",
    "trainer.log_every_steps=3",
    "trainer.save_model=false",
    "trainer.gradient_health_every_steps=15",  # the file of samples is begun while nothing can be written
    "loss_scale.initial_scale=2**26",
    "loss_scale.growth_steps=5",
]


class Limits(Sink):
    """Sets, from a step on, how large a file may get."""

    def __init__(self, plan: dict[int, int]):
        self.plan = plan

    def progress(self, step: int, epoch: int, phase: str):
        for at in [at for at in self.plan if at <= step]:
            limit(self.plan.pop(at))


def limit(size: int):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


@pytest.mark.slow
def test_a_disk_that_is_full_for_a_while_costs_nothing(tmp_path):
    before, said = resource.getrlimit(resource.RLIMIT_FSIZE)[0], io.StringIO()
    settings = load_settings([*WORDS, f"run_dir={tmp_path}/run"])
    try:
        training_run.train(settings, [], training_run.Reporters(said, [Limits({10: 1, 35: before})]))
    finally:
        limit(before)
    assert "run_dir. Its lines wait in memory, training continues." in said.getvalue()
    assert "that of step 8 is kept, training continues" in said.getvalue()
    assert "checkpoints can be written again" in said.getvalue()
    run = RunDirectory(tmp_path / "run")
    summary = read_summary(run.summary_json)
    assert (summary["status"], summary["steps_seen"], summary["applied_steps"] + summary["skipped_steps"]) == (
        "finished",
        STEPS,
        STEPS,
    )
    logged = lines(run.metrics_jsonl)
    assert [line["step"] for line in logged if not line["epoch_end"]] == list(range(3, STEPS, 3))
    assert [line["step"] for line in logged if line["epoch_end"]] == [23, 46]
    assert sum(event["kind"] == "overflow" for event in lines(run.events_jsonl)) == summary["skipped_steps"] > 0
    assert CheckpointStore(run.checkpoints).newest().step == STEPS
    assert {line["step"] for line in lines(run.layers_jsonl)} == {15, 30, 45, STEPS}
