"""The page and its pictures on disk: the page whole by itself, each picture beside it as SVG and PNG."""

import re
from collections.abc import Sequence
from pathlib import Path

from mpt_cli.errors import DataError
from mpt_cli.report.draw import Drawing
from mpt_cli.report.html import GENERATOR
from mpt_cli.runs.atomic import write_atomic


def pictures_folder(page: Path) -> Path:
    """`report.html` has its pictures in `report_pictures`."""
    return page.with_name(f"{page.stem}_pictures")


def footnote(page: Path, drawings: Sequence[Drawing]) -> str:
    """Where the pictures lie, for the page itself."""
    return f"Each picture lies as SVG and PNG in {pictures_folder(page).name}/." if drawings else ""


def write_page(path: Path, text: str, drawings: Sequence[Drawing]) -> None:
    """Write the page, and its pictures into the folder beside it; those of an earlier page there that it lacks go.

    DataError where it can't be written, and where `path` is a file that is no page of mpt: nothing is overwritten.
    """
    check_replaceable(path)
    folder = pictures_folder(path)
    obsolete = _pictures_of(path) - {drawing.picture.name for drawing in drawings}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if drawings:
            folder.mkdir(exist_ok=True)
        for drawing in drawings:
            (folder / f"{drawing.picture.name}.svg").write_text(drawing.svg, encoding="utf-8")
            (folder / f"{drawing.picture.name}.png").write_bytes(drawing.png)
        for name in obsolete:
            for kind in ("svg", "png"):
                (folder / f"{name}.{kind}").unlink(missing_ok=True)
    except OSError as error:
        raise DataError(f"{folder} can't be written: {error.strerror}. Choose another place by --out.") from error
    write_atomic(path, text)


def _pictures_of(page: Path) -> set[str]:
    """Names of the pictures that the page there shows: whatever else lies in its folder is not ours."""
    try:
        text = page.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return set()
    return set(re.findall(r'<svg role="img" aria-labelledby="([^"/]+)-title"', text))


def check_replaceable(path: Path) -> None:
    """DataError where something lies at `path` that mpt did not write."""
    if path.is_dir():
        raise DataError(f"{path} is a folder. Give the name of a file, as in --out {path / 'report.html'}")
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            is_ours = GENERATOR in file.read(2000)
    except FileNotFoundError:
        return
    except OSError as error:
        raise DataError(f"{path} can't be read: {error.strerror}.") from error
    if not is_ours:
        raise DataError(f"{path} exists and is no page of mpt. Nothing was changed; give another --out.")
