"""The composition of recipes held against Hydra's own composition of the same files, case by case."""

from dataclasses import asdict
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from mpt_cli.settings.key_type import read_number
from mpt_cli.settings.load import load_settings
from mpt_cli.settings.search_path import conf_directory

# what the project of every case has, besides the recipe itself
PROJECT = {
    "conf/trainer/long.yaml": "epochs: 50\nbatch_size: 16\n",
    "conf/trainer/nested.yaml": "defaults: [quick, _self_]\nbatch_size: 8\n",
    "conf/loss_scale/mine.yaml": "defaults: [dynamic]\ninitial_scale: 1024\ngrowth_steps: 7\n",
    "conf/optimizer/fast.yaml": "name: sgd\nlearning_rate: 0.5\nkwargs: {momentum: 0.9}\n",
    "conf/experiment/tiny.yaml": "# @package _global_\ntrainer: {epochs: 2}\nseed: 7\n",
    "conf/experiment/big.yaml": "# @package _global_\ndefaults:\n  - tiny\n  - _self_\ntrainer: {batch_size: 256}\n",
    "conf/experiment/swap.yaml": "# @package _global_\ndefaults: [override /trainer: quick]\nseed: 8\n",
    "conf/warmth/warm.yaml": "name: cosine\nwarmup_steps: 9\n",
    "conf/warmth/placed.yaml": "# @package optimizer.schedule\nname: cosine\nwarmup_steps: 11\n",
    "base.yaml": "trainer: {epochs: 3, batch_size: 48}\nseed: 5\nexpect: {val_loss: {max: 1}}\n",
    "other.yaml": "trainer: {epochs: 6}\ndescription: other\n",
    "stack.yaml": "defaults: [base, _self_]\ntrainer: {epochs: 9}\n",
    "above.yaml": "defaults: [_self_, base]\ntrainer: {epochs: 9}\n",
}
OWN = "trainer: {epochs: 12}\n"
KEYS = (
    "seed",
    "description",
    "trainer.epochs",
    "trainer.batch_size",
    "trainer.log_every_steps",
    "optimizer.name",
    "optimizer.learning_rate",
    "optimizer.schedule.name",
    "optimizer.schedule.warmup_steps",
    "loss_scale.mode",
    "loss_scale.initial_scale",
    "loss_scale.growth_steps",
    "policy.name",
    "expect",
)

# (defaults list, the recipe's keys, overrides): the same words for both
CASES = [
    ("", OWN, ""),
    ("base", OWN, ""),
    ("base, _self_", OWN, ""),
    ("_self_, base", OWN, ""),
    ("stack, _self_", OWN, ""),
    ("above", "seed: 1\n", ""),
    ("override trainer: long", "seed: 1\n", ""),
    ("override /trainer: quick", OWN, ""),
    ("override trainer: nested", "seed: 1\n", ""),
    ("override loss_scale: mine", "loss_scale: {growth_steps: 3}\n", ""),
    ("experiment: tiny", OWN, ""),
    ("experiment: [tiny, big]", "description: x\n", ""),
    ("warmth@optimizer.schedule: warm", OWN, ""),
    ("_self_, warmth: placed", "optimizer: {schedule: {warmup_steps: 2}}\n", ""),
    ("warmth: placed, _self_", "optimizer: {schedule: {warmup_steps: 2}}\n", ""),
    ("optional experiment: absent", OWN, ""),
    ("base", "seed: '${trainer.epochs}'\n", ""),
    ("base", OWN, "trainer.batch_size=5 seed=3 trainer.batch_size=6"),
    ("base", "seed: 1\n", "optimizer=fast optimizer.learning_rate=0.125"),
    ("", OWN, "+experiment=tiny"),
    ("experiment: tiny", "description: x\n", "experiment=big"),
    ("", "seed: 1\n", "+experiment=swap"),
    ("_self_, experiment: tiny", OWN, "experiment=[big,tiny]"),
    ("experiment: tiny, _self_", OWN, "~experiment"),
    ("", "vars: {n: 4}\ntrainer: {epochs: '${vars.n}'}\n", "vars.n=6"),
    ("_self_, base", "expect: {val_loss: {max: 2}, val_accuracy: {min: 0.5}}\n", ""),
]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory):
    root = tmp_path_factory.mktemp("project")
    for name, text in PROJECT.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def by_hydra(root: Path, listed: str, keys: str, words: list[str]):
    """The recipe as the primary configuration of an application of Hydra's whose search path is ours."""
    search = [f"file://{folder}" for folder in (f"{root}/conf", root, conf_directory())]
    primary = root / "by_hydra" / "primary.yaml"
    primary.parent.mkdir(exist_ok=True)
    entries = ", ".join(filter(None, ["config", listed]))
    primary.write_text(f"hydra: {{searchpath: {search}}}\ndefaults: [{entries}]\n{keys}")
    with initialize_config_dir(str(primary.parent), version_base="1.3"):
        return compose("primary", words)


def by_mpt(root: Path, listed: str, keys: str, words: list[str]):
    (root / "recipe.yaml").write_text(f"defaults: [{listed}]\n{keys}")
    return load_settings(["conf=./recipe.yaml", *words])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:In 'primary'")  # of Hydra's, where a list has no _self_
@pytest.mark.parametrize("case", CASES, ids=[" | ".join(map(str.strip, case)) for case in CASES])
def test_a_recipe_is_composed_as_hydra_composes_it(case, project, monkeypatch):
    monkeypatch.chdir(project)
    listed, keys, written = case
    hydra, ours = (compose_it(project, listed, keys, written.split()) for compose_it in (by_hydra, by_mpt))
    found = OmegaConf.create(asdict(ours))
    for key in KEYS:
        expected = OmegaConf.select(hydra, key)
        if expected is not None:  # else neither file gives it, and ours is the schema's
            number = read_number(expected) if isinstance(expected, str) else None  # of 2**15
            assert OmegaConf.select(found, key) == (expected if number is None else number), key
