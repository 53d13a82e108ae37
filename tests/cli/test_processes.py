"""`mpt` as a real process: exit codes, streams, what it imports, pipes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from strict import lines


def run(*command, **options):
    return subprocess.run(command, capture_output=True, text=True, timeout=60, **options)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "more"),
    [
        (["check", "conf=digits_cnn", "trainer.loss=mse"], []),
        (["check", "conf=digits_mlp"], ["numpy"]),
        (["sweep", "conf=digits_mlp", "seed=0,1", "--dry-run"], []),
    ],
)
def test_no_framework_is_imported(words, more, tmp_path):
    code = "import sys; from mpt_cli.cli import main; main(sys.argv[1:]); print(*sys.modules, file=sys.stderr)"
    done = run(sys.executable, "-c", code, *words, cwd=tmp_path)
    imported = set(done.stderr.splitlines()[-1].split())
    assert done.returncode == 0 and not imported & {
        "keras",
        "tensorflow",
        "jax",
        "sklearn",
        "matplotlib",
        "scipy",
        *more,
    }


@pytest.mark.slow
def test_help_and_completion_import_no_verb_and_no_hydra(tmp_path):
    code = (
        "import sys; from mpt_cli.cli import main; from mpt_cli.verbs.arguments import LISTED_VERBS\n"
        "for verb in LISTED_VERBS: main([verb, '--help'])\nmain(['train', '--nothing'])\n"
        "import mpt_cli.verbs.completion\nprint(*sys.modules, file=sys.stderr)"
    )
    done = run(sys.executable, "-c", code, cwd=tmp_path)
    imported = set(done.stderr.splitlines()[-1].split())
    assert not imported & {"hydra", "omegaconf", "rich", "numpy", "keras"}
    verbs = {name.removeprefix("mpt_cli.verbs.") for name in imported if name.startswith("mpt_cli.verbs.")}
    assert verbs == {"arguments", "completion"}


@pytest.mark.slow
def test_a_reader_who_has_gone_is_no_error(tmp_path):
    command = f"{sys.executable} -m mpt_cli list keys --json | head -1; exit ${{PIPESTATUS[0]}}"
    done = run("bash", "-c", command, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "{\n", "")
    failing = f"{sys.executable} -m mpt_cli check conf=digits_mlp sed=1 --json | true; exit ${{PIPESTATUS[0]}}"
    assert run("bash", "-c", failing, cwd=tmp_path).returncode == 2
    closed = run("bash", "-c", f"{sys.executable} -m mpt_cli list >&-", cwd=tmp_path)
    assert "Traceback" not in closed.stderr


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_full_disk_behind_standard_output_is_no_bug(tmp_path):
    command = f"{sys.executable} -m mpt_cli list > /dev/full"
    done = run("bash", "-c", command, cwd=tmp_path)
    assert done.returncode == 3
    assert done.stderr == "mpt list: its output can't be written: No space left on device\n"


@pytest.mark.slow
def test_a_terminal_that_lacks_a_letter_still_gets_its_text(tmp_path):
    command = (sys.executable, "-m", "mpt_cli", "train", "conf=größe")
    done = run(*command, cwd=tmp_path, env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert done.returncode == 2 and "Received: 'gr" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.long
def test_a_run_whose_standard_streams_are_closed_writes_its_files_and_nothing_else_into_them(tmp_path):
    """The files would get the descriptors of the streams, and what TensorFlow and other processes write there."""
    words = "train conf=digits_mlp trainer.max_steps=3 trainer.log_every_steps=1"
    command = f"{sys.executable} -m mpt_cli {words} run_dir=r <&- >&- 2>&-"
    done = subprocess.run(["bash", "-c", command], cwd=tmp_path, stdout=subprocess.DEVNULL, timeout=300)
    assert done.returncode == 0
    assert [line["step"] for line in lines(tmp_path / "r" / "metrics.jsonl")] == [1, 2, 3, 3] and (
        tmp_path / "r" / "events.jsonl"
    ).read_text() == ""
    summary = json.loads((tmp_path / "r" / "summary.json").read_text())
    assert (summary["status"], summary["applied_steps"], summary["steps_seen"]) == ("finished", 3, 3)


@pytest.mark.skipif(sys.platform != "linux", reason="a limit of Linux")
def test_where_no_thread_can_be_started_it_says_so(tmp_path):
    code = """
import os, resource, sys
import mpt_cli.cli
from mpt_cli.__main__ import main
resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
if os.geteuid() == 0:  # whom the limit does not hold for
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
sys.argv = ["mpt", "--version"]
main()
"""
    done = run(sys.executable, "-c", code, cwd="/")
    sentence = "mpt: can't start new thread. `ulimit -u` shows how many threads and processes this user may have.\n"
    assert (done.returncode, done.stdout, done.stderr) == (3, "", sentence)
