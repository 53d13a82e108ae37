"""How the curves of a picture are told apart, by anyone and on any paper."""

from collections.abc import Sequence
from dataclasses import dataclass

# After Okabe and Ito's palette for the colour-blind, without its light tones: each has a contrast of 3 or more both to
# the white page and to the dark one.
COLOURS = ("#0072b2", "#d55e00", "#00936b", "#c86fa2", "#a6761d", "#7f7f7f")
STYLES = ("-", "--", ":", "-.")
MOST_DISTINCT = 2 * len(COLOURS)  # more than these nobody tells apart
BAD = "#d55e00"
SKIPPED = "#c2410c"


@dataclass(frozen=True)
class Look:
    """`style` is matplotlib's, empty for points alone. A look that is `quiet` has no entry in the legend."""

    colour: str | None = COLOURS[0]  # None: the ink of the page
    style: str = "-"
    width: float = 1.6
    alpha: float = 1.0
    marker: str = ""
    quiet: bool = False


PLAIN = Look()
QUIET = Look(None, "-", 0.8, 0.35, quiet=True)


def distinct_look(index: int) -> Look:
    """Colours first, then line styles; 24 of them differ."""
    return Look(COLOURS[index % len(COLOURS)], STYLES[index // len(COLOURS) % len(STYLES)])


def looks(count: int, stressed: Sequence[int] = ()) -> list[Look]:
    """One for each of `count` curves. Where they are too many to tell apart, only the `stressed` ones stand out.

    >>> len({look.colour for look in looks(6)}), sum(look.quiet for look in looks(50, stressed=[0, 7]))
    (6, 48)
    """
    if count <= MOST_DISTINCT:
        return [distinct_look(index) for index in range(count)]
    vivid = COLOURS[:-1]  # among quiet lines the grey would be one of them
    places = {index: place for place, index in enumerate(list(stressed)[:MOST_DISTINCT])}
    return [Look(vivid[places[index] % len(vivid)], STYLES[places[index] // len(vivid)]) if index in places else QUIET
            for index in range(count)]  # fmt: skip
