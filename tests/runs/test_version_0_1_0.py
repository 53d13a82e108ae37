"""Run directories and checkpoints that version 0.1.0 wrote can still be read, reported, resumed and repeated.

`killed_*` were killed at step 60 of 90, with a checkpoint of step 40; `whole_*` are the same commands uninterrupted.
TensorFlow's scale is dynamic and JAX's logmax; both fall from 2**24 in the first steps.
"""

import json
import shutil
from importlib.metadata import version
from pathlib import Path

import numpy as np
import preloaded
import pytest

from mpt_cli.machine import machine_facts

WRITTEN = Path(__file__).parents[1] / "fixtures" / "version_0_1_0"
SKIPPED = {"tensorflow": 6, "jax": 1}
VERDICT = {"tensorflow": "warm-up skips only", "jax": "healthy"}
pytestmark = pytest.mark.slow


def mpt(*words: str, cwd: Path, backend: str = "tensorflow") -> str:
    """Its standard output; it must succeed. `backend` is that of the run."""
    done = preloaded.mpt(*words, cwd=cwd, backend=backend)
    assert done.returncode == 0, done.stderr
    return done.stdout


def other_numbers(run: Path) -> str:
    """Why numbers made here may differ from those of `run` in their last bits; empty where they may not."""
    found = json.loads((run / "environment.json").read_text())
    backend = found["backend"].split()[0]
    packages = ("keras", "numpy", *(("jax", "jaxlib") if backend == "jax" else ("tensorflow",)))
    here = {name: version(name) for name in packages}
    # a virtual machine may call CPUs of several generations by one name
    of_the_machine = "machine", "cpu", "cpu_precision_features", "usable_cores"
    machine = {name: machine_facts()[name] for name in of_the_machine}
    there = {name: found["versions"][name] for name in here}, {name: found["machine"][name] for name in machine}
    return "" if (here, machine) == there else f"{run.name} was made with {there}, this is {(here, machine)}"


def arrays_of(run: Path) -> dict[str, np.ndarray]:
    with np.load(run / "checkpoints" / "step-000000090.npz") as file:
        return dict(file)


@pytest.fixture(scope="module", params=["tensorflow", pytest.param("jax", marks=pytest.mark.long)])
def backend(request) -> str:
    return request.param


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Copies, in a place that the runs don't know."""
    folder = tmp_path_factory.mktemp("copies") / "trials"
    shutil.copytree(WRITTEN, folder)
    return folder


@pytest.fixture(scope="module")
def resumed(folder, backend) -> Path:
    """The killed run, reported before and then finished."""
    name = f"killed_{backend}"
    logged = {"tensorflow": 46, "jax": 68}[backend]
    assert mpt("report", name, cwd=folder).startswith(f"{name}: No end on record, last logged at step {logged}\n")
    mpt("train", f"resume={name}", cwd=folder, backend=backend)
    return folder / name


@pytest.mark.long
def test_a_killed_run_is_finished(resumed, backend):
    summary = json.loads((resumed / "summary.json").read_text())
    assert (summary["status"], summary["verdict"], summary["steps_seen"]) == ("finished", VERDICT[backend], 90)
    assert (summary["skipped_steps"], summary["applied_steps"]) == (SKIPPED[backend], 90 - SKIPPED[backend])
    steps = [json.loads(line)["step"] for line in (resumed / "metrics.jsonl").read_text().splitlines()]
    assert steps == [23, 46, 50, 69, 90]
    attempts = json.loads((resumed / "environment.json").read_text())["attempts"]
    assert [(attempt["attempt"], attempt["from_step"]) for attempt in attempts] == [(1, 0), (2, 40)]


def test_a_killed_run_ends_as_if_it_had_not_been(resumed, backend):
    whole = WRITTEN / f"whole_{backend}"
    if reason := other_numbers(whole):
        pytest.skip(reason)
    ends, wanted = arrays_of(resumed), arrays_of(whole)
    assert list(ends) == list(wanted)
    for name, array in wanted.items():
        np.testing.assert_array_equal(ends[name], array, name, strict=True)


def test_a_finished_run_is_reported_and_evaluated(folder, backend):
    name = f"whole_{backend}"
    assert mpt("report", name, cwd=folder).startswith(f"{name}: Finished: {VERDICT[backend]}\n")
    assert VERDICT[backend] in (folder / name / "report.html").read_text()
    found = json.loads(mpt("evaluate", name, "--json", cwd=folder, backend=backend))["metrics"]
    metrics = json.loads((WRITTEN / name / "summary.json").read_text())["metrics"]
    # 359 examples: another order of the float32 sum moves the loss by less than 359 * 2**-24
    assert found["loss"] == pytest.approx(metrics["val_loss"], rel=359 * 2**-24)
    assert found["accuracy"] == pytest.approx(metrics["val_accuracy"], abs=1e-6)


@pytest.mark.long
def test_a_run_is_repeated_from_its_configuration(folder, backend):
    """`trainer.jit_compile` is auto in it, which meant XLA then; `mpt reproduce` takes that from environment.json."""
    words = [f"conf=whole_{backend}/config.yaml", "trainer.jit_compile=true"]
    mpt("train", *words, f"run_dir=again_{backend}", cwd=folder, backend=backend)
    summary = json.loads((folder / f"again_{backend}" / "summary.json").read_text())
    assert (summary["steps_seen"], summary["skipped_steps"]) == (90, SKIPPED[backend])
    if reason := other_numbers(WRITTEN / f"whole_{backend}"):
        pytest.skip(reason)
    assert summary["metrics"] == json.loads((WRITTEN / f"whole_{backend}" / "summary.json").read_text())["metrics"]


def test_a_sweep_is_reported_and_has_nothing_left_to_do(folder):
    results = json.loads((WRITTEN / "sweep" / "results.json").read_text())
    told = mpt("report", "sweep", cwd=folder)
    assert f"first      {results['best']['name']}, val_accuracy 0.1393\n" in told  # one seed shows no best
    before = {path: path.stat().st_mtime_ns for path in (folder / "sweep").glob("0*/summary.json")}
    mpt("sweep", "--resume", "sweep", cwd=folder)
    assert {path: path.stat().st_mtime_ns for path in before} == before and len(before) == 2
    again = json.loads((folder / "sweep" / "results.json").read_text())
    assert (again["counts"], again["is_complete"]) == ({"finished": 2}, True)
    assert again["best"] == results["best"]
