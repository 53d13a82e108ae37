"""Which folders a diagnosis makes, and what is left of them."""

from pathlib import Path

import pytest

from mpt_cli.diagnose.preparation import diagnosis_directory


@pytest.mark.parametrize("out", ["mine", "mine/a/b", None])
def test_a_diagnosis_that_fails_takes_back_the_folders_it_made_and_no_others(here, out):
    Path("mine").mkdir()
    with pytest.raises(KeyboardInterrupt), diagnosis_directory(out, Path("runs/digits_mlp")):
        raise KeyboardInterrupt
    assert [str(path) for path in Path().rglob("*")] == ["mine"]
