"""The colours of curves and pages: told apart by anyone, light or dark as the reader's system is, and on paper."""

from collections.abc import Sequence
from dataclasses import dataclass

# After Okabe and Ito's palette for the colour-blind, without its light tones: each has a contrast of 3 or more both to
# the white page and to the dark one.
CURVE_COLOURS = ("#0072b2", "#d55e00", "#00936b", "#c86fa2", "#a6761d", "#7f7f7f")
LINE_STYLES = ("-", "--", ":", "-.")
MOST_DISTINCT = 2 * len(CURVE_COLOURS)  # more than these nobody tells apart
NON_FINITE_COLOUR = "#d55e00"
SKIPPED_STEP_COLOUR = "#c2410c"


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


def _variables(colours: dict[str, str]) -> str:
    return " ".join(f"--{name}: {colour};" for name, colour in colours.items())


STYLESHEET = f"""
:root {{ color-scheme: light dark; {_variables(LIGHT_PAGE)} }}
@media (prefers-color-scheme: dark) {{ :root {{ {_variables(DARK_PAGE)} }} }}
@media print {{ :root {{ color-scheme: light; {_variables(LIGHT_PAGE)} }} }}
""" + """
* { box-sizing: border-box; }
body { background: var(--page); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; margin: 0 auto;
  max-width: 1280px; padding: 1.6rem 1.2rem 4rem; }
h1 { font-size: 1.5rem; line-height: 1.25; margin: 0 0 .3rem; overflow-wrap: anywhere; }
h2 { border-top: 1px solid var(--line); font-size: 1.15rem; margin: 2.4rem 0 .7rem; padding-top: 1rem; }
h3 { font-size: 1rem; margin: 1.4rem 0 .4rem; overflow-wrap: anywhere; }
p { margin: .4rem 0; max-width: 52rem; overflow-wrap: anywhere; }
a { color: var(--link); } .faint { color: var(--faint); } .good { color: var(--good); } .bad { color: var(--bad); }
.warn { color: var(--warn); }
.skip-link { left: -999px; position: absolute; }
.skip-link:focus { background: var(--page); left: 1rem; padding: .5rem .8rem; top: .5rem; z-index: 1; }
:focus-visible { outline: 2px solid var(--link); outline-offset: 2px; }
nav ul { display: flex; flex-wrap: wrap; gap: .2rem 1.1rem; list-style: none; margin: .8rem 0 0; padding: 0; }
.lead { background: var(--soft); border-left: 4px solid var(--line); border-radius: 4px; margin: .8rem 0;
  padding: .6rem .9rem; } .lead.good { border-color: var(--good); } .lead.bad { border-color: var(--bad); }
.lead.warn { border-color: var(--warn); } .lead p { color: var(--ink); } .lead strong { color: inherit; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: 13.5px; min-width: min(100%, 24rem); }
caption { color: var(--faint); padding: 0 0 .3rem; text-align: left; }
th, td { border-bottom: 1px solid var(--line); padding: .35rem .6rem; text-align: left; vertical-align: top;
  white-space: nowrap; }
td.wrap { min-width: 16rem; white-space: normal; }
thead th { color: var(--faint); font-weight: 600; } tbody th { font-weight: inherit; }
td.number, th.number { font-variant-numeric: tabular-nums; text-align: right; }
tr.best > * { background: var(--soft); font-weight: 600; }
dl { display: grid; gap: .1rem 1.2rem; grid-template-columns: max-content 1fr; margin: .6rem 0; }
dt { color: var(--faint); } dd { margin: 0; overflow-wrap: anywhere; }
code, pre { font: 13px/1.45 ui-monospace, monospace; }
pre { background: var(--soft); border-radius: 6px; margin: .4rem 0; overflow-wrap: anywhere; padding: .6rem .8rem;
  white-space: pre-wrap; }
.plots { display: grid; gap: 1.6rem 2rem; grid-template-columns: repeat(auto-fit, minmax(min(440px, 100%), 1fr)); }
figure { margin: 0; min-width: 0; } figcaption { font-weight: 600; margin-bottom: .3rem; }
figure svg { display: block; height: auto; max-width: 640px; width: 100%; }
figure text { font-family: system-ui, sans-serif; }
details { margin: .4rem 0; } summary { cursor: pointer; padding: .15rem 0; }
footer { border-top: 1px solid var(--line); color: var(--faint); margin-top: 3rem; padding-top: .8rem; }
@media (max-width: 600px) { body { padding: 1rem .8rem 3rem; } dl { grid-template-columns: 1fr; }
  dt { margin-top: .3rem; } }
@media print { body { font-size: 10.5pt; max-width: none; padding: 0; } nav, .skip-link { display: none; }
  h2, h3 { break-after: avoid; } figure, tr, .lead { break-inside: avoid; } .scroll { overflow: visible; }
  .plots { grid-template-columns: 1fr 1fr; }
  table { font-size: 8.5pt; } th, td { padding: .2rem .4rem; white-space: normal; } }
"""
