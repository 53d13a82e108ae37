"""A recipe of the user's own: where it may lie, which forms it may have, what is wrong with it."""

from pathlib import Path

import pytest
from command import mpt

from mpt_cli.errors import ConfigError
from mpt_cli.runs.resume import forbidden_changes
from mpt_cli.settings.load import load_settings


@pytest.mark.parametrize("written", ["", "# only a comment\n", "{}\n"])
def test_a_file_without_a_key_is_no_recipe(written, write_recipe):
    with pytest.raises(ConfigError, match=r"conf: own.yaml must hold keys. It is empty.* `model: {name: mlp}`"):
        load_settings([write_recipe(written)])


@pytest.mark.slow
def test_it_is_found_by_bare_and_absolute_path_and_at_home(write_recipe, monkeypatch, tmp_path):
    write_recipe()
    monkeypatch.setenv("HOME", str(tmp_path))
    for path in ("own.yaml", tmp_path / "own.yaml", "~/own.yaml"):
        assert load_settings([f"conf={path}"]).recipe == "own"


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A folder with a recipe and modules beside it, and another one to work in."""
    (project := tmp_path / "project").mkdir()
    (project / "parts.py").write_text("def stack(input_shape): ...\n")
    (project / "nets").mkdir()
    (project / "nets" / "deep.py").write_text("def stack(input_shape): ...\n")
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return project


def written_beside(project: Path, text: str):
    (project / "mine.yaml").write_text(f"{text}\n")
    return ["conf=../project/mine.yaml"]


@pytest.mark.parametrize(
    ("written", "file"),
    [
        ("parts:stack", "parts.py"),
        ("nets.deep:stack", "nets/deep.py"),
        ("../project/parts.py:stack", "parts.py"),
        ("others:stack", None),
        ("/abs/parts.py:stack", None),
        ("~/p.py:f", None),
    ],
)
def test_a_module_beside_the_recipe_is_found_from_everywhere_and_another_is_what_it_was(
    written, file, project, monkeypatch
):
    Path("others.py").touch()
    words = written_beside(project, f"model: {{builder: '{written}'}}")
    assert load_settings(words).model.builder == (f"{project / file}:stack" if file else written)
    monkeypatch.chdir(project)  # in the folder of the recipe it is what it was
    assert load_settings(["conf=./mine.yaml"]).model.builder == written


def test_every_object_of_a_recipe_and_of_those_it_starts_from_is_looked_for_beside_it(project):
    (project / "sub").mkdir()
    (project / "sub" / "base.yaml").write_text("data: {loader: own:load, kwargs: {name: own:load}}\n")
    (project / "sub" / "own.py").touch()
    text = (
        "defaults: [./sub/base.yaml]\nmodel: {builder: parts:stack}\noptimizer: {object: parts:Slow}\ntrainer: "
        "{loss: {a: parts:f, b: mse}, metrics: [{object: parts:g, kwargs: {f: {object: parts:h}, g: parts:h}}]}\n"
    )
    (project / "mine.yaml").write_text(text)
    settings, parts = load_settings(["conf=../project/mine.yaml"]), f"{project}/parts.py"
    assert (settings.data.loader, settings.data.kwargs) == (f"{project}/sub/own.py:load", {"name": "own:load"})
    assert (settings.model.builder, settings.optimizer.object) == (f"{parts}:stack", f"{parts}:Slow")
    assert settings.trainer.loss == {"a": f"{parts}:f", "b": "mse"}
    kwargs = {"f": {"object": f"{parts}:h"}, "g": "parts:h"}  # what is no object is passed as it is
    assert settings.trainer.metrics == [{"object": f"{parts}:g", "kwargs": kwargs}]


def test_a_run_goes_on_from_another_folder_that_names_the_module_otherwise(project, monkeypatch):
    words = written_beside(project, "model: {builder: parts:stack}\ndata: {loader: parts:load}")
    stored = load_settings(words)
    monkeypatch.chdir(project)
    now = load_settings(["conf=./mine.yaml"])
    assert now.model.builder != stored.model.builder and not forbidden_changes(stored, now)
    changed = load_settings(["conf=./mine.yaml", "model.builder=parts:other"])
    assert [problem.key for problem in forbidden_changes(stored, changed)] == ["model.builder"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("written", "message"),
    [
        (
            "model: cnn\n",
            "model: must be a section with keys of its own. Received: 'cnn'. "
            "To choose one, put `- model: cnn` in the defaults: list.",
        ),
        ("defaults:\n  - modle: cnn\n", "defaults: there is no such group. Received: 'modle'. Did you mean model?"),
        (
            "defaults:\n  - a/b: c\n",
            "defaults: there is no such group. Received: 'a/b'. A group is a folder directly in conf/.",
        ),
        (
            "defaults:\n  - model: cn\n",
            "defaults.model: must be one of builder, cnn, mlp, resnet, saved, transformer. "
            "Received: 'cn'. Did you mean cnn?",
        ),
        ("defaults: cnn\n", "defaults: must be a list. Received: 'cnn'. Write each entry as `- group: choice`."),
        (
            "defaults:\n  - [model, cnn]\n",
            "defaults: each entry must be `group: choice` or a recipe. Received: ['model', 'cnn'].",
        ),
        (
            "defaults:\n  - model: cnn\n  - model: mlp\n",
            "defaults: cannot be composed: Multiple values for model. To override a value use 'override /model: mlp'.",
        ),
        (
            "defaults:\n  - ./own.yaml\n",
            "defaults: cannot be composed: it refers to itself, or starts from a file that starts from it.",
        ),
        (
            "hydra:\n  run: {dir: x}\n",
            "hydra: there is no such key. Received: {'run': {'dir': 'x'}}. "
            "Sections: policy, loss_scale, model, data, optimizer, trainer, backend, logger, "
            "distribute, fault.",
        ),
        ("model: {hidden_units: {a: 1}}\n", "model.hidden_units: must be a list of whole numbers. Received: {'a': 1}."),
        (
            "optimizer: {schedule: cosine}\n",
            "optimizer.schedule: must be a section with keys of its own. "
            "Received: 'cosine'. Did you mean optimizer.schedule.name=cosine?",
        ),
        (
            "model: {filters: [8]}\n",
            "model.filters: model=mlp has no such key. Received: [8]. It belongs to model=cnn, "
            "model=resnet. Choose one of these, or remove it with ~model.filters.",
        ),
        ("trainer: {epochs: '${nope}'}\n", "trainer.epochs: cannot be resolved: Interpolation key 'nope' not found."),
        ("trainer: {epochs: null}\n", "trainer.epochs: must be a whole number, not null. The default is 10."),
    ],
)
def test_what_is_wrong_is_said(written, message, write_recipe, messages):
    assert messages(write_recipe(written)) == [message]


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (b"a: [1\n", "is not valid YAML"),
        (b"trainer: {epochs: 1}\ntrainer: {epochs: 2}\n", "found duplicate key trainer"),
        (b"\xff\xfe\x00", "cannot be read"),
        (b"a: !!python/object:os.system x\n", "for the tag 'tag:yaml.org,2002:python/object:os.system'"),
        (b"trainer: {epochs: '${'}\n", "cannot be read"),
    ],
)
def test_a_file_that_is_no_recipe(content, part, write_recipe, messages):
    write_recipe()
    Path("own.yaml").write_bytes(content)
    (message,) = messages("conf=./own.yaml")
    assert part in message and "own.yaml" in message


def test_what_is_no_yaml_is_shown_with_a_mark_where_it_begins(write_recipe, problems):
    (problem,) = problems(write_recipe("seed: 1\ntrainer: {epochs: 3\n"))
    assert problem.rule == (
        "own.yaml is not valid YAML: the bracket that opens here is never closed, or a comma is missing in it. "
        "The parser says: while parsing a flow mapping, expected ',' or '}', but got '<stream end>'."
    )
    assert str(problem.place) == f" --> own.yaml:2:10\n  |\n2 | trainer: {{epochs: 3\n  | {' ' * 9}^"
    (problem,) = problems(write_recipe("trainer: {password: hunter2\n"))  # a line with a secret is not shown
    assert str(problem.place) == " --> own.yaml:1:10"


@pytest.mark.parametrize(
    ("written", "place", "cause"),
    [
        (
            "model: mlp\n  seed: 3\n",
            (2, 7),
            "put a text with a colon and a space in it in quotes; or this line is indented too deep",
        ),
        ("trainer:\n  epochs: 3\n batch_size: 3\n", (3, 2), "the indentation of this line matches no line above"),
        ("trainer:\n\tepochs: 3\n", (2, 1), "this line is indented with a tab; YAML needs spaces"),
        ("trainer:\n  epochs:3\n  seed: 2\n", (3, 7), "put a text with a colon"),
        ("recipe: a: b\n", (1, 10), "put a text with a colon"),
        ("seed: 3\nmodel\n", (2, 1), "a key needs a colon and a space behind it"),
        ("recipe: 'mine\nseed: 3\n", (1, 9), "the quote that opens here is never closed"),
        ("recipe: @a\n", (1, 9), "a text that begins with this character needs quotes"),
    ],
)
def test_a_slip_in_yaml_is_said_with_its_likely_cause(written, place, cause, write_recipe, problems):
    (problem,) = problems(write_recipe(written))
    assert problem.rule.startswith(f"own.yaml is not valid YAML: {cause}") and "The parser says: " in problem.rule
    assert (problem.place.line, problem.place.column) == place


def test_places_of_entries_of_lists_and_of_bases(write_recipe, problems):
    write_recipe("seed: 1\ntrainer:\n  loss: {a: huberr}\ndefaults: [{modle: cnn}]\n", "base.yaml")
    recipe = write_recipe("defaults:\n  - ./base.yaml\n  - override /policy: bf16\ntrainer:\n  callbacks: [historyy]\n")
    places = {problem.key: problem.place for problem in problems(recipe)}
    assert {key: (place.file, place.line, place.column, place.width) for key, place in places.items()} == {
        "trainer.loss.a": ("base.yaml", 3, 10, 9),
        "defaults": ("base.yaml", 4, 12, 12),
        "defaults.policy": ("own.yaml", 3, 5, 22),
        "trainer.callbacks[0]": ("own.yaml", 5, 15, 8),
    }


@pytest.mark.slow
def test_a_missing_file_a_folder_and_a_bare_name(write_recipe, messages):
    write_recipe("", "config.yaml")
    rule = "conf: must name a recipe or a YAML file. Received: "
    assert messages("conf=./nope.yaml")[0].startswith(f"{rule}'./nope.yaml'. Recipes: ")
    assert messages("conf=.") == [f"{rule}'.'. Write conf=./config.yaml."]
    assert messages("conf=config") == [f"{rule}'config'. Write conf=./config.yaml."]


def test_a_bare_run_directory_is_answered_with_its_configuration(own, messages, tmp_path):
    (tmp_path / "first").mkdir()
    (tmp_path / "first" / "config.yaml").touch()
    assert messages(own, "first") == ["first: must be of the form key=value. Write conf=first/config.yaml."]


def test_faults_of_the_recipe_and_of_the_words_come_together(write_recipe, problems):
    recipe = write_recipe("trainer: {epochs: 0, epoch: 3}\nloss_scale: {mode: dynmic}\n")
    found = {problem.key for problem in problems(recipe, "seed=-1", "polcy=float16", "trainer.batch_size=0", "+a.b=1")}
    assert found == {"trainer.epochs", "trainer.epoch", "loss_scale.mode", "seed", "polcy", "trainer.batch_size", "a.b"}


def test_words_are_checked_also_without_a_recipe(problems):
    assert [problem.key for problem in problems("trainer.epochs=0", "model.filters=[8]")] == ["conf", "trainer.epochs"]


def test_a_key_with_points_in_a_file_is_told_how_it_is_written_there(write_recipe, messages):
    (said,) = messages(write_recipe("trainer.epochs: 5\n"))
    assert said.startswith("trainer.epochs: must be nested in a YAML file. Received: 5. Write `trainer: {epochs: …}`; ")


def test_a_value_that_only_the_words_make_wrong_is_shown_where_it_stands(write_recipe, problems):
    own = write_recipe("vars: {n: 3}\ntrainer:\n  epochs: ${vars.n}\n  batch_size: 0\noptimizer: {clipnorm: 1.0}\n")
    found = {
        problem.key: problem.place for problem in problems(own, "vars.n=0", "distribute=mirrored", "backend=tensorflow")
    }
    assert found.keys() == {"trainer.epochs", "trainer.batch_size", "optimizer.clipnorm"}
    assert {key: place and place.line for key, place in found.items()} == {
        "trainer.epochs": 3,
        "trainer.batch_size": 4,
        "optimizer.clipnorm": 5,
    }
    Path("conf/optimizer").mkdir(parents=True)
    Path("conf/optimizer/mine.yaml").write_text("name: sgd\nclipnorm: 0\n")
    (chosen,) = [each.place for each in problems(own, "optimizer=mine") if each.key == "optimizer.clipnorm"]
    assert chosen is not None and (chosen.file, chosen.line) == ("conf/optimizer/mine.yaml", 2)


FOUND_BY_BUILD = {
    "model: {activation: rely}": "model.activation: Keras has no activation of this name.",
    "trainer: {early_stopping: {patience: 1, monitor: val_los}}": "trainer.early_stopping.monitor: must be a metric of",
    "trainer: {callbacks: [{object: early_stopping, kwargs: {monitr: a}}]}": "trainer.callbacks[0]: EarlyStopping(",
    "data: {name: text, path: none.txt}": "data.path: there is no",
}


@pytest.mark.slow
@pytest.mark.parametrize(("keys", "rule"), FOUND_BY_BUILD.items())
def test_what_training_would_refuse_is_found_by_a_build_with_its_line(keys, rule, write_recipe, tmp_path):
    own = write_recipe(f"defaults: [{{model: mlp}}]\n{keys}\n")
    for words in (["check", own, "--build"], ["train", own]):
        done = mpt(*words, cwd=tmp_path)
        assert done.returncode in (2, 3) and rule in done.stderr
        assert done.returncode == 3 or "--> own.yaml:2:" in done.stderr
