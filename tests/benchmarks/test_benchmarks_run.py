"""The benchmark scripts run; what they measure is another matter."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.sweep import with_joblib_launcher

ROOT = Path(__file__).parents[2]


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["-m", "benchmarks.startup", "--quick"], "mpt --help"),
        (["-m", "benchmarks.speed", "--quick"], "| jax | digits MLP |"),
        (["-m", "benchmarks.sweep", "--quick", "--hydra-multirun"], "20 jobs of 0.1 s, 4 at a time"),
        (["-m", "benchmarks.telemetry", "--quick"], "| jax | digits MLP |"),
        (["-m", "benchmarks.compile_time", "--quick"], "| variables | many | jax, XLA | 10 |"),
        (["-m", "benchmarks.lost_updates", "--quick"], "| bfloat16 | 0.01 | stochastically |"),
        (["-m", "benchmarks.short_runs", "--quick"], "| wide MLP | float32 | jax | 1 |"),
        (["-m", "benchmarks.step_parts", "--quick"], "| jax | digits MLP | mixed_float16 |"),
        (["-m", "benchmarks.check_before_update", "--quick"], "| 10 | "),
    ],
    ids=["startup", "speed", "sweep", "telemetry", "compile_time", "lost_updates", "short_runs",
         "step_parts", "check_before_update"],
)
def test_benchmark_runs(words: list[str], expected: str) -> None:
    done = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True, timeout=300)

    assert done.returncode == 0, done.stderr
    assert expected in done.stdout
    assert "not possible" not in done.stdout


@pytest.mark.long
@pytest.mark.slow
def test_the_program_with_hydras_decorator_trains_as_the_jobs_do(tmp_path: Path) -> None:
    program = [sys.executable, "benchmarks/multirun_app.py", "seed=3", "backend=jax", f"hydra.run.dir={tmp_path}"]
    done = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, timeout=300)

    assert done.returncode == 0, done.stderr
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["steps"] == 23 and summary["metrics"]["val_accuracy"] > 0.8
    assert (tmp_path / "model.keras").is_file()


def test_without_joblibs_launcher_hydra_is_left_out_in_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert with_joblib_launcher("false") is None
    assert capsys.readouterr().out == (
        "Hydra's multirun is left out: false lacks a package (pip install hydra-joblib-launcher).\n"
    )
    assert with_joblib_launcher("true") == "true" and with_joblib_launcher(None) is None
    assert capsys.readouterr().out == ""


@pytest.mark.slow
def test_a_setting_visits_few_files_and_is_composed_once() -> None:
    done = subprocess.run([sys.executable, "-m", "benchmarks.setting_path"], cwd=ROOT, capture_output=True, text=True,
                          timeout=300)  # fmt: skip

    assert done.returncode == 0, done.stderr
    way = json.loads(done.stdout)
    assert way["files"] == len(way["functions"]) <= 15, list(way["functions"])
    assert [*way["functions"]][-1] == "precision/scale_state.py"  # it arrived
    assert way["times_composed"] == 1
