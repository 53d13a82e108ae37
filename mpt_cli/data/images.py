"""A folder of images, one sub-folder per class."""

import hashlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from mpt_cli.data.build import RawArrays, RawStream, build_data_set, build_stream_set, shown_classes
from mpt_cli.data.examples import WHOLE_BYTES, Array, DataSet, Examples, Stream, draw_examples, split_examples
from mpt_cli.data.paths import readable_folder, visible_files
from mpt_cli.errors import ConfigError, DataError, Problem
from mpt_cli.settings.variants import Images

MEMORY_BYTES = 2**30  # decoded float32 images beyond this are read from the files in every epoch
_SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"}
_MODES = {1: "L", 3: "RGB", 4: "RGBA"}


@dataclass(frozen=True)
class ImageFolder:
    """Image files with their labels; labels count the class folders in sorted order."""

    path: Path
    files: list[Path]
    labels: Array
    classes: list[str]
    ignored: int


def load_images(settings: Images, seed: int) -> DataSet:
    """float32 0 … 1 (height, width, channels) in memory, or a stream where that would take over MEMORY_BYTES.

    The first frame of each file, turned upright, resized without keeping its proportions. The fingerprint is over
    names and bytes of the files, not the pixels, which differ a little between versions of the decoder.
    """
    if len(settings.image_size) != 2:
        raise ConfigError(Problem("data.image_size", "must be [height, width].", settings.image_size))
    folder = _scan(readable_folder(settings.path))
    decode = _decoder(settings)
    decoded_bytes = len(folder.files) * int(np.prod(settings.image_size)) * settings.channels * 4
    if decoded_bytes > MEMORY_BYTES:
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
    images = {name: [file for file in files if file.suffix.lower() in _SUFFIXES] for name, files in found.items()}
    empty = [name for name, files in images.items() if not files]
    if empty:
        raise DataError(f"data.path: no images in {', '.join(str(path / name) for name in empty)}. "
                        f"Known are {', '.join(sorted(_SUFFIXES))}.")
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
                upright = ImageOps.exif_transpose(image).convert(_MODES[settings.channels])
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
    image = {"mode": _MODES[settings.channels], "size": list(settings.image_size), "resize": "bilinear"}
    return {"image": image, "classes": folder.classes}


def _title(folder: ImageFolder) -> str:
    return f"images in {folder.path.name}"


def _note(folder: ImageFolder) -> str:
    other = f"; {folder.ignored:,} other files ignored" if folder.ignored else ""
    return f"classes: {shown_classes(folder.classes)}{other}"
