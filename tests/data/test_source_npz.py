"""NumPy archives."""

import numpy as np
import pytest

from mpt_cli.data.sources import load_data
from mpt_cli.errors import DataError
from mpt_cli.settings.model_data_optimizer_keys import Npz

X = np.arange(40, dtype=np.float64).reshape(20, 2)
Y = np.arange(20) % 4


@pytest.fixture
def path(tmp_path):
    return tmp_path / "set.npz"


def load(path, **settings):
    return load_data(Npz(path=str(path), **settings), 0)


def test_x_and_y_of_a_file_at_home(path, monkeypatch):
    np.savez(path, x=X, y=Y)
    monkeypatch.setenv("HOME", str(path.parent))
    data = load("~/set.npz")
    assert data.description == "set.npz: 16 training and 4 validation examples of 2, 4 classes"
    assert data.train.x.dtype == np.float32


def test_its_own_validation_set_is_kept(path):
    np.savez(path, x=X, y=Y, x_val=X[:3] + 0.5, y_val=Y[:3])
    data = load(path, validation_fraction=0)
    assert (data.train.size, data.validation.x.tolist()) == (20, (X[:3] + 0.5).tolist())


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"X": X, "y": Y}, r"has no array 'x'\. It has: X, y\. Did you mean X\?"),
        ({"x": X}, r"has no array 'y'\. It has: x\.$"),
        ({"x": X, "y": Y, "x_val": X}, r"has no array 'y_val'"),
        ({"x": X, "y": np.array([{}] * 20)}, r"holds Python objects \(dtype object\), which could run code"),
    ],
)
def test_unfit_arrays(path, arrays, message):
    np.savez(path, **arrays)
    with pytest.raises(DataError, match=message):
        load(path)


def test_a_damaged_byte_and_an_end_that_lacks_are_noticed(path):
    np.savez(path, x=X, y=Y)
    content = bytearray(path.read_bytes())
    path.write_bytes(content[: int(len(content) * 0.9)])
    with pytest.raises(DataError, match=r"set\.npz can't be read as \.npz|set\.npz holds|it is no \.npz file"):
        load(path)
    content[len(content) // 3] ^= 255
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"can't be read as \.npz: Bad CRC-32.*Is it complete\?"):
        load(path)


def test_other_files(path, tmp_path):
    path.write_text("x,y\n1,2\n")
    with pytest.raises(DataError, match=r"it is no \.npz file, or holds Python objects"):
        load(path)
    np.save(tmp_path / "x.npy", X)
    with pytest.raises(
        DataError, match=r"x\.npy can't be read as \.npz: it holds a single array, not x and y: np\.savez"
    ):
        load(tmp_path / "x.npy")
