import doctest

import pytest

from mpt_cli.telemetry import strict_json, verdict
from mpt_cli.telemetry.console import words


@pytest.mark.parametrize("module", [words, strict_json, verdict])
def test_the_examples_in_docstrings_hold(module) -> None:
    found = doctest.testmod(module)
    assert found.attempted > 0
    assert found.failed == 0
