"""Which steps are kept for later runs, by what, and that a run that finds them comes to the same bits."""

import json

import pytest
from preloaded import run_program

from mpt_cli.reproduce.reproduction import first_difference
from mpt_cli.runs.directory import RunDirectory
from mpt_cli.settings import load_settings
from mpt_cli.sweep.plan import with_value
from mpt_cli.training.same_program import what_decides_the_step

KEEPS = """
import json, sys
from pathlib import Path
import jax, jax.numpy as jnp, numpy as np
from mpt_cli.engine.kept_programs import KeptPrograms

folder, found = Path(sys.argv[1]), {}

def run(case, content="a", rows=2, dtype="float32"):
    traced, names = [], []
    def step(state, source, row, count):
        traced.append(case)
        names[:] = ["loss"]
        return [state[0] * 2 + source[row].sum() * count]
    kept = KeptPrograms.find(folder, content)
    function = kept.function("step", jax.jit(step, donate_argnums=0), (names,))
    source, state = np.ones((rows, 3), dtype), [jnp.full(3, 0.3, dtype)]
    for _ in range(2):
        state = function(state, source, np.arange(2, dtype="int32"), 3)
    found[case] = [len(traced), names, np.asarray(state[0]).tolist()]

run("first")
run("again")
run("other content", content="b")
run("other shape", rows=5)
run("other dtype", dtype="float16")
steps = sorted(folder.glob("step-*-cache"))
found["files"] = len(steps)
for path in steps:
    path.write_bytes(path.read_bytes()[:100])
run("damaged")
for path in folder.glob("jit_step-*-cache"):
    path.unlink()
run("without its code")
run("after that")
print(json.dumps(found))
"""
CALLS = """
import sys
from mpt_cli.cli import main
sys.exit(main(["train", *sys.argv[1:]]))
"""
WORDS = ["conf=digits_mlp", "backend=jax", "trainer.epochs=1", "data.limit=900", "model.dropout=0.2",
         "model.hidden_units=[16]", "backend.compile_cache=programs", "--quiet"]  # fmt: skip


@pytest.fixture(scope="module")
def settings():
    return load_settings(["conf=digits_mlp", "backend=jax"])


def changed(settings, key, value):
    return with_value(settings, key.split("."), value)


@pytest.mark.parametrize(
    ("key", "value"),
    [("seed", 7), ("optimizer.learning_rate", 0.5), ("loss_scale.initial_scale", 2.0), ("loss_scale.growth_steps", 3),
     ("run_dir", "runs/a"), ("resume", "auto"), ("description", "mine")],
)  # fmt: skip
def test_what_is_state_of_the_step_or_no_part_of_it_does_not_decide_it(settings, key, value):
    assert what_decides_the_step(changed(settings, key, value)) == what_decides_the_step(settings) is not None


@pytest.mark.parametrize(
    ("key", "value"),
    [("trainer.batch_size", 32), ("policy.name", "float32"), ("model.dropout", 0.5), ("optimizer.name", "adamw"),
     ("loss_scale.growth_factor", 4.0), ("trainer.epochs", 3), ("optimizer.clipnorm", 1.0),
     ("data.validation_fraction", 0.5)],
)  # fmt: skip
def test_everything_else_decides_it(settings, key, value):
    assert what_decides_the_step(changed(settings, key, value)) not in (None, what_decides_the_step(settings))


def test_a_learning_rate_that_a_schedule_begins_with_decides_it(settings):
    scheduled = changed(settings, "optimizer.schedule.warmup_steps", 4)
    assert what_decides_the_step(scheduled) != what_decides_the_step(changed(scheduled, "optimizer.learning_rate", 0.5))


def test_a_seed_that_weights_are_rounded_by_decides_it(settings):
    rounded = changed(changed(settings, "policy.name", "float16"), "policy.stochastic_rounding", True)
    assert what_decides_the_step(changed(rounded, "seed", 7)) not in (None, what_decides_the_step(rounded))


@pytest.mark.parametrize(
    ("key", "value"),
    [("trainer.loss", "nets:loss"), ("trainer.metrics", [{"object": "nets:Share"}]), ("model.name", "builder"),
     ("model.name", "mine"), ("data.name", "loader"), ("loss_scale.mode", "mine"), ("backend.name", "tensorflow"),
     ("trainer.callbacks", ["CSVLogger"]), ("trainer.on_unhealthy", "rollback"), ("trainer.jit_compile", False)],
)  # fmt: skip
def test_nothing_is_kept_where_settings_do_not_say_all(settings, key, value):
    assert what_decides_the_step(changed(settings, key, value)) is None


@pytest.mark.slow
def test_a_program_is_traced_once_for_what_it_follows_from_and_again_where_it_was_lost(tmp_path):
    (tmp_path / "keeps.py").write_text(KEEPS)
    folder = tmp_path / "programs"
    folder.mkdir()
    done = run_program(
        str(tmp_path / "keeps.py"), str(folder), backend="jax", cwd=tmp_path, timeout=100,
        JAX_COMPILATION_CACHE_DIR=str(folder), JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS="0",
        JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES="-1",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found.pop("files") == 4
    traced = {case: count for case, (count, _, _) in found.items()}
    assert traced == {"first": 1, "again": 0, "other content": 1, "other shape": 1, "other dtype": 1, "damaged": 1,
                      "without its code": 1, "after that": 0}  # fmt: skip
    assert all(names == ["loss"] for _, names, _ in found.values())
    same = [result for case, (_, _, result) in found.items() if case != "other dtype"]
    assert same == [same[0]] * 7 and same[0] == pytest.approx([0.3 * 4 + 18 * 3] * 3)


def steps_kept(folder):
    return {path.name: path.stat().st_mtime_ns for path in folder.glob("programs/*/step-*-cache")}


@pytest.mark.slow
def test_a_run_by_programs_of_another_comes_to_the_bits_of_one_without_them(tmp_path):
    def train(*words):
        done = run_program("mpt_cli", "train", *WORDS, *words, backend="jax", cwd=tmp_path, timeout=100)
        assert done.returncode == 0, done.stderr

    train("seed=1", "run_dir=first")
    kept = steps_kept(tmp_path)
    assert len(kept) == 4  # of training and of validation, for whole batches and for the rest
    numbers = ["seed=2", "optimizer.learning_rate=0.01", "loss_scale.initial_scale=2**20"]
    train(*numbers, "run_dir=by_them")
    assert steps_kept(tmp_path) == kept
    train(*numbers, "run_dir=without", "backend.compile_cache=null")
    runs = [RunDirectory(tmp_path / name) for name in ("by_them", "without")]
    assert first_difference(*runs) is None
    summary = json.loads(runs[0].summary_json.read_text())
    assert summary["skipped_steps"] > 0 and summary["applied_steps"] > 0


@pytest.mark.slow
def test_a_program_that_calls_mpt_keeps_none(tmp_path):
    (tmp_path / "calls.py").write_text(CALLS)
    done = run_program(str(tmp_path / "calls.py"), *WORDS, "run_dir=called", backend="jax", cwd=tmp_path, timeout=100)
    assert done.returncode == 0, done.stderr
    assert [*tmp_path.glob("programs/*/jit_*")] and not steps_kept(tmp_path)
