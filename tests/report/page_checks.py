"""What every page must be: well-formed, alone, and usable without seeing it."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path

from mpt_cli import report
from mpt_cli.report.page import SCRIPTS

VOID = ("meta", "br", "link", "hr")


class Page(HTMLParser):
    """A page read: its elements in order, what it would fetch, and whether all is closed."""

    def __init__(self, text: str):
        super().__init__()
        self.text = text
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.open: list[str] = []
        self.scripts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, {name: value or "" for name, value in attributes}))
        if tag not in VOID:
            self.open.append(tag)

    def handle_data(self, data):
        if self.open[-1:] == ["script"]:
            self.scripts.append(data)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, f"</{tag}> closes another element"

    def all(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.elements if name == tag]

    @property
    def ids(self) -> list[str]:
        return [attributes["id"] for _, attributes in self.elements if "id" in attributes]

    @property
    def charts(self) -> list[dict]:
        """What its script draws."""
        return json.loads(self.scripts[0])

    @property
    def fetched(self) -> list[str]:
        names = ("src", "href", "xlink:href", "data", "action", "poster")
        return [
            attributes[name] for _, attributes in self.elements for name in names if name in attributes and _ != "a"
        ]


def check_page(text: str) -> Page:
    """Well-formed, without a word to the network, no script but ours, every element that needs a name with one."""
    page = Page(text)
    assert page.open == [] and page.fetched == []
    shipped = [(Path(report.__file__).parent / name).read_text() for name in SCRIPTS]
    assert page.scripts[1:] == shipped and text.lower().count("<script") == 3
    policy = next(each["content"] for each in page.all("meta") if "http-equiv" in each)
    assert re.fullmatch(r"default-src 'none'; style-src 'unsafe-inline'; script-src( 'sha256-[\w+/]{43}='){2}", policy)
    assert not re.search(r"@import|url\(|https?://", text[: text.index("<script")])
    assert len(page.ids) == len(set(page.ids)), "an id stands twice"
    _check_names(page)
    return page


def _check_names(page: Page):
    assert page.all("html")[0]["lang"] == "en"
    assert [len(page.all(tag)) for tag in ("header", "main", "footer", "nav", "h1")] == [1] * 5
    links = [link["href"] for link in page.all("a")]
    assert {link[1:] for link in links if link.startswith("#")} <= {*page.ids}
    assert not any(":" in link for link in links), "a link leads to another host, or runs a script"
    assert {section["aria-labelledby"] for section in page.all("section")} <= {*page.ids}
    pictures = [attributes for _, attributes in page.elements if attributes.get("role") == "img"]
    assert sorted(int(picture["data-chart"]) for picture in pictures) == [*range(len(page.charts))]
    assert all(picture["aria-label"] for picture in pictures)
    for named, name in (("table", "caption"), ("figure", "figcaption"), ("details", "summary")):
        assert len(page.all(named)) == len(page.all(name))
    assert all(head["scope"] in ("col", "row") for head in page.all("th"))
