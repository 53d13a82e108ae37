"""The space of a search: what is read from the words, what can't be searched, and that all of it can be tried."""

import pytest
from optuna.distributions import FloatDistribution, IntDistribution

from mpt_cli.errors import ConfigError
from mpt_cli.sweep.search import read_space


def test_the_space_in_the_grammar_of_hydra():
    words = [
        "conf=digits_mlp",
        "a=interval(2**-3,2**4)",
        "b=tag(log,int(interval(1,64)))",
        "c=choice(x,y)",
        "d=range(0,10,5)",
        "e=2**range(8,25,8)",
        "f=3,4",
        "g=range(0.5,1.6,0.5)",
        "h=1",
    ]
    space = read_space(words)
    assert space.fixed == ["conf=digits_mlp", "h=1"]
    found = {key: axis._asdict() for key, axis in space.axes.items()}
    assert found == {
        "a": {"low": 0.125, "high": 16.0, "log": False, "step": None},
        "b": {"low": 1, "high": 64, "log": True, "step": 1},
        "c": {"choices": ("x", "y")},
        "d": {"choices": ("0", "5")},
        "e": {"choices": ("2**8", "2**16", "2**24")},
        "f": {"choices": ("3", "4")},
        "g": {"choices": ("0.5", "1.0", "1.5")},
    }
    assert [words[2:6] for words in space.edges] == [
        ["a=0.125", "b=1", "c=x", "d=0"],
        ["a=16", "b=64", "c=y", "d=5"],
        ["a=16", "b=64", "c=y", "d=5"],
    ]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["a=interval(2,1)"],
            "a: must be interval(SMALLER,LARGER), both > 0 on a log scale; its only tag is log.",
        ),
        (["a=tag(log,interval(0,1))"], "a: must be interval(SMALLER,LARGER), both > 0 on a log scale"),
        (["a=tag(lgo,interval(1,2))"], "its only tag is log. Received: 'tag(lgo,interval(1,2))'."),
        (["a=interval(0,inf)"], "a: must be interval(SMALLER,LARGER)"),
        (["a=1,2", "a=interval(1,2)"], "a: must be given once in a search."),
        (["seed=1,2", "a=1,2"], "seed: must not be searched: a search would choose a lucky seed. Give one"),
        (["seed=interval(1,2)", "a=1,2"], "seed: must not be searched: a search would choose a lucky seed."),
    ],
)
def test_what_cannot_be_searched_is_said(words, said):
    with pytest.raises(ConfigError) as caught:
        read_space(words)
    assert said in str(caught.value)


def test_an_interval_of_a_key_of_whole_numbers_has_whole_numbers():
    axes = read_space(["loss_scale.growth_steps=tag(log,interval(0.5,50))"]).axes
    assert axes["loss_scale.growth_steps"] == IntDistribution(1, 50, log=True)
    axes = read_space(["loss_scale.growth_steps=interval(5,50)", "optimizer.learning_rate=interval(1,2)"]).axes
    assert axes["loss_scale.growth_steps"] == IntDistribution(5, 50)
    assert axes["optimizer.learning_rate"] == FloatDistribution(1.0, 2.0)
