"""Which runs a comparison has, and in which order."""

import pytest

from mpt_cli.compare.comparison import make_comparison

TWO = "policy=float32,mixed_float16"


def order(words, seeds=None):
    plan, _ = make_comparison(["conf=digits_mlp", *words], seeds)
    return [(job.overrides["policy"], job.overrides.get("seed", "")) for job in plan.jobs]


@pytest.mark.slow
def test_each_seed_is_a_round_and_every_other_round_runs_backwards():
    assert order([TWO, "seed=7"], seeds=3) == [
        ("float32", "7"),
        ("mixed_float16", "7"),
        ("mixed_float16", "8"),
        ("float32", "8"),
        ("float32", "9"),
        ("mixed_float16", "9"),
    ]
    assert order([TWO, "seed=4,9"])[-1] == ("float32", "9")
    assert [policy for policy, _ in order([])] == ["float32", "mixed_float16", "mixed_bfloat16"]


@pytest.mark.slow
def test_all_runs_have_the_same_seed_also_where_it_is_drawn():
    plan, _ = make_comparison(["conf=digits_mlp", TWO, "seed=null"], None)
    [seed] = {word for job in plan.jobs for word in job.words if word.startswith("seed=")}
    assert seed != "seed=null"
