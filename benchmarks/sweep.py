"""What a sweep costs beyond the training of its jobs.

    python -m benchmarks.sweep [--repeats 3] [--quick] [--short-jobs] [--hydra-multirun [PYTHON]]

1. Eight short jobs with `-j 1` and `-j 2`: the ratio of their times (target 0.65 on two cores).
2. What a job takes beyond its own training (start, imports, compilation, saving): without the compile cache, with an
   empty one and with a full one.
3. 200 queued jobs of a second each: memory, open files and children of the parent, and its CPU time per poll.
4. 24 short jobs with `-j 2`, forked from a process that holds Keras and each a Python of its own, in turns: the ratio
   of their times and of their CPU times (target a third); with `--hydra-multirun` also the same training by Hydra's own
   multirun with joblib's launcher (`benchmarks/multirun_app.py`: Keras's `fit`), in two processes that take one job
   after the other, for which PYTHON (default: this one) must have the package hydra-joblib-launcher.

Writes results/sweep.json. `--quick` runs a small case of each and writes nothing, `--short-jobs` the fourth alone.
"""

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from mpt_cli.jobs.executor import Command, LocalExecutor
from mpt_cli.jobs.queue import Limits, Observer, Queue, Running
from mpt_cli.machine import cpu_model

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "sweep.json"
RATIO_TARGET = 0.65
SHORT_TARGET = 1 / 3
WORDS = ["conf=digits_mlp", "logger.console=quiet"]
EPOCHS = "trainer.epochs=5"


def sweep(folder: Path, name: str, words: Sequence[str], workers: int) -> tuple[float, dict[str, Any]]:
    """Seconds and results of a sweep, every job of which must finish."""
    command = [sys.executable, "-m", "mpt_cli", "sweep", *WORDS, *words, f"sweep_dir={folder / name}"]
    began = time.perf_counter()
    done = subprocess.run(
        [*command, "-j", str(workers), "--json"], cwd=ROOT, capture_output=True, text=True, check=False
    )  # fmt: skip
    seconds = time.perf_counter() - began
    if done.returncode != 0:
        raise SystemExit(done.stderr)
    return seconds, json.loads(done.stdout)


def measure_ratio(folder: Path, backend: str, jobs: int, repeats: int) -> dict[str, Any]:
    """Wall seconds with one and two jobs at a time, alternating; the compile cache is one that was filled before."""
    words = [f"seed=range({jobs})", f"backend={backend}", EPOCHS, f"backend.compile_cache={cache(folder, backend, 0)}"]
    times: dict[int, list[float]] = {1: [], 2: []}
    for repeat in range(repeats):
        for workers in times:
            times[workers].append(sweep(folder, f"ratio-{backend}-{workers}-{repeat}", words, workers)[0])
    one, two = statistics.median(times[1]), statistics.median(times[2])
    return {"jobs": jobs, "seconds_j1": times[1], "seconds_j2": times[2], "ratio": two / one,
            "target": RATIO_TARGET}  # fmt: skip


def measure_short_jobs(folder: Path, backend: str, jobs: int, repeats: int, hydra: str | None) -> dict[str, Any]:
    """Wall and CPU seconds of the same short jobs, forked and fresh in turns, with a compile cache that is full."""
    words = [f"backend={backend}", "trainer.epochs=1", f"backend.compile_cache={folder / f'cache-{backend}-short'}"]
    sweep(folder, f"short-{backend}-filling", [*words, "seed=0"], 1)
    words.append(f"seed=range({jobs})")
    seconds: dict[str, list[float]] = {"forked": [], "fresh": []}
    cpu_seconds: dict[str, list[float]] = {"forked": [], "fresh": []}
    for repeat in range(repeats):
        for kind, more in (("forked", []), ("fresh", ["--fresh-processes"])):
            used = children_seconds()
            seconds[kind].append(sweep(folder, f"short-{backend}-{kind}-{repeat}", [*words, *more], 2)[0])
            cpu_seconds[kind].append(children_seconds() - used)
    medians = {kind: statistics.median(values) for kind, values in seconds.items()}
    cpu = {kind: statistics.median(values) for kind, values in cpu_seconds.items()}
    found: dict[str, Any] = {
        "jobs": jobs, "seconds": seconds, "cpu_seconds": cpu_seconds, "target": SHORT_TARGET,
        "ratio": medians["forked"] / medians["fresh"], "cpu_ratio": cpu["forked"] / cpu["fresh"],
    }  # fmt: skip
    if hydra is not None:
        found["hydra"] = measure_multirun(folder / f"hydra-{backend}", hydra, backend, jobs)
    return found


def with_joblib_launcher(python: str | None) -> str | None:
    """That Python, where it has Hydra's launcher; else None, after saying what it lacks."""
    if python is None:
        return None
    looked_up = [python, "-c", "import hydra_plugins.hydra_joblib_launcher"]
    if subprocess.run(looked_up, capture_output=True, check=False).returncode == 0:
        return python
    print(f"Hydra's multirun is left out: {python} lacks a package (pip install hydra-joblib-launcher).")
    return None


def measure_multirun(folder: Path, python: str, backend: str, jobs: int) -> dict[str, float]:
    """Wall and CPU seconds of the same training from a program with Hydra's decorator, two jobs at a time; what JAX
    compiles is in a cache that was filled before, as that of the others is."""
    run_multirun(folder / "filling", python, backend, 1)
    used, began = children_seconds(), time.perf_counter()
    run_multirun(folder / "runs", python, backend, jobs)
    return {"seconds": time.perf_counter() - began, "cpu_seconds": children_seconds() - used}


def run_multirun(folder: Path, python: str, backend: str, jobs: int) -> None:
    """Every job of it must take the 23 steps of an epoch."""
    variables = {**os.environ, "JAX_COMPILATION_CACHE_DIR": str(folder.parent / "cache"),
                 "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}  # fmt: skip
    program = [python, str(ROOT / "benchmarks" / "multirun_app.py"), "--multirun", "hydra/launcher=joblib"]
    words = ["hydra.launcher.n_jobs=2", f"hydra.sweep.dir={folder}", f"backend={backend}", f"seed=range({jobs})"]
    done = subprocess.run([*program, *words], env=variables, capture_output=True, text=True, check=False)
    steps = [json.loads(path.read_text())["steps"] for path in folder.glob("*/summary.json")]
    if done.returncode != 0 or steps != [23] * jobs:
        raise SystemExit(f"Hydra's multirun took {steps} steps in its {jobs} jobs:\n{done.stderr}")


def children_seconds() -> float:
    """CPU seconds of what this process has waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measure_overhead(folder: Path, backend: str, repeats: int, with_off: bool) -> dict[str, list[float]]:
    """Seconds of a job beyond its training, one at a time: the first of a sweep finds an empty cache, others a full."""
    common = [f"backend={backend}", EPOCHS]
    beyond: dict[str, list[float]] = {"off": [], "cold": [], "warm": []}
    for repeat in range(repeats):
        name = f"{backend}-{repeat}"
        if with_off:
            (off,) = sweep(folder, f"off-{name}", [*common, "seed=0", "backend.compile_cache=null"], 1)[1]["jobs"]
            beyond["off"].append(beyond_training(folder / f"off-{name}", off))
        cached = [*common, "seed=0,1", f"backend.compile_cache={cache(folder, backend, repeat)}"]
        cold, warm = sweep(folder, f"on-{name}", cached, 1)[1]["jobs"]
        beyond["cold"].append(beyond_training(folder / f"on-{name}", cold))
        beyond["warm"].append(beyond_training(folder / f"on-{name}", warm))
    return beyond


def cache(folder: Path, backend: str, repeat: int) -> Path:
    return folder / f"cache-{backend}-{repeat}"


def beyond_training(place: Path, job: dict[str, Any]) -> float:
    """The time of the process less that of its steps, which examples_per_second is of (compilation not counted)."""
    batch_size = OmegaConf.load(place / job["name"] / "config.yaml").trainer.batch_size
    return float(job["seconds"]) - job["steps_seen"] * batch_size / float(job["examples_per_second"])


@dataclass
class Parent(Observer[None]):
    """What the queue's own process holds at each poll, in order; `cpu` is its CPU time between polls. One of its
    children is the guard, which ends the jobs where it is killed.
    """

    kilobytes: list[int] = field(default_factory=list)
    files: list[int] = field(default_factory=list)
    children: list[int] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    _since: float = 0.0

    def tick(self, running: Sequence[Running[None]]) -> None:
        self.cpu.append(time.process_time() - self._since)
        status = Path("/proc/self/status").read_text()
        self.kilobytes.append(int(status.split("VmRSS:")[1].split()[0]))
        self.files.append(len(os.listdir("/proc/self/fd")))
        self.children.append(sum(len(each.read_text().split()) for each in Path("/proc/self/task").glob("*/children")))
        self._since = time.process_time()

    def quarters(self) -> dict[str, dict[str, float]]:
        """Each figure in the first and the last quarter of the run; the CPU time is that of a poll."""
        part = max(1, len(self.cpu) // 4)
        named = {"kilobytes": self.kilobytes, "files": self.files, "children": self.children,
                 "poll_milliseconds": [1000 * seconds for seconds in self.cpu[1:]]}  # fmt: skip
        return {name: {"first": statistics.median(values[:part]), "last": statistics.median(values[-part:]),
                       "most": max(values)} for name, values in named.items()}  # fmt: skip


def measure_queue(folder: Path, jobs: int, seconds: float, workers: int) -> dict[str, Any]:
    """That many processes which only sleep, through the queue."""
    (folder / "logs").mkdir()
    work = [Command(f"{number:03d}", ["sleep", str(seconds)], None, folder / "logs" / f"{number}.log")
            for number in range(jobs)]  # fmt: skip
    parent, codes = Parent(_since=time.process_time()), list[int | None]()
    began = time.perf_counter()
    with LocalExecutor() as executor:
        Queue(Limits(workers), executor, lambda done, ending: codes.append(ending.exit_code), [parent]).run(work)
    took = time.perf_counter() - began
    assert codes == [0] * jobs
    return {"jobs": jobs, "job_seconds": seconds, "workers": workers, "seconds": took,
            "least_seconds": jobs * seconds / workers, **parent.quarters()}  # fmt: skip


def report(results: dict[str, Any]) -> None:
    queue = results["queue"]
    for backend, ratio in results["two_at_a_time"].items():
        verdict = f"target {ratio['target']} {'met' if ratio['ratio'] <= ratio['target'] else 'MISSED'}"
        words = f"{ratio['jobs']} jobs, {backend}, -j 2 over -j 1: {ratio['ratio']:.2f}"
        print(words, verdict if ratio["jobs"] > 1 else "")
    report_short_jobs(results["short_jobs"])
    for backend, cases in results["seconds_beyond_training"].items():
        words = ", ".join(f"{name} {statistics.median(values):.2f} s" for name, values in cases.items() if values)
        print(f"a job beyond its training, {backend}, compile cache {words}")
    what = f"{queue['jobs']} jobs of {queue['job_seconds']} s, {queue['workers']} at a time"
    print(f"{what}: {queue['seconds']:.1f} s, at best {queue['least_seconds']:.1f}")
    for name in ("kilobytes", "files", "children", "poll_milliseconds"):
        own = queue[name]
        print(f"  {name:<18} first quarter {own['first']:.2f}, last quarter {own['last']:.2f}, most {own['most']:.2f}")


def report_short_jobs(results: dict[str, Any]) -> None:
    for backend, short in results.items():
        verdict = "met" if short["ratio"] <= short["target"] else "MISSED"
        print(f"{short['jobs']} short jobs, {backend}, -j 2, forked over fresh: {short['ratio']:.2f} of the time, "
              f"{short['cpu_ratio']:.2f} of the CPU time; target {short['target']:.2f} {verdict}")  # fmt: skip
        for kind, values in short["seconds"].items():
            cpu = statistics.median(short["cpu_seconds"][kind])
            print(f"  {kind:<7} {statistics.median(values):6.1f} s, {cpu:6.1f} CPU s")
        if "hydra" in short:
            print(f"  hydra   {short['hydra']['seconds']:6.1f} s, {short['hydra']['cpu_seconds']:6.1f} CPU s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--short-jobs", action="store_true", help="these alone; nothing is written")
    parser.add_argument("--jobs", type=int, default=24, help="how many short jobs; default: 24")
    parser.add_argument("--hydra-multirun", metavar="PYTHON", nargs="?", const=sys.executable)
    words = parser.parse_args()
    hydra = with_joblib_launcher(words.hydra_multirun)
    backends = ["jax"] if words.quick else ["tensorflow", "jax"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        short_jobs = {backend: measure_short_jobs(folder, backend, 2 if words.quick else words.jobs,
                                                  1 if words.quick or words.short_jobs else words.repeats, hydra)
                      for backend in backends}  # fmt: skip
        if words.short_jobs:
            report_short_jobs(short_jobs)
            return
        results: dict[str, Any] = {
            "short_jobs": short_jobs,
            "queue": measure_queue(folder, *((20, 0.1, 4) if words.quick else (200, 1.0, 8))),
            "seconds_beyond_training": {
                backend: measure_overhead(folder, backend, 1 if words.quick else words.repeats, not words.quick)
                for backend in backends
            },
        }
        count = (1, 1) if words.quick else (8, words.repeats)
        results["two_at_a_time"] = {backend: measure_ratio(folder, backend, *count) for backend in backends}
    report(results)
    if words.quick:
        return
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps({
        "date": datetime.now(UTC).date().isoformat(), "cpu": cpu_model(), "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(), **results,
    }, indent=2) + "\n")  # fmt: skip


if __name__ == "__main__":
    main()
