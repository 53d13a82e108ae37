"""A run whose disk gets into trouble at chosen steps: `python troubled_run.py RUN_DIR JSON words…`.

JSON maps steps to what happens there: `fail` what is written (see `failing_files.c`), or `mend` that.
"""

import json
import os
import sys
from pathlib import Path

from mpt_cli import training_run
from mpt_cli.errors import MptError
from mpt_cli.settings import load_settings
from mpt_cli.telemetry.sink import Sink

WORDS = ["conf=digits_mlp", "model.hidden_units=[16]", "trainer.jit_compile=false", "trainer.epochs=4",
         "trainer.checkpoint_every_steps=4", "trainer.log_every_steps=3", "trainer.save_model=false",
         "loss_scale.initial_scale=2**26", "loss_scale.growth_steps=5"]  # fmt: skip


class Trouble(Sink):
    def __init__(self, plan: dict[int, str]) -> None:
        self.plan = plan

    def progress(self, step: int, epoch: int, phase: str) -> None:
        for at in [at for at in self.plan if at <= step]:
            getattr(self, self.plan.pop(at))()

    def fail(self) -> None:
        Path(os.environ["FAIL_WHEN"]).touch()

    def mend(self) -> None:
        Path(os.environ["FAIL_WHEN"]).unlink()


def main(run_dir: Path, plan: dict[str, str], words: list[str]) -> int:
    settings = load_settings([*WORDS, f"run_dir={run_dir}", *words])
    trouble = Trouble({int(step): what for step, what in plan.items()})
    try:
        return training_run.train(settings, [], training_run.Reporters(sys.stdout, [trouble])).exit_code
    except MptError as error:
        print(f"mpt train: {error}", file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    code = main(Path(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3:])
    sys.stdout.flush()
    os._exit(code)
