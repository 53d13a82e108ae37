"""Plain text by its characters."""

import codecs
import platform
import sysconfig
from pathlib import Path

import numpy as np

from mpt_cli.data.examples import Array, DataSet, Examples
from mpt_cli.data.paths import readable_files
from mpt_cli.data.prepare_data_set import RawArrays, build_data_set
from mpt_cli.errors import DataError
from mpt_cli.settings.model_data_optimizer_keys import Text
from mpt_cli.settings.search_path import expanded


def load_text(settings: Text, seed: int) -> DataSet:
    """Read text as windows x (n, T), and y (n, T) one character on; a class per distinct character, sorted by code.

    The windows follow one another without overlap. The last part of the text is held out, not random windows: those
    would share their neighbourhood with the training text.
    """
    title, files = _text_files(settings.path)
    text = _read_text(files, settings.max_bytes)
    length = settings.sequence_length
    if len(text) < length + 1:
        raise DataError(
            f"{title}: {len(text):,} characters are too few for a window of data.sequence_length={length} "
            "and the character after it."
        )
    code_points = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    vocabulary, codes = np.unique(code_points, return_inverse=True)
    raw = RawArrays(
        title,
        _windows(codes.astype(np.int32), length),
        task="classification",
        num_classes=len(vocabulary),
        in_order=True,
        note="validation is the last part of the text" if settings.validation_fraction else "",
        preprocessing={"characters": [chr(code) for code in vocabulary]},
    )
    return build_data_set(raw, settings, seed)


def _windows(codes: Array, length: int) -> Examples:
    count = (len(codes) - 1) // length
    return Examples(
        codes[: count * length].reshape(count, length), codes[1 : count * length + 1].reshape(count, length)
    )


def _text_files(path: str | None) -> tuple[str, list[Path]]:
    """Title and files, by default those of Python's standard library."""
    if path is not None:
        files = readable_files(path)
        count = f"{len(files):,} files in " if expanded(path).is_dir() else ""
        return f"text of {count}{path}", files
    folder = Path(sysconfig.get_path("stdlib"))
    if not (files := sorted(folder.glob("*.py"))):
        raise DataError(f"The source of Python's standard library isn't in {folder}. Give a text file as data.path.")
    return f"source of Python {platform.python_version()}'s standard library", files


def _read_text(files: list[Path], max_bytes: int | None) -> str:
    """Return the text of the files in order, up to `max_bytes` in all, without a character that this cuts in two."""
    left, texts = max_bytes, []
    for file in files:
        if left is not None and left <= 0:
            break
        try:
            with file.open("rb") as stream:
                data = stream.read(-1 if left is None else left)
            texts.append(codecs.getincrementaldecoder("utf-8-sig")().decode(data))
        except OSError as error:
            raise DataError(f"data.path: {file} can't be read: {error.strerror}.") from error
        except UnicodeDecodeError as error:
            raise _not_utf8(file, f"{error.reason} at byte {error.start}") from error
        if "\0" in texts[-1]:
            raise _not_utf8(file, "it has null characters")
        left = None if left is None else left - len(data)
    return "".join(texts)


def _not_utf8(file: Path, why: str) -> DataError:
    return DataError(
        f"data.path: {file} is not UTF-8 text ({why}). Convert it, for example with `iconv -t utf-8`, or give another."
    )
