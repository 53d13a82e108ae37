"""The colours of console, curves and pages: told apart by anyone, light or dark as the reader's system is, and on
paper.
"""

from collections.abc import Sequence
from dataclasses import dataclass

# After Okabe and Ito's palette for the colour-blind, without its light tones: each has a contrast of 3 or more both to
# the white page and to the dark one.
CURVE_COLOURS = ("#0072b2", "#d55e00", "#00936b", "#c86fa2", "#a6761d", "#7f7f7f")
LINE_STYLES = ("-", "--", ":", "-.")
MOST_DISTINCT = 2 * len(CURVE_COLOURS)  # more than these nobody tells apart
NON_FINITE_COLOUR = "#d55e00"
SKIPPED_STEP_COLOUR = "#c2410c"  # of curves and of a notebook
WARNING_STYLE = "yellow"  # of the console, in the terminal's own colours: a skipped step, and what else is no fault


@dataclass(frozen=True)
class CurveStyle:
    """`style` is matplotlib's, empty for points alone. A look that is `quiet` has no entry in the legend."""

    colour: str | None = CURVE_COLOURS[0]  # None: the ink of the page
    style: str = "-"
    width: float = 1.6
    alpha: float = 1.0
    marker: str = ""
    quiet: bool = False


PLAIN_STYLE = CurveStyle()
QUIET_STYLE = CurveStyle(None, "-", 0.8, 0.35, quiet=True)


def distinct_style(index: int) -> CurveStyle:
    """Colours first, then line styles; 24 of them differ."""
    return CurveStyle(
        CURVE_COLOURS[index % len(CURVE_COLOURS)], LINE_STYLES[index // len(CURVE_COLOURS) % len(LINE_STYLES)]
    )


def curve_styles(count: int, stressed: Sequence[int] = ()) -> list[CurveStyle]:
    """One for each of `count` curves. Where they are too many to tell apart, only the `stressed` ones stand out.

    >>> len({look.colour for look in curve_styles(6)}), sum(look.quiet for look in curve_styles(50, stressed=[0, 7]))
    (6, 48)
    """
    if count <= MOST_DISTINCT:
        return [distinct_style(index) for index in range(count)]
    vivid = CURVE_COLOURS[:-1]  # among quiet lines the grey would be one of them
    places = {index: place for place, index in enumerate(list(stressed)[:MOST_DISTINCT])}
    return [
        CurveStyle(vivid[places[index] % len(vivid)], LINE_STYLES[places[index] // len(vivid)])
        if index in places
        else QUIET_STYLE
        for index in range(count)
    ]


# Contrast of every text colour to its background is at least 4.5 in both schemes; a test reckons it out.
LIGHT_PAGE = {"page": "#ffffff", "ink": "#1f2328", "faint": "#59636e", "line": "#d8dee4", "soft": "#f3f5f7",
         "good": "#1a7f37", "bad": "#c5221f", "warn": "#8a5a00", "link": "#0a5fb4"}  # fmt: skip
DARK_PAGE = {"page": "#14171a", "ink": "#e3e6e9", "faint": "#a2abb5", "line": "#343a41", "soft": "#1f2429",
        "good": "#4cc36a", "bad": "#ff8f87", "warn": "#e3b341", "link": "#6cb6ff"}  # fmt: skip
