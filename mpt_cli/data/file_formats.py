"""Data in files of the user's: NumPy .npz with x and y, CSV with a header line, plain text by its characters, and
a folder of images with one sub-folder per class.
"""

import codecs
import csv
import hashlib
import platform
import sysconfig
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from mpt_cli.data.build import RawArrays, RawStream, build_data_set, build_stream_set, shown_classes
from mpt_cli.data.examples import WHOLE_BYTES, Array, DataSet, Examples, Stream, draw_examples, split_examples
from mpt_cli.data.paths import readable_file, readable_files, readable_folder, visible_files
from mpt_cli.errors import ConfigError, DataError, Problem, did_you_mean
from mpt_cli.settings.search_path import expanded
from mpt_cli.settings.variants import Csv, Images, Npz, Text


def load_npz(settings: Npz, seed: int, keep_targets: bool = False) -> DataSet:
    """The arrays x, y, and where they exist x_val, y_val, which then are the validation set as they are.

    `keep_targets`: as they are in the file, for a loss that the user named.
    """
    file = readable_file(settings.path)
    arrays = _read_npz(file)
    validation = None
    if "x_val" in arrays or "y_val" in arrays:
        validation = Examples(_npz_array("x_val", arrays, file), _npz_array("y_val", arrays, file))
    train = Examples(_npz_array("x", arrays, file), _npz_array("y", arrays, file))
    raw = RawArrays(file.name, train, validation, settings.task, keep_targets=keep_targets,
                    scale_pixels=settings.scale_pixels is not False)  # fmt: skip
    return build_data_set(raw, settings, seed)


def _read_npz(file: Path) -> dict[str, Array]:
    try:
        archive = np.load(file, allow_pickle=False)
        if isinstance(archive, np.ndarray):
            raise DataError(f"data.path: {file} holds a single array. Save x and y together: np.savez(path, x=x, y=y).")
        with archive:
            return {name: archive[name] for name in archive.files}
    except (OSError, ValueError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error, AttributeError) as error:
        raise DataError(f"data.path: {file} can't be read as .npz: {_npz_reason(error)}") from error


def _npz_reason(error: Exception) -> str:
    if "allow_pickle" in str(error):
        return "it is no .npz file, or holds Python objects (dtype object), which could run code. Save plain numbers."
    return f"{error}. Is it complete?"


def _npz_array(name: str, arrays: dict[str, Array], file: Path) -> Array:
    if name not in arrays:
        raise DataError(f"data.path: {file} has no array {name!r}. It has: {', '.join(arrays) or 'none'}. "
                        f"{did_you_mean(name, arrays)}".rstrip())
    return arrays[name]


_MISSING = {"", "na", "n/a", "nan", "null", "none", "?", "-"}
_MOST_TEXTS = 1000  # distinct texts in a one-hot column; more is a name or an identifier
_MOST_CLASSES = 20  # distinct whole numbers that `task: auto` takes for classes
_MOSTLY = 0.9  # share of numbers from which a column counts as numeric with stray text in it


@dataclass(frozen=True)
class CsvColumn:
    """float64 (n, 1) of a numeric column, (n, k) of zeros and ones of a text column; `inputs` tells what each is."""

    values: Array
    numeric: bool
    inputs: list[dict[str, Any]]


def read_column(name: str, cells: list[str], lines: list[int]) -> CsvColumn:
    """DataError for missing or infinite numbers, stray text among numbers, and too many distinct texts."""
    numbers = _column_numbers(name, cells, lines)
    if numbers is not None:
        return CsvColumn(numbers[:, None], True, [{"name": name}])
    texts, codes = np.unique(np.array(cells), return_inverse=True)
    if len(texts) > _MOST_TEXTS:
        raise DataError(f"column {name!r} has {len(texts):,} different texts, too many to encode one by one. "
                        "Remove it from the file.")
    return CsvColumn((codes[:, None] == np.arange(len(texts))).astype(np.float64), False,
                  [{"name": name, "equals": text} for text in texts.tolist()])


def read_target_column(name: str, cells: list[str], lines: list[int],
                       task: str) -> tuple[Array, str, list[str] | None]:
    """Targets, task, and the names of the classes where it is classification.

    Classes are the distinct values in sorted order. `task` auto: text is classification, and so are whole numbers of
    which at most 20, and at most half as many as rows, are distinct.
    """
    numbers = _column_numbers(name, cells, lines)
    if task == "auto":
        task = "classification" if numbers is None or _few_whole(numbers) else "regression"
    if task == "regression":
        if numbers is None:
            raise DataError(f"data.target: column {name!r} holds text, which data.task=regression can't predict.")
        return numbers, task, None
    if numbers is not None and (numbers != np.trunc(numbers)).any():
        raise DataError(f"data.target: column {name!r} holds numbers that aren't whole; use data.task=regression.")
    missing = [line for line, cell in zip(lines, cells, strict=True) if not cell]
    if missing:
        raise DataError(f"data.target: column {name!r} has {len(missing):,} empty values, first in line {missing[0]}.")
    return _column_classes(name, np.array(cells) if numbers is None else numbers)


def _column_classes(name: str, values: Array) -> tuple[Array, str, list[str]]:
    kinds, codes = np.unique(values, return_inverse=True)
    if len(kinds) < 2:
        raise DataError(f"data.target: column {name!r} has the same value in every row.")
    return codes, "classification", [kind if isinstance(kind, str) else str(int(kind)) for kind in kinds.tolist()]


def _few_whole(numbers: Array) -> bool:
    distinct = len(np.unique(numbers))
    return bool((numbers == np.trunc(numbers)).all()) and distinct <= min(_MOST_CLASSES, len(numbers) / 2)


def _column_numbers(name: str, cells: list[str], lines: list[int]) -> Array | None:
    """The cells as float64, None where the column is text."""
    try:
        values: Array = np.array(cells).astype(np.float64)
    except ValueError:
        values = np.array([_number(cell) for cell in cells])
    bad = ~np.isfinite(values)
    if not bad.any():
        return values
    strange = [cell for cell, is_bad in zip(cells, bad, strict=True) if is_bad and cell.lower() not in _MISSING]
    numeric = len(cells) - int(bad.sum())
    if strange and all(_is_text(cell) for cell in strange) and numeric < _MOSTLY * len(cells):
        return None
    if not numeric and not strange:
        raise DataError(f"column {name!r} is empty in every row.")
    first = int(bad.argmax())
    raise DataError(f"column {name!r} holds numbers, but {int(bad.sum()):,} of its values are missing, infinite or "
                    f"text, first {cells[first]!r} in line {lines[first]}. Fill or remove these rows.")


def _number(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        return float("nan")


def _is_text(cell: str) -> bool:
    return np.isnan(_number(cell)) and cell.lower() not in _MISSING


@dataclass(frozen=True)
class CsvTable:
    """Cells of a file by column, and the line each row ends on, for messages."""

    columns: dict[str, list[str]]
    lines: list[int]


def load_csv(settings: Csv, seed: int) -> DataSet:
    """x float32 (n, columns), text columns as one column per distinct text; the target as `settings.task` says."""
    file = readable_file(settings.path)
    table = _read_csv(file, _separator(settings.separator))
    if settings.target not in table.columns:
        raise DataError(f"data.target: {file} has no column {settings.target!r}. It has: {', '.join(table.columns)}. "
                        f"{did_you_mean(settings.target, table.columns)}".rstrip())
    target = table.columns.pop(settings.target)
    if not table.columns:
        raise DataError(f"data.path: {file} has no column beside the target {settings.target!r}.")
    y, task, classes = read_target_column(settings.target, target, table.lines, settings.task)
    columns = [read_column(name, cells, table.lines) for name, cells in table.columns.items()]
    numeric = np.concatenate([np.full(column.values.shape[1], column.numeric) for column in columns])
    x = np.concatenate([column.values for column in columns], axis=1)
    done = {"inputs": [entry for column in columns for entry in column.inputs]} | _predicted_column(
        settings.target, classes
    )
    note = f"classes of {settings.target}: {shown_classes(classes)}" if classes else ""
    return build_data_set(RawArrays(file.name, Examples(x, y), None, task, len(classes) if classes else None,
                              standardise=numeric, note=note, preprocessing=done), settings, seed)


def _predicted_column(name: str, classes: list[str] | None) -> dict[str, Any]:
    return {"targets": [{"name": name}]} if classes is None else {"classes": classes}


def _separator(text: str) -> str:
    separator = "\t" if text == "\\t" else text
    if len(separator) != 1 or separator in '"\r\n':
        raise ConfigError(Problem("data.separator", "must be one character.", text, "For tabs write \\t."))
    return separator


def _read_csv(file: Path, separator: str) -> CsvTable:
    try:
        with file.open(newline="", encoding="utf-8-sig") as stream:
            reader = csv.reader(stream, delimiter=separator, strict=True)
            header = next(reader, [])
            rows = [(reader.line_num, row) for row in reader if row]
    except UnicodeDecodeError as error:
        raise DataError(f"data.path: {file} is not UTF-8 text ({error.reason} at byte {error.start}).") from error
    except csv.Error as error:
        raise DataError(f"data.path: {file}, line {reader.line_num}, can't be read as CSV: {error}.") from error
    names = [name.strip() for name in header]
    _check_csv_rows(file, names, rows)
    cells = {name: [row[place].strip() for _, row in rows] for place, name in enumerate(names)}
    return CsvTable(cells, [line for line, _ in rows])


def _check_csv_rows(file: Path, names: list[str], rows: list[tuple[int, list[str]]]) -> None:
    twice = sorted(name for name, count in Counter(names).items() if count > 1)
    if twice:
        raise DataError(f"data.path: {file} has two columns named {twice[0]!r}. Is its first line the header?")
    if not rows:
        raise DataError(f"data.path: {file} has a header line and no rows.")
    for line, row in rows:
        if len(row) != len(names):
            raise DataError(f"data.path: {file}, line {line}, has {len(row)} values; the header has {len(names)}. "
                            "Is data.separator right, and is the file complete?")


_MOST_UNREADABLE = 0.05  # share of replacement characters beyond which a file isn't taken for text


def load_text(settings: Text, seed: int) -> DataSet:
    """Windows x (n, T) and the same one character on, y (n, T); a class per distinct character, sorted by code.

    The windows follow one another without overlap. The last part of the text is held out, not random windows: those
    would share their neighbourhood with the training text.
    """
    title, files = _text_files(settings.path)
    text, unreadable = _read_text(files, settings.max_bytes)
    length = settings.sequence_length
    if len(text) < length + 1:
        raise DataError(f"{title}: {len(text):,} characters are too few for a window of data.sequence_length={length} "
                        "and the character after it.")
    vocabulary, codes = np.unique(_code_points(text), return_inverse=True)
    notes = ["validation is the last part of the text"] if settings.validation_fraction else []
    notes += [f"{unreadable:,} undecodable bytes replaced"] if unreadable else []
    raw = RawArrays(title, _windows(codes.astype(np.int32), length), task="classification", num_classes=len(vocabulary),
              in_order=True, note="; ".join(notes),
              preprocessing={"characters": [chr(code) for code in vocabulary]})
    return build_data_set(raw, settings, seed)


def _windows(codes: Array, length: int) -> Examples:
    count = (len(codes) - 1) // length
    return Examples(codes[:count * length].reshape(count, length), codes[1:count * length + 1].reshape(count, length))


def _text_files(path: str | None) -> tuple[str, list[Path]]:
    if path is None:
        return _standard_library()
    files = readable_files(path)
    count = f"{len(files):,} files in " if expanded(path).is_dir() else ""
    return f"text of {count}{path}", files


def _standard_library() -> tuple[str, list[Path]]:
    folder = Path(sysconfig.get_path("stdlib"))
    files = sorted(folder.glob("*.py"))
    if not files:
        raise DataError(f"The source of Python's standard library isn't in {folder}. Give a text file as data.path.")
    return f"source of Python {platform.python_version()}'s standard library", files


def _read_text(files: list[Path], max_bytes: int | None) -> tuple[str, int]:
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
        text, bad = _decode_text(data, file)
        texts.append(text)
        unreadable += bad
    return "".join(texts), unreadable


def _decode_text(data: bytes, file: Path) -> tuple[str, int]:
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


IMAGE_MEMORY_BYTES = 2**30  # decoded float32 images beyond this are read from the files in every epoch
_IMAGE_SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"}
_IMAGE_MODES = {1: "L", 3: "RGB", 4: "RGBA"}


@dataclass(frozen=True)
class ImageFolder:
    """Image files with their labels; labels count the class folders in sorted order."""

    path: Path
    files: list[Path]
    labels: Array
    classes: list[str]
    ignored: int


def load_images(settings: Images, seed: int) -> DataSet:
    """float32 0 … 1 (height, width, channels) in memory, or a stream where that would take over IMAGE_MEMORY_BYTES.

    The first frame of each file, turned upright, resized without keeping its proportions. The fingerprint is over
    names and bytes of the files, not the pixels, which differ a little between versions of the decoder.
    """
    if len(settings.image_size) != 2:
        raise ConfigError(Problem("data.image_size", "must be [height, width].", settings.image_size))
    folder = _scan(readable_folder(settings.path))
    decode = _decoder(settings)
    decoded_bytes = len(folder.files) * int(np.prod(settings.image_size)) * settings.channels * 4
    if decoded_bytes > IMAGE_MEMORY_BYTES:
        data = build_stream_set(_streams(folder, decode, settings, seed))
    else:
        x = np.stack(list(_in_parallel(decode, folder.files)))
        raw = RawArrays(_title(folder), Examples(x, folder.labels), None, "classification", len(folder.classes),
                  note=_note(folder), preprocessing=_preprocessing(folder, settings),
                  scale_pixels=settings.scale_pixels is not False)  # fmt: skip
        data = build_data_set(raw, settings, seed)
    fingerprint, of = _files_fingerprint(folder, f"{data.description} {settings.image_size} {seed}")
    return replace(data, fingerprint=fingerprint, fingerprint_of=of)


def _streams(folder: ImageFolder, decode: Callable[[Path], Array], settings: Images, seed: int) -> RawStream:
    indices = np.arange(len(folder.files))
    chosen = draw_examples(Examples(indices, indices), settings.limit, seed)
    train, validation = split_examples(chosen, settings.validation_fraction, seed)

    def stream(part: Examples) -> Stream:
        def opened(batch_size: int, shuffle_seed: int | None) -> Iterator[Examples]:
            order = part.x if shuffle_seed is None else np.random.default_rng(shuffle_seed).permutation(part.x)
            for start in range(0, len(order), batch_size):
                rows = order[start:start + batch_size]
                x = np.stack(list(_in_parallel(decode, [folder.files[row] for row in rows])))
                yield Examples(x, folder.labels[rows])
        return Stream(opened, len(part))

    return RawStream(_title(folder), stream(train), None if validation is None else stream(validation),
                     "classification", len(folder.classes), _note(folder), _preprocessing(folder, settings),
                     scale_pixels=settings.scale_pixels is not False)  # fmt: skip


def _scan(path: Path) -> ImageFolder:
    names = sorted(entry.name for entry in path.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    if len(names) < 2:
        raise DataError(f"data.path: {path} needs a sub-folder of images for each class, two or more. "
                        f"Received: {', '.join(names) or 'none'}.")
    found = {name: visible_files(path / name) for name in names}
    images = {name: [file for file in files if file.suffix.lower() in _IMAGE_SUFFIXES] for name, files in found.items()}
    empty = [name for name, files in images.items() if not files]
    if empty:
        raise DataError(f"data.path: no images in {', '.join(str(path / name) for name in empty)}. "
                        f"Known are {', '.join(sorted(_IMAGE_SUFFIXES))}.")
    labels = np.repeat(np.arange(len(names)), [len(files) for files in images.values()])
    files = [file for part in images.values() for file in part]
    return ImageFolder(path, files, labels, names, sum(map(len, found.values())) - len(files))


def _decoder(settings: Images) -> Callable[[Path], Array]:
    from PIL import Image, ImageOps

    height, width = settings.image_size

    def decode(file: Path) -> Array:
        """uint8 (height, width, channels)."""
        try:
            with Image.open(file) as image:
                if image.mode[0] in "IF":
                    raise DataError(f"{file} has {image.mode} pixels, deeper than 8 bit. Convert it to 8 bit first.")
                upright = ImageOps.exif_transpose(image).convert(_IMAGE_MODES[settings.channels])
                pixels = np.asarray(upright.resize((width, height), Image.Resampling.BILINEAR))
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
            raise DataError(f"data.path: {file} can't be read as an image: {error}.") from error
        return pixels.reshape(height, width, settings.channels)

    return decode


def _in_parallel(decode: Callable[[Path], Array], files: list[Path]) -> Iterator[Array]:
    """Decoded in order; decoders let other threads run."""
    with ThreadPoolExecutor() as pool:
        yield from pool.map(decode, files)


def _files_fingerprint(folder: ImageFolder, settings_text: str) -> tuple[str, str]:
    whole = sum(file.stat().st_size for file in folder.files) <= WHOLE_BYTES
    digest = hashlib.sha256(settings_text.encode())
    for file in folder.files:
        digest.update(f"{file.relative_to(folder.path).as_posix()} {file.stat().st_size};".encode())
        digest.update(file.read_bytes() if whole else b"")
    return digest.hexdigest(), f"names, sizes{' and bytes' * whole} of the files"


def _preprocessing(folder: ImageFolder, settings: Images) -> dict[str, Any]:
    image = {"mode": _IMAGE_MODES[settings.channels], "size": list(settings.image_size), "resize": "bilinear"}
    return {"image": image, "classes": folder.classes}


def _title(folder: ImageFolder) -> str:
    return f"images in {folder.path.name}"


def _note(folder: ImageFolder) -> str:
    other = f"; {folder.ignored:,} other files ignored" if folder.ignored else ""
    return f"classes: {shown_classes(folder.classes)}{other}"
