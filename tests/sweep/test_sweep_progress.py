"""What a sweep shows while it runs."""

import io
import json

from sweep_stubs import stub_work

from mpt_cli.jobs.local_processes import Ending
from mpt_cli.sweep.directory import SweepDirectory, read_job
from mpt_cli.sweep.progress import JobLines, format_state
from mpt_cli.telemetry.console import PrintableConsole

LINE = {"step": 92, "loss": 0.1207, "loss_scale": 2.0**21, "skipped_steps": 13}


class Running:
    """A child as far as the display knows one."""

    def __init__(self, command, waits_for: str = ""):
        self.command, self.seconds, self.cause, self.waits_for = command, 12.5, None, waits_for


def test_the_state_of_a_running_job_in_words():
    assert format_state(LINE, 12.5) == ["step 92", "loss 0.1207", "scale 2**21", "13 skipped", "12.5 s"]
    assert format_state({**LINE, "loss": None, "loss_scale": "NaN"}, 1.0)[1:3] == ["loss -", "scale nan"]
    assert format_state(None, 3.0) == ["starting", "3.0 s"]


def test_in_a_terminal_running_jobs_stand_below_the_lines_that_stay(tmp_path):
    (tmp_path / "logs").mkdir()
    sweep, stream, work = SweepDirectory(tmp_path), io.StringIO(), [stub_work(tmp_path, number) for number in (1, 2)]
    (tmp_path / "001-stub").mkdir()
    (tmp_path / "001-stub" / "metrics.jsonl").write_text(json.dumps(LINE) + "\n")
    console = PrintableConsole(stream, force_terminal=True, width=100, color_system=None)
    with JobLines(console, sweep, 4, None) as progress:
        progress.tick([Running(work[0]), Running(work[1], "Slurm job 7: PENDING (Priority)")])  # type: ignore[list-item]
        sweep.write_ending(work[0].subject, Ending(-9, 10.0))
        progress.tell(read_job(sweep, work[0].subject))
    assert progress.overall() == "4 jobs: 0 good, 1 not good, 3 not ended"
    assert "001-stub  step 92  loss 0.1207" in stream.getvalue() and "002-stub  Slurm job 7: PE" in stream.getvalue()
    killed = "killed    001-stub  SIGKILL (often the system's out-of-memory killer) ended it after 10.0 s"
    assert "".join(killed.split()) in "".join(stream.getvalue().split())
    assert "\x1b[?25h" in stream.getvalue()  # the cursor is back
