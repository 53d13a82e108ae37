"""The import of Keras in a process of mpt's own: what it makes is not looked through for garbage."""

import gc
import json
import subprocess
import sys

import pytest

from mpt_cli.engine.backend import import_that_stays, keras_import
from mpt_cli.errors import UserCodeError

PROGRAM = """
import gc, json
from mpt_cli.engine.backend import prepare_backend
from mpt_cli.settings.load import load_settings
prepare_backend(load_settings(["conf=digits_mlp", "backend=jax"]))
print(json.dumps({"frozen": gc.get_freeze_count(), "collects": gc.isenabled()}))
"""


@pytest.mark.long
def test_what_the_import_made_is_frozen_and_garbage_is_collected_again():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["frozen"] > 300_000 and found["collects"] is True


def test_nothing_is_frozen_where_keras_is_imported_already():
    import keras  # noqa: F401

    before = gc.get_freeze_count()
    with keras_import("the backend"):
        assert gc.isenabled()
    assert gc.get_freeze_count() == before


def test_an_import_that_fails_is_told_and_garbage_is_collected_again(monkeypatch):
    monkeypatch.delitem(sys.modules, "keras", raising=False)
    words = "Keras can't be imported on jax: ValueError: no such option"
    with pytest.raises(UserCodeError, match=words), keras_import("jax"):
        assert not gc.isenabled()
        raise ValueError("no such option")
    assert gc.isenabled()
    gc.unfreeze()


def test_what_is_garbage_later_is_collected():
    class Ring:
        pass

    with import_that_stays():
        pass
    try:
        ring = Ring()
        ring.itself = ring
        del ring
        assert gc.collect() >= 1
    finally:
        gc.unfreeze()
