"""The command of a job, for a directory with a name that the shell would split."""

from pathlib import Path

import pytest

from mpt_cli.settings.load import load_settings
from mpt_cli.sweep.job_list import Job
from mpt_cli.sweep.run import train_command


@pytest.mark.parametrize("name", ["it's, a=b", "${x}"])
def test_a_job_writes_into_its_own_directory_whatever_it_is_called(name):
    command = train_command(Job(1, name, {}, ["conf=digits_mlp"]), Path(name))
    assert (command[1:4], command[-1]) == (["-P", "-m", "mpt_cli"], "resume=auto")
    assert load_settings(command[5:]).run_dir == name
