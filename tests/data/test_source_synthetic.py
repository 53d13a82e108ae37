"""Random data with a teacher."""

import numpy as np
import pytest

from mpt_cli.data.sources import load_data
from mpt_cli.settings.model_data_optimizer_keys import Synthetic


@pytest.mark.parametrize("settings", [Synthetic(task="regression"), Synthetic(task="tokens", input_shape=[12])])
def test_the_same_seed_gives_the_same_data(settings):
    same = [load_data(settings, 4).fingerprint for _ in range(2)]
    assert same[0] == same[1] != load_data(settings, 5).fingerprint


def test_four_of_five_tokens_follow_from_the_one_before():
    data = load_data(Synthetic(task="tokens", input_shape=[40], num_classes=25, examples=500), 0)
    x, y = data.train.x, data.train.y
    assert (x.dtype, y.dtype, x.shape, y.shape, data.num_classes) == (np.int32, np.int32, (400, 40), (400, 40), 25)
    assert (x[:, 1:] == y[:, :-1]).all()
    follower = np.array([np.bincount(y[x == token]).argmax() for token in range(25)])
    assert (follower[x] == y).mean() == pytest.approx(0.8 + 0.2 / 25, abs=0.015)  # 16,000 draws: deviation 0.003
