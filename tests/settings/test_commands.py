"""Commands that are printed to be copied: the shell and then Hydra read what was meant."""

import shlex
from pathlib import Path

import pytest

from mpt_cli.settings.overrides import format_override, parse_override
from mpt_cli.settings.search_path import conf_override, shell_command

NAMES = [
    "plain-1.x",
    "my run",
    "a,b",
    "a=b",
    "it's",
    'say "so"',
    "größe",
    "null",
    "-x",
    "[x]",
    "{a: b}",
    "'x'",
    " x",
    "a\\b",
    'a\\"b',
    "${x}",
    "$x",
    "2024_11_21",
    "auto*",
]


@pytest.mark.parametrize("name", [name for name in NAMES if "${" not in name])
def test_a_text_of_any_letters_is_read_as_it_was(name):
    assert parse_override(format_override("run_dir", name)).value() == name


@pytest.mark.parametrize("name", ["-x", "a=b", "--best=1/y", "~x"])
def test_a_path_is_no_option_no_key_and_no_home_directory(name):
    assert shlex.split(shell_command("diagnose", Path(name)))[2] == f"./{name}"


def test_a_file_called_like_a_recipe_is_not_the_recipe():
    assert (conf_override(Path("overflow")), conf_override(Path("/overflow"))) == ("conf=./overflow", "conf=/overflow")


@pytest.mark.slow
def test_the_answer_to_a_bare_file_can_be_copied(write_recipe, messages):
    write_recipe("recipe: own\n", "my own.yaml")
    assert messages("my own.yaml")[-1].endswith("Write 'conf=./my own.yaml'.")
    assert messages("conf=my own")[0].endswith("Write 'conf=./my own.yaml'.")
