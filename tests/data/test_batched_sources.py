"""Batches that the source makes: they stay as they are, are read again exactly, and epochs can be cut out of them."""

import random

import keras
import numpy as np
import pytest

from mpt_cli.data.batch_streams import as_examples, open_batches
from mpt_cli.data.examples import Examples, Reading, Stream, in_epochs_of
from mpt_cli.data.prepare_data_set import weighted_by_class
from mpt_cli.data.sources import load_data, load_data_of_run
from mpt_cli.errors import ConfigError, DataError, UserCodeError
from mpt_cli.settings.load import load_settings
from mpt_cli.settings.model_data_optimizer_keys import Loader

X = np.arange(12, dtype=np.float32).reshape(6, 2)


class Pairs(keras.utils.PyDataset):
    """Batches of different sizes whose y is drawn; `on_epoch_end` counts."""

    def __init__(self):
        super().__init__()
        self.epoch = 0

    def __len__(self):
        return 3

    def __getitem__(self, index: int):
        return X[: index + 2], np.full((index + 2, 1), self.epoch + random.random() + np.random.rand())

    def on_epoch_end(self):
        self.epoch += 1


def read(stream: Stream, epoch: int, shuffle: bool = False):
    batches = stream.batches(epoch, seed=5, shuffle=shuffle)
    return [[len(batch.x), float(batch.y[0, 0])] for batch in batches]


def pairs():
    return open_batches(Pairs(), Pairs, 5, "it")


def test_a_pydataset_keeps_its_batches_and_the_shuffle_is_theirs():
    stream = pairs()
    assert stream.steps == 3
    assert [size for size, _ in read(stream, 1)] == [2, 3, 4]
    assert sorted(read(stream, 2, shuffle=True)) == read(pairs(), 2)
    orders = {tuple(size for size, _ in read(pairs(), epoch, shuffle=True)) for epoch in range(1, 9)}
    assert len(orders) > 2


def test_a_later_epoch_is_the_same_whether_those_before_were_read_or_not():
    stream = pairs()
    epochs = [read(stream, epoch) for epoch in (1, 2, 3)]
    assert read(pairs(), 3) == epochs[2] and [int(first[0][1] // 1) for first in epochs] != [0, 0, 0]
    assert read(stream, 1) == epochs[0]  # it goes back too


def test_reading_leaves_the_random_numbers_of_others_alone():
    random.seed(1)
    np.random.seed(1)
    wanted = random.random(), np.random.rand()
    random.seed(1)
    np.random.seed(1)
    read(pairs(), 2)
    assert (random.random(), np.random.rand()) == wanted


def counting(count: int):
    for number in range(count):
        yield X[:2], np.full((2, 1), float(number))


def test_epochs_of_so_many_steps_go_on_where_the_last_ended():
    numbers = {1: [0, 1, 2], 2: [3, 4, 0], 3: [1, 2, 3]}
    for order in ((1, 2, 3), (3,), (2, 1, 2)):
        stream = in_epochs_of(open_batches(counting(0), lambda: counting(5), 5, "it"), 3)
        for epoch in order:
            assert [value for _, value in read(stream, epoch)] == numbers[epoch]
    next(stream.read(Reading(64, 2)))  # broken off
    assert [value for _, value in read(stream, 2)] == numbers[2]


def broken():
    yield X
    raise OSError("the disk is full")


def test_what_a_source_raises_is_the_users():
    stream = open_batches(broken(), broken, 5, "it")
    with pytest.raises(UserCodeError, match=r"^it: reading a batch raised OSError: the disk is full$"):
        list(stream.batches(1, 0, False))
    with pytest.raises(DataError, match=r"^The data gave no examples in epoch 2\.$"):
        list(open_batches(counting(0), lambda: counting(0), 5, "it").batches(2, 0, False))


def test_a_batch_has_the_forms_of_keras():
    assert as_examples(X, "it").y is None
    assert as_examples(([X, X], {"a": X}), "it").x[1] is X
    with pytest.raises(DataError, match=r"a batch must be x, \(x, y\) or \(x, y, sample_weight\)\. .* a tuple of 4"):
        as_examples((X, X, X, X), "it")
    with pytest.raises(DataError, match=r"^it: y\[1\] must be an array, or a dict or list of arrays\. Received: a int"):
        as_examples((X, [X, 1]), "it")


def test_classes_have_the_weights_that_keras_gives_them():
    for y in ([0, 1, 3], [[0.0], [1.0], [3.0]], np.eye(4)[[0, 1, 3]]):
        weights = weighted_by_class(Examples(X[:3], np.asarray(y)), {0: 0.5, 3: 8.0}).sample_weight
        assert weights.tolist() == [0.5, 1.0, 8.0] and weights.dtype == np.float32
    with pytest.raises(DataError, match=r"^class_weight needs one target whose classes it can weight"):
        weighted_by_class(Examples(X, {"a": X}), {0: 1.0})
    with pytest.raises(DataError, match=r"^class_weight and sample weights of the data can't be used together"):
        weighted_by_class(Examples(X, X[:, 0], X[:, 0]), {0: 1.0})


LOADERS = """\
import keras
import numpy as np
x = np.arange(40, dtype="float32").reshape(10, 4)
one_hot = np.eye(5, dtype="float32")[np.arange(10) % 5]
def rows(): return x, one_hot
def alone(): return x
def several(): return [x, {"a": x}], {"p": x[:, :1], "q": one_hot}, {"p": x[:, 0] + 1, "q": x + 1}
def steps():
    def batches():
        while True:
            yield x[:2], one_hot[:2]
    return batches()
class Rows(keras.utils.PyDataset):
    def __len__(self): return 5
    def __getitem__(self, index): return x[2 * index : 2 * index + 2], one_hot[2 * index : 2 * index + 2]
"""


@pytest.fixture
def loaders(users_folder):
    (users_folder / "loaders.py").write_text(LOADERS)


def loaded(name: str, targets_as_given: bool = True):
    return load_data(Loader(loader=f"loaders:{name}", validation_fraction=0), 0, targets_as_given)


@pytest.mark.usefixtures("loaders")
def test_one_hot_rows_stay_for_a_loss_that_is_named_and_become_labels_for_auto():
    kept, auto = loaded("rows"), loaded("rows", targets_as_given=False)
    assert (kept.train.y.shape, kept.num_classes, kept.task) == ((10, 5), 5, "classification")
    assert (auto.train.y.shape, auto.num_classes) == ((10,), 5)


@pytest.mark.usefixtures("loaders")
def test_x_alone_lists_dicts_and_weights_by_output():
    alone = loaded("alone")
    assert (alone.train.y, alone.task, alone.num_classes) == (None, "other", None)
    taken = loaded("several").train.take(np.array([9, 1]))
    assert [part[:, 0].tolist() for part in (taken.x[1]["a"], taken.y["p"], taken.sample_weight["q"])] == [
        [36, 4],
        [36, 4],
        [37, 5],
    ]


@pytest.mark.usefixtures("loaders")
def test_steps_of_an_epoch_are_for_streams():
    for word, message in (
        ("trainer.steps_per_epoch=3", r"steps_per_epoch: must be left out for data in memory: an epoch is a pass"),
        ("trainer.validation_steps=3", r"trainer.validation_steps: must be left out unless the validation data is a"),
    ):
        with pytest.raises(ConfigError, match=message):
            load_data_of_run(load_settings(["conf=digits_mlp", "data=loader", "data.loader=loaders:rows", word]))


@pytest.mark.slow
@pytest.mark.usefixtures("loaders")
def test_keys_that_batches_of_ones_own_leave_no_say_are_refused():
    def load(name: str, *words: str):
        own = "data.num_classes=5", "trainer.steps_per_epoch=3", "trainer.max_steps=3"
        return load_data_of_run(load_settings(["conf=digits_mlp", f"data.loader=loaders:{name}", *own, *words]))

    assert load("steps").train.steps == load("Rows", "trainer.shuffle=false").train.steps == 3
    with pytest.raises(ConfigError) as raised:
        load("steps", "trainer.batch_size=2", "trainer.shuffle=false", "data.limit=15", "data.validation_fraction=0.3")
    rule = "has no effect: the data comes in batches of its own."
    given = {
        "trainer.batch_size": 2,
        "data.limit": 15,
        "data.validation_fraction": 0.3,
        "trainer.shuffle": False,
    }
    assert [str(problem) for problem in raised.value.problems] == [
        f"{key}: {rule} Received: {value}. Leave it out, and do it in data.loader." for key, value in given.items()
    ]
