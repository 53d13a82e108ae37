"""Which backend a run has: the word's, `KERAS_BACKEND`, the recipe's, else the one that is installed."""

import importlib.util
from pathlib import Path

import pytest
from backends import only_on

from mpt_cli.cli import main
from mpt_cli.errors import ConfigError
from mpt_cli.settings import load
from mpt_cli.settings.load import load_settings, resolved_yaml

OF_JAX = "defaults: [digits_mlp, _self_]\nbackend: {name: jax, device: cpu}\n"
OTHER = "defaults: [{backend: jax}, _self_]\nmodel: {name: mlp}\n"


@pytest.fixture(autouse=True)
def no_backend_chosen(here, monkeypatch):
    monkeypatch.delenv("KERAS_BACKEND", raising=False)


def installed(monkeypatch, *names: str):
    real = importlib.util.find_spec
    found = {name: real(name) if name in names else None for name in ("tensorflow", "jax")}
    find = lambda name, *more: found[name] if name in found else real(name, *more)  # noqa: E731
    monkeypatch.setattr(load, "find_spec", find)
    monkeypatch.setattr("importlib.util.find_spec", find)


@only_on("tensorflow")
def test_a_script_runs_on_the_only_backend_that_is_installed(monkeypatch, capsys):
    """Keras would choose TensorFlow and fail; here it is loaded with that already."""
    installed(monkeypatch, "jax")
    Path("never.py").touch()
    assert main(["run", "never.py"]) == main(["run", "backend=auto", "never.py"]) == 2
    assert "Keras is loaded with backend tensorflow already. Received: 'jax'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("word", "variable", "recipe", "wanted"),
    [
        ([], None, None, "tensorflow"),
        ([], "jax", None, "jax"),
        ([], None, OF_JAX, "jax"),
        ([], None, OTHER, "jax"),
        ([], "tensorflow", OF_JAX, "tensorflow"),
        (["backend=tensorflow"], "jax", OF_JAX, "tensorflow"),
        (["backend.name=jax"], "tensorflow", None, "jax"),
        (["backend=auto"], "jax", OF_JAX, "jax"),
        (["backend.device=cpu"], "jax", None, "jax"),
    ],
)
def test_the_order_in_which_a_backend_is_taken(word, variable, recipe, wanted, monkeypatch):
    installed(monkeypatch, "tensorflow", "jax")
    if variable:
        monkeypatch.setenv("KERAS_BACKEND", variable)
    if recipe:
        Path("x.yaml").write_text(recipe)
    found = load_settings(["conf=./x.yaml" if recipe else "conf=digits_mlp", *word])
    assert found.backend.name == wanted
    assert found.backend.device == ("cpu" if recipe == OF_JAX or "backend.device=cpu" in word else "auto")


def test_where_jax_alone_is_installed_a_run_takes_it(monkeypatch):
    installed(monkeypatch, "jax")
    assert load_settings(["conf=digits_mlp"]).backend.name == "jax"


def test_a_record_keeps_its_backend_and_references_see_the_one_that_is_taken(monkeypatch):
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    Path("x.yaml").write_text("defaults: [digits_mlp, _self_]\nrun_dir: runs/${backend.name}\n")
    settings = load_settings(["conf=./x.yaml"])
    assert settings.run_dir == "runs/jax"
    Path("record.yaml").write_text(resolved_yaml(settings))
    monkeypatch.setenv("KERAS_BACKEND", "tensorflow")
    assert load_settings(["conf=./record.yaml"]).backend.name == "jax"
    assert load_settings(["conf=./record.yaml", "backend=tensorflow"]).backend.name == "tensorflow"


def test_another_backend_of_keras_is_refused_with_what_to_write(monkeypatch):
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    with pytest.raises(ConfigError, match="KERAS_BACKEND must be one of tensorflow, jax, or not set"):
        load_settings(["conf=digits_mlp"])
    assert load_settings(["conf=digits_mlp", "backend=jax"]).backend.name == "jax"


@pytest.mark.parametrize("verb", ["check", "sweep --dry-run", "sweep --dry-run seed=0,1", "reproduce --dry-run"])
def test_what_can_not_run_here_is_said_before_it_is_started(verb, monkeypatch, capsys):
    installed(monkeypatch, "tensorflow")
    name = "digits_mlp" if verb.startswith("reproduce") else "conf=digits_mlp"
    for words, is_said in (([], False), (["backend=jax"], True)):
        main([*verb.split(), name, *words])
        found = "It can't run here: jax is not installed. pip install 'mpt-cli[jax]'" in capsys.readouterr().out
        assert found == is_said
