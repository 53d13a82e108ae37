"""Files of words that tests compare with; WRITE_SAID=1 writes them anew."""

import os
from pathlib import Path


def assert_said(text: str, path: Path):
    if os.environ.get("WRITE_SAID"):
        path.write_text(text)
    assert text == path.read_text()
