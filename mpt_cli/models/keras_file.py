"""A .keras file looked at without Keras: is it whole?"""

import zipfile
import zlib
from pathlib import Path

_UNREADABLE = (OSError, EOFError, RuntimeError, zlib.error, zipfile.BadZipFile)


def damage_of(path: Path) -> str | None:
    """What is wrong with the file, in words; None where it is a zip file whose parts fit their checksums.

    All of it is read.
    """
    if not zipfile.is_zipfile(path):
        return "it is not a zip file with its end, as a whole .keras file is"
    try:
        with zipfile.ZipFile(path) as parts:
            broken = parts.testzip()
    except _UNREADABLE as error:
        return str(error)
    return None if broken is None else f"{broken} in it does not fit its checksum"
