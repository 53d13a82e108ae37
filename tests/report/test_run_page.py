"""The page of a run, and pictures of several."""

import html
import re
import shlex

import pytest
from page_checks import check_page
from run_files import overflow, step_line, write_lines, write_run

from mpt_cli.report.history import read_history
from mpt_cli.report.page import write_page
from mpt_cli.report.picture import MOST_POINTS, chart_data
from mpt_cli.report.run_page import run_page, run_pictures
from mpt_cli.training.checkpoint import Checkpoint, CheckpointStore


@pytest.mark.slow
def test_a_run_has_its_pictures_verdict_configuration_and_commands(tmp_path):
    path = tmp_path / "run" / "report.html"
    write_page(path, run_page(read_history(write_run(tmp_path / "run"))))
    text = path.read_text()
    found = check_page(text)
    titles = [attributes["aria-label"] for _, attributes in found.elements if attributes.get("role") == "img"]
    assert titles == ["Loss", "Accuracy", "Loss scale", "Throughput"]
    assert {entry.name for entry in path.parent.iterdir()} >= {"report.html"}
    assert "Finished: healthy" in text and "All went well." in text
    assert "<dd>mpt train conf=stub &#39;a=&lt;b&gt;&#39;</dd>" in text
    assert (
        f"<pre>mpt reproduce {tmp_path}/run</pre>" in text
        and f"<pre>mpt diagnose {tmp_path}/run</pre>" in text
        and "name: mixed_float16" in text
        and "<dt>python</dt><dd>3.11.7</dd>" in text
    )
    assert "prefers-color-scheme: dark" in text and "@media print" in text
    loss, _, scale, _ = found.charts
    assert [curve["label"] for curve in loss["curves"]] == ["training", "validation"] and scale["skips"] == [1, 2, 40]
    assert (loss["curves"][0]["xs"][:2], loss["curves"][0]["ys"][:2]) == ([10, 20], [0.1, 0.05])


@pytest.mark.slow
def test_several_runs_are_overlaid_each_with_a_look_of_its_own_twelve_drawn_at_first(tmp_path):
    histories = [read_history(write_run(tmp_path / f"run{number:02}")) for number in range(26)]
    few = run_pictures(histories[:3])
    assert [picture.title for picture in few] == [
        "Loss in validation",
        "Loss in training",
        "Accuracy in validation",
        "Accuracy in training",
        "Loss scale",
        "Throughput",
    ]
    assert few[4].log_base == 2
    loss = run_pictures(histories)[1]
    assert [curve.label for curve in loss.curves] == [f"run{number:02}" for number in range(26)]
    assert len({(curve.look.color, curve.look.style) for curve in loss.curves}) == 24
    drawn = [(curve["run"], curve["show"]) for curve in chart_data([loss])[0]["curves"]]
    assert drawn == [(number, number < 12) for number in range(26)]
    assert run_pictures([]) == []  # as of a sweep whose jobs all failed before they began


def test_a_failed_run_says_so_first(tmp_path):
    ending = {"status": "stopped", "exit_code": 4, "verdict": "never trained", "explanation": "Stopped: <b>."}
    text = run_page(read_history(write_run(tmp_path / "run", **ending)))
    check_page(text)
    assert '<div class="lead bad"><strong>Stopped: never trained' in text and "Stopped: &lt;b&gt;." in text
    assert "<dt>skipped</dt><dd>3 of 100 steps (3.0%)</dd>" in text


def test_an_interrupted_run_says_how_far_it_came_from_where_it_resumes_and_by_which_command(tmp_path):
    ending = {"status": "terminated", "exit_code": 143, "steps_seen": 1100, "epochs_completed": 4}
    run = write_run(tmp_path / "run", **ending)
    history = read_history(run)
    for step in (900, 1000):
        CheckpointStore(history.run.checkpoints).save(Checkpoint(step, {}, {}))
    text = run_page(history)
    assert "Terminated at step 1,100: healthy" in text
    assert "<dt>resumes from</dt><dd>the checkpoint of step 1,000</dd>" in text
    assert f"<pre>mpt train conf={run}/config.yaml resume={run}</pre>" in text and "mpt reproduce" not in text


def test_the_name_of_a_directory_is_text_on_its_page_and_one_word_of_its_commands(tmp_path):
    run = write_run(tmp_path / "<b> a&b")
    (run / "summary.json").unlink()
    text = run_page(read_history(run))
    check_page(text)
    assert "<b>" not in text and "&lt;b&gt; a&amp;b</span>: " in text
    assert "No end recorded, last logged at step 100" in text
    assert "<dt>resumes from</dt><dd>the beginning: there is no checkpoint</dd>" in text
    assert "There is no summary.json: the run still trains, or was killed." in text
    shown = [shlex.split(html.unescape(line)) for line in re.findall(r"<pre>(mpt .*?)</pre>", text)]
    assert ["mpt", "train", f"conf={run}/config.yaml", f'resume="{run}"'] in shown


def test_values_that_are_not_finite_break_the_line_and_are_marked(tmp_path):
    values = {3: "NaN", 4: "Infinity"}
    history = read_history(
        write_run(tmp_path / "run", metrics_lines=[step_line(step, loss=values.get(step, 1.0)) for step in range(1, 8)])
    )
    assert [str(value) for value in history.steps["loss"].ys[2:4]] == ["nan", "inf"]
    loss = run_pictures([history])[0]
    assert (
        loss.note
        == "Marks × at the top: a value of the line in this color was not finite. The axis fits the other runs, if any."
    )
    curve = chart_data([loss])[0]["curves"][0]
    assert (curve["ys"][1:5], curve["lost"]) == ([1.0, None, None, 1.0], [3.0, 4.0])


def test_a_run_with_no_more_lines_than_epochs_shows_the_epochs(tmp_path):
    ends = [step_line(step, loss=loss, epoch_end=True) for step, loss in ((40, 0.75), (80, 0.5), (120, 0.25))]
    history = read_history(write_run(tmp_path / "run", metrics_lines=[step_line(80, loss=0.625), *ends]))
    loss = run_pictures([history])[0].curves[0]
    assert (list(loss.xs), list(loss.ys)) == ([40, 80, 120], [0.75, 0.5, 0.25])


def test_sampled_gradients_have_pictures(tmp_path):
    lines = [
        step_line(step, gradient_headroom_doublings=3.0, gradient_flushed_share=0.25, gradient_norm=None)
        for step in (10, 20)
    ]
    history = read_history(write_run(tmp_path / "run", metrics_lines=lines))
    found = {picture.title: picture for picture in run_pictures([history])}
    assert found["Gradients flushed to zero"].curves[0].ys == [25.0, 25.0]
    assert "Room above the scale" in found and "Gradient norm" not in found


@pytest.mark.slow
def test_a_run_of_many_steps_has_a_page_of_less_than_a_megabyte_that_keeps_each_peak(tmp_path):
    lines = (step_line(step, loss=9.0 if step == 34_567 else 1 / step) for step in range(1, 60_001))
    events = [overflow(step, 8.0, 4.0) for step in range(2, 6_001, 2)]
    text = run_page(read_history(write_run(tmp_path / "run", metrics_lines=lines, events=events)))
    charts = check_page(text).charts
    drawn = [len(curve["xs"]) for chart in charts for curve in chart["curves"]]
    assert len(text) < 1_000_000 and "marked at the bottom: 3,000." in text and 20_000 < sum(drawn) <= MOST_POINTS
    assert max(charts[0]["curves"][0]["ys"]) == 9.0 and len(charts[1]["skips"]) <= 1_001


def sampled(step: int, layer: str, lowest: int, **fields: object):
    """A line of layers.jsonl: two values at the lowest exponent and six two above it."""
    return {
        "step": step,
        "loss_scale": 1024.0,
        "layer": layer,
        "kind": "activation_gradients",
        "dtype": "float16",
        "values": 8,
        "flushed": 0.0,
        "subnormal": 0.0,
        "overflowed": 0.0,
        "kept_sum": 1.0,
        "lowest_exponent": lowest,
        "exponents": [2, 0, 6],
        "variable": None,
        **fields,
    }


def test_the_latest_sample_of_layers_is_listed_by_what_is_lost(tmp_path):
    run = write_run(tmp_path / "run")
    kernel = {"kind": "weight_gradients", "variable": "a/kernel"}
    write_lines(
        run / "layers.jsonl",
        [
            sampled(10, "old", -3),
            sampled(20, "fine", -4),
            sampled(20, "a", -24, flushed=0.4, **kernel),
            sampled(20, "zeros", None, exponents=[]),
            sampled(20, "first", -3, overflowed=0.1, kind="activations"),
            sampled(20, "behind", -3, overflowed=1.0, kind="activations"),
        ],
    )
    text = run_page(read_history(run))
    check_page(text)
    cells = re.findall(r"<t[hd][^>]*>([^<]*)</t[hd]>", text[text.index("magnitudes</th>") :])
    rows = [cells[place : place + 7] for place in range(3, 38, 7)]
    assert [row[0] for row in rows[:2]] == ["first", "behind"]  # the first may be the cause of the other
    assert rows[2] == ["a/kernel", "gradients", "float16", "2**-24 … 2**-21", "40.0%", "0%", "0%"]
    assert [(row[0], row[3]) for row in rows[3:]] == [("fine", "2**-4 … 2**-1"), ("zeros", "all 0")]


def test_damaged_samples_of_layers_cost_themselves_alone(tmp_path):
    run = write_run(tmp_path / "run")
    write_lines(run / "layers.jsonl", [sampled(10, "a", "low"), sampled(10, "a", -3), sampled(20, "a", 0, exponents=3)])
    with (run / "layers.jsonl").open("ab") as file:
        file.write(b"\xff\xfe\n" + b"[" * 100_000 + b'\n{"step": 80')
    history = read_history(run)
    assert [line["lowest_exponent"] for line in history.layers] == [-3]
    assert [gap for gap in history.gaps if "damaged" in gap] == ["layers.jsonl: damaged lines left out: 4."]
