"""Whatever a page is given stands on it as text: names, paths, messages, metrics, variables. A page without pictures
says why.
"""

import importlib.util
from dataclasses import replace

import pytest
from page_checks import Page, check_page
from run_files import POSTMORTEM, overflow, step_line, write_run

from mpt_cli.report.history import read_history
from mpt_cli.report.page import render_page
from mpt_cli.report.picture import Curve, Picture, draw
from mpt_cli.report.run_page import render_runs, run_page, run_pictures, write_run_page
from mpt_cli.report.tables import PageTable, TableColumn

EVIL = "<script>alert('1')</script>\"&$x^2$"
SHOWN = "&lt;script&gt;alert(&#39;1&#39;)"  # as it stands in the text of a page
TABLE = PageTable(EVIL, [TableColumn(EVIL, str, False), TableColumn(EVIL, str)], [EVIL, EVIL], lambda row: "bad")
PICTURE = Picture("p", EVIL, EVIL, [Curve(EVIL, [1, 2], [1.0, 2.0]), Curve(f"2 {EVIL}", [1, 2], [1.0, 3.0])],
                  x_label=EVIL, note=EVIL)  # fmt: skip


def check_escaped(text: str) -> Page:
    """No element of a page is a script, and nothing was left out to that end."""
    found = check_page(text)
    assert "<script" not in text.lower() and "script" not in {tag for tag, _ in found.elements}
    assert not any(name.startswith("on") for _, attributes in found.elements for name in attributes)
    return found


@pytest.fixture(scope="module")
def story(tmp_path_factory):
    """A run with markup in all that a recipe, a metric, a variable, an error or a path can bring in."""
    metric = f"val_{EVIL}"
    lines = [step_line(step, epoch_end=True, **{EVIL: 0.4, metric: 0.5}) for step in (50, 100)]
    event = {**overflow(1), "variable": EVIL, "kind": EVIL}
    arrays = {EVIL: {"shape": [1], "dtype": EVIL, "min": EVIL, "max": 1.0, "nan": 3, "inf": 0}}
    postmortem = {**POSTMORTEM, "rule": EVIL, "remedy": EVIL, "epoch": EVIL, "last_batch": arrays,
                  "layers": [{"name": EVIL, "variables": arrays}]}  # fmt: skip
    path = tmp_path_factory.mktemp("runs") / "<script>alert('1')<" / "script>&"
    run = write_run(path, metrics_lines=lines, events=[event, overflow(2)], status=EVIL, verdict=EVIL, exit_code=4,
                    explanation=EVIL, metrics={metric: 0.5}, best_metrics={metric: 0.6}, postmortem=postmortem,
                    config=f"recipe: |-\n  {EVIL}\nseed: 0\n")  # fmt: skip
    return replace(read_history(run), label=EVIL)


@pytest.mark.slow
def test_the_pages_of_runs_escape_all_that_they_show(story):
    text = run_page([story], run_pictures([story]))
    check_escaped(text)
    for shown in ("<dd>", "<dt>val_", "<td>", "<h1>Run ", '<th scope="row">', "<p>", '<span class="bad">',
                  "<pre>recipe: |-\n  "):  # fmt: skip
        assert f"{shown}{SHOWN}" in text, shown
    other = replace(story, config={**story.config, EVIL: EVIL})
    text = run_page([story, other], run_pictures([story, other]))
    check_escaped(text)
    assert f"<h3><span>{SHOWN}" in text and f'<th scope="col">{SHOWN}' in text
    check_escaped(run_page([story, other] * 4, []))


def test_the_pages_of_a_sweep_and_of_a_comparison_escape_all_that_they_show(story):
    failure = ({"job": {"name": EVIL, "command": EVIL}, "status": EVIL}, EVIL)
    text = render_page(
        "sweep.html", EVIL, [PICTURE], headline=EVIL, kind="good", counts=EVIL, best_command=[EVIL],
        seeds_command=EVIL, configurations=TABLE, left_out=EVIL, failures=[failure], again=EVIL, jobs=TABLE,
    )  # fmt: skip
    check_escaped(text)
    assert text.count(SHOWN) > 20 and f"<caption>{SHOWN}" in text and f"<figcaption>{SHOWN}" in text
    text = render_runs(
        "compare.html", EVIL, [story, story], [PICTURE], verdict=EVIL, kind="", entries=TABLE, sentences=[EVIL],
        method=TABLE, unstarted=[{"job": {"name": EVIL}, "reason": EVIL}], command=EVIL, job_commands=[EVIL],
    )  # fmt: skip
    check_escaped(text)
    assert f"<li><span>{SHOWN}" in text and f"<strong>{SHOWN}" in text


def test_without_matplotlib_the_page_says_what_is_missing(tmp_path, monkeypatch, capsys):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "matplotlib" else find(name))
    path = tmp_path / "run" / "report.html"
    write_run_page([read_history(write_run(tmp_path / "run"))], path)
    missing = "No pictures: matplotlib is not installed. pip install 'mpt-cli[plots]'"
    assert capsys.readouterr().err == missing + "\n"
    text = path.read_text()
    assert f"<p>{missing.replace(chr(39), '&#39;')}</p>" in text and check_page(text).all("svg") == []


def test_names_in_a_picture_are_text_and_no_formula_the_same_each_time_and_alone_on_paper():
    svg, paper = draw(PICTURE), draw(PICTURE, on_paper=True)
    assert svg.count("alert('1')&lt;/script&gt;\"&amp;$x^2$</text>") == 4  # two axes, two curves
    assert "<script" not in svg and svg == draw(PICTURE) and "currentColor" in svg
    assert paper.startswith("<?xml") and "#ffffff" in paper and "currentColor" not in paper
