"""Commands as jobs of Slurm, by submitit. Imports submitit, an extra."""

import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import submitit
from submitit.core import utils
from submitit.slurm.slurm import SlurmInfoWatcher

from mpt_cli.errors import config_error, first_line
from mpt_cli.jobs.cluster import Cluster, ClusterJobState
from mpt_cli.jobs.job_process import run_command
from mpt_cli.jobs.local_processes import THREAD_VARIABLES, CannotStart, NoAnswer, helper_output
from mpt_cli.settings.key_type import read_number

_COMMANDS = ("sbatch", "srun", "scancel", "squeue", "scontrol")
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
_QUEUE = ("squeue", "--noheader", "--array", "--states=all", "--format=%i|%T|%r")
_ACCOUNTS = ("sacct", "--noheader", "--parsable2", "--allocations", "--format=JobID,State,Reason")
# parameters of all of submitit's executors; others are those of Slurm's
_OF_ALL = ("name", "timeout_min", "mem_gb", "cpus_per_task", "gpus_per_node", "nodes", "tasks_per_node")


class SlurmCluster(Cluster):
    """Several commands at once are an array.

    Settings are the parameters of submitit's executor, those of Slurm alone without `slurm_`. `setup` is a line of
    shell before the job, `python` what starts Python there. `sbatch` and `srun` hold further options of these programs
    by their long names: launcher.sbatch.mail-type=FAIL. One without a value is true: launcher.sbatch.exclusive=true.
    """

    name, title = "submitit", "Slurm"
    can_detach = True
    kind = "slurm"

    def check(self) -> None:
        if missing := [command for command in _COMMANDS if shutil.which(command) is None]:
            rule = f"must have Slurm on this machine: there is no {', '.join(missing)}."
            remedy = "Start the sweep on a machine of the cluster, or leave it out."
            raise config_error("--launcher", rule, self.name, remedy)
        try:
            with tempfile.TemporaryDirectory() as folder:
                self._prepared(Path(folder), Path(folder))
        except (AssertionError, NameError, TypeError, ValueError) as error:  # whatever submitit rejects
            raise config_error("launcher", "must have settings of submitit.", None, first_line(error)) from error

    def environment(self, workers: int) -> dict[str, str]:
        threads = self.settings.get("cpus_per_task")
        return {} if threads is None else dict.fromkeys(THREAD_VARIABLES, threads)

    def _prepared(self, folder: Path, list_file: Path, **more: Any) -> submitit.AutoExecutor:
        """Return submitit's executor, which checks its parameters. Instead of submitit's program it starts ours, with
        the arguments for submitit's after it.
        """
        values: dict[str, Any] = {"timeout_min": 60, **{name: _value(text) for name, text in self.settings.items()}}
        options, of_srun = _take_options(values, "sbatch."), _take_options(values, "srun.")
        python = f"{values.pop('python', shlex.quote(sys.executable))} -P -m mpt_cli.jobs.job_process"
        if "setup" in values:
            values["setup"] = [values["setup"]]
        if options:
            values["additional_parameters"] = options
        if of_srun:
            values["srun_args"] = [f"--{name}" + ("" if text is True else f"={text}") for name, text in of_srun.items()]
        values["signal_delay_s"] = min(90, 15 * values["timeout_min"])  # before the end of its time, to save
        own = {name if name in _OF_ALL else f"slurm_{name}": value for name, value in {**values, **more}.items()}
        command = f"{python} {shlex.quote(str(list_file))}"
        executor = submitit.AutoExecutor(folder=folder, cluster=self.kind, slurm_python=command)
        executor.update_parameters(**own)
        return executor

    def hand_over(self, commands: Sequence[Mapping[str, Any]], list_file: Path, at_a_time: int) -> list[str]:
        name = Path(commands[0]["log"]).stem if len(commands) == 1 else self.folder.parent.parent.name
        executor = self._prepared(self.folder, list_file, name=name, array_parallelism=at_a_time)
        try:
            with executor.batch():
                submitted = [executor.submit(run_command, command) for command in commands]
        except (OSError, utils.FailedSubmissionError, utils.FailedJobError) as error:  # the last is sbatch's own
            raise CannotStart(" ".join(str(error).split())) from error
        return [job.job_id for job in submitted]

    def states(self, job_ids: Collection[str]) -> dict[str, ClusterJobState]:
        """Return the states from squeue, which keeps a job for some minutes after its end, and for older jobs from
        sacct, if there is accounting.
        """
        found = self._ask_command(_QUEUE, job_ids)
        missing = {job_id for job_id in job_ids if job_id not in found}
        if missing:
            with suppress(NoAnswer):
                found |= self._ask_command(_ACCOUNTS, missing)
        return found

    def _ask_command(self, command: Sequence[str], job_ids: Collection[str]) -> dict[str, ClusterJobState]:
        arrays = sorted({job_id.partition("_")[0] for job_id in job_ids})
        try:
            answer = helper_output([*command, f"--jobs={','.join(arrays)}"], _ANSWER_SECONDS)
        except NoAnswer as error:
            if "Invalid job id" in str(error):
                return {}
            raise NoAnswer(f"{command[0]}: {error}") from error
        found = SlurmInfoWatcher().read_info(f"JobID|State|Reason\n{answer}")  # it knows what an array is called
        return {job_id: self._state(job_id, row["State"], row["Reason"]) for job_id, row in found.items()}

    def _state(self, job_id: str, word: str, reason: str) -> ClusterJobState:
        first, stderr = re.split(r"[ +]", word, maxsplit=1)[0], utils.JobPaths(self.folder, job_id).stderr
        is_over = first in _IS_OVER
        where = f", see {stderr}" if is_over and stderr.exists() else ""
        return ClusterJobState(word, f"{reason}{where}", waits=first in _WAITS, is_over=is_over)

    def cancel(self, job_id: str) -> None:
        """Ask it to end; the cluster kills it after its KillWait (30 s)."""
        with suppress(NoAnswer):  # it has ended, or `states` says what is wrong
            helper_output(["scancel", job_id], _ANSWER_SECONDS)


def _value(text: str) -> Any:
    number = read_number(text)
    return number if str(number) == text else text


def _take_options(values: dict[str, Any], prefix: str) -> dict[str, Any]:
    """Take the options of a program out of the values; return them, with True for an option without a value, and
    without the false ones.

    >>> _take_options({"sbatch.hold": "true", "sbatch.requeue": "false", "sbatch.exclusive": "user"}, "sbatch.")
    {'hold': True, 'exclusive': 'user'}
    """
    names = [name for name in values if name.startswith(prefix)]
    found = {name.removeprefix(prefix): values.pop(name) for name in names}
    return {name: True if text == "true" else text for name, text in found.items() if text != "false"}
