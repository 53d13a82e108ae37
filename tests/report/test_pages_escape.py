"""Whatever a page is given stands on it as text: names, paths, messages, metrics, variables."""

from dataclasses import replace

import pytest
from page_checks import check_page
from run_files import overflow, step_line, write_run

from mpt_cli.report.history import read_history
from mpt_cli.report.page import render_page
from mpt_cli.report.picture import Curve, Picture
from mpt_cli.report.run_page import run_page
from mpt_cli.report.tables import PageTable, TableColumn

EVIL = "<script>alert('1')</script>\"&$x^2$"
SHOWN = "&lt;script&gt;alert(&#39;1&#39;)"  # as it stands in the text of a page
TABLE = PageTable(EVIL, [TableColumn(EVIL, str, False), TableColumn(EVIL, str)], [EVIL, EVIL], lambda row: "bad")
PICTURE = Picture(EVIL, EVIL, [Curve(EVIL, [1, 2], [1.0, 2.0]), Curve(f"2 {EVIL}", [1, 2], [1.0, 3.0])], note=EVIL)


def check_escaped(text: str):
    """No element of a page is a script but ours, and nothing was left out to that end."""
    found = check_page(text)
    assert not any(name.startswith("on") for _, attributes in found.elements for name in attributes)
    return found


@pytest.fixture(scope="module")
def history(tmp_path_factory):
    """A run with markup in all that a recipe, a metric, a variable, an error or a path can bring in."""
    metric = f"val_{EVIL}"
    lines = [step_line(step, epoch_end=True, **{EVIL: 0.4, metric: 0.5}) for step in (50, 100)]
    event = {**overflow(1), "variable": EVIL, "kind": EVIL}
    path = tmp_path_factory.mktemp("runs") / "<script>alert('1')<" / "script>&"
    run = write_run(
        path,
        metrics_lines=lines,
        events=[event, overflow(2)],
        status=EVIL,
        recipe=EVIL,
        verdict=EVIL,
        exit_code=4,
        explanation=EVIL,
        metrics={metric: 0.5},
        best_metrics={metric: 0.6},
        config=f"recipe: |-\n  {EVIL}\nseed: 0\n",
    )
    return replace(read_history(run), label=EVIL)


@pytest.mark.slow
def test_the_pages_of_runs_escape_all_that_they_show(history):
    text = run_page(history)
    check_escaped(text)
    for shown in (
        "<dd>",
        "<dd>val_",
        "<td>",
        "<h1>Run ",
        '<th scope="row">',
        "<p>",
        "<pre>recipe: |-\n  ",
    ):
        assert f"{shown}{SHOWN}" in text, shown


def test_the_pages_of_a_sweep_and_of_a_comparison_escape_all_that_they_show():
    text = render_page(
        "sweep.html",
        EVIL,
        [PICTURE],
        headline=EVIL,
        kind="good",
        counts=EVIL,
        best_command=[EVIL],
        configurations=TABLE,
        importances=[(EVIL, 0.5)],
        other_charts=[{"axes": 2 * [{"label": EVIL, "texts": [EVIL]}], "names": [EVIL, EVIL]}],
        most_drawn=1,
        again=EVIL,
        jobs=TABLE,
    )
    check_escaped(text)
    assert text.count(SHOWN) > 20 and f"<caption>{SHOWN}" in text and f"<figcaption>{SHOWN}" in text
    text = render_page(
        "compare.html",
        EVIL,
        [PICTURE],
        verdict=EVIL,
        kind="",
        entries=TABLE,
        sentences=[EVIL],
        failures=[{"job": {"name": EVIL}, "reason": EVIL}],
        again=[EVIL],
        job_commands=[EVIL],
    )
    page = check_escaped(text)
    assert f"<li><span>{SHOWN}" in text and f"<strong>{SHOWN}" in text
    assert [curve["label"] for curve in page.charts[0]["curves"]] == [EVIL, f"2 {EVIL}"]
    assert page.charts[0]["title"] == EVIL and "<" not in page.scripts[0]
