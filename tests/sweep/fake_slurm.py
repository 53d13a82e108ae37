"""Stands in for Slurm's programs: `fake_slurm.py PROGRAM ARGUMENTS…`, one job at a time, its state in $FAKE_SLURM."""

import os
import shlex
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

PLACE = Path(os.environ.get("FAKE_SLURM", "."))


def sbatch(script: str) -> None:
    """Runs the script's srun line in a session of its own, as on another machine."""
    text = Path(script).read_text()
    (PLACE / "script.sh").write_text(text)
    start()
    print("Submitted batch job 77")


def start() -> None:
    line = next(line for line in (PLACE / "script.sh").read_text().splitlines() if line.startswith("srun"))
    command = shlex.split(line.replace("%j", "77").replace("%t", "0"))
    own = {**os.environ, "SLURM_JOB_ID": "77", "SLURM_PROCID": "0", "SUBMITIT_EXECUTOR": "slurm"}
    with (PLACE / "output.txt").open("ab") as output:
        process = subprocess.Popen(
            command[command.index(sys.executable):], env=own, stdout=output, stderr=output, start_new_session=True
        )  # fmt: skip
    (PLACE / "77").write_text(str(process.pid))


def scontrol(*_: str) -> None:
    """Of its commands, requeue."""
    start()


def scancel(job: str) -> None:
    """SIGTERM to all processes of the job and, after a second where Slurm waits 30, SIGKILL."""
    with (PLACE / "cancelled.txt").open("a") as file:
        file.write(f"{job}\n")
    session = int((PLACE / job).read_text())
    signal_session(session, signal.SIGTERM)
    time.sleep(1.0)
    signal_session(session, signal.SIGKILL)


def signal_session(session: int, number: signal.Signals) -> None:
    """To all processes of a job, as Slurm does, in whatever group they are."""
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if os.getsid(int(path.name)) == session:
                os.kill(int(path.name), number)


def sacct(*_: str) -> None:
    alive = Path(f"/proc/{(PLACE / '77').read_text()}").exists()
    print(f"JobID|State|NodeList\n77|{'RUNNING' if alive else 'CANCELLED'}|node1")


if __name__ == "__main__":
    {"sbatch": sbatch, "scancel": scancel, "sacct": sacct, "scontrol": scontrol}[sys.argv[1]](*sys.argv[2:])
