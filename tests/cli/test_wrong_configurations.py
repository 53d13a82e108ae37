"""The table of wrong configurations: each exits 2, names its key, shows no traceback and leaves nothing behind."""

from pathlib import Path

import pytest

_CNN = "conf=digits_cnn"

# words after `mpt train`, the key that must be named, and a piece of the remedy ("" where there is none)
_WRONG = [
    # recipes
    ([], "conf", "digits_cnn"),
    (["conf=digits_cn"], "conf", "Did you mean digits_cnn?"),
    (["conf=nothing_like_it"], "conf", "conf=./mine.yaml"),
    (["conf=./nope.yaml"], "conf", "there is no such file"),
    (["conf=digits_cnn.yaml"], "conf", "Did you mean conf=digits_cnn?"),
    (["conf=/"], "conf", "It is a folder."),
    (["conf=digits_cnn", "conf=digits_mlp"], "conf", "given once"),
    ([_CNN, "policy=float32", "policy=mixed_float16"], "policy", "must agree with policy=float32"),
    # words that are no key=value
    (["digits_cnn"], "digits_cnn", "Write conf=digits_cnn."),
    ([_CNN, "policy"], "policy", "form key=value"),
    ([_CNN, "=3"], "=3", "form key=value"),
    ([_CNN, "trainer.epochs"], "trainer.epochs", "form key=value"),
    ([_CNN, "model.filters=[8,"], "model.filters", "cannot be read"),
    ([_CNN, "loss_scale.initial_scale=2^15"], "loss_scale.initial_scale", "2**15"),
    ([_CNN, "data.path={a"], "data.path", "Text with special signs"),
    ([_CNN, "policy@head=float32"], "policy", "without @package"),
    # unknown keys
    ([_CNN, "polcy=float32"], "polcy", "Did you mean policy?"),
    ([_CNN, "trainer.epoch=3"], "trainer.epoch", "Did you mean trainer.epochs?"),
    ([_CNN, "++trainer.epoch=3"], "trainer.epoch", "Did you mean trainer.epochs?"),
    ([_CNN, "learning_rate=1e-3"], "learning_rate", "Did you mean optimizer.learning_rate?"),
    ([_CNN, "optimizer.lr=0.1"], "optimizer.lr", "learning_rate"),
    ([_CNN, "trainer.epochs.first=3"], "trainer.epochs.first", "no keys inside"),
    ([_CNN, "+new.section.key=3"], "new.section.key", ""),
    ([_CNN, "hydra.run.dir=x"], "hydra.run.dir", "run_dir"),
    ([_CNN, "~optimizer.clipnorm"], "optimizer.clipnorm", "cannot be set: Could not delete"),
    ([_CNN, "~policy"], "~policy", "cannot be taken away"),
    # keys of another variant
    ([_CNN, "model=mlp", "model.filters=[8]"], "model.filters", "model=cnn, model=resnet"),
    ([_CNN, "model.heads=3"], "model.heads", "It belongs to model=transformer."),
    ([_CNN, "optimizer=sgd", "optimizer.beta_1=0.5"], "optimizer.beta_1",
     "Write optimizer.kwargs.beta_1: it is an argument of the class."),
    ([_CNN, "optimizer=sgd", "optimizer.kwargs.beta_1=0.5"], "optimizer.kwargs.beta_1", "It has momentum, nesterov"),
    ([_CNN, "optimizer.kwargs={beta1: 0.5}"], "optimizer.kwargs.beta1", "Did you mean beta_1?"),
    ([_CNN, "optimizer.kwargs={learning_rate: 0.5}"], "optimizer.kwargs.learning_rate", "Write optimizer.learning_"),
    ([_CNN, "data.path=x.csv"], "data.path", "data=csv"),
    # unknown choices
    ([_CNN, "policy=mixed_fp16"], "policy", "Did you mean mixed_float16?"),
    ([_CNN, "policy=float8_mixed_float16"], "policy", "must be one of auto_float16, bfloat16"),
    ([_CNN, "policy.head=auto_float16"], "policy.head", "must be one of"),
    ([_CNN, "policy=null"], "policy", "must be one of"),
    ([_CNN, "optimizer=adma"], "optimizer", "Did you mean adam?"),
    ([_CNN, "backend=torch"], "backend", "jax, tensorflow"),
    ([_CNN, "loss_scale.mode=dynmic"], "loss_scale.mode", "Did you mean dynamic?"),
    ([_CNN, "loss_scale.mode=off"], "loss_scale.mode", "auto, dynamic, fixed, logmax, none"),
    ([_CNN, "policy.overrides.conv=half"], "policy.overrides", "mixed_float16"),
    ([_CNN, "trainer.jit_compile=ture"], "trainer.jit_compile", "Did you mean true?"),
    ([_CNN, "model=mlp", "model.name=cnn"], "model.name", "Keep one of the two"),
    # wrong types
    ([_CNN, "trainer.epochs=many"], "trainer.epochs", "whole number"),
    ([_CNN, "trainer.epochs=1.5"], "trainer.epochs", "whole number"),
    ([_CNN, "trainer.epochs=null"], "trainer.epochs", "The default is 10."),
    ([_CNN, "trainer.shuffle=1"], "trainer.shuffle", "true or false"),
    ([_CNN, "optimizer.learning_rate=fast"], "optimizer.learning_rate", "must be a number"),
    ([_CNN, "model.filters=8"], "model.filters", "Write model.filters=[8]."),
    ([_CNN, "model.filters=[8,x]"], "model.filters", "list of whole numbers"),
    ([_CNN, "run_dir=[a]"], "run_dir", "must be text"),
    ([_CNN, "optimizer.schedule=cosine"], "optimizer.schedule", "optimizer.schedule.name=cosine"),
    ([_CNN, "model.builder=a:b", "model.kwargs=3"], "model.kwargs", "Write model.kwargs.NAME=VALUE."),
    ([_CNN, "trainer.epochs=${nope}"], "trainer.epochs", "cannot be resolved"),
    # out of range
    ([_CNN, "trainer.epochs=0"], "trainer.epochs", "must be >= 1"),
    ([_CNN, "seed=-1"], "seed", ">= 0 and <= 4294967295"),
    ([_CNN, "loss_scale.initial_scale=2**130"], "loss_scale.initial_scale", "must be >= 2**-126 and <= 2**127"),
    ([_CNN, "loss_scale.initial_scale=nan"], "loss_scale.initial_scale", "finite"),
    ([_CNN, "loss_scale.backoff_factor=1"], "loss_scale.backoff_factor", "< 1"),
    ([_CNN, "model.filters=[8,0]"], "model.filters", "each >= 1"),
    # missing
    ([_CNN, "model=builder"], "model.builder", "must be given"),
    ([_CNN, "data=csv"], "data.target", "name of the column"),
    # sweeps
    ([_CNN, "seed=0,1,2"], "seed", "mpt sweep"),
    ([_CNN, "loss_scale.initial_scale=range(1,4)"], "loss_scale.initial_scale", "mpt sweep"),
    # combinations (their whole table with exact words: tests/settings/test_combinations.py)
    ([_CNN, "loss_scale.min_scale=8", "loss_scale.max_scale=4"], "loss_scale.min_scale", "max_scale"),
    ([_CNN, "expect.val_accuracy.mn=0.9"], "expect.val_accuracy.mn", "Did you mean min?"),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("words", "key", "remedy"), _WRONG, ids=[" ".join(words) for words, _, _ in _WRONG])
def test_it_exits_2_and_names_the_key(words, key, remedy, mpt) -> None:
    done = mpt("train", *words)
    assert done.code == 2
    assert any(line.removeprefix("mpt train:").strip().startswith(f"{key}") for line in done.err.splitlines()), done.err
    assert remedy in done.err
    assert "Traceback" not in done.err and done.out == ""
    assert list(Path.cwd().iterdir()) == []


def test_all_problems_are_reported_at_once(mpt) -> None:
    words = ["trainer.epochs=0", "polcy=x", "+a.b=1", "seed=1,2", "model.filters=3", "policy=bf16", "data=csv"]
    done = mpt("train", "conf=digits_cnn", *words)
    lines = done.err.splitlines()
    assert lines[0] == "mpt train: 8 problems:"
    assert {line.strip().partition(":")[0] for line in lines[1:]} == {
        "trainer.epochs", "polcy", "a.b", "seed", "model.filters", "policy", "data.path", "data.target",
    }  # fmt: skip
    assert done.code == 2


def test_every_verb_that_takes_a_configuration_refuses_it_alike(mpt) -> None:
    for verb in ("train", "check", "show"):
        done = mpt(verb, "conf=digits_cnn", "trainer.epochs=0")
        assert (done.code, done.out) == (2, "")
        assert done.err == f"mpt {verb}: trainer.epochs: must be >= 1. Received: 0.\n"


@pytest.mark.parametrize("index", [0, 1])
def test_every_task_of_a_slurm_step_refuses_what_only_several_processes_cannot_do(index, mpt, monkeypatch) -> None:
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "2")
    monkeypatch.setenv("SLURM_PROCID", str(index))
    done = mpt("train", _CNN, "backend=jax", "distribute=data_parallel", "trainer.max_rollbacks=3", "seed=null")
    assert (done.code, done.out) == (2, "")
    assert [line.strip().partition(":")[0] for line in done.err.splitlines()[1:]] == ["trainer.max_rollbacks", "seed"]
    assert list(Path.cwd().iterdir()) == []
