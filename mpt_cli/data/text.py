"""Characters of text files, as windows for next-character prediction."""

import codecs
import platform
import sysconfig
from pathlib import Path

import numpy as np

from mpt_cli.data.assemble import Raw, build_data_set
from mpt_cli.data.examples import Array, DataSet, Examples
from mpt_cli.data.files import readable_files
from mpt_cli.errors import DataError
from mpt_cli.settings.data import Text

_MOST_UNREADABLE = 0.05  # share of replacement characters beyond which a file isn't taken for text


def load_text(settings: Text, seed: int) -> DataSet:
    """Windows x (n, T) and the same one character on, y (n, T); a class per distinct character, sorted by code.

    The windows follow one another without overlap. The last part of the text is held out, not random windows: those
    would share their neighbourhood with the training text.
    """
    title, files = _files(settings.path)
    text, unreadable = _read(files, settings.max_bytes)
    length = settings.sequence_length
    if len(text) < length + 1:
        raise DataError(f"{title}: {len(text):,} characters are too few for a window of data.sequence_length={length} "
                        "and the character after it.")
    vocabulary, codes = np.unique(_code_points(text), return_inverse=True)
    notes = ["validation is the last part of the text"] if settings.validation_fraction else []
    notes += [f"{unreadable:,} undecodable bytes replaced"] if unreadable else []
    raw = Raw(title, _windows(codes.astype(np.int32), length), task="classification", num_classes=len(vocabulary),
              in_order=True, note="; ".join(notes),
              preprocessing={"characters": [chr(code) for code in vocabulary]})
    return build_data_set(raw, settings, seed)


def _windows(codes: Array, length: int) -> Examples:
    count = (len(codes) - 1) // length
    return Examples(codes[:count * length].reshape(count, length), codes[1:count * length + 1].reshape(count, length))


def _files(path: str | None) -> tuple[str, list[Path]]:
    if path is None:
        return _standard_library()
    files = readable_files(path)
    count = f"{len(files):,} files in " if Path(path).expanduser().is_dir() else ""
    return f"text of {count}{path}", files


def _standard_library() -> tuple[str, list[Path]]:
    folder = Path(sysconfig.get_path("stdlib"))
    files = sorted(folder.glob("*.py"))
    if not files:
        raise DataError(f"The source of Python's standard library isn't in {folder}. Give a text file as data.path.")
    return f"source of Python {platform.python_version()}'s standard library", files


def _read(files: list[Path], max_bytes: int | None) -> tuple[str, int]:
    """Text of the files in order, up to `max_bytes` in all, and how many bytes of it were no UTF-8."""
    left, texts, unreadable = max_bytes, [], 0
    for file in files:
        if left is not None and left <= 0:
            break
        try:
            with file.open("rb") as stream:
                data = stream.read(-1 if left is None else left)
        except OSError as error:
            raise DataError(f"data.path: {file} can't be read: {error.strerror}.") from error
        left = None if left is None else left - len(data)
        text, bad = _decode(data, file)
        texts.append(text)
        unreadable += bad
    return "".join(texts), unreadable


def _decode(data: bytes, file: Path) -> tuple[str, int]:
    """UTF-8 text, without a byte order mark and without a character that the end of `data` cuts in two."""
    data = data.removeprefix(codecs.BOM_UTF8)
    text = codecs.getincrementaldecoder("utf-8")("replace").decode(data)
    bad = text.count("�") - data.count("�".encode())
    if "\0" in text or bad > _MOST_UNREADABLE * len(text):
        raise DataError(f"data.path: {file} is not UTF-8 text. Convert it, for example with "
                        "`iconv -t utf-8`, or give another file.")
    return text, bad


def _code_points(text: str) -> Array:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
