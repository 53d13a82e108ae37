"""The space of a search: what is read from the words, what can't be searched, and that all of it can be tried."""

import pytest
from test_search import RATE

from mpt_cli.cli import main
from mpt_cli.sweep.overrides import read_space
from mpt_cli.sweep.plan import Search
from mpt_cli.sweep.search import OptunaStudy

LOG_RANGE = "trainer.batch_size=tag(log,range(16,257,16))"


def test_the_space_in_the_grammar_of_hydra():
    words = ["conf=digits_mlp", "a=interval(2**-3,2**4)", "b=tag(log,int(interval(1,64)))", "c=choice(x,y)",
             "d=range(0,10,5)", "e=2**range(8,25,8)", "f=3,4", "g=range(0.5,1.6,0.5)", "h=1"]  # fmt: skip
    space = read_space(words)
    assert space.fixed == ["conf=digits_mlp", "h=1"]
    assert [str(dimension) for dimension in space.dimensions] == [
        "0.125 … 16", "1 … 64, on a log scale", "x, y", "0, 5", "2**8, 2**16, 2**24", "3, 4", "0.5, 1.0, 1.5",
    ]  # fmt: skip
    assert space.overrides({"a": 0.5, "b": 7, "c": "x", "d": "5", "e": "2**16", "f": "3", "g": "1.0"})["b"] == "7"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["seed=int(interval(0,9))"], "seed: must not be searched: a search would settle on a lucky one."),
        ([RATE, "seed=0,1,0"], "seed: must name each seed once. Received: '0,1,0'."),
        ([RATE, "seed=0,-1"], "seed: must be >= 0 and <= 4294967295. Received: -1."),
        ([RATE, "seed=0,1", "--pruner", "asha"], "--pruner: must be left out with several seeds"),
        ([], "--trials: must have something to vary."),
        (["optimizer.learning_rate=interval(1e-1,1e-4)"], "learning_rate: must go from a smaller to a larger number."),
        (["optimizer.learning_rate=interval(-1,1e-4)"], "optimizer.learning_rate: must be >"),
        (["loss_scale.initial_scale=2**interval(8,24)"], "a whole exponent. Received: '2**interval(8,24)'."),
        (["optimizer.name=adam,adma"], "adma"),
        ([RATE, "data=npz", "data.path=nowhere.npz"], "data.path: there is no file nowhere.npz."),
        ([RATE, "--sampler-seed", "1", "--resume", "s"], "--sampler-seed: is for a new search"),
        ([RATE, "--trials", "0"], "--trials: must be >= 1. Received: 0."),
        ([LOG_RANGE], "trainer.batch_size: must be an interval to be on a log scale: a range has equal steps."),
    ],
)  # fmt: skip
def test_what_can_not_be_searched_is_said_before_anything_starts(tmp_path, monkeypatch, capsys, words, message):
    monkeypatch.chdir(tmp_path)
    assert main(["sweep", "conf=digits_mlp", "--trials", "3", *words]) == (3 if "data=npz" in words else 2)
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_range_of_real_numbers_is_searched_to_its_end(tmp_path):
    space = read_space(["optimizer.learning_rate=range(0.001,0.01,0.003)", "optimizer.name=adam,sgd"])
    study = OptunaStudy(tmp_path / "journal", space, Search(6, "random"))
    found = [tuple(space.overrides(values).values()) for job in range(1, 7) if (values := study.propose(job))]
    assert sorted(found) == [(rate, name) for rate in ("0.001", "0.004", "0.007") for name in ("adam", "sgd")]
