"""The space of a search: what is read from the words, what can't be searched, and that all of it can be tried."""

from mpt_cli.sweep.overrides import read_space


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
    assert [str(dimension) for dimension in space.dimensions] == [
        "0.125 … 16",
        "1 … 64, on a log scale",
        "x, y",
        "0, 5",
        "2**8, 2**16, 2**24",
        "3, 4",
        "0.5, 1.0, 1.5",
    ]
    assert space.overrides({"a": 0.5, "b": 7, "c": "x", "d": "5", "e": "2**16", "f": "3", "g": "1.0"})["b"] == "7"
