"""A real Slurm of two nodes, from Debian's packages and started by root, or a real Ray, on this machine.

    python .ci/cluster.py slurm FOLDER [--accounting]    or: ray FOLDER

It says with which variables they are reached, as JSON, and ends them where it is ended.
"""

import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

SKIPPED = 77  # the exit code where there can be none here
PROGRAMS = ("slurmctld", "slurmd", "munged")
OF_ACCOUNTING = ("slurmdbd", "mariadbd", "mariadb-install-db")
PATH = f"{os.environ['PATH']}:/usr/sbin:/sbin"
CONFIGURATION = """
ClusterName=mpt
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CredType=cred/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
SchedulerParameters=sched_interval=1,bf_interval=1,sched_min_interval=0
ReturnToService=2
KillWait=3
UnkillableStepTimeout=20
MaxArraySize=10001
MaxJobCount=20000
GresTypes=gpu
JobRequeue=1
{accounting}
NodeName=node1 NodeHostname={host} NodeAddr=127.0.0.1 Port={first} CPUs=8 RealMemory=4000 Gres=gpu:4
NodeName=node2 NodeHostname={host} NodeAddr=127.0.0.1 Port={second} CPUs=8 RealMemory=4000 Gres=gpu:4
PartitionName=all Nodes=node1,node2 Default=YES MaxTime=INFINITE State=UP
"""
ACCOUNTING = """
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort={dbd}
AccountingStoragePass={folder}/munge.socket
JobAcctGatherType=jobacct_gather/linux
MinJobAge=10
"""
STORAGE = """
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort={dbd}
SlurmUser=root
PidFile={folder}/slurmdbd.pid
LogFile={folder}/slurmdbd.log
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={sql}
StorageUser=root
StorageLoc=slurm
"""


def why_not(accounting: bool = False) -> str:
    """Why none can be started here; empty where it can."""
    wanted = [*PROGRAMS, "sbatch", *(OF_ACCOUNTING if accounting else ())]
    missing = [name for name in wanted if shutil.which(name, path=PATH) is None]
    if missing:
        return f"Slurm is not installed: no {', '.join(missing)} (apt-get install slurm-wlm slurmdbd mariadb-server)"
    return "" if os.geteuid() == 0 else "Slurm's daemons are started by root alone"


@contextmanager
def slurm(folder: Path, accounting: bool = False) -> Iterator[dict[str, str]]:
    """The variables that its programs want, while it runs."""
    for name in ("state", "node1", "node2"):
        (folder / name).mkdir(parents=True)
    ports = dict(zip(("port", "first", "second", "dbd", "sql"), free_ports(5), strict=True))
    given = {"folder": folder, "host": socket.gethostname().partition(".")[0], **ports}
    with_accounting = ACCOUNTING.format(**given) if accounting else ""
    (folder / "slurm.conf").write_text(CONFIGURATION.format(**given, accounting=with_accounting))
    for number in range(4):  # what stands for GPUs: nobody opens them
        os.mknod(folder / f"gpu{number}", stat.S_IFCHR | 0o600, os.makedev(1, 3))
    (folder / "gres.conf").write_text(f"NodeName=node[1-2] Name=gpu File={folder}/gpu[0-3]\n")
    environment = {**os.environ, "PATH": PATH, "SLURM_CONF": str(folder / "slurm.conf")}
    with ExitStack() as stack:

        def start(*command: str) -> None:
            stack.enter_context(daemon(command, folder / f"{Path(command[0]).name}.log", environment))

        key = folder / "munge.key"
        key.write_bytes(os.urandom(64))
        key.chmod(0o600)
        start(
            "munged",
            "--foreground",
            "--force",
            f"--socket={folder}/munge.socket",
            f"--key-file={key}",
            f"--pid-file={folder}/munged.pid",
            f"--log-file={folder}/munged.txt",
            f"--seed-file={folder}/munged.seed",
        )
        wait_until((folder / "munge.socket").exists)
        if accounting:
            start_accounting(folder, given, environment, start)
        start("slurmctld", "-D", "-c")
        for node in ("node1", "node2"):
            start("slurmd", "-D", "-N", node)
        wait_until(lambda: run(environment, "sinfo", "-h", "-N", "-o", "%T").split() == ["idle", "idle"])
        try:
            yield {name: environment[name] for name in ("PATH", "SLURM_CONF")}
        finally:
            run(environment, "scancel", "--user=root")
            run(environment, "scancel", "--user=root", "--signal=KILL", "--full")
            wait_until(lambda: not run(environment, "squeue", "-h"))


def start_accounting(
    folder: Path, given: dict[str, object], environment: dict[str, str], start: Callable[..., None]
) -> None:
    data = folder / "sql"
    subprocess.run(
        ["mariadb-install-db", "--no-defaults", "--user=root", f"--datadir={data}"],
        env=environment,
        check=True,
        capture_output=True,
    )
    start(
        "mariadbd",
        "--no-defaults",
        "--user=root",
        f"--datadir={data}",
        f"--socket={folder}/sql.socket",
        f"--port={given['sql']}",
        "--bind-address=127.0.0.1",
        "--skip-grant-tables",
    )
    wait_until((folder / "sql.socket").exists)
    (folder / "slurmdbd.conf").write_text(STORAGE.format(**given))
    (folder / "slurmdbd.conf").chmod(0o600)
    start("slurmdbd", "-D")
    wait_until(
        lambda: (
            "mpt" in run(environment, "sacctmgr", "-i", "add", "cluster", "mpt")
            or "mpt" in run(environment, "sacctmgr", "-nP", "list", "cluster")
        )
    )


@contextmanager
def daemon(command: tuple[str, ...], log: Path, environment: dict[str, str]) -> Iterator[None]:
    with log.open("ab") as file:
        process = subprocess.Popen(command, env=environment, stdout=file, stderr=file, start_new_session=True)
    try:
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(20)
        with suppress(ProcessLookupError):  # with all that it left
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def run(environment: dict[str, str], *command: str) -> str:
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False).stdout


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]


def wait_until(holds: Callable[[], object], seconds: float = 60.0) -> None:
    ends = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > ends:
            raise TimeoutError(f"{holds} did not come true in {seconds:.0f} s")
        time.sleep(0.2)


@contextmanager
def ray(folder: Path) -> Iterator[dict[str, str]]:
    port, dashboard = free_ports(2)
    command = (
        sys.executable,
        "-m",
        "ray.scripts.scripts",
        "start",
        "--head",
        "--block",
        f"--port={port}",
        "--num-cpus=4",
        "--include-dashboard=true",
        f"--dashboard-port={dashboard}",
        f"--temp-dir={folder}/ray",
        "--min-worker-port=20000",
        "--max-worker-port=22000",
    )
    with daemon(command, folder / "ray.log", {**os.environ, "RAY_USAGE_STATS_ENABLED": "0"}):
        wait_until(lambda: answers(f"http://127.0.0.1:{dashboard}/api/version"), 120)
        yield {"RAY_ADDRESS": f"127.0.0.1:{port}"}


def answers(url: str) -> bool:
    with suppress(OSError), urllib.request.urlopen(url, timeout=5) as answer:
        return bool(answer.status == 200)
    return False


def main(kind: str, where: str, *options: str) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    folder, accounting = Path(where).resolve(), "--accounting" in options
    folder.mkdir(parents=True, exist_ok=True)
    if kind == "slurm" and (reason := why_not(accounting)):
        print(reason, file=sys.stderr)
        sys.exit(SKIPPED)
    with slurm(folder, accounting) if kind == "slurm" else ray(folder) as variables:
        print(json.dumps(variables), flush=True)
        signal.pause()


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main(*sys.argv[1:])
