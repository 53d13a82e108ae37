"""What every page must be: well-formed, alone, and usable without seeing it."""

import re
from html.parser import HTMLParser

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
    return page


def _check_names(page: Page) -> None:
    assert page.all("html")[0]["lang"] == "en"
    assert [len(page.all(tag)) for tag in ("header", "main", "footer", "nav", "h1")] == [1] * 5
    assert {link["href"][1:] for link in page.all("a")} <= {*page.ids}
    assert {section["aria-labelledby"] for section in page.all("section")} <= {*page.ids}
    pictures = [attributes for _, attributes in page.elements if attributes.get("role") == "img"]
    assert len(pictures) == len(page.all("svg")) and all(picture["aria-label"] for picture in pictures)
    for named, name in (("table", "caption"), ("figure", "figcaption"), ("details", "summary")):
        assert len(page.all(named)) == len(page.all(name))
    assert all(head["scope"] in ("col", "row") for head in page.all("th"))
