"""Fill in the template of a page, and write the page.

A page is one file that works offline. The HTML is in templates/, which escape all values; control codes are written
out. A browser runs only our two scripts, which it knows by their hashes, whatever the name of a run contains.

The charts are uPlot's (uplot/, MIT). It is 51 KB without a dependency, and has what curves over steps need: lines, axes
of powers of two, a cursor with values, zoom and a legend. ECharts has more kinds of charts, for 560 KB in each page.
"""

import hashlib
import os
import time
from base64 import b64encode
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from mpt_cli.errors import DataError, naming, without_control
from mpt_cli.files import open_file, write_atomic
from mpt_cli.report.picture import Picture, chart_data
from mpt_cli.version import __version__

if TYPE_CHECKING:
    from jinja2 import Environment

GENERATOR = '<meta name="generator" content="mpt'  # written by page.html: marks a page as ours
SCRIPTS = ("uplot/uPlot.iife.min.js", "templates/charts.js")
UPLOT_CSS = "uplot/uPlot.min.css"


def render_page(
    template: str, title: str, pictures: Sequence[Picture], other_charts: Sequence[dict[str, Any]] = (), **values: Any
) -> str:
    """Return the whole file, from a template that extends page.html, with a chart for each of the `pictures`.

    `other_charts` follow these in the data that charts.js draws.
    """
    page = _environment().get_template(template)
    text = page.render(
        title=title,
        figures=pictures,
        charts=[*chart_data(pictures), *other_charts],
        version=__version__,
        made_at=time.strftime("%Y-%m-%d %H:%M"),
        **values,
    )
    return without_control(text)


@cache
def _environment() -> "Environment":
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=PackageLoader("mpt_cli.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    css, *scripts = ((Path(__file__).parent / name).read_text(encoding="utf-8") for name in (UPLOT_CSS, *SCRIPTS))
    hashes = [b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in scripts]
    environment.globals.update(scripts=[*map(Markup, scripts)], hashes=hashes, uplot_css=Markup(css))
    return environment


def run_link(run_dir: Path, page: Path) -> str:
    """Return the link from `page` to a run: its report if there is one, else its folder."""
    report = run_dir / "report.html"
    return quote(os.path.relpath(report if report.is_file() else run_dir, page.parent))


def write_page(path: Path, text: str) -> None:
    """Write the page; DataError if it can't be written, or if `path` is a file that is no page of mpt."""
    with naming(path, "Give another --out."), suppress(FileNotFoundError), open_file(path) as file:
        if GENERATOR.encode() not in file.read(2000):
            raise DataError(f"{path} exists and is no page of mpt. Nothing was changed; give another --out.")
    with naming(path, "Choose another place by --out."):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, text)
