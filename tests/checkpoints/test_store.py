"""Checkpoints on disk: what is promised for every way a file can be wrong."""

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from mpt_cli.errors import BAD_DATA, DataError
from mpt_cli.training import checkpoint
from mpt_cli.training.checkpoint import Checkpoint, CheckpointStore


class Killed(BaseException):
    pass


@pytest.fixture
def said():
    return []


@pytest.fixture
def store(tmp_path: Path, said: list[str]):
    return CheckpointStore(tmp_path / "checkpoints", 2, said.append)


def _checkpoint(step: int):
    arrays = {
        "weight/0": np.arange(6, dtype=np.float32).reshape(2, 3) * step,
        "weight/1": np.asarray([1.5, float("nan")], ml_dtypes.bfloat16),
        "scale/counter": np.asarray(step, np.int64),
        "frozen/0": np.asarray([1.0], ml_dtypes.float8_e4m3fn),
    }
    return Checkpoint(step, arrays, {"progress": {"epoch": 1, "best": {"loss": "NaN"}}})


def test_every_bit_and_dtype_comes_back(store):
    store.save(_checkpoint(7))
    found = store.newest()
    assert found is not None and found.position == _checkpoint(7).position and found.step == 7
    for name, array in _checkpoint(7).arrays.items():
        assert found.arrays[name].dtype == array.dtype
        assert found.arrays[name].shape == array.shape
        assert found.arrays[name].tobytes() == array.tobytes()


def test_the_last_few_are_kept_what_a_killed_run_left_goes_and_files_of_others_stay(store):
    store.folder.mkdir()
    for name in (".step-000000004.npz.partial", "notes.txt", "step-latest.npz"):
        (store.folder / name).write_text("mine")
    for step in (5, 10, 15, 1000):
        store.save(_checkpoint(step))
    assert store.steps() == [15, 1000]
    assert {path.name for path in store.folder.iterdir()} == {
        "step-000000015.npz",
        "step-000001000.npz",
        "notes.txt",
        "step-latest.npz",
    }


def _truncate(path: Path):
    path.write_bytes(path.read_bytes()[:-10])


def _flip(path: Path):
    data = bytearray(path.read_bytes())
    data[data.index(b"NUMPY") + 140] ^= 1  # in the numbers of the first array
    path.write_bytes(data)


def _of_another_step(path: Path):
    shutil.copy(path.with_name(path.name.replace("20", "10")), path)


DAMAGE: dict[str, Callable[[Path], None]] = {
    "truncated": _truncate,
    "flipped": _flip,
    "other": _of_another_step,
    "a folder": lambda path: (path.unlink(), path.mkdir())[0],
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_checkpoint_is_said_and_the_one_before_it_used(store, said, kind):
    store.save(_checkpoint(10))
    store.save(_checkpoint(20))
    DAMAGE[kind](store.folder / "step-000000020.npz")
    found = store.newest()
    assert found is not None and found.step == 10
    assert len(said) == 1
    assert said[0].startswith("checkpoint of step 20 is damaged (")
    assert said[0].endswith("); trying the one before it")


def test_none_whole_is_an_error_and_never_a_silent_restart(store, said):
    for step in (10, 20):
        store.save(_checkpoint(step))
        _flip(store.folder / f"step-0000000{step}.npz")
    with pytest.raises(DataError, match=r"none of the 2 checkpoints in .* is whole. Start again") as error:
        store.newest()
    assert error.value.exit_code == BAD_DATA
    assert len(said) == 2


def test_a_later_version_is_not_guessed_at(store, said, monkeypatch):
    monkeypatch.setattr(checkpoint, "SCHEMA_VERSION", 2)
    store.save(_checkpoint(10))
    monkeypatch.undo()
    with pytest.raises(DataError, match="none of the 1 checkpoints"):
        store.newest()
    assert "it has schema_version 2, this mpt reads 1" in said[0]


def test_a_damaged_later_one_never_pushes_out_what_is_saved_now(tmp_path, said):
    store = CheckpointStore(tmp_path, 1, said.append)
    store.save(_checkpoint(10))
    store.save(_checkpoint(30))
    _flip(tmp_path / "step-000000030.npz")
    store.save(_checkpoint(20))
    found = store.newest()
    assert found is not None and found.step == 20 and said == []


def test_a_failed_write_leaves_the_others_and_no_half_files(store, monkeypatch):
    store.save(_checkpoint(10))

    def full(*_: object, **__: object):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for where, name in ((os, "fsync"), (os, "replace"), (np, "savez")):
        with monkeypatch.context() as patched, pytest.raises(OSError, match="No space left"):
            patched.setattr(where, name, full)
            store.save(_checkpoint(20))
        found = store.newest()
        assert found is not None and found.step == 10
        assert not list(store.folder.glob(".*"))


def test_room_is_asked_for_before_the_disk_is_filled(store, monkeypatch):
    store.save(_checkpoint(10))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(2**20, 2**20, 1000))
    with pytest.raises(OSError, match=r"No space left on device: 0.0 MiB needed, 0.0 MiB free"):
        store.save(_checkpoint(20))
    assert store.steps() == [10]


def _kill_at(call: int, patched: pytest.MonkeyPatch):
    """From this call on that touches the disk, none of them does anything any more."""
    calls = iter(range(call))
    for where, name in ((os, "fsync"), (os, "replace"), (Path, "open"), (Path, "unlink")):
        real = getattr(where, name)

        def until_killed(*given: object, real: Callable[..., object] = real, **named: object):
            if next(calls, None) is None:
                raise Killed
            return real(*given, **named)

        patched.setattr(where, name, until_killed)


def test_a_kill_while_a_step_is_saved_again_leaves_the_old_one_or_the_new(tmp_path, said):
    """As at the end of an epoch, whose last step is saved before it and after, and kept alone."""
    ends = []
    for call in range(100):
        store = CheckpointStore(tmp_path / str(call), 1, said.append)
        store.save(Checkpoint(20, _checkpoint(10).arrays, {"half": True}))
        with pytest.MonkeyPatch.context() as patched, pytest.raises(Killed):
            _kill_at(call, patched)
            store.save(_checkpoint(20))
            raise Killed
        found = store.newest()
        assert found is not None and found.step == 20 and said == []
        of = 10 if "half" in found.position else 20
        assert found.arrays["weight/0"].tobytes() == _checkpoint(of).arrays["weight/0"].tobytes()
        ends.append(of)
        if len(ends) > 1 and ends[-2:] == [20, 20]:
            break
    assert ends == sorted(ends) and ends.count(10) >= 4
