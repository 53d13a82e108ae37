import pytest
from command import mpt

from mpt_cli.cli import main
from mpt_cli.runs.expectations import applicable_expectations, check_expectations, expectation_lines
from mpt_cli.settings.overrides import keys_given

SUMMARY = {
    "status": "finished",
    "verdict": "warm-up skips only",
    "skipped_steps": 3,
    "final_loss_scale": None,
    "metrics": {"val_accuracy": 0.97, "val_loss": "NaN", "loss": 0.5, "of_20": 0.949999988079071, "huge": 1e300},
    "best_metrics": {"val_accuracy": 0.98},
}
CASES = [
    ("val_accuracy", {"min": 0.97}, True, "at least 0.97"),
    ("val_accuracy", {"min": 0.971}, False, "at least 0.971"),
    ("val_accuracy", {"min": 0.9, "max": 0.96}, False, "at least 0.9, at most 0.96"),
    ("loss", {"value": 0.25, "atol": 0.25}, True, "0.25 ± 0.25"),
    ("loss", {"value": 0.52, "rtol": 0.03, "atol": 0.005}, True, "0.52 ± 0.005 ± 3 %"),
    ("loss", {"value": 0.52, "rtol": 0.02, "atol": 0.005}, False, "0.52 ± 0.005 ± 2 %"),
    ("skipped_steps", 3, True, "exactly 3"),
    ("skipped_steps", 4, False, "exactly 4"),
    ("best_metrics.val_accuracy", {"min": 0.98}, True, "at least 0.98"),
    ("verdict", "warm-up skips only", True, "warm-up skips only"),
    ("verdict", ["healthy", "warm-up skips only"], True, "one of healthy, warm-up skips only"),
    ("val_loss", {"min": -1e9}, False, "at least -1e+09"),
    ("final_loss_scale", {"min": 1}, False, "at least 1"),
    ("of_20", {"min": 0.95}, True, "at least 0.95"),  # 19 of 20, in float32
    ("of_20", 0.95, True, "exactly 0.95"),
    ("of_20", {"value": 1.0, "atol": 0.05}, True, "1 ± 0.05"),
    ("of_20", 0.9499999284744263, False, "exactly 0.95"),  # the float32 before it: runs are compared bit for bit
    ("huge", {"min": 1e301}, False, "at least 1e+301"),  # no float32
]


def test_an_expectation_is_met_or_missed():
    for name, wanted, passed, words in CASES:
        (check,) = check_expectations(SUMMARY, {name: wanted})
        assert (check.passed, check.expected) == (passed, words)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("val_acuracy", "Did you mean val_accuracy?"),
        ("val_rmse", "Its metrics are val_accuracy, val_loss, loss, of_20, huge."),
    ],
)
def test_a_metric_that_the_run_did_not_report_is_named_with_those_it_has(name, hint):
    (check,) = check_expectations(SUMMARY, {name: 1})
    assert (check.passed, check.got, check.got_text) == (False, None, "not reported")
    assert str(check) == f"MISS {name}: expected exactly 1, but the run reported no {name}. {hint}"


def test_a_value_of_the_run_that_is_null_is_not_one_that_is_missing():
    (check,) = check_expectations(SUMMARY, {"final_loss_scale": 1})
    assert (check.got_text, check.unreported) == ("nothing", "")


def test_expectations_are_about_the_recipes_own_settings(capsys):
    for words, is_kept in (
        (["run_dir=a", "seed=3", "backend=jax", "logger.console=quiet"], True),
        (["expect.val_loss.max=0.5"], True),
        (["+trainer.max_steps=3"], False),
        (["~trainer.epochs"], False),
        (["optimizer=sgd", "seed=3"], False),
    ):
        keys = keys_given(["mpt", "train", "conf=digits_mlp", *words])
        assert applicable_expectations({"steps_seen": 345}, keys) == ({"steps_seen": 345} if is_kept else {})
    assert main(["check", "--show", "conf=digits_mlp", "trainer.epochs=3"]) == 0
    assert "\nexpect: {}\n" in capsys.readouterr().out


def test_the_end_of_a_run_says_in_one_line_that_all_is_met_and_names_each_that_is_missed():
    summary = {"metrics": {"val_accuracy": 0.97}, "skipped_steps": 0}
    assert expectation_lines(summary, {"val_accuracy": {"min": 0.9}, "skipped_steps": 0}) == [
        "expectations of the recipe: 2 of 2 met"
    ]
    assert expectation_lines(summary, {}) == []
    assert expectation_lines(summary, {"val_accuracy": {"min": 0.98}, "skipped_steps": 0}) == [
        "1 of 2 expectations of the recipe not met:",
        "MISS val_accuracy: expected at least 0.98, got 0.97",
    ]


NET = """
import keras


def build(input_shape, num_classes):
    return keras.Sequential([keras.Input(input_shape), keras.layers.Flatten(), keras.layers.Dense(num_classes)])


def closeness(y_true, y_pred):
    return keras.ops.max(y_pred, axis=-1)
"""


@pytest.mark.slow
def test_what_a_model_of_ones_own_does_not_report_is_found_where_it_is_built(tmp_path):
    (tmp_path / "net.py").write_text(NET)
    (tmp_path / "mine.yaml").write_text(
        "defaults: [{data: digits}]\nmodel: {builder: 'net.py:build'}\ntrainer: {metrics: ['net.py:closeness']}\n"
        "expect: {val_closenes: {min: 0}, closeness: {min: 0}, steps_sen: 3, best_metrics.val_loss: {max: 9}}\n"
    )
    wrong = mpt(
        "check",
        "conf=mine.yaml",
        "+expect.val_loss={min: 0, rtol: -1}",
        cwd=tmp_path,
    )
    for said in (
        "expect.val_loss.rtol: must stand beside expect.val_loss.value.",
        "expect.val_loss.rtol: must be >= 0.",
    ):
        assert said in wrong.stderr
    assert mpt("check", "conf=mine.yaml", cwd=tmp_path).returncode == 0  # which imports nothing
    done = mpt("check", "conf=mine.yaml", "--build", cwd=tmp_path)
    assert done.returncode == 2 and "closeness: no" not in done.stderr
    rule = "no run of this recipe reports it. Did you mean"
    assert f"expect.val_closenes: {rule} val_closeness?" in done.stderr
    assert f"expect.steps_sen: {rule} steps_seen?" in done.stderr and "expect.best_metrics" not in done.stderr
