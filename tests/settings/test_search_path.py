"""A project of one's own: group files and recipes beside where one works and in folders that are named."""

import os
from pathlib import Path

import pytest

from mpt_cli.cli import main
from mpt_cli.settings.load import load_settings, resolved_yaml
from mpt_cli.settings.search_path import CONFIG_DIR, recipe_paths

MINE = "# for my net\nmode: fixed\ninitial_scale: 128\n"
RECIPE = "description: of the project\ndefaults: [{loss_scale: mine}, {policy: mixed_float16}]\n"


def write(name: str, text: str):
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@pytest.fixture(autouse=True)
def folder(here: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv(CONFIG_DIR, raising=False)
    return here


@pytest.mark.slow
def test_groups_and_recipes_beside_where_one_works_are_found(capsys):
    write("conf/loss_scale/mine.yaml", MINE)
    write("conf/block/a.yaml", "# @package _global_\n\n# Half as wide\nseed: 4\n")
    write("recipes/vision/first.yaml", RECIPE)
    assert load_settings(["conf=vision/first"]).loss_scale.initial_scale == 128.0
    assert load_settings(["conf=digits_mlp", "loss_scale=mine"]).loss_scale.mode == "fixed"
    assert main(["list"]) == 0 and "vision/first" in capsys.readouterr().out
    assert main(["list", "groups"]) == 0
    said = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert said["loss_scale=mine"] == "for my net (conf/loss_scale/mine.yaml)"
    assert said["block=a"] == "Half as wide (conf/block/a.yaml)"


def test_a_folder_is_named_by_option_or_variable(folder, monkeypatch, capsys):
    write("far/conf/loss_scale/mine.yaml", MINE)
    write("far/recipes/first.yaml", RECIPE)
    assert main(["check", "conf=first", "--config-dir=far"]) == 0
    assert CONFIG_DIR not in os.environ and main(["check", "conf=first"]) == 2
    monkeypatch.setenv(CONFIG_DIR, str(folder / "far"))
    assert main(["check", "conf=first"]) == 0


def test_jobs_of_a_sweep_know_the_folder_wherever_they_run(folder, monkeypatch, capsys):
    write("far/loss_scale/mine.yaml", MINE)
    monkeypatch.setenv(CONFIG_DIR, "far")
    from mpt_cli.sweep.job_list import Job
    from mpt_cli.sweep.run import Options

    environment = Options().job_environment(1)
    assert environment[CONFIG_DIR] == "far"
    job = Job(1, "one", {}, ["conf=first", "loss_scale=mine"], environment={CONFIG_DIR: "/my far"})
    assert job.command == f"{CONFIG_DIR}='/my far' mpt train conf=first loss_scale=mine"


@pytest.mark.slow
def test_a_recipe_names_folders_and_packages(folder, monkeypatch, messages):
    write("far/loss_scale/mine.yaml", MINE)
    write("settings_of_ours/conf/trainer/ours.yaml", "epochs: 77\n")
    write("settings_of_ours/__init__.py", "")
    monkeypatch.syspath_prepend(str(folder))
    write(
        "sub/own.yaml",
        "hydra: {searchpath: [../far, 'pkg://settings_of_ours.conf']}\n"
        "defaults: [{loss_scale: mine}, {trainer: ours}]\n",
    )
    write("far/regime/hot.yaml", "# @package trainer\nbatch_size: 8\n")
    assert load_settings(["conf=sub/own.yaml", "regime=hot"]).trainer.batch_size == 8
    settings = load_settings(["conf=sub/own.yaml"])
    assert (settings.loss_scale.initial_scale, settings.trainer.epochs) == (128.0, 77)
    write("kept.yaml", resolved_yaml(settings))
    (folder / "far/loss_scale/mine.yaml").unlink()
    assert load_settings(["conf=kept.yaml"]) == settings  # what a run keeps needs no folder
    for given, said in (
        ("[nowhere]", "hydra.searchpath: must be a folder with conf/ and recipes/"),
        ("['pkg://no_such_one.conf']", "There is no folder pkg:/no_such_one.conf."),
        ("3", "hydra.searchpath: cannot be resolved: Object of unsupported type: 'int'"),
        ("['${oc.env:NOT_THERE_AT_ALL}']", "hydra.searchpath: cannot be resolved"),
    ):
        write("own.yaml", f"hydra: {{searchpath: {given}}}\nseed: 1\n")
        assert said in messages("conf=own.yaml")[0]


@pytest.mark.slow
def test_of_two_files_with_one_name_the_first_of_the_search_path_is_taken(folder, monkeypatch):
    for place, epochs in ((".", 1), ("far", 2), ("farther", 3)):
        write(f"{place}/conf/trainer/default.yaml", f"epochs: {epochs}\n")
        write(f"{place}/recipes/digits_mlp.yaml", f"seed: {epochs}\n")
    monkeypatch.setenv(CONFIG_DIR, "far:farther")
    for place, epochs in ((".", 1), ("far", 2), ("farther", 3)):
        assert recipe_paths()["digits_mlp"].samefile(Path(place, "recipes/digits_mlp.yaml"))
        settings = load_settings(["conf=digits_mlp", "trainer=default"])
        assert (settings.seed, settings.trainer.epochs) == (epochs, epochs)
        assert load_settings(["conf=digits_mlp"]).trainer.epochs == 10  # what nobody names is not read
        (folder / place / "conf/trainer/default.yaml").unlink()
        (folder / place / "recipes/digits_mlp.yaml").unlink()


@pytest.mark.slow
def test_a_group_file_whose_list_names_what_is_not_there_is_refused(messages):
    write("conf/loss_scale/mine.yaml", "defaults: [dynamc, _self_]\nmode: fixed\n")
    assert messages("conf=digits_mlp", "loss_scale=mine") == [
        "defaults.loss_scale: must be one of auto, dynamic, fixed, logmax, mine, none. Received: 'dynamc'. "
        "Did you mean dynamic?"
    ]


def test_a_group_file_with_the_keys_or_the_package_in_a_wrong_place_is_told_where_they_go(messages, problems):
    write("conf/optimizer/mine.yaml", "optimizer: {learning_rate: 0.5}\ntrainer: {epochs: 3}\n")
    first, second = messages("conf=digits_mlp", "optimizer=mine")
    assert first.endswith("Write its keys without this `optimizer:` around them.")
    assert second.endswith("In a group file, keys of others need `# @package _global_` in its first line.")
    write("conf/optimizer/late.yaml", "# my own\n# @package _global_\ntrainer: {epochs: 3}\n")
    [late] = problems("conf=digits_mlp", "optimizer=late")
    assert late.rule == "`# @package` must stand above all other lines: Hydra reads it nowhere else."
    assert (late.place.file, late.place.line) == ("conf/optimizer/late.yaml", 2)
    for text, rule in (
        ("# @package\n", "its header cannot be read: Expected header format: KEY VALUE, got '@package'."),
        (
            "# @package _global_\ndefaults: [_self_, _self_]\n",
            "cannot be composed: Duplicate _self_ defined in optimizer/late.",
        ),
    ):
        write("conf/optimizer/late.yaml", f"{text}trainer: {{epochs: 3}}\n")
        [late] = problems("conf=digits_mlp", "optimizer=late")
        assert (late.rule, late.place.file) == (rule, "conf/optimizer/late.yaml")


@pytest.mark.parametrize("words", [[], ["experiment=large"], ["experiment=[small,large]"]])
def test_the_project_of_a_recipe_is_searched_wherever_one_works(words, folder, monkeypatch):
    write("project/conf/experiment/small.yaml", "# @package _global_\ntrainer: {epochs: 2}\n")
    write("project/conf/experiment/large.yaml", "# @package _global_\ntrainer: {batch_size: 256}\n")
    write("project/recipes/base.yaml", "seed: 3\n")
    write("project/recipes/study/one.yaml", "defaults: [base, {experiment: small}]\n")
    written = ["conf=project/recipes/study/one.yaml", *words]
    from_outside = load_settings(written)
    monkeypatch.chdir(folder / "project")
    assert from_outside == load_settings(["conf=study/one", *words])
    assert from_outside.seed == 3 and (from_outside.trainer.batch_size == 256) == bool(words)


def test_a_group_file_that_names_no_mode_sets_numbers_of_the_one_chosen():
    write("conf/loss_scale/mine.yaml", "initial_scale: 4\n")
    write("own.yaml", "loss_scale: {mode: fixed, initial_scale: 8}\n")
    scale = load_settings(["conf=own.yaml", "loss_scale=mine"]).loss_scale
    assert (scale.mode, scale.initial_scale) == ("fixed", 4.0)


@pytest.mark.slow
def test_what_is_wrong_in_a_file_is_said_with_its_place(problems):
    write("conf/loss_scale/mine.yaml", "# mine\nmode: dynamic\ngrowth_step: 5\n")
    write("conf/loss_scale/mine2.yaml", "defaults: [mine]\ngrowth_factor: 0.5\n")
    write("conf/experiment/a.yaml", "# @package trainer\n\nepoks: 2\n")
    write("recipes/base.yaml", "seed: 1\ntrainer:\n  epochs: -4\n")
    write("recipes/own.yaml", "defaults: [base, {loss_scale: mine2}, {experiment: a}]\noptimizer: {momentun: 1}\n")
    places = {problem.key: str(problem.place).split("\n") for problem in problems("conf=own")}
    assert {key: (lines[0].removeprefix(" --> "), *lines[2:]) for key, lines in places.items()} == {
        "loss_scale.growth_step": ("conf/loss_scale/mine.yaml:3:1", "3 | growth_step: 5", "  | ^^^^^^^^^^^^^^"),
        "loss_scale.growth_factor": ("conf/loss_scale/mine2.yaml:2:1", "2 | growth_factor: 0.5", f"  | {'^' * 18}"),
        "trainer.epoks": ("conf/experiment/a.yaml:3:1", "3 | epoks: 2", "  | ^^^^^^^^"),
        "trainer.epochs": ("recipes/base.yaml:3:3", "3 |   epochs: -4", "  |   ^^^^^^^^^^"),
        "optimizer.momentun": ("recipes/own.yaml:2:13", "2 | optimizer: {momentun: 1}", f"  | {' ' * 12}{'^' * 11}"),
    }
    given = problems("conf=own", "loss_scale.growth_factor=0.25", "trainer.epochs=-1")
    assert [problem.place for problem in given if problem.key in ("loss_scale.growth_factor", "trainer.epochs")] == [
        None,
        None,
    ]


@pytest.mark.slow
def test_a_group_that_nobody_has(messages):
    write("conf/experiment/a.yaml", "# @package _global_\nseed: 4\n")
    assert load_settings(["conf=digits_mlp", "experiment=a"]).seed == 4
    assert messages("conf=digits_mlp", "~experiment=a") == ["~experiment=a: must be given without a value."]
    assert messages("conf=digits_mlp", "experiment=b") == ["experiment: must be one of a. Received: 'b'."]
    assert messages("conf=digits_mlp", "experimet=a") == [
        "experimet: there is no such key. Received: 'a'. Did you mean experiment?"
    ]
    for text, package in (("seed: 4\n", "experiment"), ("# @package optimzer\nepsilon: 1\n", "optimzer")):
        write("conf/experiment/b.yaml", text)
        assert messages("conf=digits_mlp", "experiment=b") == [
            f"experiment/b: its keys come below {package}, which is no section. Write `# @package _global_` in its first "
            "line for keys as they stand in a recipe."
        ]
    write("conf/seed/a.yaml", "b: 1\n")
    assert load_settings(["conf=digits_mlp", "seed=9"]).seed == 9
    write("own.yaml", "defaults: [_self_, _self_]\nseed: 1\n")
    assert messages("conf=own.yaml") == ["defaults: cannot be composed: Duplicate _self_ defined in own."]


def test_a_list_that_clashes_is_shown_in_the_file_to_change(problems):
    for name, rate in (("none", 0.1), ("mild", 0.2)):
        write(f"conf/augment/{name}.yaml", f"# @package _global_\noptimizer: {{learning_rate: {rate}}}\n")
    write("own.yaml", "defaults: [augment: none]\noptimizer: {learning_rate: 0.3}\n")
    group_slash = "In a group's file write `/GROUP`; `override` needs a list that has the group."
    for entry, said in (
        ("/augment: mild", "Multiple values for augment. To override a value use 'override /augment: mild'."),
        ("override augment: mild", group_slash),
    ):
        write("conf/experiment/wide.yaml", f"# @package _global_\ndefaults: [{entry}]\n")
        [problem] = problems("conf=./own.yaml", "experiment=wide")
        assert str(problem).endswith(said)
        assert problem.place is not None and problem.place.file == "conf/experiment/wide.yaml"
    write("conf/experiment/wide.yaml", "# @package _global_\ndefaults: [override /augment: mild]\n")
    rates = [
        load_settings(["conf=./own.yaml", word]).optimizer.learning_rate for word in ("augment=mild", "experiment=wide")
    ]
    assert rates == [0.2, 0.3]  # what the file overrides stays below the recipe's keys


def test_a_wrong_mode_in_a_file_is_answered_with_modes(messages):
    write("conf/loss_scale/z.yaml", "mode: dynamc\n")
    assert messages("conf=digits_mlp", "loss_scale=z") == [
        "loss_scale.mode: must be one of auto, dynamic, fixed, logmax, none. Received: 'dynamc'. Did you mean dynamic?"
    ]


@pytest.mark.slow
def test_what_is_no_file_in_a_project_is_said_and_hangs_nothing(capsys):
    """Pipes, which have the names of a shipped recipe and group file, and others."""
    for name in ("conf/trainer/quick.yaml", "conf/policy/odd.yaml", "recipes/digits_mlp.yaml", "recipes/odd.yaml"):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        os.mkfifo(name)
    kinds = ("recipes", "groups", "policies")
    assert [main(["list", kind]) for kind in kinds] == [0] * len(kinds)
    assert "(unreadable: " in capsys.readouterr().out
    assert main(["check", "conf=digits_cnn"]) == 0 and main(["check", "conf=digits_cnn", "trainer=quick"]) == 2
    assert main(["check", "conf=digits_mlp"]) == main(["check", "conf=odd"]) == 2
    assert main(["check", "conf=digits_cnn", "policy=odd"]) == 2
    assert main(["copy", "odd", "mine.yaml"]) in (2, 3) and not Path("mine.yaml").exists()
    said = capsys.readouterr().err
    assert "Traceback" not in said and said.count("it is no regular file") == 5, said
