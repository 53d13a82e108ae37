"""A run whose disk gets into trouble at chosen steps: `python troubled_run.py RUN_DIR JSON words…`.

JSON maps steps to what happens there: `fill` the file system to its last byte, `free` it again, `fail` what is written
(see `failing_files.c`) and `mend` that, `remove` the run, or `terminate` it.
"""

import json
import os
import shutil
import signal
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
    def __init__(self, run_dir: Path, plan: dict[int, str]) -> None:
        self.run_dir, self.plan, self.filler = run_dir, plan, run_dir.parent / "filler"

    def progress(self, step: int, epoch: int, phase: str) -> None:
        for at in [at for at in self.plan if at <= step]:
            getattr(self, self.plan.pop(at))()

    def fill(self) -> None:
        block = 2**16
        with self.filler.open("wb", buffering=0) as file:
            while block:
                try:
                    file.write(b"\0" * block)
                except OSError:
                    block //= 2

    def free(self) -> None:
        self.filler.unlink()

    def fail(self) -> None:
        Path(os.environ["FAIL_WHEN"]).touch()

    def mend(self) -> None:
        Path(os.environ["FAIL_WHEN"]).unlink()

    def terminate(self) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    def remove(self) -> None:
        shutil.rmtree(self.run_dir)


def main(run_dir: Path, plan: dict[str, str], words: list[str]) -> int:
    settings = load_settings([*WORDS, f"run_dir={run_dir}", *words])
    trouble = Trouble(run_dir, {int(step): what for step, what in plan.items()})
    try:
        return training_run.train(settings, [], training_run.Reporters(sys.stdout, [trouble])).exit_code
    except MptError as error:
        print(f"mpt train: {error}", file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    code = main(Path(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3:])
    sys.stdout.flush()
    os._exit(code)
