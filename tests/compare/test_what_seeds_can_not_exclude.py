"""Runs that agree are no proof: what is rare was not seen, in seeds as in examples."""

import pytest

from mpt_cli.compare.comparison import compare_quality
from mpt_cli.compare.report import entry_verdict, overall, sentences
from mpt_cli.data.load import load_data
from mpt_cli.settings.variants import Digits
from mpt_cli.sweep.plan import Objective

ACCURACY, LOSS = Objective("val_accuracy", falls=False), Objective("val_loss", falls=True)


@pytest.mark.parametrize("pairs", [[(0.97, 0.97)] * 5, [(0.971, 0.971), (0.973, 0.973), (0.94, 0.94)]])
def test_runs_that_agree_are_the_same_and_not_equal(pairs):
    found = compare_quality(ACCURACY, pairs)
    assert (found.kind, found.seeds) == ("the same", len(pairs))


@pytest.mark.parametrize(("examples", "tolerance", "kind"), [
    (359, None, "equal"), (299, None, "unclear"), (299, 0.02, "equal"), (None, None, "equal"),
])  # fmt: skip
def test_a_share_of_examples_is_equal_only_within_what_so_many_can_exclude(examples, tolerance, kind):
    """3 in 300 is a percentage point."""
    pairs = [(0.960, 0.958), (0.950, 0.955), (0.955, 0.9545), (0.957, 0.953), (0.96, 0.963), (0.95, 0.951)] * 2
    assert compare_quality(ACCURACY, pairs, tolerance, examples=examples).kind == kind


def test_a_data_set_knows_how_many_it_is_validated_on():
    assert load_data(Digits(), seed=0).counts == {"train": 1438, "validation": 359}


def test_an_example_more_or_less_is_the_same():
    pairs = [(18 / 20, 19 / 20), (17 / 20, 17 / 20), (0.9, 0.85), (0.9, 0.9)]
    assert compare_quality(ACCURACY, pairs, examples=20).kind == "the same"
    for other in (LOSS, Objective("val_auc", falls=False)):  # which do not count them
        assert compare_quality(other, pairs, examples=20).kind == "unclear"


def test_the_same_loss_to_the_digits_of_float32_is_the_same():
    assert compare_quality(LOSS, [(0.5, 0.5), (0.25, 0.25000001)]).kind == "the same"


def test_two_seeds_show_nothing_but_sameness():
    found = compare_quality(LOSS, [(1.0, 0.9), (1.0, 1.9)])
    assert (found.kind, found.interval, found.seeds_to_decide) == ("unclear", None, None)


@pytest.mark.slow
def test_a_comparison_says_what_its_seeds_can_not_exclude_and_how_many_would(outcomes):
    outcomes.rate = {"mixed_float16": 5000.0}
    outcomes.accuracy = {"float32": [0.95, 0.96, 0.94, 0.97, 0.95], "mixed_float16": [0.95, 0.96, 0.94, 0.97, 0.95]}
    words = ["conf=digits_mlp", "policy=float32,mixed_float16", "compare_dir=c"]
    found, _ = outcomes.compare(words, seeds=5)
    not_excluded = "what happens less often than about 3 in 5 can't be excluded"
    assert overall(found) == ("mixed_float16 is 5.0× faster and the same in 5 seeds; "
                              f"{not_excluded}: --seeds 30 shows what happens in 1 of 10.")  # fmt: skip
    assert not_excluded in sentences(found)[0]
    assert entry_verdict(found, found.entries[1]) == "the same in 5 seeds, faster; healthy"


@pytest.mark.slow
def test_equal_names_its_seeds_and_few_examples_are_counted(outcomes):
    outcomes.accuracy = {"float32": [0.95, 0.96, 0.94], "mixed_float16": [0.949, 0.961, 0.938]}
    outcomes.examples = 40
    words = ["conf=digits_mlp", "policy=float32,mixed_float16", "compare_dir=c"]
    found, _ = outcomes.compare(words, seeds=3)
    assert entry_verdict(found, found.entries[1]).startswith("the same in 3 seeds")
    assert "can't be excluded, nor what concerns fewer than about 3 in 40 examples: --seeds 30" in sentences(found)[0]
    outcomes.accuracy["mixed_float16"] = [0.9, 0.99, 0.99]
    found, _ = outcomes.compare([*words[:2], "compare_dir=d"], seeds=3)
    assert "what concerns fewer than about 3 in 40 examples can't be excluded" in sentences(found)[0]
