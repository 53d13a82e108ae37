"""Commands as jobs of submitit: Slurm's, or processes here to try it out. Imports submitit, an extra."""

import os
import re
import signal
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import submitit
from submitit.core import utils
from submitit.slurm.slurm import SlurmInfoWatcher

from mpt_cli.jobs.cluster import Cluster, ClusterJobState, NoAnswer, RemoteCommand
from mpt_cli.jobs.local_processes import CannotStart, call
from mpt_cli.signals import held_back

MOST_OF_ARRAY = 1000  # jobs in one, as Slurm has it by default (MaxArraySize)
_ANSWER_SECONDS = 30.0
_WAITS = ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "RESV_DEL_HOLD", "SPECIAL_EXIT")
_IS_OVER = (
    "BOOT_FAIL",
    "CANCELLED",
    "COMPLETED",
    "DEADLINE",
    "FAILED",
    "NODE_FAIL",
    "OUT_OF_MEMORY",
    "PREEMPTED",
    "REVOKED",
    "TIMEOUT",
)
_COLUMNS = "JobID|State|Reason"
_QUEUE = ("squeue", "--noheader", "--array", "--states=all", "--format=%i|%T|%r")
_ACCOUNTS = ("sacct", "--noheader", "--parsable2", "--allocations", "--format=JobID,State,Reason")


class SlurmCluster(Cluster):
    """Several commands at once are an array. `parameters` are those of a job as submitit has them, `own` those of its
    executor, `folder` has what it writes.
    """

    name = "Slurm"
    kind = "slurm"

    def __init__(self, parameters: Mapping[str, Any], own: Mapping[str, Any], folder: Path) -> None:
        super().__init__()
        self._parameters, self._own, self._folder = parameters, own, folder

    def hand_over(self, commands: Sequence[RemoteCommand], at_a_time: int) -> list[str]:
        parts = [commands[first : first + MOST_OF_ARRAY] for first in range(0, len(commands), MOST_OF_ARRAY)]
        share = max(1, at_a_time // len(parts))
        try:
            return [job.job_id for part in parts for job in self._submit(part, slurm_array_parallelism=share)]
        except (OSError, utils.FailedSubmissionError, utils.FailedJobError) as error:  # the last is sbatch's own
            raise CannotStart(" ".join(str(error).split())) from error

    def prepared(self, **more: Any) -> submitit.AutoExecutor:
        """Return submitit's executor, which says what is wrong with its parameters."""
        executor = submitit.AutoExecutor(folder=self._folder, cluster=self.kind, **self._own)
        executor.update_parameters(**self._parameters, **more)
        return executor

    def _submit(self, commands: Sequence[RemoteCommand], **more: Any) -> list["submitit.Job[int]"]:
        self._folder.mkdir(parents=True, exist_ok=True)
        executor = self.prepared(**more, **self._job_name(commands))
        with executor.batch():
            return [executor.submit(command) for command in commands]

    def _job_name(self, commands: Sequence[RemoteCommand]) -> dict[str, str]:
        sweep = self._folder.parent.parent.name
        return {"name": commands[0].command.name if len(commands) == 1 else sweep}

    def states(self, job_ids: Collection[str]) -> dict[str, ClusterJobState]:
        """Return the states by squeue, which has each job for some minutes after its end, and of older ones by sacct,
        where there is accounting.
        """
        found = self._ask_program(_QUEUE, job_ids)
        missing = {job_id for job_id in job_ids if job_id not in found}
        if missing:
            with suppress(NoAnswer):
                found |= self._ask_program(_ACCOUNTS, missing)
        return found

    def _ask_program(self, program: Sequence[str], job_ids: Collection[str]) -> dict[str, ClusterJobState]:
        arrays = sorted({job_id.partition("_")[0] for job_id in job_ids})
        answer = call([*program, f"--jobs={','.join(arrays)}"], _ANSWER_SECONDS)
        if answer.exit_code != 0 and "Invalid job id" not in answer.stderr:
            raise NoAnswer(f"{program[0]}: {answer.why or ' '.join(answer.stderr.split())}")
        found = SlurmInfoWatcher().read_info(f"{_COLUMNS}\n{answer.stdout}")  # it knows what an array is called
        return {job_id: _state(row["State"], row["Reason"]) for job_id, row in found.items()}

    def cancel(self, job_id: str) -> None:
        """Ask it to end; the cluster kills it after its KillWait (30 s)."""
        call(["scancel", job_id], _ANSWER_SECONDS)

    def why(self, job_id: str) -> str:
        """Return submitit's reason, such as that its time was over too often, and where its log is."""
        paths = utils.JobPaths(self._folder, job_id)
        parts = []
        with suppress(OSError, ValueError, EOFError):
            parts.append(str(utils.pickle_load(paths.result_pickle)[1]).strip().rpartition("\n")[2])
        return ", ".join([*parts, *([f"see {paths.stderr}"] if paths.stderr.exists() else [])])


def _state(word: str, reason: str) -> ClusterJobState:
    first = re.split(r"[ +]", word, maxsplit=1)[0]
    return ClusterJobState(word, reason, waits=first in _WAITS, is_over=first in _IS_OVER)


class ProcessesOfSubmitit(SlurmCluster):
    """submitit's processes on this machine, to try it out: each passes a SIGTERM on to its job."""

    name = "submitit"
    kind = "local"
    poll_seconds = 0.2

    def _submit(self, commands: Sequence[RemoteCommand], **_: Any) -> list["submitit.Job[int]"]:
        # they are in our group: what the terminal sends must not end them before their job
        with held_back(signal.SIGINT, signal.SIGHUP):
            return super()._submit(commands)

    def _job_name(self, commands: Sequence[RemoteCommand]) -> dict[str, str]:
        return {}

    def states(self, job_ids: Collection[str]) -> dict[str, ClusterJobState]:
        return {
            job_id: ClusterJobState("RUNNING") if _is_alive(int(job_id)) else ClusterJobState("ended", is_over=True)
            for job_id in job_ids
        }

    def cancel(self, job_id: str) -> None:
        with suppress(ProcessLookupError):
            os.kill(int(job_id), signal.SIGTERM)


def _is_alive(pid: int) -> bool:
    with suppress(ChildProcessError):  # it was started by another process, or has been asked after its end before
        os.waitpid(pid, os.WNOHANG)
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return True
