"""report.html of a comparison: verdict, table, the runs overlaid, and how each figure was made."""

from collections.abc import Sequence
from pathlib import Path

from mpt_cli.compare.results import Comparison
from mpt_cli.compare.table import columns
from mpt_cli.compare.verdict import overall, sentences
from mpt_cli.errors import DataError
from mpt_cli.report.curves import pictures
from mpt_cli.report.draw import Drawing, draw
from mpt_cli.report.html import Head, Row, Section, coloured, commands, details, figures, lead, page, table
from mpt_cli.report.postmortem import failures
from mpt_cli.report.run_page import configurations
from mpt_cli.report.story import RunStory, read_story
from mpt_cli.report.write import footnote, write_page
from mpt_cli.sweep.results import GOOD

_METHOD = (
    ("difference", "to the baseline: the configuration in float32 with the same other values, in the mean over seeds"),
    ("step", "batch size over the median of the speeds logged in the run; compiling is left out"),
    ("speed-up", "step time of the baseline over that of the configuration, seed by seed: median (lowest … highest); "
     "with a ? where other programs kept the cores busy"),
    ("memory", "the most in use: of the GPU where there is one, else of the whole process, libraries included"),
    ("weights", "variables of the model; mixed policies keep them in float32"),
    ("activations", "outputs of all innermost layers for one batch, in the dtypes they have under the policy, found by "
     "tracing the built model; a compiler may keep less"),
)  # fmt: skip


def write_compare_page(found: Comparison, path: Path) -> None:
    """The page at `path`, with its pictures beside it."""
    stories = run_stories(found)
    drawings = [draw(picture) for picture in pictures(stories)] if stories else []
    write_page(path, compare_page(found, stories, drawings, footnote(path, drawings)), drawings)


def run_stories(found: Comparison) -> list[RunStory]:
    """The runs as far as they began, named by their precision and, of several, their seed."""
    stories = []
    for entry in found.entries:
        for seed, job in entry.jobs.items():
            try:
                label = f"{entry.label}, seed {seed}" if found.seeds > 1 else entry.label
                stories.append(read_story(job.run_dir, label))
            except DataError:  # a job that never began has no directory
                continue
    return stories


def compare_page(
    found: Comparison, stories: Sequence[RunStory], drawings: Sequence[Drawing], note: str = ""
) -> str:  # fmt: skip
    """The whole page as text."""
    wanted = columns(found)
    heads = [Head(column.title, column.is_number, wraps=column.title == "verdict") for column in wanted]
    rows = [Row([column.cell(entry) for column in wanted], "bad" if entry.failed else "") for entry in found.entries]
    points = "".join(f"<li>{coloured(sentence, '')}</li>" for sentence in sentences(found))
    comparison = table("Each precision beside its baseline", heads, rows) + f"<ul>{points}</ul>" + _method()
    sections = [
        Section("comparison", "Comparison", comparison),
        Section("pictures", "Pictures", figures(drawings)),
        Section("failed", "What went wrong", failures(stories) + _unstarted(found)),
        Section("configuration", "Configuration and environment", configurations(stories)),
        Section("repeat", "Commands", _commands(found)),
    ]
    kind = "bad" if any(entry.failed for entry in found.entries) else ""
    return page(f"Comparison {found.place.path.name}", lead(overall(found), "", kind), sections, note)


def _method() -> str:
    heads = [Head("column"), Head("what it is", wraps=True)]
    return details("How the figures were made", table("The columns", heads, [Row(list(pair)) for pair in _METHOD]))


def _unstarted(found: Comparison) -> str:
    """Jobs that failed without a summary that could tell why."""
    failed = [job for job in found.results if job.status not in GOOD and not job.summary]
    return "".join(f"<h3>{coloured(job.job.name, '')}</h3><p>{coloured(job.reason or job.status, 'bad')}</p>"
                   for job in failed)  # fmt: skip


def _commands(found: Comparison) -> str:
    jobs = commands(job.job.command for job in found.results)
    whole = commands([" ".join(map(str, found.facts.get("command_line", [])))])
    return f"{whole}{details('Each run by itself', jobs)}"
