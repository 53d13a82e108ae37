"""Functions of the user's: found, called, and what is said when that fails."""

import sys
from pathlib import Path

import pytest

from mpt_cli.errors import ConfigError, DataError, UserCodeError
from mpt_cli.settings.references import call_user, load_function, user_traceback

_MODULE = """\
from helper_of_mine import WIDTH

def build(units=3):
    return units + WIDTH

def fail():
    return inner()

def inner():
    raise ValueError("no such thing")

class Nets:
    @staticmethod
    def small():
        return "small"

number = 3
"""


@pytest.fixture(autouse=True)
def user_directory(tmp_path, monkeypatch):
    """A working directory with a module of the user's; afterwards Python has forgotten it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    Path("my_nets.py").write_text(_MODULE)
    Path("helper_of_mine.py").write_text("WIDTH = 4\n")
    return tmp_path


@pytest.mark.parametrize("reference", ["my_nets:build", "my_nets.py:build", "./my_nets.py:build"])
def test_a_function_is_found_with_the_modules_beside_it(reference) -> None:
    assert load_function(reference, "model.builder")() == 7


def test_a_file_in_another_folder_finds_its_neighbours(user_directory, monkeypatch) -> None:
    (user_directory / "elsewhere").mkdir()
    monkeypatch.chdir(user_directory / "elsewhere")
    assert load_function("../my_nets.py:build", "model.builder")() == 7
    assert load_function(f"{user_directory}/my_nets.py:build", "model.builder")() == 7


def test_a_file_named_like_an_installed_module_does_not_replace_it() -> None:
    Path("json.py").write_text("def build():\n    return 'mine'\n")
    import json

    assert load_function("./json.py:build", "model.builder")() == "mine"
    assert sys.modules["json"] is json


def test_a_file_is_run_once() -> None:
    assert load_function("./my_nets.py:build", "a") is load_function("./my_nets.py:build", "b")


def test_attributes_of_classes_and_installed_packages() -> None:
    assert load_function("my_nets:Nets.small", "model.builder")() == "small"
    assert load_function("collections:OrderedDict", "model.builder")() == {}


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("my_nets", "k: must be package.module:function or path/to/file.py:function. Received: 'my_nets'."),
        (":f", "k: must be package.module:function or path/to/file.py:function. Received: ':f'."),
        ("my_nets:", "k: must be package.module:function or path/to/file.py:function. Received: 'my_nets:'."),
        ("my_nest:build", "k: there is no module my_nest, neither in the working directory nor installed. "
                          "Received: 'my_nest:build'. Did you mean my_nets?"),
        ("./my_nest.py:build", "k: there is no file ./my_nest.py. Received: './my_nest.py:build'. "
                               "Did you mean my_nets.py?"),
        ("my_nets:bild", "k: my_nets has no bild. Received: 'my_nets:bild'. Did you mean build?"),
        ("my_nets:xyz", "k: my_nets has no xyz. Received: 'my_nets:xyz'. It has build, fail, inner, Nets."),
        ("my_nets:number", "k: number must be a function, it is of type int. Received: 'my_nets:number'."),
        ("./my_nets:build", "k: ./my_nets is no module name; a file is named by its path, as in ./my_file.py:function. "
                            "Received: './my_nets:build'."),
    ],
)  # fmt: skip
def test_what_cannot_be_found_is_said(reference, message) -> None:
    with pytest.raises(ConfigError) as caught:
        load_function(reference, "k")
    assert str(caught.value) == message


@pytest.mark.parametrize("reference", ["broken:f", "./broken.py:f"])
@pytest.mark.parametrize("line", ["1 / 0", "import not_installed_at_all", "raise SystemExit(3)", "def f(:"])
def test_a_module_that_raises_is_the_users(reference, line) -> None:
    Path("broken.py").write_text(line + "\n")
    with pytest.raises(UserCodeError, match=rf"^k: importing {reference} raised \w+") as caught:
        load_function(reference, "k")
    assert "broken.py" in user_traceback(caught.value.__cause__)


def test_an_exception_of_the_users_is_shown_from_the_users_frame_on() -> None:
    function = load_function("my_nets:fail", "model.builder")
    with pytest.raises(UserCodeError, match=r"^model.builder: fail raised ValueError: no such thing\.$") as caught:
        call_user(function, "model.builder")
    shown = user_traceback(caught.value.__cause__)
    assert "mpt_cli" not in shown
    assert "in fail" in shown and "in inner" in shown and shown.endswith("ValueError: no such thing")


def test_the_callers_class_of_error_is_raised() -> None:
    with pytest.raises(DataError, match=r"^data\.loader: fail raised ValueError"):
        call_user(load_function("my_nets:fail", "data.loader"), "data.loader", DataError)


def test_arguments_that_do_not_fit() -> None:
    with pytest.raises(ConfigError) as caught:
        call_user(load_function("my_nets:build", "k"), "k", UserCodeError, unit=3)
    assert str(caught.value) == (
        "k: build(units=3) cannot be called with unit: got an unexpected keyword argument 'unit'. Did you mean units?"
    )


def test_an_argument_may_be_called_like_ours() -> None:
    assert call_user(lambda function, key: function + key, "k", UserCodeError, function=1, key=2) == 3


def test_an_exit_of_the_users_does_not_end_the_run() -> None:
    def leave() -> None:
        sys.exit(0)

    with pytest.raises(UserCodeError, match=r"^k: leave raised SystemExit: 0"):
        call_user(leave, "k")


def test_ctrl_c_passes_through() -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        call_user(interrupted, "k")
