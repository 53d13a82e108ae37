"""Examples and streams, apart from where they come from."""

import numpy as np

from mpt_cli.data.examples import Examples, leaves


def test_take_picks_the_same_rows_of_inputs_targets_and_weights():
    examples = Examples((np.arange(4), np.arange(4) * 10), np.arange(4) * 100, np.arange(4) / 2)
    taken = examples.take(np.array([3, 1]))
    assert [part.tolist() for part in (*taken.x, taken.y, taken.sample_weight)] == [[3, 1], [30, 10], [300, 100],
                                                                                    [1.5, 0.5]]  # fmt: skip
    assert (len(examples), len(taken)) == (4, 2)


def test_take_of_a_slice_copies_nothing():
    x = np.arange(6)
    assert np.shares_memory(Examples(x, x).take(slice(2, 4)).x, x)


def test_leaves_are_named_as_one_would_write_them():
    assert [name for name, _ in leaves({"a": 1, "b": (2, 3)}, "x")] == ["x['a']", "x['b'][0]", "x['b'][1]"]
