"""Folders of images."""

import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from mpt_cli.data import file_formats
from mpt_cli.data.examples import Stream
from mpt_cli.data.load import load_data
from mpt_cli.errors import ConfigError, DataError
from mpt_cli.settings.variants import Images

COLOURS = {"cats": (255, 0, 51), "dogs": (0, 102, 0)}


@pytest.fixture
def folder(tmp_path):
    for name, colour in COLOURS.items():
        (tmp_path / name).mkdir()
        for number, size in enumerate([(8, 8), (12, 6), (3, 9)]):
            Image.new("RGB", size, colour).save(tmp_path / name / f"{number}.png")
    return tmp_path


def load(path, **settings):
    return load_data(Images(path=str(path), **{"image_size": [4, 6], **settings}), 0)


def test_sub_folders_are_classes_and_pixels_lie_between_0_and_1(folder):
    data = load(folder, validation_fraction=0)
    assert data.train.x.shape == (6, 4, 6, 3)
    assert data.train.y.tolist() == [0, 0, 0, 1, 1, 1]
    assert data.train.x[0, 0, 0].tolist() == [1.0, 0.0, np.float32(0.2)]
    assert data.train.x[5, 3, 5].tolist() == [0.0, np.float32(0.4), 0.0]
    assert data.description == (f"images in {folder.name}: 6 training examples of 4x6x3, 2 classes; "
                                "classes: cats, dogs")
    assert data.fingerprint_of == "names, sizes and bytes of the files"
    assert data.preprocessing == {"image": {"mode": "RGB", "size": [4, 6], "resize": "bilinear"},
                                  "classes": ["cats", "dogs"], "divided_by": {"x": 255}}


@pytest.mark.parametrize(("channels", "pixel"), [(1, [0.3216]), (4, [1.0, 0.0, 0.2, 1.0])])
def test_channels(folder, channels, pixel):
    # grey is 0.299 red + 0.587 green + 0.114 blue (ITU-R 601) = 82 of 255
    assert load(folder, channels=channels, validation_fraction=0).train.x[0, 0, 0] == pytest.approx(pixel, abs=1e-4)


def test_other_modes_suffixes_and_orientation(folder):
    Image.new("P", (4, 4)).save(folder / "cats" / "p.gif")
    Image.new("1", (4, 4)).save(folder / "cats" / "b.PNG")
    upright = Image.new("RGB", (2, 4))
    upright.paste((255, 255, 255), (0, 0, 2, 2))  # white above black
    exif = Image.Exif()
    exif[274] = 3  # stored upside down
    upright.rotate(180).save(folder / "dogs" / "z.jpg", exif=exif, quality=100)
    x = load(folder, image_size=[4, 2], validation_fraction=0).train.x
    assert len(x) == 9
    assert x[-1, 0].mean() > 0.9 > 0.1 > x[-1, 3].mean()


def test_other_files_are_counted_and_hidden_ones_not(folder):
    (folder / "cats" / "notes.txt").write_text("mine")
    (folder / "cats" / ".DS_Store").write_text("")
    (folder / ".cache").mkdir()
    assert load(folder).description.endswith("classes: cats, dogs; 1 other files ignored")


def test_the_fingerprint_follows_files_size_split_and_nothing_else(folder, monkeypatch):
    first = load(folder).fingerprint
    assert load(folder).fingerprint == first
    assert load(folder, image_size=[4, 5]).fingerprint != first
    assert load_data(Images(path=str(folder), image_size=[4, 6]), 1).fingerprint != first
    monkeypatch.setattr(file_formats, "WHOLE_BYTES", 10)
    assert load(folder).fingerprint_of == "names, sizes of the files"
    monkeypatch.undo()
    Image.new("RGB", (8, 8)).save(folder / "cats" / "0.png")
    assert load(folder).fingerprint != first


def test_a_large_folder_is_a_stream_of_the_same_examples(folder, monkeypatch):
    arrays = load(folder, validation_fraction=0)
    monkeypatch.setattr(file_formats, "IMAGE_MEMORY_BYTES", 1000)
    data = load(folder, validation_fraction=0)
    assert isinstance(data.train, Stream)
    assert data.train.examples == 6
    batches = list(data.train.batches(4, 0, 0, shuffle=False))
    assert [len(x) for x, _, _ in batches] == [4, 2]
    assert np.concatenate([x for x, _, _ in batches]).tolist() == arrays.train.x.tolist()
    assert np.concatenate([y for _, y, _ in batches]).tolist() == arrays.train.y.tolist()
    assert data.preprocessing == arrays.preprocessing
    assert "6 streamed training examples of 4x6x3, 2 classes" in data.description


def test_a_streamed_folder_is_split_and_shuffled_by_seed(folder, monkeypatch):
    monkeypatch.setattr(file_formats, "IMAGE_MEMORY_BYTES", 1000)
    data = load(folder, validation_fraction=0.34, limit=5)
    assert (data.train.examples, data.validation.examples) == (3, 2)
    orders = [[float(x.sum()) for x, _, _ in data.train.batches(1, epoch, 0, shuffle=True)] for epoch in (0, 0, 1)]
    assert orders[0] == orders[1]
    assert sorted(orders[0]) == sorted(orders[2])


def _one_class(folder):
    for file in (folder / "dogs").iterdir():
        file.unlink()
    (folder / "dogs").rmdir()


def _truncate(folder):
    Image.effect_noise((64, 64), 90).save(folder / "cats" / "1.png")
    (folder / "cats" / "1.png").write_bytes((folder / "cats" / "1.png").read_bytes()[:900])


def _bomb(folder):
    """Some bytes that say they have ten billion pixels."""
    png = b"\x89PNG\r\n\x1a\n"
    header = struct.pack(">IIBBBBB", 100_000, 100_000, 8, 0, 0, 0, 0)
    for name, content in ((b"IHDR", header), (b"IDAT", zlib.compress(bytes(100)))):
        png += struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))
    (folder / "cats" / "2.png").write_bytes(png)


@pytest.mark.parametrize(("spoil", "message"), [
    (_bomb, r"cats/2\.png can't be read as an image: Image size \(10000000000 pixels\) exceeds limit"),
    (_one_class, r"needs a sub-folder of images for each class, two or more\. Received: cats\."),
    (_truncate, r"data\.path: .*cats/1\.png can't be read as an image: .*truncated"),
    (lambda folder: (folder / "birds").mkdir(), r"no images in .*birds\. Known are \.bmp, "),
    (lambda folder: (folder / "cats" / "2.jpg").write_text("n"), r"cats/2\.jpg can't be read as an image: cannot id"),
    (lambda folder: (folder / "cats" / "2.jpg").write_text(""), r"cats/2\.jpg can't be read as an image"),
    (lambda folder: Image.new("I;16", (4, 4)).save(folder / "cats" / "deep.png"),
     r"cats/deep\.png has I;16 pixels, deeper than 8 bit\. Convert it"),
])
def test_bad_folders(folder, spoil, message):
    spoil(folder)
    with pytest.raises(DataError, match=message):
        load(folder)


def test_missing_folder_and_file_in_its_place(folder):
    with pytest.raises(DataError, match=r"data\.path: there is no folder .*cast\. Did you mean cats\?"):
        load(folder / "cast")
    with pytest.raises(DataError, match=r"0\.png is a file where a folder is needed"):
        load(folder / "cats" / "0.png")


def test_image_size_is_height_and_width(folder):
    with pytest.raises(ConfigError, match=r"data\.image_size: must be \[height, width\]\. Received: \[4\]"):
        load(folder, image_size=[4])
