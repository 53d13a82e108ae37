"""The data of several processes: the same in each, and sent to the devices without a word to the other processes."""

import numpy as np
import pytest
from pair import two_seen

from mpt_cli.engine.distribution import check_same_data
from mpt_cli.errors import DataError

slow = pytest.mark.slow


@pytest.mark.long
@slow
def test_streamed_data_gives_the_weights_of_resident_data(tmp_path):
    words = ["trainer.epochs=3", "trainer.steps_per_execution=3"]  # 8 chunks an epoch, each sent ahead of its steps
    first, second = two_seen(tmp_path, *words, "trainer.feed=stream")
    resident, _ = two_seen(tmp_path, *words, "trainer.feed=resident")
    assert first == second == resident
    assert (first["seen"], first["skips"]) == (69, [])


def test_different_data_is_an_error_in_each_process(monkeypatch):
    multihost_utils = pytest.importorskip("jax.experimental.multihost_utils")
    other = np.frombuffer(b"b" * 64, np.uint8)
    monkeypatch.setattr(multihost_utils, "process_allgather", lambda own: np.stack([own, other]))
    check_same_data("b" * 64)
    message = r"^The processes have not loaded the same data \(fingerprints a{12}…, b{12}…\)\. They must all read the "
    with pytest.raises(DataError, match=message):
        check_same_data("a" * 64)
