"""Commands that a sweep or a comparison prints, for a directory with a name that the shell would split."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from mpt_cli.compare.comparison import CompareDirectory
from mpt_cli.settings.load import load_settings
from mpt_cli.sweep.directory import FAILED
from mpt_cli.sweep.job_list import Job, SweepPlan
from mpt_cli.sweep.report import failure_lines
from mpt_cli.sweep.run import train_command


def test_the_command_that_goes_on_with_a_comparison() -> None:
    failed = SimpleNamespace(status=FAILED, job=Job(1, "1-a", {}, []), reason="it broke")
    plan = SweepPlan([], [failed.job], "")
    found = SimpleNamespace(results=[failed], plan=plan, directory=CompareDirectory(Path("it's mine")))
    assert failure_lines(found)[2].startswith("again      mpt compare --resume 'it'\"'\"'s mine'")


@pytest.mark.parametrize("name", ["it's, a=b", "${x}"])
def test_a_job_writes_into_its_own_directory_whatever_it_is_called(name) -> None:
    command = train_command(Job(1, name, {}, ["conf=digits_mlp"]), Path(name))
    assert (command[1:4], command[-1]) == (["-P", "-m", "mpt_cli"], "--json")
    assert load_settings(command[5:-1]).run_dir == name
