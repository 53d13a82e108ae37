"""What tests of damaged and failing disks share."""

import shutil
import subprocess
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def failing_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library that makes writing fail, compiled."""
    compiler, library = shutil.which("cc"), tmp_path_factory.mktemp("preload") / "failing.so"
    if compiler is None:
        pytest.skip("there is no compiler for what makes writing fail")
    source = Path(__file__).with_name("failing_files.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"], check=True)
    return library
