"""Modes, models, data sources and sinks of other installed packages: used from the shell as ours are, without a line
of ours that knows them. The package of these tests is in `other_package.py`.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from other_package import install

RECIPE = """\
defaults: [{policy: mixed_float16}, {model: wide}, {data: halves}, {loss_scale: linear}]
loss_scale: {initial_scale: 2**10, rise: 8}
trainer: {epochs: 2, batch_size: 16, log_every_steps: 5}
logger: {step_file: true, console: plain}
"""
STEPS = 26  # 205 of 256 examples are trained on, in batches of 16, twice


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with the recipe, and the package installed in a folder on the path."""
    (tmp_path / "lib").mkdir()
    install(tmp_path / "lib")
    (tmp_path / "own.yaml").write_text(RECIPE)
    monkeypatch.chdir(tmp_path)
    root = Path(__file__).parents[2]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(root), str(tmp_path / "lib")]))
    monkeypatch.delenv("KERAS_BACKEND", raising=False)
    return tmp_path


def start(*words: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "mpt_cli", *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def mpt(*words: str, code: int = 0) -> str:
    """What the command prints; on standard error where it fails."""
    process = start(*words)
    out, err = process.communicate(timeout=300)
    assert process.returncode == code, f"{' '.join(words)}: {process.returncode}\n{out}\n{err}"
    return err if code else out


def offered(*written: str) -> set[str]:
    """What the shell is offered for these words of `mpt train`."""
    code = ("from mpt_cli.verbs.completion import OFFERS\nfrom mpt_cli.verbs.arguments import OVERRIDES\n"
            f"for word in {written!r}: print(*OFFERS[OVERRIDES](word))")
    return set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split())


def events(run: str) -> list[dict]:
    return [json.loads(line) for line in Path(run, "events.jsonl").read_text().splitlines()]


@pytest.mark.long
@pytest.mark.slow
def test_a_run_of_another_packages_parts_is_killed_and_goes_on(work: Path) -> None:
    words = ["train", "conf=./own.yaml", "run_dir=run", "trainer.checkpoint_every_steps=1",
             "fault=overflow"]  # fmt: skip
    first = start(*words)
    while not list(Path("run").glob("checkpoints/step-*.npz")) and first.poll() is None:
        time.sleep(0.05)
    first.send_signal(signal.SIGKILL)
    first.communicate()
    out = mpt(*words, "resume=run")
    assert "going on at step" in out and "linear from" in out and "rises by 8 a step" in out
    summary = json.loads(Path("run/summary.json").read_text())
    assert (summary["steps_seen"], summary["applied_steps"], summary["skipped_steps"]) == (STEPS, STEPS - 2, 2)
    scale = 1024.0
    for step in range(1, STEPS + 1):  # halved in the steps in which gradients overflow
        scale = scale / 2 if step in (5, 9) else scale + 8
    assert summary["final_loss_scale"] == scale
    assert [event["step"] for event in events("run") if event["kind"] == "overflow"] == [5, 9]
    assert Path("run/step_file").read_text().split()[-1] == str(STEPS)
    assert "linear" in Path("run/config.yaml").read_text()
    mpt("report", "run")
    assert Path("run/report.html").stat().st_size > 10_000


@pytest.mark.slow
def test_it_is_listed_shown_and_completed(work: Path) -> None:
    assert "linear   Halved by every overflow, and raised by the same amount" in mpt("list", "modes")
    keys = mpt("list", "keys")
    assert "added to the scale by an applied step (default 64.0; > 0 and <= 2**20; only linear)" in keys
    assert "logger.step_file" in keys
    shown = mpt("show", "conf=./own.yaml")
    assert "# loss_scale.mode: this recipe imports tiny_mpt:LinearScale and runs it" in shown
    assert "rise: 8.0" in shown and "step_file: true" in shown
    assert offered("loss_scale=l", "loss_scale.ri") >= {"loss_scale=linear", "loss_scale=logmax", "loss_scale.rise="}


@pytest.mark.slow
def test_its_numbers_are_checked_as_ours_are(work: Path) -> None:
    assert "loss_scale.rise: must be > 0 and <= 2**20. Received: -3." in mpt(
        "check", "conf=./own.yaml", "loss_scale.rise=-3", code=2)
    assert "must be left out with loss_scale.mode=dynamic: only linear uses it" in mpt(
        "check", "conf=./own.yaml", "loss_scale=dynamic", "loss_scale.rise=3", code=2)


BROKEN = """
from mpt_cli.precision.scale_rules import NoScale, ScaleRule
from mpt_cli.settings.variants import ModelSettings
class Three: pass
class Named(NoScale): mode = 'other'
class Bad(ScaleRule): mode = 'bad'
class Net(ModelSettings): pass
"""
REASONS = {
    "absent": "no_such_module:f of bad-mpt 1.2 can't be imported: ModuleNotFoundError: No module named "
              "'no_such_module'.",
    "three": "bad_mpt:Three of bad-mpt 1.2 must be a subclass of mpt_cli.precision.scale_rules.ScaleRule.",
    "named": "Named has mode='other', and its entry point is called named.",
    "bad": "Bad must have a method `advance`.",
}  # fmt: skip


@pytest.mark.slow
def test_a_broken_one_is_listed_with_its_reason_a_sentence_where_it_is_chosen_and_in_nobodys_way(work: Path) -> None:
    rules = {"absent": "no_such_module:f", "three": "bad_mpt:Three", "named": "bad_mpt:Named", "bad": "bad_mpt:Bad"}
    points = {"mpt.scale_rules": rules, "mpt.models": {"net": "bad_mpt:Net"}, "mpt.sinks": {"bad": "bad_mpt:Three"}}
    install(work / "lib", "bad-mpt", points, BROKEN)
    listed = {each["name"]: each["description"] for each in json.loads(mpt("list", "modes", "--json"))["modes"]}
    assert {name: listed[name] for name in rules} == {
        name: f"(can't be used: {reason})" for name, reason in REASONS.items()}  # fmt: skip
    assert "(can't be used: bad_mpt.Net must be a dataclass with `name: str = 'net'`.)" in mpt("list", "models")
    mpt("check", "conf=digits_mlp")
    for word, sentence in (
        ("loss_scale=absent", f"loss_scale: absent can't be used: {REASONS['absent']}"),
        ("logger.bad=true", "logger.bad: can't be used: bad_mpt:Three of bad-mpt 1.2 must be a subclass of "
                            "mpt_cli.telemetry.sink.Sink."),
    ):  # fmt: skip
        assert sentence in mpt("train", "conf=digits_mlp", word, code=2)


@pytest.mark.slow
@pytest.mark.parametrize(("group", "name", "word"), [
    ("mpt.data", "digits", "data=digits"), ("mpt.sinks", "tensorboard", "logger.tensorboard=true"),
])  # fmt: skip
def test_one_called_as_ours_is_a_sentence_where_that_name_is_chosen(
    group: str, name: str, word: str, work: Path
) -> None:
    install(work / "lib", "bad-mpt", {group: {name: "bad_mpt:Bad"}}, "")
    said = mpt("check", "conf=./own.yaml", word, code=2)
    assert "bad-mpt 1.2 has" in said and "of this name too. Uninstall it, or have it renamed." in said


def test_a_resolver_of_another_package_is_imported_where_a_recipe_uses_it(work: Path) -> None:
    """It takes the name of none of ours."""
    shown = mpt("show", "conf=digits_mlp", "trainer.epochs=${thrice:2}", "trainer.batch_size=${eval:'2+2'}")
    assert "  epochs: 6\n" in shown and "  batch_size: 4\n" in shown
    said = mpt("show", "conf=digits_mlp", "trainer.epochs=${broken:2}", code=2)
    assert said.startswith("mpt show: trainer.epochs: cannot be resolved: ")
    assert "no_such_module:f of tiny-mpt 1.2 can't be imported" in said
