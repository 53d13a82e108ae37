"""Whole comparisons of stubs, from the words to the verdict: for each case of `CASES` comparisons.txt has what is said."""

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from golden import assert_said

from mpt_cli.compare.comparison import UNKNOWN, CompareDirectory, Quality, read_comparison
from mpt_cli.compare.report import columns, overall_sentence, print_comparison, sentences
from mpt_cli.errors import DataError
from mpt_cli.jobs.local_processes import Ending
from mpt_cli.sweep.report import failure_lines
from mpt_cli.telemetry.console import PrintableConsole

THREE = ["conf=digits_mlp", "trainer.batch_size=50"]
TWO = [*THREE, "policy=float32,mixed_float16"]
EACH_BACKEND = [*THREE, "policy=mixed_bfloat16,mixed_float16", "backend=tensorflow,jax"]
EQUAL = [0.95, 0.96, 0.94, 0.97, 0.95]


def spread(*of_float16: float, of_float32=(0.95, 0.96, 0.94), **more):
    return {"float32": of_float32, "mixed_float16": of_float16, **more}


FASTER = {"mixed_float16": 5000.0}
CASES = {
    # of mixed_float16 the mean is -0.002/3, the deviation 0.0015275, t of two degrees of freedom 4.3027: ± 0.0037945;
    # a step is of 50 examples, at 1900 a second
    "one pays, one does not": (
        THREE,
        3,
        {
            "accuracy": spread(0.949, 0.961, 0.938, mixed_bfloat16=[0.951, 0.96, 0.942]),
            "rate": {"float32": 1000.0, "mixed_float16": 250.0, "mixed_bfloat16": 1900.0},
        },
    ),
    "two seeds": (THREE, 2, {}),
    "unclear": (TWO, 3, {"accuracy": spread(0.93, 0.97, 0.92), "rate": FASTER}),
    # logarithms 0.0392, 0.0488, 0.0583: 0.04877 ± 0.0237; then -0.1054, 0.4700, 0.3365: 0.2337 ± 0.7471
    "hardly faster": (TWO, 3, {"accuracy": spread(0.948, 0.957, 0.938), "rate": {"mixed_float16": [1040, 1050, 1060]}}),
    "by turns": (TWO, 3, {"accuracy": spread(0.951, 0.96, 0.942), "rate": {"mixed_float16": [900, 1600, 1400]}}),
    "not every speed": (
        TWO,
        4,
        {"accuracy": spread(0.951, 0.96, 0.942), "rate": {"mixed_float16": [0, 7e3, 8e3, 9e3]}},
    ),
    # differences -0.45, -0.46, -0.45: 0.0057735 / sqrt(3) * 4.3027 = 0.01434
    "worse": (
        TWO,
        3,
        {
            "accuracy": spread(0.5, 0.5, 0.52, of_float32=(0.95, 0.96, 0.97)),
            "rate": FASTER,
            "verdict": {"mixed_float16": "digits lost"},
        },
    ),
    "a failed run": (THREE, None, {"code": {"mixed_float16": 4}, "rate": {"mixed_bfloat16": 3000.0}}),
    "a failed baseline": (THREE, None, {"code": {"float32": 4}}),
    "each backend, without float32": (EACH_BACKEND, None, {}),
    "the same": (TWO, 5, {"accuracy": spread(*EQUAL, of_float32=EQUAL), "rate": FASTER, "tolerance": 0.02}),
}


def said(found):
    stream = io.StringIO()
    print_comparison(found, PrintableConsole(stream))
    return stream.getvalue()


@pytest.mark.slow
def test_what_is_said_of_a_comparison(outcomes):
    text = ""
    for number, (name, (words, seeds, given)) in enumerate(CASES.items()):
        found, code = replace(outcomes, **given).compare([*words, f"compare_dir=c{number}"], seeds=seeds)
        assert code == max(given.get("code", {}).values(), default=0)
        text += f"{name}:\n{said(found)}\n"
    assert_said(text, Path(__file__).with_name("comparisons.txt"))


def cells(found, label: str):
    entry = next(entry for entry in found.entries if entry.label == label)
    return {column.title: column.cell(entry) for column in columns(found)}


@pytest.mark.slow
def test_a_tolerance_that_calls_the_first_epoch_equal_is_said(outcomes):
    outcomes.accuracy = spread(0.951, 0.96, 0.942)
    found, _ = outcomes.compare([*TWO, "compare_dir=c"], seeds=3)
    for epochs in (1, 2):
        for job in found.results:
            (job.run_dir / "metrics.jsonl").write_text(
                '{"step": 1, "epoch_end": true, "val_accuracy": 0.948}\n' * epochs
            )
        words = (
            "0.0100 is more than the 0.0030 by which val_accuracy of mixed_float16 changed after its first epoch, so"
        )
        assert (words in overall_sentence(found)) == (epochs == 2)


@pytest.mark.slow
def test_what_ctrl_c_ended_is_interrupted_and_the_rest_not_run(outcomes):
    found, _ = outcomes.compare(THREE, seeds=2)
    jobs = found.plan.jobs
    found.directory.write_ending(jobs[2], Ending(143, 1.5, "interrupt"))
    for job in (jobs[1], jobs[3], jobs[4]):
        found.directory.ending_json(job).unlink()
    found = read_comparison(found.directory)
    assert cells(found, "mixed_bfloat16")["verdict"] == "1 interrupted, 1 not run"
    assert cells(found, "mixed_float16")["verdict"] == "not run"
    assert failure_lines(found)[0] == "not ended  4 of 6 jobs"


@pytest.mark.slow
def test_a_failed_run_is_run_again_and_jobs_at_the_same_time_are_not_timed_against_each_other(outcomes, tmp_path):
    outcomes.rate, outcomes.code = {"mixed_float16": 5000.0}, {"mixed_float16": 4}
    outcomes.compare([*THREE, "compare_dir=c"], workers=3)
    outcomes.code, outcomes.started = {}, []
    found, code = outcomes.resume(tmp_path / "c")
    assert (found.workers, code, outcomes.started) == (3, 0, ["002-policy-mixed_float16"])
    assert overall_sentence(found).startswith("Speed was not compared, because 3 jobs ran at a time.")
    shown = cells(found, "mixed_float16")
    assert (shown["speed-up"], shown["verdict"]) == ("-", "quality unclear; healthy")


@pytest.mark.slow
def test_a_comparison_is_read_from_its_directory_alone(outcomes, tmp_path):
    outcomes.accuracy, outcomes.rate = spread(0.93, 0.97, 0.92), FASTER
    found, _ = outcomes.compare([*TWO, "compare_dir=c"], seeds=3)
    assert [name[:3] for name in outcomes.started] == ["001", "002", "004", "003", "005", "006"]
    content, verdict = json.loads((tmp_path / "c" / "results.json").read_text()), overall_sentence(found)
    assert content["verdict"] == verdict == overall_sentence(read_comparison(CompareDirectory.open("c")))
    assert content["seeds"] == 3 and verdict in (page := (tmp_path / "c" / "report.html").read_text())
    assert "mpt report c --objective val_accuracy:max" in page
    base, row = content["configurations"]
    assert (base["baseline"], row["baseline"]) == (None, "float32")
    assert row["quality"]["kind"] == "unclear"
    assert row["quality"]["interval"] == pytest.approx([-0.0530, 0.0330], abs=1e-4)
    jobs = [*base["jobs"], *row["jobs"]]
    assert len(jobs) == 6 and all(job["step_seconds"] for job in jobs)
    assert jobs[0]["command"] == "mpt train conf=digits_mlp trainer.batch_size=50 seed=0 policy=float32"
    plan = json.loads(found.directory.plan_json.read_text())
    stranger = [{**plan["setups"][0], "overrides": {"seen": "elsewhere"}}]
    for name, damaged in (
        ("setups", None),
        ("setups", []),
        ("setups", [{"policy": 1}]),
        ("setups", stranger),
        ("tolerance", "much"),
    ):
        found.directory.plan_json.write_text(json.dumps({**plan, name: damaged}))
        with pytest.raises(DataError, match=r"compare\.json is damaged"):
            read_comparison(found.directory)


@pytest.mark.slow
def test_a_comparison_can_be_judged_by_the_best_epoch_and_without_its_metric_the_speed_is_told(outcomes):
    outcomes.compare([*TWO, "compare_dir=c"], seeds=3)
    found = read_comparison(CompareDirectory.open("c"), "best_metrics.val_accuracy")
    assert cells(found, "float32")["best_metrics.val_accuracy"] == "0.6000"
    for job in found.results:
        job.summary["metrics"] = {"con": 0.1}
    found.entries[1].results[0].summary["verdict"] = "not checked"
    sound = [replace(entry, quality=Quality(UNKNOWN)) for entry in found.entries]
    assert overall_sentence(replace(found, entries=sound)) == (
        "No run has best_metrics.val_accuracy, to show its quality. "
        "`mpt report c --objective NAME` judges by another: con:min (or :max). On CPU: mixed_float16 does not pay: "
        "1.01× (0.99× … 1.04×) the speed of float32, its quality unknown (0 of 3 seeds), its verdicts: 2 healthy, 1 "
        "not checked. On a GPU this may differ: compare there."
    )


def test_of_a_script_the_first_training_is_compared_by_what_its_fit_reports(outcomes):
    found, _ = outcomes.compare(["conf=digits_mlp", "policy=float32,mixed_float16"])
    jobs = [replace(job, verb="run") for job in found.plan.jobs]
    found = replace(found, plan=replace(found.plan, jobs=jobs))
    Path(f"{found.results[0].run_dir}-2").mkdir()
    assert overall_sentence(found).startswith("This judges only the first of the trainings or optimizers of")
    assert sentences(found)[-2].startswith("Of a script the first training is compared: a fit by its last epoch")
