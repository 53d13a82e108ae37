"""What every page must be: well-formed, alone, and usable without seeing it."""

import re
from html.parser import HTMLParser
from itertools import pairwise

VOID = ("meta", "br", "link", "hr")


class Page(HTMLParser):
    """A page read: its elements in order, what it would fetch, and whether all is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, {name: value or "" for name, value in attributes}))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.elements.append((tag, {name: value or "" for name, value in attributes}))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, f"</{tag}> closes another element"

    def all(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.elements if name == tag]

    @property
    def ids(self) -> list[str]:
        return [attributes["id"] for _, attributes in self.elements if "id" in attributes]

    @property
    def fetched(self) -> list[str]:
        names = ("src", "href", "xlink:href", "data", "action", "poster")
        return [attributes[name] for _, attributes in self.elements for name in names
                if name in attributes and not attributes[name].startswith("#")]  # fmt: skip


def check_page(text: str) -> Page:
    """Well-formed, without a word to the network, every element that needs a name with one."""
    page = Page(text)
    assert page.open == [] and page.fetched == []
    assert not re.search(r"@import|url\((?!#)|<script|https?://(?!www\.w3\.org/)", text)
    assert len(page.ids) == len(set(page.ids)), "an id stands twice"
    _check_names(page)
    _check_order_of_headings(page)
    return page


def _check_names(page: Page) -> None:
    ids = set(page.ids)
    assert page.all("html")[0]["lang"] == "en" and len(page.all("h1")) == 1
    assert [len(page.all(tag)) for tag in ("header", "main", "footer", "nav")] == [1, 1, 1, 1]
    assert page.elements[[tag for tag, _ in page.elements].index("body") + 1][1]["class"] == "skip-link"
    for link in page.all("a"):
        assert link["href"][1:] in ids
    pictures = [attributes for _, attributes in page.elements if attributes.get("role") == "img"]
    assert len(pictures) == len(page.all("svg")) and all(picture["aria-label"] for picture in pictures)
    assert len(page.all("caption")) == len(page.all("table")) and len(page.all("figcaption")) == len(page.all("figure"))
    assert len(page.all("summary")) == len(page.all("details"))
    assert all(head["scope"] in ("col", "row") for head in page.all("th"))
    for region in [attributes for _, attributes in page.elements if attributes.get("role") == "region"]:
        assert region["aria-label"] and region["tabindex"] == "0"  # a scrolling table is reached by keyboard
    for section in page.all("section"):
        assert section["aria-labelledby"] in ids


def _check_order_of_headings(page: Page) -> None:
    levels = [int(tag[1]) for tag, _ in page.elements if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1 and all(after <= before + 1 for before, after in pairwise(levels))
