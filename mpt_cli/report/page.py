"""A page: its parts, the whole, and its place on disk with the pictures beside it. What is shown is escaped here."""

import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from mpt_cli import __version__
from mpt_cli.errors import DataError
from mpt_cli.report.palette import STYLESHEET
from mpt_cli.report.picture import TABLE_TITLES, Drawing
from mpt_cli.report.tables import Html, HtmlColumn, HtmlRow, html_table
from mpt_cli.runs.directory import write_atomic

GENERATOR = '<meta name="generator" content="mpt'  # by it a page of ours is known


@dataclass(frozen=True)
class Section:
    """A part with a heading of its own, which the contents list; `body` is HTML."""

    name: str
    title: str
    body: str


def render_page(title: str, lead: str, sections: Sequence[Section], footnote: str = "") -> str:
    """The whole file. `lead` is HTML below the title; sections without a body are left out."""
    shown = [section for section in sections if section.body]
    links = "".join(f'<li><a href="#{section.name}">{escape(section.title)}</a></li>' for section in shown)
    body = "\n".join(
        f'<section id="{section.name}" aria-labelledby="{section.name}-title"><h2 id="{section.name}-title">'
        f"{escape(section.title)}</h2>\n{section.body}</section>"
        for section in shown
    )
    made = f"mpt {__version__}, {time.strftime('%Y-%m-%d %H:%M')}. {escape(footnote)}"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'{GENERATOR} {__version__}"><title>{escape(title)}</title><style>{STYLESHEET}</style></head>\n'
        '<body><a class="skip-link" href="#main">To the content</a>\n'
        f'<header><h1>{escape(title)}</h1>\n<nav aria-label="Contents"><ul>{links}</ul></nav></header>\n'
        f'<main id="main" tabindex="-1">{lead}\n{body}</main>\n<footer><p>{made}</p></footer></body></html>\n'
    )


def figures(drawings: Iterable[Drawing]) -> str:
    """Each picture with its title above and its table folded below."""
    found = "".join(_figure(drawing) for drawing in drawings)
    return f'<div class="plots">{found}</div>' if found else ""


def _figure(drawing: Drawing) -> str:
    picture = drawing.picture
    heads = [HtmlColumn(title, is_number=place > 0) for place, title in enumerate(TABLE_TITLES)]
    numbers = html_table(
        f"{picture.title}: {picture.y_label} by {picture.x_label}", heads, map(HtmlRow, picture.rows())
    )
    note = f'<p class="faint">{escape(picture.note)}</p>' if picture.note else ""
    data = details(f"{picture.title} in numbers", numbers)
    return f"<figure><figcaption>{escape(picture.title)}</figcaption>{drawing.inline}{note}{data}</figure>"


def details(title: str, body: str, is_open: bool = False) -> str:
    """Folded until it is asked for."""
    return f"<details{' open' if is_open else ''}><summary>{escape(title)}</summary>{body}</details>"


def facts(pairs: Iterable[tuple[str, str]]) -> str:
    """Names and what they are."""
    return "<dl>" + "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in pairs) + "</dl>"


def commands(lines: Iterable[str]) -> str:
    """To be copied into a shell, each in a box of its own."""
    return "".join(f"<pre>{escape(line)}</pre>" for line in lines)


def lead(headline: str, sentence: str, kind: str = "") -> str:
    """What the page has to say, before anything else; `kind` is good, bad, warn or nothing."""
    text = f"<p>{escape(sentence)}</p>" if sentence else ""
    return f'<div class="lead {kind}"><strong>{escape(headline)}</strong>{text}</div>'


def coloured(text: str, kind: str) -> Html:
    return Html(f'<span class="{kind}">{escape(text)}</span>')


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
