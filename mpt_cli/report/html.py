"""The parts of a page: sections, tables, figures, commands. Everything that is shown is escaped here."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from mpt_cli import __version__
from mpt_cli.report.draw import Drawing
from mpt_cli.report.picture import COLUMNS
from mpt_cli.report.style import STYLE

GENERATOR = '<meta name="generator" content="mpt'  # by it a page of ours is known


@dataclass(frozen=True)
class Section:
    """A part with a heading of its own, which the contents list; `body` is HTML."""

    name: str
    title: str
    body: str


@dataclass(frozen=True)
class Head:
    """The title of a column, and how its cells stand."""

    title: str
    is_number: bool = False
    wraps: bool = False

    @property
    def style(self) -> str:
        return ' class="number"' if self.is_number else ' class="wrap"' if self.wraps else ""


@dataclass(frozen=True)
class Row:
    """Cells as texts, or as HTML where a cell is `Html`. The first one names the row."""

    cells: Sequence[str]
    style: str = ""


class Html(str):
    """A cell that is HTML already."""


def page(title: str, lead: str, sections: Sequence[Section], footnote: str = "") -> str:
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
        f'{GENERATOR} {__version__}"><title>{escape(title)}</title><style>{STYLE}</style></head>\n'
        '<body><a class="skip-link" href="#main">To the content</a>\n'
        f'<header><h1>{escape(title)}</h1>\n<nav aria-label="Contents"><ul>{links}</ul></nav></header>\n'
        f'<main id="main" tabindex="-1">{lead}\n{body}</main>\n<footer><p>{made}</p></footer></body></html>\n'
    )


def table(caption: str, heads: Sequence[Head], rows: Iterable[Row]) -> str:
    """Scrolls by itself where it is too wide, also by keyboard; the first cell of a row is its heading."""
    top = "".join(f'<th scope="col"{head.style}>{_breakable(head.title)}</th>' for head in heads)
    body = "".join(_row(heads, row) for row in rows)
    inner = f"<table><caption>{escape(caption)}</caption><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(caption)}">{inner}</div>'


def _breakable(title: str) -> str:
    """A key may be broken after its dots and underscores, which matters on paper."""
    return escape(title).replace(".", ".<wbr>").replace("_", "_<wbr>")


def _row(heads: Sequence[Head], row: Row) -> str:
    cells = [cell if isinstance(cell, Html) else escape(cell) for cell in row.cells]
    first = f'<th scope="row"{heads[0].style}>{cells[0]}</th>'
    rest = "".join(f"<td{head.style}>{cell}</td>" for head, cell in zip(heads[1:], cells[1:], strict=True))
    style = f' class="{row.style}"' if row.style else ""
    return f"<tr{style}>{first}{rest}</tr>"


def figures(drawings: Iterable[Drawing]) -> str:
    """Each picture with its title above and its table folded below."""
    found = "".join(_figure(drawing) for drawing in drawings)
    return f'<div class="plots">{found}</div>' if found else ""


def _figure(drawing: Drawing) -> str:
    picture = drawing.picture
    heads = [Head(title, is_number=place > 0) for place, title in enumerate(COLUMNS)]
    numbers = table(f"{picture.title}: {picture.y_label} by {picture.x_label}", heads, map(Row, picture.rows()))
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
