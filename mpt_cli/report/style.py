"""How pages look: light or dark as the reader's system is, readable on a narrow screen and on paper."""

# Contrast of every text colour to its background is at least 4.5 in both schemes; a test reckons it out.
LIGHT = {"page": "#ffffff", "ink": "#1f2328", "faint": "#59636e", "line": "#d8dee4", "soft": "#f3f5f7",
         "good": "#1a7f37", "bad": "#c5221f", "warn": "#8a5a00", "link": "#0a5fb4"}  # fmt: skip
DARK = {"page": "#14171a", "ink": "#e3e6e9", "faint": "#a2abb5", "line": "#343a41", "soft": "#1f2429",
        "good": "#4cc36a", "bad": "#ff8f87", "warn": "#e3b341", "link": "#6cb6ff"}  # fmt: skip


def _variables(colours: dict[str, str]) -> str:
    return " ".join(f"--{name}: {colour};" for name, colour in colours.items())


STYLE = f"""
:root {{ color-scheme: light dark; {_variables(LIGHT)} }}
@media (prefers-color-scheme: dark) {{ :root {{ {_variables(DARK)} }} }}
@media print {{ :root {{ color-scheme: light; {_variables(LIGHT)} }} }}
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
