"""`policy=auto_float16` and `mpt check --ops` from end to end, on a net whose own softmax overflows in float16."""

import json
import shlex

import pytest
from omegaconf import OmegaConf
from preloaded import mpt
from test_own_steps import BACKEND, GAN, NETS, RUN, lines, summary, train

WITH_EXPONENTIALS = f"model.builder={NETS}:with_exponentials"
AUTO = (WITH_EXPONENTIALS, "policy=auto_float16")
CHOSEN = {"shares": "float32", "dropout": "float32"}
pytestmark = pytest.mark.slow


def check(folder, *words, code=0):
    (folder / "own.yaml").write_text(RUN.replace("NETS", str(NETS)).replace("BACKEND", BACKEND))
    done = mpt("check", "conf=own.yaml", "--build", *words, cwd=folder, backend=BACKEND)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.long
def test_a_net_that_never_trains_in_mixed_float16_trains_with_chosen_policies(tmp_path):
    told = train(tmp_path, WITH_EXPONENTIALS, code=4)
    assert summary(tmp_path)["applied_steps"] == 0 and "mixed_float16" in told
    told = train(tmp_path, *AUTO, "run_dir=auto")
    found = summary(tmp_path, "auto")
    assert found["applied_steps"] == found["steps_seen"] == 12 and found["verdict"] == "healthy"
    policy = OmegaConf.load(tmp_path / "auto" / "config.yaml").policy
    assert policy.name == "mixed_float16" and dict(policy.overrides) == CHOSEN
    assert "policy       mixed_float16 (head float32, shares float32, dropout float32)" in told


@pytest.mark.long
def test_a_run_with_chosen_policies_goes_on_and_is_repeated_with_the_same(tmp_path):
    train(tmp_path, *AUTO, "trainer.max_steps=6", "run_dir=cut")
    train(tmp_path, *AUTO, "resume=cut", "run_dir=cut")
    done = mpt("train", "conf=cut/config.yaml", "run_dir=again", cwd=tmp_path, backend=BACKEND)
    assert done.returncode == 0, done.stderr
    cut, again = ({line["step"]: line["loss"] for line in lines(tmp_path, "metrics", run)} for run in ("cut", "again"))
    assert summary(tmp_path, "again")["applied_steps"] == 12 and len(again) == 12
    assert cut == again


def test_check_tells_what_is_amiss_and_how_to_mend_it_as_the_command_line_takes_it(tmp_path):
    told = check(tmp_path, "--ops", WITH_EXPONENTIALS)
    assert "needs float32  shares  exp in float16" in told
    suggested = next(line for line in told.splitlines() if line.startswith("try: "))
    found = json.loads(check(tmp_path, "--ops", "--json", WITH_EXPONENTIALS, *shlex.split(suggested)[1:]))
    operations = found["build"]["operations"]
    assert [flag["layer"] for flag in operations["flags"] if flag["kind"] == "needs_float32"] == []
    products = [(each["layer"], each["dtype"]) for each in operations["counts"] if each["kind"] == "product"]
    assert products == [("first", "float16"), ("second", "float16"), ("head", "float32")]


def test_check_shows_each_layer_with_the_reason_for_its_policy(tmp_path):
    told = check(tmp_path, *AUTO)
    rows = {line.split()[0]: " ".join(line.split()) for line in told.splitlines() if line}
    assert rows["shares"].endswith("float32 float32 float32 0 exp needs float32")
    assert rows["dropout"].endswith("follows its inputs, which shares gives in float32")
    assert rows["first"].endswith("products")
    assert "chosen: 'policy.overrides={shares: float32, dropout: float32}'" in told


def test_a_model_without_a_call_is_refused(tmp_path):
    told = check(tmp_path, *GAN, "policy=auto_float16", code=2)
    assert "GAN has no `call`, in which could be seen what its layers do" in told


def test_what_it_leaves_in_float16_is_said(tmp_path):
    told = check(tmp_path, *AUTO, "policy.overrides={shares: mixed_float16}")
    assert "auto_float16 leaves shares: exp in float16" in told
