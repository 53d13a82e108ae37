"""Drawing, splitting and describing arrays."""

import numpy as np
import pytest

from mpt_cli.data.examples import Examples, draw_examples, split_examples
from mpt_cli.data.prepare_data_set import RawArrays, build_data_set
from mpt_cli.errors import DataError
from mpt_cli.settings.model_data_optimizer_keys import DataSettings


def numbered(count):
    return Examples(np.arange(count)[:, None].astype(np.float32), np.arange(count) % 2)


def rows(examples):
    return examples.x[:, 0].astype(int).tolist()


def build(raw, seed=0, **settings):
    return build_data_set(raw, DataSettings(name="loader", **settings), seed)


@pytest.mark.parametrize(("count", "fraction", "held_out"), [(10, 0.3, 3), (2, 0.01, 1), (2, 0.99, 1)])
def test_each_part_has_the_share_asked_for_and_at_least_one_example(count, fraction, held_out):
    train, validation = split_examples(numbered(count), fraction, seed=3)
    assert (train.size, validation.size) == (count - held_out, held_out)
    assert sorted(rows(train) + rows(validation)) == list(range(count))


def test_a_single_example_cannot_be_split():
    with pytest.raises(DataError, match=r"1 example can't be split .* data\.validation_fraction=0 for none"):
        split_examples(numbered(1), 0.2, seed=0)


def test_limit_and_split_draw_by_seed():
    for draw in (
        lambda seed: draw_examples(numbered(50), 9, seed),
        lambda seed: split_examples(numbered(50), 0.18, seed)[1],
    ):
        first, again, other = (rows(draw(seed)) for seed in (0, 0, 1))
        assert first == again != other and len(first) == 9
    assert rows(draw_examples(numbered(10), 11, 0)) == list(range(10))


def test_a_validation_set_of_its_own_is_kept_and_limited_too():
    data = build(RawArrays("it", numbered(20), numbered(8)), limit=5, validation_fraction=0)
    assert (data.train.size, data.validation.size) == (5, 5)
    assert build(RawArrays("it", numbered(20), numbered(8))).validation.size == 8


def test_classes_are_counted_in_all_examples():
    labels = np.append(np.zeros(30, int), 1)
    assert build(RawArrays("it", Examples(np.ones((31, 2)), labels)), limit=2).num_classes == 2
    assert build(RawArrays("it", numbered(4), Examples(np.ones((2, 1)), np.array([2, 1])))).num_classes == 3


def test_validation_of_another_shape_is_refused():
    message = r"^it: training and validation examples differ\. Received: x \(1,\) float32 with y \(\), against x \(2,\)"
    with pytest.raises(DataError, match=message):
        build(RawArrays("it", numbered(4), Examples(np.ones((2, 2)), np.array([0, 1]))))
    with pytest.raises(DataError, match=r"^it \(validation\): x must be finite in float32: not so for 1 of"):
        build(RawArrays("it", numbered(4), Examples(np.array([[np.nan]]), np.array([0]))))


def test_the_largest_input_of_either_part_is_recorded():
    raw = RawArrays("it", numbered(4), Examples(np.array([[-70_000.0], [1]]), np.array([0, 1])))
    assert build(raw).max_abs_input == 70_000
    tokens = build(RawArrays("it", Examples(np.array([[3, 90_000], [1, 2]]), np.array([0, 1]))))
    assert (tokens.max_abs_input, tokens.input_dtype) == (0.0, "int32")


def test_descriptions_of_several_inputs():
    x = {"image": np.ones((1200, 8, 8, 1)), "age": np.ones((1200, 1), int)}
    data = build(RawArrays("it", Examples(x, np.arange(1200) % 3)), validation_fraction=0)
    assert data.description == "it: 1,200 training examples of shape {'image': (8, 8, 1), 'age': (1,)}, classes: 3"
    assert data.input_shape == {"image": (8, 8, 1), "age": (1,)}
    assert data.input_dtype == "float32+int32"
    assert data.validation is None
