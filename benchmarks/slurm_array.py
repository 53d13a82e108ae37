"""How long a sweep of 200 jobs of one second takes on Slurm, 16 at a time, beside Slurm's own array of them, by turns.

    python -m benchmarks.slurm_array      # in the root of the repository

Starts a Slurm of two nodes on this machine (`.ci/cluster.py`), whose work shares the cores with the jobs. Each turn is
the array, the array with `srun`, as submitit has it, and the sweep. Target: at most 1.3 of the array.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from mpt_cli.jobs.launchers import choose_launcher
from mpt_cli.sweep.job_list import Job
from mpt_cli.sweep.run import Options, resume_sweep, start_sweep
from mpt_cli.telemetry.console import PrintableConsole

ROOT = Path(__file__).parents[1]
JOBS, AT_ONCE = 200, 16
STUB = [sys.executable, "-S", str(ROOT / "tests" / "stub_job.py"), "once"]


def launch(job: Job, run_dir: Path) -> list[str]:
    return [*STUB, str(run_dir), "1.0"]


def sweep(folder: str) -> None:
    options = Options(AT_ONCE, launch=launch, launcher=choose_launcher("submitit", {}), detach=True)
    console = PrintableConsole(None)
    start_sweep(["conf=digits_mlp", f"seed=range({JOBS})", f"sweep_dir={folder}"], options, console)
    assert resume_sweep(folder, replace(options, detach=False), console)[1] == 0


def array(folder: str, program: str = "") -> None:
    os.mkdir(folder)
    job = f"{program} {' '.join(STUB)} {folder}/$SLURM_ARRAY_TASK_ID 1.0"
    words = ["-Q", f"--array=0-{JOBS - 1}%{AT_ONCE}", "--output=/dev/null", f"--wrap={job}"]
    subprocess.check_call(["sbatch", *words])
    while subprocess.check_output(["squeue", "-h"]):
        time.sleep(0.2)
    assert len([*Path(folder).glob("*/summary.json")]) == JOBS


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        command = [sys.executable, ".ci/cluster.py", "slurm", f"{name}/slurm"]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as slurm:
            os.environ.update(json.loads(slurm.stdout.readline()))
            for _ in range(2):
                for kind, *given in (array,), (array, "srun"), (sweep,):
                    begun = time.monotonic()
                    kind(f"{name}/{begun}", *given)
                    print(kind.__name__, *given, f"{time.monotonic() - begun:.1f} s", os.getloadavg(), flush=True)
            slurm.terminate()


if __name__ == "__main__":
    main()
