"""The fingerprint: same data, same value; any change, another."""

import hashlib

import numpy as np

from mpt_cli.data import examples
from mpt_cli.data.examples import Examples, fingerprint_arrays

X = np.arange(6, dtype=np.float32).reshape(3, 2)
Y = np.array([0, 1, 0], np.int32)


def of(*parts):
    return fingerprint_arrays(list(parts))


def test_it_is_the_sha256_of_names_dtypes_shapes_and_bytes():
    text = b"0.x <f4 (3, 2) 1;" + X.tobytes() + b"0.y <i4 (3,) 1;" + Y.tobytes()
    assert of(Examples(X, Y)) == hashlib.sha256(text).hexdigest()


def test_any_change_changes_it():
    for other in (Examples(X, 1 - Y), Examples(X[::-1], Y), Examples(X, Y, np.ones(3)), Examples({"a": X}, Y)):
        assert of(other) != of(Examples(X, Y))


def test_order_in_memory_does_not_matter_and_that_of_the_parts_does():
    a, b = Examples(X, Y), Examples(X + 1, Y)
    assert of(Examples(np.asfortranarray(X), Y), b) == of(a, b) != of(b, a)


def test_of_large_data_a_sample_is_hashed(monkeypatch):
    monkeypatch.setattr(examples, "WHOLE_BYTES", 100)
    monkeypatch.setattr(examples, "SAMPLE_BYTES", 90)
    x = np.arange(100, dtype=np.float32)[:, None]  # 400 bytes and 100 of y: every 6th example
    y = np.zeros(100, np.int8)
    unseen, seen = x.copy(), x.copy()
    unseen[1], seen[6] = -1, -1
    assert of(Examples(unseen, y)) == of(Examples(x, y)) != of(Examples(seen, y))
