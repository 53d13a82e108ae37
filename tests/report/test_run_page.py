"""Pages of runs: one, several, many, failed."""

import html
import io
import json
import re
import shlex
import subprocess
import sys
from unittest.mock import patch

import pytest
from page_checks import check_page
from run_files import POSTMORTEM, overflow, spike, step_line, write_lines, write_run

from mpt_cli.report.history import read_history
from mpt_cli.report.page import render_page
from mpt_cli.report.picture import Curve, Picture, draw
from mpt_cli.report.run import load_run
from mpt_cli.report.run_page import LETTERS, exponent_lines, run_page, run_pictures, write_run_page
from mpt_cli.report.tables import HtmlColumn, HtmlRow, HtmlTable
from mpt_cli.telemetry.palette import CURVE_COLOURS, DARK_PAGE, LIGHT_PAGE, curve_styles


def luminance(colour: str) -> float:
    """Relative luminance of #rrggbb, after WCAG 2."""
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    light, dark = sorted([luminance(one), luminance(other)], reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("colours", [LIGHT_PAGE, DARK_PAGE])
def test_text_and_curves_stand_out_from_the_page(colours):
    for name in ("ink", "faint", "good", "bad", "warn", "link"):
        assert contrast(colours[name], colours["page"]) >= 4.5 and contrast(colours[name], colours["soft"]) >= 4.5
    assert all(contrast(colour, colours["page"]) >= 3 for colour in CURVE_COLOURS)


@pytest.mark.slow
def test_a_run_has_its_pictures_verdict_configuration_and_commands(tmp_path):
    path = tmp_path / "run" / "report.html"
    write_run_page([read_history(write_run(tmp_path / "run"))], path)
    text = path.read_text()
    found = check_page(text)
    assert [picture["aria-labelledby"] for picture in found.all("svg")] == [
        "loss-title", "accuracy-title", "loss-scale-title", "skip-rate-title", "throughput-title"]  # fmt: skip
    assert sorted(entry.name for entry in (tmp_path / "run" / "report_pictures").iterdir()) == sorted(
        f"{picture['aria-labelledby'].removesuffix('-title')}.{kind}" for picture in found.all("svg")
        for kind in ("png", "svg"))  # fmt: skip
    assert "Finished: healthy" in text and "All went well." in text
    assert "Skipped steps: 1–2, 40" in text and "<pre>mpt train conf=stub &#39;a=&lt;b&gt;&#39;</pre>" in text
    assert f"mpt reproduce {tmp_path}/run" in text and "name: mixed_float16" in text and "Python 3.11.7" in text
    assert "prefers-color-scheme: dark" in text and "@media print" in text and "#010203" not in text


def test_every_skip_is_marked(tmp_path):
    skips = [1, 2, 3, 40, 77, 99]
    story = read_history(write_run(tmp_path / "run", events=[overflow(step, 8.0, 8.0) for step in skips]))
    [scale] = [picture for picture in run_pictures([story]) if picture.name == "loss-scale"]
    assert list(scale.rug) == skips and scale.log_base == 2
    rug = re.search(r'<g id="loss-scale-skips">(.*?)</g>\s*<g id', draw(scale).inline, flags=re.S)
    assert rug is not None and rug[1].count("<use") == len(skips)


def test_several_runs_are_overlaid_each_with_a_look_of_its_own(tmp_path):
    stories = [read_history(write_run(tmp_path / f"run {number}")) for number in range(3)]
    found = {picture.name: picture for picture in run_pictures(stories)}
    assert list(found) == ["validation-loss", "training-loss", "validation-accuracy", "training-accuracy", "loss-scale",
                           "skips", "skip-rate", "throughput"]  # fmt: skip
    assert len({curve.look for curve in found["training-loss"].curves}) == 3
    assert found["skips"].lanes == ["run 0", "run 1", "run 2"]
    text = run_page(stories, [draw(found["training-loss"]), draw(found["skips"])])
    check_page(text)
    assert "3 runs: 3 finished." in text and "Their configurations are the same." in text


@pytest.mark.slow
def test_of_fifty_runs_the_best_the_failed_and_the_worst_stand_out(tmp_path):
    stories = []
    for number in range(50):
        changes = {"status": "stopped", "exit_code": 4} if number == 13 else {}
        run = write_run(tmp_path / f"run{number:02}", metrics={"val_accuracy": number / 100}, **changes)
        stories.append(read_history(run))
    [loss] = [picture for picture in run_pictures(stories) if picture.name == "training-loss"]
    assert [curve.label for curve in loss.curves if not curve.look.quiet] == [
        "run00", "run13", "run45", "run46", "run47", "run48", "run49"]  # fmt: skip
    drawing = draw(loss)
    text = run_page(stories, [drawing])
    assert "In colour: the best, the failed and the worst." in text and len(text) < 1_000_000
    assert drawing.inline.count(">run") == 7 and len(check_page(text).all("tr")) > 100


def test_looks_differ_as_far_as_they_can():
    assert len(set(curve_styles(12))) == 12 and sum(look.quiet for look in curve_styles(13, [2])) == 12


def test_a_failed_run_is_shown_with_its_postmortem(tmp_path):
    run = write_run(tmp_path / "run", status="stopped", exit_code=4, verdict="never trained",
                    explanation="Stopped: <b>.", postmortem=POSTMORTEM)  # fmt: skip
    text = run_page([read_history(run)], [])
    check_page(text)
    assert "Stopped: never trained" in text and "Stopped: &lt;b&gt;." in text and "Look at the data." in text
    assert "<details open><summary>1 of 1 variables hold nan or inf</summary>" in text
    assert "<td>64 × 8</td>" in text and "step 40" not in text and "40, epoch 2" in text


def test_what_is_missing_is_said_on_the_page(tmp_path):
    run = write_run(tmp_path / "run")
    (run / "summary.json").unlink()
    text = run_page([read_history(run)], [])
    check_page(text)
    assert "No end on record, last logged at step 100" in text
    assert "There is no summary.json: the run is still going on, or was killed." in text


def test_the_name_of_a_directory_is_text_on_its_page_and_one_word_of_its_commands(tmp_path):
    run = write_run(tmp_path / "<b> a&b")
    (run / "summary.json").unlink()
    text = run_page([read_history(run)], [])
    check_page(text)
    assert "<b>" not in text and "&lt;b&gt; a&amp;b</span>: " in text
    shown = [shlex.split(html.unescape(line)) for line in re.findall(r"<pre>(mpt .*?)</pre>", text)]
    assert ["mpt", "train", f"conf={run}/config.yaml"] in shown and ["mpt", "reproduce", str(run)] in shown


def test_values_that_are_not_finite_break_the_line_and_are_marked(tmp_path):
    lines = [step_line(step, loss="NaN" if step in (3, 4) else 1.0) for step in range(1, 8)]
    [loss, *_] = run_pictures([read_history(write_run(tmp_path / "run", metrics_lines=lines))])
    assert loss.note == "Marks × at the top: a value that was not finite."
    assert loss.rows()[0][:2] == ["training", "7 (2 not finite)"] and "nan" not in draw(loss).inline.lower()


def test_a_run_with_no_more_lines_than_epochs_shows_both(tmp_path):
    ends = [step_line(step, loss=loss, epoch_end=True) for step, loss in ((40, 0.75), (80, 0.5), (120, 0.25))]
    lines = [step_line(80, loss=0.625, examples_per_second=300.0), *ends]
    story = read_history(write_run(tmp_path / "run", metrics_lines=lines))
    found = {picture.name: picture.curves[0] for picture in run_pictures([story])}
    assert (found["loss"].xs, found["loss"].ys) == ([40, 80, 120], [0.75, 0.625, 0.25])
    assert (found["throughput"].xs, found["throughput"].ys) == ([40, 80, 120], [100, 300, 100])


def test_sampled_gradients_have_pictures(tmp_path):
    lines = [step_line(step, gradient_headroom_doublings=3.0, gradient_flushed_share=0.25, gradient_norm=None)
             for step in (10, 20)]  # fmt: skip
    story = read_history(write_run(tmp_path / "run", metrics_lines=lines))
    found = {picture.name: picture for picture in run_pictures([story])}
    assert found["gradient-flushed-share"].curves[0].ys == [25.0, 25.0]
    assert found["gradient-headroom-doublings"].levels == {"no room left": 0.0} and "gradient-norm" not in found


def test_no_run_has_no_picture():
    """As of a sweep whose jobs all failed before they began."""
    assert run_pictures([]) == []


def test_a_picture_says_in_words_and_numbers_what_it_shows():
    picture = Picture("p", "Loss", "loss", [Curve("one", [1, 2, 3], [0.5, 0.25, 1.0])])
    assert picture.description == "loss over step, 1 curve. one: from 0.5 to 1, between 0.25 and 1."
    assert picture.rows() == [["one", "3", "0.5 at 1", "0.25 at 2", "1 at 3", "1 at 3"]]


def test_no_figure_of_a_table_is_rounded_away():
    searched = Curve("searched", [1.0e-5, 3.1623e-4, 2_000_000], [0.866349, 32768.0, 16982.7])
    first, highest, last = "0.8663 at 1e-05", "32,768 at 0.0003162", "16,983 at 2,000,000"
    assert Picture("p", "P", "p", [searched]).rows() == [["searched", "3", first, first, highest, last]]


def test_the_files_beside_the_page_are_whole_pictures_of_their_own():
    drawing = draw(Picture("p", "<Loss>", "loss", [Curve("a", [1, 2], [1.0, 2.0]), Curve("b", [1, 2], [2.0, 1.0])]))
    assert drawing.svg.startswith("<?xml") and 'fill="#fff"' in drawing.svg and "currentColor" not in drawing.svg
    assert drawing.png.startswith(b"\x89PNG") and "<title id=\"p-title\">&lt;Loss&gt;</title>" in drawing.inline
    assert drawing == draw(drawing.picture)


def test_a_picture_is_drawn_once_as_svg_and_once_as_png_which_are_what_savefig_writes():
    from matplotlib.figure import Figure

    figures, own = [], Figure.draw
    with patch.object(Figure, "draw", lambda figure, renderer: (figures.append(figure), own(figure, renderer))):
        drawing = draw(Picture("p", "Loss", "loss", [Curve("a", [1, 2], [1.0, 2.0])]))
    assert len(figures) == 2
    png = io.BytesIO()
    figures[0].savefig(png, format="png", dpi=160, facecolor="white", metadata={"Software": None})
    assert drawing.png == png.getvalue()


@pytest.mark.slow
@pytest.mark.parametrize("missing", ["", "No pictures: matplotlib is not installed."])
def test_matplotlib_is_imported_ahead_where_it_is_there(missing):
    program = f"""
import sys, threading
from mpt_cli.report import picture
picture.missing_matplotlib = lambda: {missing!r}
picture.import_matplotlib_ahead()
[thread.join() for thread in threading.enumerate() if thread is not threading.main_thread()]
print("matplotlib.figure" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == (f"{not missing}\n", "")


def test_cells_are_escaped_and_named():
    table = HtmlTable("<c>", [HtmlColumn("a"), HtmlColumn("b", True)], [HtmlRow(["<x>", "1"])])
    jobs = HtmlTable("jobs", [], [])
    text = render_page("sweep.html", "T", [], headline="", kind="", counts="", best_command=[], seeds_command="",
                       configurations=table, left_out="", failures=[], again="", jobs=jobs)  # fmt: skip
    assert "&lt;x&gt;" in text and '<th scope="row">' in text and "<caption>&lt;c&gt;</caption>" in text


@pytest.mark.slow
def test_a_run_of_a_million_steps_has_a_page_of_ordinary_size(tmp_path):
    lines = (step_line(step, loss=100.0 if step == 345_670 else 1.0) for step in range(10, 1_000_001, 10))
    run = write_run(tmp_path / "run", metrics_lines=[])
    write_lines(run / "metrics.jsonl", lines)
    with (run / "events.jsonl").open("w") as file:
        for step in range(20, 1_000_001, 20):
            file.write(json.dumps(overflow(step, 8.0, 4.0)) + "\n")
    path = tmp_path / "out.html"
    write_run_page([read_history(run)], path)
    text = path.read_text()
    assert len(text) < 3_000_000 and "100 at 345,670" in text and "50,000 skipped steps are marked" in text


def sampled(step: int, layer: str, lowest: int, **fields: object) -> dict[str, object]:
    """A line of layers.jsonl: two values at the lowest exponent and six two above it."""
    return {"step": step, "loss_scale": 1024.0, "layer": layer, "kind": "activation_gradients", "dtype": "float16",
            "values": 8, "flushed": 0.0, "subnormal": 0.0, "overflowed": 0.0, "kept_sum": 1.0,
            "lowest_exponent": lowest, "exponents": [2, 0, 6], "variable": None, **fields}  # fmt: skip


def test_samples_of_layers_are_a_map_of_exponents_with_what_is_lost_and_the_scale(tmp_path):
    run = write_run(tmp_path / "run", events=[overflow(40, 2048.0, 1024.0)])
    lines = [sampled(step, f"a_very_long_name_of/layer_{place}", -4 - 10 * place, flushed=0.4 * (place == 2))
             for step in (10, 100) for place in range(3)]  # fmt: skip
    kernel = {"kind": "weight_gradients", "variable": "a/kernel"}
    write_lines(run / "layers.jsonl", [*lines, sampled(10, "a", 3, **kernel), sampled(10, "zeros", 0, exponents=[])])
    maps = [picture for picture in run_pictures([read_history(run)]) if picture.heat is not None]
    assert [picture.name for picture in maps] == ["layers-activation-gradients", "layers-weight-gradients"]
    first, second = maps
    assert [(list(curve.xs), list(curve.ys)) for curve in first.curves] == [
        ([10.0, 100.0], [2.0 - 4 - 10 * place] * 2) for place in range(3)]  # fmt: skip
    assert list(first.heat.marks) == [(10.0, 2), (100.0, 2)] and list(first.heat.scale.ys) == [2048.0, 1024.0]
    assert [curve.label for curve in second.curves] == ["a/kernel"] and list(second.curves[0].ys) == [5.0]
    drawing = draw(first)
    assert "…ong_name_of/layer_1" in drawing.inline and 'id="layers-activation-gradients-scale"' in drawing.inline
    assert "a_very_long_name_of/layer_2: from -22 to -22" in first.description and "×" in first.note
    story = read_history(run)
    assert not [picture for picture in run_pictures([story, story]) if picture.heat is not None]


def test_the_latest_sample_is_a_line_of_heights_for_each_layer(tmp_path):
    run = write_run(tmp_path / "run", events=[overflow(40, 2048.0, 1024.0)])
    kernel = {"kind": "weight_gradients", "variable": "a_name_of_more_than_half_a_line/kernel"}
    write_lines(run / "layers.jsonl", [
        sampled(10, "old", -3), sampled(20, "low", -40, exponents=[4, *[0] * 14, 8, 0, 2]),
        sampled(20, "zero", 0, exponents=[0]), sampled(20, "high", 14, exponents=[8, 8, 1, 0, 0, 0, 0, 0, 0, 4]),
        sampled(20, "x", -14, exponents=[1], **kernel),
    ])  # fmt: skip
    story = read_history(run)
    zones = "|flushed |subnormal  |normal                        |over"
    assert exponent_lines(story, 80) == [
        "Gradients of layers' outputs after step 20, of the scaled loss",
        " " * 23 + zones,
        "low" + " " * 20 + "|▄       |█ ▂        |" + " " * 30 + "|",
        "high" + " " * 19 + "|        |           |" + " " * 28 + "██|▁  ▄",
        "Gradients of weights after step 20, of the scaled loss",
        " " * 23 + zones,
        "…han_half_a_line/kernel|        |           |█" + " " * 29 + "|",
    ]  # fmt: skip
    narrow = exponent_lines(story, 50, LETTERS)
    assert narrow[1] == " " * 19 + "|flus|subnor|normal         |ov" and max(map(len, narrow[1:4])) <= 50
    assert narrow[2] == "low" + " " * 16 + "|=   |#:    |               |" and narrow[3].endswith("|              #|.:")
    assert exponent_lines(read_history(write_run(tmp_path / "none")), 80) == []


def test_damaged_samples_of_layers_cost_themselves_alone(tmp_path):
    run = write_run(tmp_path / "run")
    write_lines(run / "layers.jsonl", [sampled(10, "a", "low"), sampled(10, "a", -3), sampled(20, "a", 0, exponents=3)])
    story = read_history(run)
    assert list(story.layers["activation_gradients"]["a"].middles.ys) == [-1.0]
    assert "layers.jsonl: 2 damaged lines were left out." in story.gaps


def test_jumps_of_the_loss_are_listed_and_marked(tmp_path):
    run = write_run(tmp_path / "run")
    write_lines(run / "spikes.jsonl", [spike(70), spike(80, 400.0, examples=None), spike(90, 44.0)])
    story = read_history(run)
    loss = run_pictures([story])[0]
    assert [(curve.label, list(curve.xs), list(curve.ys)) for curve in loss.curves[2:]] == [
        ("jump of one step", [70.0, 80.0, 90.0], [40.0, 400.0, 44.0])]  # fmt: skip
    path = tmp_path / "out.html"
    write_run_page([story], path)
    text = path.read_text()
    assert "70, 71, 72, 73, 74, 75, 76, 77 and 2 more" in text and "not known: the data is a stream" in text
    assert [found.step for found in load_run(run).spikes] == [70, 80, 90]


def test_damaged_jumps_cost_themselves_alone(tmp_path):
    run = write_run(tmp_path / "run")
    bad = [spike(70, "large"), spike(71, examples=3), spike(72, median=[]), spike(75, losses_before=["a"]),
           {"step": 73, "losses_before": [], "loss": 1.0}, {**spike(76), "step": 2**70}]  # fmt: skip
    write_lines(run / "spikes.jsonl", [*bad, spike(77, "NaN", median=None, bound=None)])
    with (run / "spikes.jsonl").open("ab") as file:
        file.write(b"\xff\xfe\n" + b"[" * 100_000 + b"\n{\"step\": 80")
    story = read_history(run)
    assert [(found.step, found.median) for found in story.spikes] == [(77, None)]
    assert "spikes.jsonl: 8 damaged lines were left out." in story.gaps
    write_run_page([story], tmp_path / "out.html")
    (run / "spikes.jsonl").unlink()
    (run / "spikes.jsonl").mkdir()
    assert read_history(run).spikes == []
