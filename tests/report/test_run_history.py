"""A run directory is read as far as it is whole, and what is missing is said."""

from run_files import overflow, step_line, write_run

from mpt_cli.report.history import read_history


def points(series):
    return list(zip(series.xs, series.ys, strict=True))


def test_a_fixed_scale_at_which_all_overflows_is_drawn_without_any_line_of_metrics(tmp_path):
    events = [overflow(1, 4.0, 4.0), overflow(5, 4.0, 4.0)]
    story = read_history(write_run(tmp_path / "run", events=events, metrics_lines=[]))
    assert points(story.scale) == [(0, 4.0), (5, 4.0)]
    assert story.gaps == ["metrics.jsonl is empty or missing: no step was logged."]


def test_a_run_that_is_still_going_on(tmp_path):
    run = write_run(tmp_path / "run")
    (run / "summary.json").unlink()
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 110, "lo')  # being written
    story = read_history(run)
    assert story.gaps == ["There is no summary.json: the run still trains, or was killed."]
    assert story.status == "no end on record" and story.last_step == 100


def test_damaged_files_cost_only_what_stood_in_them(tmp_path):
    run = write_run(tmp_path / "run")
    (run / "summary.json").write_text("{half")
    (run / "environment.json").write_text("[]")
    (run / "config.yaml").write_text("a: [1\n")
    lines = (run / "metrics.jsonl").read_text().splitlines()
    damaged = "\n".join([lines[0], "\x00\x00", "not json", *lines[1:]])
    (run / "metrics.jsonl").write_bytes(damaged.encode() + b"\n\xff\xfe\n")
    (run / "events.jsonl").write_text('{"step": "x"}\n{"step": 4, "kind": "overflow"}\n[]\n')
    story = read_history(run)
    assert [gap.split(":")[0].rpartition("/")[2] for gap in story.gaps] == [
        "summary.json is damaged",
        "environment.json is damaged",
        "config.yaml is damaged",
        "metrics.jsonl",
        "events.jsonl",
    ]
    assert "metrics.jsonl: damaged lines left out: 3." in story.gaps
    assert len(story.steps["loss"].xs) == 10 and not story.skips


def test_overflows_of_a_run_that_does_not_scale_are_no_skips(tmp_path):
    lines = [step_line(step, loss_scale=1.0) for step in (10, 20)]
    events = [overflow(step, 1.0, 1.0) for step in (3, 4)]
    story = read_history(write_run(tmp_path / "run", events=events, metrics_lines=lines, skipped_steps=0))
    assert story.skips == [] and [event["step"] for event in story.events] == [3, 4] and not story.has_scale
