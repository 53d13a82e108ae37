"""Hydra's sweep grammar over our keys."""

import pytest

from mpt_cli.sweep.overrides import read_grid


@pytest.mark.parametrize(
    ("word", "words"),
    [
        (
            "loss_scale.initial_scale=2**8,2**15,2**24",
            ["loss_scale.initial_scale=2**8", "loss_scale.initial_scale=2**15", "loss_scale.initial_scale=2**24"],
        ),
        ("seed=range(3)", ["seed=0", "seed=1", "seed=2"]),
        (
            "loss_scale.initial_scale=range(2**8,2**9,2**7)",
            ["loss_scale.initial_scale=256", "loss_scale.initial_scale=384"],
        ),
        (
            "loss_scale.initial_scale=2**range(4,25,10)",
            ["loss_scale.initial_scale=2**4", "loss_scale.initial_scale=2**14", "loss_scale.initial_scale=2**24"],
        ),
        (
            "++optimizer.learning_rate=choice(1e-3,0.01)",
            ["++optimizer.learning_rate=0.001", "++optimizer.learning_rate=0.01"],
        ),
        ("model.hidden_units=[64],[128,64]", ["model.hidden_units=[64]", "model.hidden_units=[128,64]"]),
        ("policy=glob(mixed_*)", ["policy=mixed_bfloat16", "policy=mixed_float16"]),
        ("policy=glob([mixed_*,float32],exclude=*b*)", ["policy=float32", "policy=mixed_float16"]),
        ("loss_scale.mode=glob(f*)", ["loss_scale.mode=fixed"]),
        ("conf=glob(digits_mlp)", ["conf=digits_mlp"]),
        ("conf=a.yaml,dir/b.yaml", ["conf=a.yaml", "conf=dir/b.yaml"]),
        ("data.path='a,b.csv'", ["data.path='a,b.csv'"]),
        ("~fault.at_steps", ["~fault.at_steps"]),
    ],
)
def test_a_word_becomes_its_values(word, words):
    grid = read_grid([word])
    assert (grid.axes, grid.problems) == ([words], [])


def test_the_files_of_a_group_of_the_projects_are_matched_where_the_recipe_lies(tmp_path):
    (group := tmp_path / "conf" / "experiment").mkdir(parents=True)
    for name in ("small", "large"):
        (group / f"{name}.yaml").write_text("# @package _global_\nseed: 3\n")
    (recipe := tmp_path / "mine.yaml").write_text("seed: 1\n")
    grid = read_grid([f"conf={recipe}", "experiment=glob(*)"])
    assert (grid.axes[1:], grid.problems) == ([["experiment=large", "experiment=small"]], [])


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["a=interval(1,2)"], "a: must be a list of values; interval() only works in a search."),
        (
            ["policy=glob(x*)"],
            "policy: glob() must match a recipe (conf) or a file of a group, here of: auto_float16, bfl",
        ),
        (["seed=glob(*)"], "seed: glob() must match a recipe (conf) or a file of a group, here of: none."),
        (["run_dir=a,b"], "run_dir: must be left out: each job gets a directory of its own inside sweep_dir."),
        (["resume=auto"], "resume: must be left out: `mpt sweep --resume SWEEP_DIR` continues a sweep."),
        (["seed=1,2", "seed=3"], "seed: must be given once in a sweep."),
        (["policy=float32,glob(mixed_*)"], "policy: glob() must be the whole value: glob([NAME,OTHER*])."),
        (["seed=range(2,2)"], "seed: must have at least one value."),
    ],
)
def test_what_cannot_be_swept_is_a_problem(words, problem):
    assert problem in "\n".join(map(str, read_grid(words).problems))
