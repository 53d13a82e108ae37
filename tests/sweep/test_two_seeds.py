"""Two seeds tell no configurations apart: an interval would be 13 standard errors wide."""

import pytest

from mpt_cli.sweep.report import best_lines, columns


@pytest.mark.slow
def test_two_seeds_can_not_tell_and_no_interval_is_shown(stubs):
    stubs.values = {1: 0.5, 2: 0.7, 3: 0.8, 4: 0.65}
    found, _ = stubs.start(["conf=digits_mlp", "trainer.epochs=1,2", "seed=0,1", "sweep_dir=s"])
    behind = next(column for column in columns(found) if column.title == "to the first")
    assert [behind.cell(row) for row in found.configurations] == ["-", "≈ -0.1250 ± ?"]
    assert best_lines(found)[2].strip() == "Not told apart from epochs 1: 2 seeds can't tell, 3 can."
    assert best_lines(found)[3].strip().endswith("'seed=range(3)'")
