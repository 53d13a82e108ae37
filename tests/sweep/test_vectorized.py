"""Jobs of a sweep that train together: which may, that each is the run that it would be alone, and what ends them."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from preloaded import mpt, run_program

from mpt_cli.cli import main
from mpt_cli.jobs.executor import Command, Share
from mpt_cli.jobs.queue import Ending, Observer, Running
from mpt_cli.reproduce.reproduction import first_difference
from mpt_cli.runs.directory import RunDirectory, read_json, write_json
from mpt_cli.settings import load_settings
from mpt_cli.sweep.directory import SweepDirectory, read_results
from mpt_cli.sweep.plan import Job, SweepPlan
from mpt_cli.sweep.vectorized import GroupFile, Groups, Member, group_jobs, numbers_of, with_numbers

WORDS = ["conf=digits_mlp", "backend=jax", "trainer.max_steps=30", "logger.console=quiet"]


def jobs(count: int) -> list[Job]:
    return [Job(number, f"00{number}", {}, []) for number in range(1, count + 1)]


@pytest.fixture(scope="module")
def settings():
    return load_settings(WORDS)


def grouped(settings, changes, most=8):
    """The numbers of the jobs in each group, and what is said."""
    given = [with_numbers(settings, each) if isinstance(each, dict) else each for each in changes]
    groups, lines = group_jobs(zip(jobs(len(given)), given, strict=True), most)
    return [[job.number for job in group] for group in groups], lines


@pytest.mark.slow
def test_jobs_that_differ_in_state_of_the_step_alone_go_together(settings):
    numbers = [{"loss_scale.initial_scale": 2.0}, {"loss_scale.growth_steps": 7},
               {"optimizer.learning_rate": 0.5}, {"seed": 9}]  # fmt: skip
    assert grouped(settings, numbers) == ([[1, 2, 3, 4]], [])
    assert grouped(settings, numbers, most=3)[0] == [[1, 2, 3], [4]]


@pytest.mark.slow
def test_what_is_a_constant_of_the_program_parts_them(settings):
    factor = replace(settings, loss_scale=replace(settings.loss_scale, growth_factor=4.0))
    warm = replace(settings, optimizer=replace(settings.optimizer,
                   schedule=replace(settings.optimizer.schedule, warmup_steps=4)))  # fmt: skip
    rates = [with_numbers(each, {"optimizer.learning_rate": rate}) if each is not warm
             else replace(warm, optimizer=replace(warm.optimizer, learning_rate=rate))
             for each in (factor, warm) for rate in (0.1, 0.2)]  # fmt: skip
    groups, lines = grouped(settings, [settings, *rates])
    assert groups == [[1], [2, 3], [4], [5]]
    said = ("--vectorize: jobs 1, 4, 5 with a process each, as no other differs in loss_scale.initial_scale, "
            "loss_scale.growth_steps, optimizer.learning_rate (without a schedule) and seed alone")  # fmt: skip
    assert lines == [said]


@pytest.mark.slow
def test_a_seed_parts_models_of_a_builder_which_may_draw_constants():
    own = load_settings(["conf=digits_mlp", "backend=jax", "model.builder=keras.applications:ResNet50"])
    assert "seed" not in numbers_of(own)
    assert grouped(own, [replace(own, seed=seed) for seed in (0, 1)])[0] == [[1], [2]]


def test_a_seed_parts_models_whose_weights_are_rounded_by_it():
    own = load_settings(["conf=digits_mlp", "backend=jax", "policy=float16", "policy.stochastic_rounding=true"])
    assert grouped(own, [replace(own, seed=seed) for seed in (0, 1)])[0] == [[1], [2]]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["backend=tensorflow"], "backend=tensorflow: it is for jax"),
        (["distribute=data_parallel"], "distribute=data_parallel"),
        (["trainer.jit_compile=false"], "trainer.jit_compile=false"),
        (["trainer.callbacks=[TerminateOnNaN]"], "trainer.callbacks"),
        (["trainer.reduce_on_plateau.patience=2"], "trainer.reduce_on_plateau"),
        (["trainer.on_unhealthy=rollback"], "trainer.on_unhealthy=rollback"),
        (["fault.slow_storage_seconds=0.1"], "fault"),
        (["logger.mlflow=true"], "logger.mlflow"),
        (["logger.wandb=true"], "logger.wandb"),
    ],
)
def test_what_can_not_go_with_others_has_a_process_of_its_own_and_is_said(words, why):
    alone = load_settings(["conf=digits_mlp", *words, *(["backend=jax"] * (words[0] != "backend=tensorflow"))])
    assert grouped(alone, [{"seed": 0}, {"seed": 1}]) == (
        [[1], [2]], [f"--vectorize: jobs 1, 2 with a process each, because of {why}"]
    )  # fmt: skip


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--vectorize", "1"], "--vectorize: must be >= 2. Received: 1."),
        (["--vectorize", "4", "--timeout", "9"], "--vectorize: can't train jobs with --timeout together."),
        (["--vectorize", "4", "--stop-behind-median"],
         "--vectorize: can't train jobs with --stop-behind-median together."),
        (["--vectorize", "4", "--launcher", "submitit", "launcher.cluster=local"],
         "--vectorize: can't train jobs with --launcher submitit together."),
        (["--vectorize", "4", "--trials", "3", "optimizer.learning_rate=interval(1e-4,1e-2)"],
         "--vectorize: can't train jobs of a search together."),
    ],
)  # fmt: skip
@pytest.mark.parametrize("dry", [[], ["--dry-run"]])
def test_what_it_can_not_go_with_is_a_sentence_and_code_2(tmp_path, monkeypatch, capsys, words, message, dry):
    monkeypatch.chdir(tmp_path)
    assert main(["sweep", *WORDS, "seed=0,1", *words, *dry]) == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_dry_run_says_which_jobs_share_a_process(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["sweep", *WORDS, "seed=0,1", "policy=float32,mixed_float16", "--vectorize", "4", "--dry-run"]) == 0
    assert capsys.readouterr().out.splitlines()[4:] == [
        "4 jobs", "--vectorize: jobs 1, 3 in one process", "--vectorize: jobs 2, 4 in one process",
    ]  # fmt: skip


class Heard(Observer[Job]):
    """What an observer is told of jobs."""

    def __init__(self) -> None:
        self.running: list[list[str]] = []
        self.ended_jobs: list[str] = []

    def tick(self, running):
        self.running.append([each.command.name for each in running])

    def ended(self, command, ending):
        self.ended_jobs.append(command.name)


def test_each_job_of_a_group_has_an_ending_of_its_own(tmp_path):
    sweep, heard = SweepDirectory(tmp_path), Heard()
    sweep.write_plan(SweepPlan([], jobs(3), "r"), {})
    groups = Groups(sweep, [heard])
    commands = [Command(job.name, [], job, cwd=tmp_path, attempt=job.number) for job in jobs(3)]
    together = groups.combine(commands, {job.name: {"seed": job.number} for job in jobs(3)})
    assert together.name == "001 and 2 more in its process"
    assert GroupFile.read(read_json(sweep.group_json(jobs(1)[0]))).members[2].numbers == {"seed": 3}
    running = Running(together, None, Share())
    running.cause = "interrupt"
    groups.tick([running])
    ends = {"001": {"exit_code": 0, "seconds": 2.0}}
    write_json(sweep.group_ends_json(jobs(1)[0]), {"jobs": ends})
    groups.tick([running])
    assert (heard.running, heard.ended_jobs) == ([["001", "002", "003"], ["002", "003"]], ["001"])
    ends["002"] = {"exit_code": 4, "seconds": 3.0}
    write_json(sweep.group_ends_json(jobs(1)[0]), {"jobs": ends})
    groups.record(together, Ending(-9, 7.0, "interrupt"))
    groups.ended(together, Ending(-9, 7.0, "interrupt"))
    assert heard.ended_jobs == ["001", "002", "003"]
    told = [sweep.read_ending(job) for job in jobs(3)]
    assert told == [Ending(0, 2.0, "interrupt"), Ending(4, 3.0, "interrupt", attempt=2),
                    Ending(-9, 7.0, "interrupt", attempt=3)]  # fmt: skip
    assert groups.combine(commands[:1], {}) is commands[0]


MEMBERS = {  # one that skips nothing, one that overflows at first, one of another seed, one that comes to nan
    "quiet": {"loss_scale.initial_scale": 2.0**8},
    "loud": {"loss_scale.initial_scale": 2.0**26, "optimizer.learning_rate": 0.003},
    "seeded": {"seed": 1},
    "broken": {"optimizer.learning_rate": 1e30},
}


def train_group(folder: Path, at_once: bool | None) -> dict[str, int]:
    """Exit codes of the members, trained together in `folder`, with a git that notes each of its calls."""
    (folder / "git").write_text(f"#!/bin/sh\necho $* >> {folder}/calls\nexec {shutil.which('git')} \"$@\"\n")
    (folder / "git").chmod(0o755)
    members = [Member(name, WORDS, numbers, *(str(folder / f"{name}{end}") for end in ("", ".log", ".lock")))
               for name, numbers in MEMBERS.items()]  # fmt: skip
    write_json(folder / "group.json", asdict(GroupFile(members, str(folder / "ends.json"), at_once)))
    done = run_program("mpt_cli.vectorized_runs", str(folder / "group.json"), backend="jax", cwd=folder, timeout=300,
                       PATH=f"{folder}:{os.environ['PATH']}")  # fmt: skip
    assert done.returncode == 0, done.stderr
    return {name: end["exit_code"] for name, end in read_json(folder / "ends.json")["jobs"].items()}


@pytest.mark.long
def test_each_is_the_run_that_it_would_be_alone(tmp_path):
    """Bit for bit: events, lines of metrics, summary, weights and optimizer; of four at once as well, on a CPU."""
    codes = {}
    for name, numbers in MEMBERS.items():
        words = [f"{key}={value}" for key, value in numbers.items()]
        codes[name] = mpt("train", *WORDS, *words, f"run_dir={name}", cwd=tmp_path, backend="jax").returncode
    assert codes == {"quiet": 0, "loud": 0, "seeded": 0, "broken": 4}
    assert read_json(tmp_path / "loud" / "summary.json")["skipped_steps"] > 2
    for at_once in (None, True):
        folder = tmp_path / f"together-{at_once}"
        folder.mkdir()
        assert train_group(folder, at_once) == codes
        for name in ("quiet", "loud", "seeded"):
            mine = read_json(folder / name / "summary.json")
            assert mine["applied_steps"] == 30 - mine["skipped_steps"]
            assert first_difference(RunDirectory(tmp_path / name), RunDirectory(folder / name)) is None, (name, at_once)
        assert (folder / "broken" / "events.jsonl").read_text() == (tmp_path / "broken" / "events.jsonl").read_text()
        attempt = read_json(folder / "loud" / "environment.json")["attempts"][0]
        assert attempt["vectorized_with"] == ["quiet", "seeded", "broken"]
        assert (folder / "calls").read_text().count("rev-parse") == 2  # of the working directory and of mpt, once
        said = [read_json(folder / name / "environment.json")["git"] for name in codes]
        assert {"working_directory", "mpt"} == said[0].keys() and said.count(said[0]) == 4


@pytest.mark.long
def test_a_member_goes_on_alone_from_its_checkpoint(tmp_path):
    """After a SIGTERM in the middle: no run is lost, and `--resume` leaves the same as a sweep that nothing ended."""
    words = ["sweep", *WORDS, "loss_scale.initial_scale=2**8,2**26", "trainer.max_steps=60", "sweep_dir=s"]
    whole = subprocess.run([sys.executable, "-m", "mpt_cli", *words[:-1], "sweep_dir=whole", "--vectorize", "2"],
                           cwd=tmp_path, capture_output=True, text=True, timeout=300)  # fmt: skip
    assert whole.returncode == 0, whole.stderr + whole.stdout
    process = subprocess.Popen([sys.executable, "-m", "mpt_cli", *words, "--vectorize", "2"], cwd=tmp_path,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)  # fmt: skip
    sweep = SweepDirectory(tmp_path / "s")
    ends = sweep.group_ends_json(Job(1, "001-initial_scale-256", {}, []))
    while not ends.exists() and process.poll() is None:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)  # what it started ends with it
    process.communicate()
    done = subprocess.run([sys.executable, "-m", "mpt_cli", "sweep", "--resume", "s", "--quiet"], cwd=tmp_path,
                          capture_output=True, text=True, timeout=300)  # fmt: skip
    assert done.returncode == 0, done.stderr
    results = read_results(SweepDirectory(tmp_path / "s")).results
    assert [result.status for result in results] == ["finished", "finished"]
    assert len(json.loads((results[0].run_dir / "environment.json").read_text())["attempts"]) == 1
    for result in results:
        whole_run = RunDirectory(tmp_path / "whole" / result.job.name)
        assert first_difference(whole_run, RunDirectory(result.run_dir)) is None


@pytest.mark.slow
@pytest.mark.parametrize("dry", [[], ["--dry-run"]])
def test_what_is_refused_changes_nothing_of_a_sweep_that_is_resumed(tmp_path, monkeypatch, capsys, dry):
    monkeypatch.chdir(tmp_path)
    sweep = SweepDirectory.create("s", "digits_mlp")
    job = Job(1, "001-seed-0", {"seed": "0"}, [*WORDS, "seed=0"])
    sweep.write_plan(SweepPlan(["seed"], [job], "digits_mlp"), {"command_line": ["mpt", "sweep", *WORDS, "seed=0"]})
    before = sweep.plan_json.read_bytes()
    assert main(["sweep", "--resume", "s", "seed=1", "--vectorize", "2", "--timeout", "5", *dry]) == 2
    assert "--vectorize: can't train jobs with --timeout together." in capsys.readouterr().err
    assert sweep.plan_json.read_bytes() == before
