"""report.html: one page that needs nothing from anywhere else, light or dark as the reader's system is."""

import time
from html import escape

from mpt_cli.sweep.columns import columns
from mpt_cli.sweep.plots import plots
from mpt_cli.sweep.ranking import SweepResults
from mpt_cli.sweep.results import GOOD, JobResult
from mpt_cli.sweep.table import counts_sentence
from mpt_cli.telemetry.console.words import number_words, seconds_words

_STYLE = """
:root { color-scheme: light dark; --page: #fff; --ink: #1f2328; --faint: #636c76; --line: #d8dee4; --soft: #f3f5f7;
  --good: #1a7f37; --bad: #c5221f; }
@media (prefers-color-scheme: dark) { :root { --page: #14171a; --ink: #e3e6e9; --faint: #98a1ab; --line: #343a41;
  --soft: #1f2429; --good: #4cc36a; --bad: #ff7b72; } }
body { background: var(--page); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; margin: 0 auto;
  max-width: 1320px; padding: 2rem 1.2rem 4rem; }
h1 { font-size: 1.4rem; margin: 0; overflow-wrap: anywhere; } h2 { font-size: 1.1rem; margin: 2.2rem 0 .6rem; }
p { margin: .4rem 0; } .faint { color: var(--faint); } .good { color: var(--good); } .bad { color: var(--bad); }
.scroll { overflow-x: auto; } table { border-collapse: collapse; width: 100%; font-size: 13.5px; }
th, td { border-bottom: 1px solid var(--line); padding: .35rem .5rem; text-align: left; vertical-align: top;
  white-space: nowrap; }
th { color: var(--faint); font-weight: 600; } td.number, th.number { text-align: right;
  font-variant-numeric: tabular-nums; } tr.best td { font-weight: 600; background: var(--soft); }
code, pre { font: 13px/1.45 ui-monospace, monospace; }
pre { background: var(--soft); border-radius: 6px; margin: .4rem 0; overflow-wrap: anywhere;
  padding: .6rem .8rem; white-space: pre-wrap; }
figure { margin: 1rem 0; } figcaption { color: var(--faint); }
.plots { display: grid; gap: 1rem; grid-template-columns: repeat(auto-fit, minmax(min(480px, 100%), 1fr)); }
svg { height: auto; max-width: 100%; } summary { cursor: pointer; }
"""


def page(found: SweepResults) -> str:
    """The whole page as text."""
    parts = [
        f"<h1>Sweep {escape(found.sweep.path.name)}</h1>",
        f'<p>{escape(counts_sentence(found))} <span class="faint">{time.strftime("%Y-%m-%d %H:%M")}</span></p>',
        _best(found),
        f"<h2>Configurations</h2>{_configurations(found)}",
        f'<h2>Pictures</h2><div class="plots">{_figures(found)}</div>',
        _failures(found),
        f"<h2>Jobs</h2>{_jobs(found)}",
    ]
    head = '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
    title = f"<title>mpt sweep {escape(found.sweep.path.name)}</title>"
    body = "\n".join(part for part in parts if part)
    style = f"<style>{_STYLE}</style>"
    return f'<!doctype html>\n<html lang="en"><head>{head}{title}{style}</head>\n<body>{body}</body></html>\n'


def _best(found: SweepResults) -> str:
    best = found.best
    if best is None:
        return '<p class="bad">No job finished.</p>'
    value = number_words(found.objective.value(best.summary))
    words = f"Best: <strong>{escape(best.job.name)}</strong>, {escape(found.objective.name)} {escape(value)}"
    return f'<p class="good">{words}</p>{_command(best.job.command)}'


def _configurations(found: SweepResults) -> str:
    wanted = columns(found)
    head = "".join(f'<th class="{_kind(column.is_number)}">{escape(column.title)}</th>' for column in wanted)
    rows = []
    for row in found.configurations:
        cells = "".join(f'<td class="{_kind(c.is_number)}">{escape(c.cell(row))}</td>' for c in wanted)
        style = "best" if row.rank == 1 else "" if row.is_complete else "bad"
        rows.append(f'<tr class="{style}">{cells}</tr>')
    return f'<div class="scroll"><table><tr>{head}</tr>{"".join(rows)}</table></div>'


def _figures(found: SweepResults) -> str:
    return "".join(
        f"<figure>{svg}<figcaption>{escape(caption)}</figcaption></figure>" for caption, svg in plots(found)
    )


def _failures(found: SweepResults) -> str:
    failed = [result for result in found.results if result.status not in GOOD]
    if not failed:
        return ""
    entries = "".join(
        f'<p><span class="bad">{escape(result.status)}</span> {escape(result.job.name)}: '
        f"{escape(result.reason or 'the sweep ended before it')}</p>{_command(result.job.command)}"
        for result in failed
    )
    again = _command(f"mpt sweep --resume {found.sweep.path}")
    return f"<h2>Not finished</h2>{entries}<p>All of these and no others run again by</p>{again}"


def _jobs(found: SweepResults) -> str:
    rows = "".join(_job_row(found, result) for result in found.results)
    head = f'<th>job</th><th>status</th><th class="number">{escape(found.objective.name)}</th>'
    table = f'<table><tr>{head}<th class="number">time</th><th>command</th></tr>{rows}</table>'
    title = f"<summary>All {len(found.results)} jobs with their commands</summary>"
    return f'<details>{title}<div class="scroll">{table}</div></details>'


def _job_row(found: SweepResults, result: JobResult) -> str:
    value = number_words(found.objective.value(result.summary))
    seconds = "-" if result.seconds is None else seconds_words(result.seconds)
    status = f'<span class="{"good" if result.is_good else "bad"}">{escape(result.status)}</span>'
    numbers = f'<td class="number">{escape(value)}</td><td class="number">{seconds}</td>'
    command = f"<td><code>{escape(result.job.command)}</code></td>"
    return f"<tr><td>{escape(result.job.name)}</td><td>{status}</td>{numbers}{command}</tr>"


def _command(command: str) -> str:
    return f"<pre>{escape(command)}</pre>"


def _kind(is_number: bool) -> str:
    return "number" if is_number else "text"
