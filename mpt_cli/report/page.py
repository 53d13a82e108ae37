"""A page: its template filled in, and its place on disk.

The HTML stands in templates/, which escape whatever they are given; control codes are written out.
"""

import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpt_cli.errors import DataError, naming, without_control
from mpt_cli.report.picture import Picture, draw, drawable, missing_matplotlib
from mpt_cli.runs.directory import write_atomic
from mpt_cli.settings.limits import open_file
from mpt_cli.telemetry.palette import DARK_PAGE, LIGHT_PAGE
from mpt_cli.version import __version__

if TYPE_CHECKING:
    from jinja2 import Environment

GENERATOR = '<meta name="generator" content="mpt'  # as page.html writes it: by it a page of ours is known


def render_page(template: str, title: str, pictures: Sequence[Picture], **values: Any) -> str:
    """The whole file, from a template that extends page.html, with the `pictures` drawn."""
    from markupsafe import Markup

    page = _environment().get_template(template).render(
        title=title, figures=[(picture, Markup(draw(picture))) for picture in drawable(pictures)],
        no_pictures=missing_matplotlib(), version=__version__, made_at=time.strftime("%Y-%m-%d %H:%M"),
        light=LIGHT_PAGE, dark=DARK_PAGE, **values,
    )  # fmt: skip
    return without_control(page)


@cache
def _environment() -> "Environment":
    from jinja2 import Environment, PackageLoader, StrictUndefined

    return Environment(
        loader=PackageLoader("mpt_cli.report"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True, keep_trailing_newline=True,
    )  # fmt: skip


def write_page(path: Path, text: str) -> None:
    """DataError where it can't be written, and where `path` is a file that is no page of mpt: nothing is overwritten.
    """
    check_replaceable(path)
    with naming(path, "Choose another place by --out."):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, text)


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
