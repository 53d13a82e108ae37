"""A page: its template filled in, and its place on disk with the pictures beside it.

The HTML stands in templates/, which escape whatever they are given; control codes are written out.
"""

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpt_cli.errors import DataError, without_control
from mpt_cli.report.picture import TABLE_TITLES, Drawing, missing_matplotlib
from mpt_cli.report.tables import HtmlColumn, HtmlRow, HtmlTable
from mpt_cli.runs.directory import write_atomic
from mpt_cli.settings.limits import open_file, read_file
from mpt_cli.telemetry.palette import DARK_PAGE, LIGHT_PAGE
from mpt_cli.version import __version__

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

GENERATOR = '<meta name="generator" content="mpt'  # as page.html writes it: by it a page of ours is known


@dataclass(frozen=True)
class Figure:
    """A picture on a page; `svg` is its text, which is not escaped."""

    title: str
    svg: "Markup"
    note: str
    numbers: HtmlTable


def render_page(template: str, title: str, drawings: Sequence[Drawing], **values: Any) -> str:
    """The whole file, from a template that extends page.html; it gets the `drawings` as `figures`."""
    filled = {"footnote": "", "no_pictures": missing_matplotlib(), **values}
    page = _environment().get_template(template).render(
        title=title, figures=[_figure(drawing) for drawing in drawings], version=__version__,
        made_at=time.strftime("%Y-%m-%d %H:%M"), light=LIGHT_PAGE, dark=DARK_PAGE, **filled,
    )  # fmt: skip
    return without_control(page)


@cache
def _environment() -> "Environment":
    from jinja2 import Environment, PackageLoader, StrictUndefined

    found = Environment(
        loader=PackageLoader("mpt_cli.report"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True, keep_trailing_newline=True,
    )  # fmt: skip
    found.filters["breakable"] = _breakable
    return found


def _breakable(title: str) -> "Markup":
    """A key may be broken after its dots and underscores, which matters on paper."""
    from markupsafe import Markup, escape

    return Markup(re.sub(r"([._])", r"\1<wbr>", str(escape(title))))


def _figure(drawing: Drawing) -> Figure:
    from markupsafe import Markup

    picture = drawing.picture
    columns = [HtmlColumn(title, is_number=place > 0) for place, title in enumerate(TABLE_TITLES)]
    caption = f"{picture.title}: {picture.y_label} by {picture.x_label}"
    numbers = HtmlTable(caption, columns, [HtmlRow(row) for row in picture.rows()])
    return Figure(picture.title, Markup(drawing.inline), picture.note, numbers)


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
        text = read_file(page, None, "replace")
    except FileNotFoundError:
        return set()
    return set(re.findall(r'<svg role="img" aria-labelledby="([^"/]+)-title"', text))


def check_replaceable(path: Path) -> None:
    """DataError where something lies at `path` that mpt did not write."""
    if path.is_dir():
        raise DataError(f"{path} is a folder. Give the name of a file, as in --out {path / 'report.html'}")
    try:
        with open_file(path) as file:
            is_ours = GENERATOR.encode() in file.read(2000)
    except FileNotFoundError:
        return
    except OSError as error:
        raise DataError(f"{path} can't be read: {error.strerror}.") from error
    if not is_ours:
        raise DataError(f"{path} exists and is no page of mpt. Nothing was changed; give another --out.")
