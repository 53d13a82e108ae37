"""Characters of text files."""

import pytest

from mpt_cli.data.sources import load_data
from mpt_cli.errors import DataError
from mpt_cli.settings.model_data_optimizer_keys import Text


def load(path, **settings):
    return load_data(Text(path=path, **{"sequence_length": 3, **settings}), 0)


def test_windows_follow_one_another_and_targets_are_one_character_on(write):
    data = load(write("abcabcabd"), validation_fraction=0)
    assert data.train.x.tolist() == [[0, 1, 2], [0, 1, 2]]  # a third window would need a tenth character
    assert data.train.y.tolist() == [[1, 2, 0], [1, 2, 0]]
    assert (data.num_classes, data.task, data.input_dtype) == (4, "classification", "int32")


def test_the_last_part_is_validation_and_the_description_says_so(write):
    path = write("abcabcabcdddd")
    data = load(path, validation_fraction=0.25)
    assert (data.train.size, data.validation.x.tolist()) == (3, [[3, 3, 3]])
    assert data.description == (
        f"text of {path}: 3 training and 1 validation examples of shape (3,), classes: 4; validation is the last part of the text"
    )


def test_a_text_shorter_than_a_window_is_refused(write):
    with pytest.raises(DataError, match=r"3 characters are too few for a window of data\.sequence_length=3"):
        load(write("abc"), validation_fraction=0)


def test_characters_not_bytes_are_counted(write):
    data = load(write("äüö" * 3), validation_fraction=0)
    assert (data.num_classes, data.train.x[0].tolist()) == (3, [0, 2, 1])


def test_what_is_no_text_is_refused(write):
    message = r"data\.txt is not UTF-8 text \(invalid start byte at byte 90\)\. Convert it"
    with pytest.raises(DataError, match=message):
        load(write(b"abc" * 30 + b"\xff"))


def test_the_standard_library_is_the_default():
    data = load_data(Text(sequence_length=64), 0)
    assert data.description.startswith("source of Python 3.")
    assert 31_000 < data.train.size + data.validation.size <= 31_249  # (2,000,000 - 1) // 64, less where it isn't ASCII


def test_a_python_without_its_source_is_told(monkeypatch, tmp_path):
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path))
    with pytest.raises(
        DataError, match=r"^source of Python .*: 0 characters are too few .*\. Give another text as data\.path\.$"
    ):
        load_data(Text(), 0)
