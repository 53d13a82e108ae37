"""Every known defect of Keras's own loss scaling: its class shows it, ours does not. One row, one defect.

`docs/keras_defects.py` measures; its functions say what exactly is done. One process runs them all.
"""

from pathlib import Path

import pytest
from backends import only_on
from command import run_program

ROOT = Path(__file__).parents[2]


@pytest.mark.long
@only_on("tensorflow")
def test_keras_shows_each_defect_and_mpt_does_not_as_documented():
    program = str(ROOT / "docs" / "keras_defects.py")
    done = run_program(program, backend="tensorflow", cwd=ROOT, timeout=300)
    assert done.returncode == 0, done.stderr
    _, heading, rows = done.stdout.partition("| | Keras's own class | mpt |\n")
    assert heading and heading + rows in (ROOT / "docs" / "reference" / "keras-optimizer.md").read_text()
