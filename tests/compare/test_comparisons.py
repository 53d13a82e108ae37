"""Whole comparisons of stubs, from the words to the verdict."""

import json
from dataclasses import replace

import pytest

from mpt_cli.compare.comparison import CompareDirectory, read_comparison
from mpt_cli.compare.report import columns, overall_sentence, print_comparison, sentences
from mpt_cli.data.sources import load_data
from mpt_cli.errors import DataError
from mpt_cli.jobs.local_processes import Ending
from mpt_cli.settings.model_data_optimizer_keys import Digits
from mpt_cli.sweep.progress import Screen
from mpt_cli.sweep.report import failure_lines

THREE = ["conf=digits_mlp", "compare_dir=c", "trainer.batch_size=50"]


def cells(found, label: str) -> dict[str, str]:
    entry = next(entry for entry in found.entries if entry.label == label)
    return {column.title: column.cell(entry) for column in columns(found)}


SPREAD = {"float32": [0.95, 0.96, 0.94], "mixed_float16": [0.949, 0.961, 0.938], "mixed_bfloat16": [0.951, 0.96, 0.942]}


@pytest.mark.slow
def test_a_faster_precision_of_equal_quality_pays_and_a_slower_one_does_not(outcomes, tmp_path):
    outcomes.accuracy = SPREAD
    outcomes.rate = {"float32": 1000.0, "mixed_float16": 250.0, "mixed_bfloat16": 1900.0}
    found, code = outcomes.compare(THREE, seeds=3)
    assert code == 0 and overall_sentence(found) == "mixed_bfloat16 pays: 1.9× faster, its quality equal in 3 seeds."
    # mean -0.002/3, deviation 0.0015275, t of two degrees of freedom 4.3027: ± 0.0037945
    assert sentences(found)[0].startswith(
        "mixed_float16 does not pay on this device: 0.25× the speed of float32, its quality equal in 3 seeds "
        "(val_accuracy -6.67e-04, 95% interval -0.0045 … +0.0031 over 3 seeds; what happens less often than in most "
        "seeds can't be excluded: --seeds 30 shows what happens in 1 of 10)."
    )
    shown = cells(found, "mixed_bfloat16")
    assert (shown["quality: val_accuracy"], shown["difference"], shown["step"], shown["speed-up"]) == (
        "0.9510", "+0.0010 ± 0.0025", "26.3 ms", "1.9×")  # fmt: skip  # 50 examples at 1900 a second
    assert (shown["skipped"], shown["memory"]) == ("0", "1.0 GiB")
    assert shown["verdict"] == "equal in 3 seeds, faster; healthy"
    assert cells(found, "float32")["verdict"] == "baseline; healthy"


@pytest.mark.slow
def test_seeds_that_show_neither_say_how_many_would(outcomes, tmp_path):
    outcomes.accuracy = {"float32": [0.95, 0.96, 0.94], "mixed_float16": [0.93, 0.97, 0.92]}
    outcomes.rate = {"mixed_float16": 5000.0}
    found, _ = outcomes.compare(["conf=digits_mlp", "policy=float32,mixed_float16", "compare_dir=c"], seeds=3)
    told = "about 26 would tell (--seeds 26)"
    assert overall_sentence(found) == f"mixed_float16 is 5.0× faster, its quality unclear in 3 seeds: {told}."
    shown = f"unclear in 3 seeds (val_accuracy -0.0100, 95% interval -0.0530 … +0.0330 over 3 seeds; {told})"
    assert shown in sentences(found)[0]
    [row] = json.loads((tmp_path / "c" / "results.json").read_text())["configurations"][1:]
    assert row["quality"]["kind"] == "unclear" and row["quality"]["seeds_to_decide"] == 26
    assert row["quality"]["interval"] == pytest.approx([-0.0530, 0.0330], abs=1e-4)
    assert told in (tmp_path / "c" / "report.html").read_text()


@pytest.mark.slow
def test_a_failed_run_stands_in_the_table_and_the_rest_is_compared(outcomes, tmp_path):
    outcomes.code = {"mixed_float16": 4}
    outcomes.rate = {"mixed_bfloat16": 3000.0}
    found, code = outcomes.compare(THREE)
    assert code == 4 and cells(found, "mixed_float16")["verdict"] == "failed: healthy"
    assert "mixed_float16 did not finish: All went well." in sentences(found)
    assert cells(found, "mixed_bfloat16")["speed-up"] == "3.0× ± ?"
    assert overall_sentence(found) == (
        "One run of each is no proof: mixed_bfloat16 had 3.0× the speed of float32. Quality "
        "against the baseline: mixed_bfloat16 unclear in one seed. --seeds 3 can tell."
    )
    assert sentences(found)[1].startswith("mixed_bfloat16: 3.0× the speed of float32 in one timing of each, which is")
    outcomes.code, outcomes.started = {}, []
    found, code = outcomes.resume(tmp_path / "c")
    assert code == 0 and [name[:3] for name in outcomes.started] == ["002"]


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
    assert sentences(found)[:2] == [
        "mixed_float16 was not run.",
        "mixed_bfloat16 did not finish: it was interrupted",
    ]
    assert failure_lines(found)[0] == "not ended  4 of 6 jobs"


@pytest.mark.slow
def test_without_its_baseline_nothing_is_compared(outcomes):
    outcomes.code = {"float32": 4}
    found, code = outcomes.compare(THREE)
    assert code == 4 and overall_sentence(found) == "Nothing can be compared: float32 did not finish."
    assert "mixed_float16 can't be compared: float32 did not finish." in sentences(found)


@pytest.mark.slow
def test_worse_quality_never_pays(outcomes):
    outcomes.accuracy = {"float32": [0.95, 0.96, 0.97], "mixed_float16": [0.5, 0.51, 0.52]}
    outcomes.accuracy["mixed_float16"][1] = 0.5
    outcomes.rate = {"mixed_float16": 5000.0}
    found, _ = outcomes.compare(["conf=digits_mlp", "policy=float32,mixed_float16"], seeds=3)
    assert overall_sentence(found).startswith(
        "Not worth it on this device: mixed_float16, none is faster at equal quality."
    )
    # differences -0.45, -0.46, -0.45: 0.0057735 / sqrt(3) * 4.3027 = 0.01434
    assert sentences(found)[0] == (
        "mixed_float16 is faster, but is not shown to be as good: 5.0× the speed of float32, "
        "its quality worse (val_accuracy -0.4533, 95% interval -0.4677 … -0.4390 over 3 "
        "seeds)."
    )


@pytest.mark.slow
def test_each_backend_has_a_baseline_of_its_own_the_first_without_float32_which_is_said(outcomes):
    found, _ = outcomes.compare(["conf=digits_mlp", "policy=mixed_bfloat16,mixed_float16", "backend=tensorflow,jax"])
    baselines = {entry.label: entry.baseline.label for entry in found.compared if entry.baseline}
    assert baselines == {
        "mixed_float16, backend tensorflow": "mixed_bfloat16, backend tensorflow",
        "mixed_float16, backend jax": "mixed_bfloat16, backend jax",
    }
    assert any("There is no float32 among them" in sentence for sentence in sentences(found))


@pytest.mark.slow
def test_jobs_at_the_same_time_are_not_timed_against_each_other_also_when_resumed(outcomes, tmp_path):
    outcomes.rate, outcomes.code = {"mixed_float16": 5000.0}, {"mixed_float16": 4}
    outcomes.compare(THREE, workers=3)
    outcomes.code = {}
    found, _ = outcomes.resume(tmp_path / "c")
    assert found.workers == 3
    assert overall_sentence(found).startswith("Speed was not compared, as jobs ran 3 at a time. Quality against the")
    assert cells(found, "mixed_float16")["verdict"] == "unclear in one seed; healthy"


@pytest.mark.slow
def test_a_comparison_is_shown_in_plain_lines_and_read_from_its_directory_alone(outcomes, tmp_path):
    found, _ = outcomes.compare(THREE, seeds=2)
    assert [name[:3] for name in outcomes.started] == ["001", "002", "003", "006", "005", "004"]
    assert any("2 seeds can't tell; --seeds 3 or more may." in line for line in sentences(found))
    with (tmp_path / "out").open("w") as stream:
        print_comparison(found, Screen(stream))
    lines = (tmp_path / "out").read_text().splitlines()
    assert lines[0].startswith("precision        seeds  quality: val_accuracy   difference") and lines[4] == ""
    assert lines[5] == overall_sentence(found) and lines[-1] == "files      c/report.html"
    content = json.loads((tmp_path / "c" / "results.json").read_text())
    assert content["verdict"] == overall_sentence(read_comparison(CompareDirectory.open("c"))) and content["seeds"] == 2
    assert [row["baseline"] for row in content["configurations"]] == [None, "float32", "float32"]
    rows = [job for entry in content["configurations"] for job in entry["jobs"]]
    assert len(rows) == 6 and all(row["step_seconds"] for row in rows)
    assert rows[0]["command"] == "mpt train conf=digits_mlp trainer.batch_size=50 seed=0 policy=float32"
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
def test_seeds_that_agree_are_the_same_and_few_examples_are_counted(outcomes):
    outcomes.rate = {"mixed_float16": 5000.0}
    outcomes.accuracy = {"float32": [0.95, 0.96, 0.94, 0.97, 0.95], "mixed_float16": [0.95, 0.96, 0.94, 0.97, 0.95]}
    words = ["conf=digits_mlp", "policy=float32,mixed_float16"]
    found, _ = outcomes.compare(words, seeds=5)
    not_excluded = "what happens less often than about 3 in 5 can't be excluded"
    assert overall_sentence(found) == (
        "mixed_float16 is 5.0× faster, its quality the same in 5 seeds: "
        f"{not_excluded}: --seeds 30 shows what happens in 1 of 10."
    )
    assert not_excluded in sentences(found)[0]
    assert cells(found, "mixed_float16")["verdict"] == "the same in 5 seeds, faster; healthy"
    outcomes.examples = 40
    outcomes.accuracy = {"float32": [0.95, 0.96, 0.94], "mixed_float16": [0.949, 0.961, 0.938]}
    found, _ = outcomes.compare(words, seeds=3)
    assert "can't be excluded, nor an effect on fewer than about 3 in 40 examples: --seeds 30" in sentences(found)[0]
    outcomes.accuracy["mixed_float16"] = [0.9, 0.99, 0.99]
    found, _ = outcomes.compare(words, seeds=3)
    assert "an effect on fewer than about 3 in 40 examples can't be excluded" in sentences(found)[0]


def test_a_data_set_knows_how_many_it_is_validated_on():
    assert load_data(Digits(), seed=0).counts == {"train": 1438, "validation": 359}


def test_of_a_script_the_first_training_is_compared_by_what_its_fit_reports(outcomes):
    found, _ = outcomes.compare(["conf=digits_mlp", "policy=float32,mixed_float16"])
    jobs = [replace(job, verb="run") for job in found.plan.jobs]
    found = replace(found, plan=replace(found.plan, jobs=jobs))
    by = "Quality is val_accuracy, as the script's fit reports it; --objective NAME judges by another of its metrics."
    assert sentences(found)[-1] == by
    first = found.results[0].run_dir
    first.with_name(f"{first.name}-2").mkdir()
    assert sentences(found)[-2:] == ["The script trains several times; only its first training is compared.", by]
