"""The table of wrong configurations: each exits 2, names its key, shows no traceback and leaves nothing behind."""

from pathlib import Path

import pytest

_CNN = "conf=digits_cnn"

# words after `mpt train`, the key that must be named, and a piece of the remedy ("" where there is none)
_WRONG = [
    # recipes
    ([], "conf", "digits_cnn"),
    (["conf=digits_cn"], "conf", "Did you mean digits_cnn?"),
    (["conf=digits_cnn.yaml"], "conf", "Did you mean conf=digits_cnn?"),
    (["conf=digits_cnn", "conf=digits_mlp"], "conf", "given once"),
    # words that are no key=value
    (["digits_cnn"], "digits_cnn", "Write conf=digits_cnn."),
    ([_CNN, "=3"], "=3", "form key=value"),
    ([_CNN, "loss_scale.initial_scale=2^15"], "loss_scale.initial_scale", "2**15"),
    ([_CNN, "data.path={a"], "data.path", "Text with special signs"),
    ([_CNN, "policy@head=float32"], "policy", "without @package"),
    # unknown keys
    ([_CNN, "polcy=float32"], "polcy", "Did you mean policy?"),
    ([_CNN, "trainer.epoch=3"], "trainer.epoch", "Did you mean trainer.epochs?"),
    ([_CNN, "learning_rate=1e-3"], "learning_rate", "Did you mean optimizer.learning_rate?"),
    ([_CNN, "trainer.epochs.first=3"], "trainer.epochs.first", "no keys inside"),
    ([_CNN, "+new.section.key=3"], "new.section.key", ""),
    ([_CNN, "~policy"], "~policy", "cannot be taken away"),
    # keys of another variant
    ([_CNN, "optimizer=sgd", "optimizer.beta_1=0.5"], "optimizer.beta_1",
     "Write optimizer.kwargs.beta_1: it is an argument of the class."),
    ([_CNN, "optimizer=sgd", "optimizer.kwargs.beta_1=0.5"], "optimizer.kwargs.beta_1", "It has momentum, nesterov"),
    ([_CNN, "optimizer.kwargs={beta1: 0.5}"], "optimizer.kwargs.beta1", "Did you mean beta_1?"),
    ([_CNN, "optimizer.kwargs={learning_rate: 0.5}"], "optimizer.kwargs.learning_rate", "Write optimizer.learning_"),
    # unknown choices
    ([_CNN, "policy=mixed_fp16"], "policy", "Did you mean mixed_float16?"),
    ([_CNN, "loss_scale.mode=off"], "loss_scale.mode", "auto, dynamic, fixed, logmax, none"),
    ([_CNN, "policy.overrides.conv=half"], "policy.overrides", "mixed_float16"),
    ([_CNN, "trainer.jit_compile=ture"], "trainer.jit_compile", "Did you mean true?"),
    # wrong types
    ([_CNN, "trainer.shuffle=1"], "trainer.shuffle", "true or false"),
    ([_CNN, "model.filters=8"], "model.filters", "Write model.filters=[8]."),
    ([_CNN, "model.builder=a:b", "model.kwargs=3"], "model.kwargs", "Write model.kwargs.NAME=VALUE."),
    # out of range
    ([_CNN, "loss_scale.initial_scale=2**130"], "loss_scale.initial_scale", "must be >= 2**-126 and <= 2**127"),
    ([_CNN, "loss_scale.backoff_factor=1"], "loss_scale.backoff_factor", "< 1"),
    ([_CNN, "model.filters=[8,0]"], "model.filters", "each >= 1"),
    # missing
    ([_CNN, "model=builder"], "model.builder", "must be given"),
    ([_CNN, "data=csv"], "data.target", "name of the column"),
    # sweeps
    ([_CNN, "seed=0,1,2"], "seed", "mpt sweep"),
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
    for verb in ("check", "show"):
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
