"""Loss-scale modes of other installed packages: used from the shell as ours are, without a line of ours that knows them.
The package of these tests is in `other_package.py`.
"""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from command import ENVIRONMENT, run_program, start_mpt
from other_package import install
from strict import lines

RECIPE = """\
defaults: [{policy: mixed_float16}, {model: mlp}, {data: synthetic}, {loss_scale: linear}]
loss_scale: {initial_scale: 2**10, rise: 8}
model: {hidden_units: [16]}
data: {examples: 256, input_shape: [4], num_classes: 2}
trainer: {epochs: 2, batch_size: 16, log_every_steps: 5}
logger: {console: plain}
"""
STEPS = 26  # 205 of 256 examples are trained on, in batches of 16, twice


Mpt = Callable[..., str]
OFFERED = """
import sys
from mpt_cli.verbs.arguments import OVERRIDES
from mpt_cli.verbs.completion import OFFERS
print(*(offer for word in sys.argv[1:] for offer in OFFERS[OVERRIDES](word)))
"""


@pytest.fixture
def mpt(tmp_path: Path):
    """What the command prints, on standard error where it fails, in a working directory with the recipe and with the
    package installed in a folder on the path."""
    (tmp_path / "lib").mkdir()
    install(tmp_path / "lib")
    (tmp_path / "own.yaml").write_text(RECIPE)
    (tmp_path / "offered.py").write_text(OFFERED)
    path = os.pathsep.join([str(Path(__file__).parents[2]), str(tmp_path / "lib")])

    def run(*words: str, code: int = 0, until: Callable[[], object] | None = None):
        if words[0] == "offered.py":
            return run_program(*words, backend="tensorflow", cwd=tmp_path, timeout=60, PYTHONPATH=path).stdout
        process = start_mpt(*words, cwd=tmp_path, env={**ENVIRONMENT, "PYTHONPATH": path})
        while until and not until() and process.poll() is None:
            time.sleep(0.05)
        if until:
            process.kill()
        out, err = process.communicate(timeout=300)
        assert process.returncode == code, f"{' '.join(words)}: {process.returncode}\n{out}\n{err}"
        return err if code else out

    return run


@pytest.mark.long
def test_a_run_of_another_packages_mode_is_killed_and_goes_on(mpt, tmp_path):
    words = "train", "conf=./own.yaml", "run_dir=run", "trainer.checkpoint_every_steps=1", "fault=overflow"
    run = tmp_path / "run"
    mpt(*words, code=-9, until=lambda: [*run.glob("checkpoints/step-*.npz")])
    out = mpt(*words, "resume=run")
    assert "continuing at step" in out and "linear from" in out and "rises by 8 a step" in out
    summary = json.loads((run / "summary.json").read_text())
    assert (summary["steps_seen"], summary["applied_steps"], summary["skipped_steps"]) == (STEPS, STEPS - 2, 2)
    scale = 1024.0
    for step in range(1, STEPS + 1):  # halved in the steps in which gradients overflow
        scale = scale / 2 if step in (5, 9) else scale + 8
    assert summary["final_loss_scale"] == scale
    assert [event["step"] for event in lines(run / "events.jsonl") if event["kind"] == "overflow"] == [5, 9]
    mpt("report", "run")


@pytest.mark.slow
def test_it_is_listed_shown_completed_and_checked_as_ours_are(mpt):
    assert "linear   Halved by every overflow, and raised by the same amount" in mpt("list", "modes")
    keys = mpt("list", "keys")
    assert "added to the scale by an applied step (default 64.0; > 0 and <= 2**20; only linear)" in keys
    shown = mpt("check", "--show", "conf=./own.yaml")
    assert "# loss_scale.mode: this recipe imports tiny_mpt:LinearScale and runs it" in shown
    assert "rise: 8.0" in shown
    offers = mpt("offered.py", "loss_scale=l", "loss_scale.ri").split()
    assert {*offers} >= {"loss_scale=linear", "loss_scale=logmax", "loss_scale.rise="}
    for words, said in (
        (["loss_scale.rise=-3"], "loss_scale.rise: must be > 0 and <= 2**20. Received: -3."),
        (["loss_scale.rize=3"], "loss_scale.rize: there is no such key. Received: 3. Did you mean loss_scale.rise?"),
        (["loss_scale.share=x"], "loss_scale.share: must be a number. Received: 'x'."),
        (
            ["loss_scale=dynamic", "loss_scale.rise=3"],
            "loss_scale=dynamic has no such key. Received: 3. It belongs to loss_scale=linear.",
        ),
    ):
        assert said in mpt("check", "conf=./own.yaml", *words, code=2)


BROKEN = """
from mpt_cli.precision.scale_rules import NoScale, ScaleRule
class Three: pass
class Named(NoScale): mode = 'other'
class Bad(ScaleRule): mode = 'bad'
"""
REASONS = {
    "absent": "no_such_module:f of bad-mpt 1.2 can't be imported: ModuleNotFoundError: No module named "
    "'no_such_module'.",
    "three": "bad_mpt:Three of bad-mpt 1.2 must be a subclass of mpt_cli.precision.scale_rules.ScaleRule.",
    "named": "Named has mode='other', and its entry point is called named.",
    "bad": "Bad must have a method `advance`.",
}


@pytest.mark.long
def test_a_broken_one_is_not_listed_says_why_where_it_is_chosen_and_is_in_nobodys_way(mpt, tmp_path):
    rules = {"absent": "no_such_module:f", "three": "bad_mpt:Three", "named": "bad_mpt:Named", "bad": "bad_mpt:Bad"}
    install(tmp_path / "lib", "bad-mpt", rules, BROKEN)
    listed = {each["name"] for each in json.loads(mpt("list", "modes", "--json"))["modes"]}
    assert not listed & {*rules}
    mpt("check", "conf=digits_mlp")
    for name, reason in REASONS.items():
        said = f"loss_scale: {name} can't be used: {reason}"
        assert said in mpt("check", "conf=digits_mlp", f"loss_scale={name}", code=2)
