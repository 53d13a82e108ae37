"""`mpt compare … -- train.py`: an unchanged script under several precisions."""

import json

import pytest
from command import mpt

from mpt_cli.compare.comparison import Script, make_comparison
from mpt_cli.errors import ConfigError
from mpt_cli.verbs.run import script_settings

SCRIPT = """
import keras, numpy as np, sys
keras.utils.set_random_seed(7)
x = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, dtype="float32")])
model.compile(keras.optimizers.SGD(0.1), "mse", jit_compile=False)
model.fit(x, x[:, :1], batch_size=4, epochs=int(sys.argv[2]), verbose=0)
"""


def test_the_jobs_of_a_script_are_runs_of_it_round_by_round():
    script = Script(["train.py", "--rate=3"], "train", script_settings)
    plan, setups = make_comparison(["policy=float32,mixed_float16"], 2, script)
    words = [
        ["seed=0", "policy=float32"],
        ["seed=0", "policy=mixed_float16"],
        ["seed=1", "policy=mixed_float16"],
        ["seed=1", "policy=float32"],
    ]
    assert [job.words for job in plan.jobs] == [[*each, "train.py", "--rate=3"] for each in words]
    assert plan.jobs[0].command == "mpt run seed=0 policy=float32 train.py --rate=3"
    assert [setup.policy for setup in setups] == ["float32", "mixed_float16"]
    with pytest.raises(ConfigError, match="must be set in the script itself"):
        make_comparison(["trainer.epochs=3,4"], None, script)


@pytest.mark.long
def test_a_script_is_compared_as_a_recipe_is(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    words = [
        "policy=float32,mixed_float16",
        "compare_dir=found",
        "--seeds",
        "2",
        "--json",
        "--",
        "train.py",
        "--epochs",
        "3",
    ]
    done = mpt("compare", *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    base, other = found["configurations"]
    assert (base["label"], other["baseline"], other["skipped_steps"]) == ("float32", "float32", 0)
    one, two = ([job[found["objective"]["name"]] for job in each["jobs"]] for each in (base, other))
    assert one == pytest.approx(two, rel=1e-2) and one[0] != one[1]
    assert base["step_seconds"] > 0 and other["speed_up"] is not None and base["peak_memory_bytes"] > 0
    page = (tmp_path / "found" / "report.html").read_text()
    assert "mpt compare --seeds=2 policy=float32,mixed_float16 compare_dir=found -- train.py --epochs 3" in page
    (tmp_path / "train.py").write_text(SCRIPT + "print(1)\n")
    again = mpt("compare", "--resume", "found", cwd=tmp_path)
    assert again.returncode == 2 and "/train.py has changed since. Received: 'found'." in again.stderr
    (tmp_path / "train.py").write_text(SCRIPT)
    (elsewhere := tmp_path / "elsewhere").mkdir()
    assert mpt("compare", "--resume", "../found", cwd=elsewhere).returncode == 0


@pytest.mark.long
def test_an_objective_that_the_script_does_not_report_is_said_and_its_jobs_are_ranked_by_another(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    words = ["policy=float32,mixed_float16", "compare_dir=found", "--objective"]
    done = mpt("compare", *words, "acc", "--", "train.py", "--epochs", "1", cwd=tmp_path)
    assert done.returncode == 2 and "--objective: must be a number that the jobs report. Received: 'acc'" in done.stderr
    assert mpt("report", "found", "--objective", "loss", cwd=tmp_path).returncode == 0
    assert (tmp_path / "found" / "results.json").exists()
    done = mpt("compare", *words, "loss:low", "--", "train.py", "--epochs", "1", cwd=tmp_path)
    assert done.returncode == 2 and "must end in :min or :max" in done.stderr
