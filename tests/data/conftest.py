"""Files of data for one test."""

import pytest


@pytest.fixture
def write(tmp_path):
    """Writes text or bytes into a file; returns its path as text."""

    def write(content, name="data.txt"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return str(path)

    return write
