"""The colors of console, curves and pages: told apart by anyone, light or dark as the reader's system is, and on
paper.
"""

from dataclasses import dataclass

# After Okabe and Ito's palette for the color-blind, without its light tones: each has a contrast of 3 or more both to
# the white page and to the dark one.
CURVE_COLORS = ("#0072b2", "#d55e00", "#00936b", "#c86fa2", "#a6761d", "#7f7f7f")
LINE_STYLES = ("-", "--")
MOST_DISTINCT = len(LINE_STYLES) * len(CURVE_COLORS)  # more than these nobody tells apart


@dataclass(frozen=True)
class CurveStyle:
    """`style` is matplotlib's, empty for points alone."""

    color: str = CURVE_COLORS[0]
    style: str = "-"
    marker: str = ""


PLAIN_STYLE = CurveStyle()


def distinct_style(index: int) -> CurveStyle:
    """Return a style that differs from others: first by color, then by line style; 12 of them are distinct."""
    return CurveStyle(
        CURVE_COLORS[index % len(CURVE_COLORS)], LINE_STYLES[index // len(CURVE_COLORS) % len(LINE_STYLES)]
    )


# Contrast of every text color to its background is at least 4.5 in both schemes; a test reckons it out.
LIGHT_PAGE = {
    "page": "#ffffff",
    "ink": "#1f2328",
    "faint": "#59636e",
    "line": "#d8dee4",
    "soft": "#f3f5f7",
    "good": "#1a7f37",
    "bad": "#c5221f",
    "warn": "#8a5a00",
    "link": "#0a5fb4",
}
DARK_PAGE = {
    "page": "#14171a",
    "ink": "#e3e6e9",
    "faint": "#a2abb5",
    "line": "#343a41",
    "soft": "#1f2429",
    "good": "#4cc36a",
    "bad": "#ff8f87",
    "warn": "#e3b341",
    "link": "#6cb6ff",
}
