"""Models that bring their own train_step, compile and optimizers, through `mpt` from end to end."""

import json
from pathlib import Path

import custom_nets
import numpy as np
import pytest
import strict
from backends import BACKEND, only_on
from command import mpt

from mpt_cli import training_run
from mpt_cli.errors import ConfigError, MptError
from mpt_cli.settings.load import load_settings
from mpt_cli.settings.schema import DistributeSettings, Settings
from mpt_cli.telemetry.record_types import Scaling
from mpt_cli.training.model import prepare_custom_steps

pytestmark = pytest.mark.slow
NETS = Path(custom_nets.__file__)
RUN = """
recipe: own
defaults: [{policy: mixed_float16}, {loss_scale: dynamic}, {model: builder}, {data: loader}, {backend: BACKEND}]
model: {builder: "NETS:classifier"}
data: {loader: "NETS:blobs"}
trainer: {epochs: 2, batch_size: 12, shuffle: false, log_every_steps: 1}
logger: {console: plain}
"""
GAN = (f"model.builder={NETS}:gan", f"data.loader={NETS}:unsplit", "data.validation_fraction=0")
NO_GAN = [
    ((*GAN, f"data.loader={NETS}:blobs"), "GAN has a train_step of its own, but neither a test_step nor a loss"),
    ((*GAN, "model.kwargs={compiled: false}"), "GAN has its own compile method, whose arguments mpt can't know"),
]
SPOILED = ("fault=bad_data", "fault.kind=overflow", "fault.at_steps=[2,8]", "fault.every_steps=null")


def recipe(folder):
    (folder / "own.yaml").write_text(RUN.replace("NETS", str(NETS)).replace("BACKEND", BACKEND))
    return folder / "own.yaml"


def train(folder, *words, code=0):
    done = mpt("train", f"conf={recipe(folder)}", "run_dir=run", *words, cwd=folder, backend=BACKEND)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def lines(folder, name, run="run"):
    return strict.lines(folder / run / f"{name}.jsonl")


def summary(folder, run="run"):
    return json.loads((folder / run / "summary.json").read_text())


def weights(folder, run="run"):
    with np.load(sorted((folder / run / "checkpoints").glob("step-*.npz"))[-1]) as stored:
        return {name: stored[name] for name in stored.files if name.startswith(("weight", "frozen", "optimizer"))}


def test_an_own_step_trains_skips_and_measures_as_keras_s_own_does(tmp_path):
    """The policy is in force wherever it is called, as a loss of its own asserts."""
    own, plain = tmp_path / "own", tmp_path / "plain"
    for folder, kind in ((own, "Own"), (plain, "Plain")):
        folder.mkdir()
        train(folder, *SPOILED, f"model.kwargs.kind={kind}", "trainer.jit_compile=auto")
        assert (summary(folder)["applied_steps"], summary(folder)["skipped_steps"]) == (10, 2)
    for name, value in weights(plain).items():
        np.testing.assert_allclose(weights(own)[name], value, rtol=1e-5, atol=1e-6, err_msg=name)  # order of fusion
    assert np.isfinite(list(summary(own)["metrics"].values())).all()
    assert summary(own)["metrics"] == pytest.approx(summary(plain)["metrics"], rel=1e-4)
    of_both = [
        [(e["step"], e["kind"], e["scale_after"], e["variable"], e["nan"], e["inf"]) for e in lines(folder, "events")]
        for folder in (own, plain)
    ]
    assert of_both[0] == of_both[1] and [event[0] for event in of_both[0]] == [2, 8]
    assert "optimizer" not in lines(own, "events")[0]
    done = mpt("evaluate", "run", "--json", cwd=own, backend=BACKEND)
    assert json.loads(done.stdout)["metrics"]["loss"] == pytest.approx(summary(own)["metrics"]["val_loss"], rel=1e-5)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["model.kwargs={kind: Unscaled}"], "Unscaled.train_step applies gradients of a loss that it does not"),
        (["model.kwargs={kind: Silent}"], "Silent.train_step: ValueError: must return a dict with a value to go by"),
        (["model.kwargs={kind: Idle}"], "Idle.train_step never calls apply of an optimizer that the model holds"),
        (["model.kwargs={kind: Unscaled}", "loss_scale=none", "fault=nan_loss"], "fault.place: must be data"),
        (["optimizer.learning_rate=0.5"], "optimizer.learning_rate: has no effect: the model comes compiled"),
        *(NO_GAN if BACKEND == "tensorflow" else [(GAN, "Keras on JAX hands a train_step the state of one")]),
    ],
)
def test_what_a_step_lacks_is_said_before_it_trains(words, said, tmp_path):
    with pytest.raises(MptError) as raised:
        training_run.train(load_settings([f"conf={recipe(tmp_path)}", f"run_dir={tmp_path}/run", *words]))
    assert raised.value.exit_code == 2 and said in str(raised.value)
    assert not (tmp_path / "run").exists()


def test_an_own_step_is_not_split_over_devices():
    settings = Settings(distribute=DistributeSettings("mirrored"))
    with pytest.raises(ConfigError, match="must be none: Own has a train_step or test_step"):
        prepare_custom_steps(settings, custom_nets.classifier(), {}, None, None, Scaling())  # type: ignore[arg-type]


@only_on("tensorflow")
def test_each_optimizer_skips_alone_with_a_scale_events_and_columns_of_its_own(tmp_path):
    said = train(tmp_path, *GAN, *SPOILED)
    assert "d_optimizer Adam, learning rate 0.001; g_optimizer Adam, learning rate 0.002" in said
    found, last = summary(tmp_path), lines(tmp_path, "metrics")[-1]
    assert (found["applied_steps"], found["skipped_steps"], found["final_loss_scale"]) == (10, 2, 2.0**13)
    events = [(e["step"], e["kind"], e["scale_after"], e["optimizer"]) for e in lines(tmp_path, "events")]
    assert events == [(2, "overflow", 2.0**14, "d_optimizer"), (8, "overflow", 2.0**13, "d_optimizer")]
    columns = {name: last[f"{name}/g_optimizer"] for name in ("loss_scale", "applied_steps", "skipped_steps")}
    assert columns == {"loss_scale": 2.0**15, "applied_steps": 12, "skipped_steps": 0}
    assert last["loss"] == last["d_loss"] and np.isfinite([last["d_loss"], last["g_loss"]]).all()
    assert all(np.isfinite(value).all() for value in weights(tmp_path).values())  # statistics were put back
    assert (tmp_path / "run" / "model.weights.h5").is_file() and "can't be saved as a .keras file" in said


@pytest.mark.long
@only_on("tensorflow")
def test_a_model_whose_call_is_for_other_inputs_than_its_step_trains(tmp_path):
    train(tmp_path, *GAN, f"model.builder={NETS}:called_to_generate", "trainer.epochs=1")
    assert (summary(tmp_path)["applied_steps"], summary(tmp_path)["steps_seen"]) == (6, 6)


@pytest.mark.long
@only_on("tensorflow")
def test_states_of_a_recurrent_layer_are_left_by_a_skip_and_resumed(tmp_path):
    """Keras does not count them among the variables of the model."""
    words = (
        "trainer.epochs=1",
        *SPOILED,
        "fault.at_steps=[2]",
        f"model.builder={NETS}:stateful",
        f"data.loader={NETS}:unsplit",
        "data.validation_fraction=0",
    )
    train(tmp_path, *words)
    assert (summary(tmp_path)["applied_steps"], summary(tmp_path)["skipped_steps"]) == (5, 1)
    train(tmp_path, *words, "run_dir=cut", "trainer.max_steps=4")
    train(tmp_path, *words, "run_dir=cut", "resume=auto")
    whole, cut = (
        dict(np.load(sorted((tmp_path / run / "checkpoints").glob("step-*.npz"))[-1])) for run in ("run", "cut")
    )
    assert whole["state/0"].shape == (12, 4) and np.isfinite(whole["state/0"]).all() and whole["state/0"].any()
    assert all(np.array_equal(value, cut[name]) for name, value in whole.items() if name != "label.json")


@only_on("tensorflow")
@pytest.mark.parametrize("one_hot", ["false", pytest.param("true", marks=pytest.mark.long)])
def test_targets_stay_as_they_came_for_a_model_that_comes_compiled(one_hot, tmp_path):
    train(
        tmp_path,
        f"model.builder={NETS}:for_targets_of_its_own",
        f"data.loader={NETS}:from_three",
        f"model.kwargs.one_hot={one_hot}",
        f"data.kwargs.one_hot={one_hot}",
    )
    assert summary(tmp_path)["applied_steps"] == summary(tmp_path)["steps_seen"] == 10
