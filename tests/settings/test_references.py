"""Functions of the user's: found, called, and what is said when that fails."""

import sys
from pathlib import Path

import pytest

from mpt_cli.errors import ConfigError, DataError, UserCodeError
from mpt_cli.user_code import build_object, call_user, load_function, parameters_of, user_traceback

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
def modules(users_folder):
    (users_folder / "my_nets.py").write_text(_MODULE)
    (users_folder / "helper_of_mine.py").write_text("WIDTH = 4\n")
    (users_folder / "objects.py").write_text(_OBJECTS)


@pytest.mark.parametrize("reference", ["my_nets:build", "my_nets.py:build", "./my_nets.py:build"])
def test_a_function_is_found_with_the_modules_beside_it(reference):
    assert load_function(reference, "model.builder")() == 7


@pytest.mark.parametrize("place", ["layered_nets/deep.py", "layered_nets/__init__.py"])
def test_a_file_of_a_package_imports_from_it_by_points(place):
    Path("layered_nets").mkdir()
    Path("layered_nets/__init__.py").write_text("from .deep import build\n")
    Path("layered_nets/deep.py").write_text("from .widths import WIDTH\n\ndef build():\n    return WIDTH\n")
    Path("layered_nets/widths.py").write_text("WIDTH = 5\n")
    assert load_function(f"{Path.cwd()}/{place}:build", "model.builder")() == 5


def test_a_file_named_like_an_installed_module_does_not_replace_it():
    Path("json.py").write_text("def build():\n    return 'mine'\n")
    import json

    assert load_function("./json.py:build", "model.builder")() == "mine"
    assert sys.modules["json"] is json


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("my_nets", "k: must be package.module:function or path/to/file.py:function. Received: 'my_nets'."),
        ("my_nets:", "k: must be package.module:function or path/to/file.py:function. Received: 'my_nets:'."),
        (
            "my_nest:build",
            "k: there is no module my_nest, neither beside the recipe, in the working directory nor "
            "installed. Received: 'my_nest:build'. Did you mean my_nets?",
        ),
        (
            "./my_nest.py:build",
            "k: there is no file FOLDER/my_nest.py. Received: './my_nest.py:build'. Did you mean my_nets.py?",
        ),
        ("my_nets:bild", "k: my_nets has no bild. Received: 'my_nets:bild'. Did you mean build?"),
        ("my_nets:xyz", "k: my_nets has no xyz. Received: 'my_nets:xyz'. It has build, fail, inner, Nets."),
        ("my_nets:number", "k: number must be a function, not of type int. Received: 'my_nets:number'."),
        (
            "./my_nets:build",
            "k: must be package.module:function or path/to/file.py:function. Received: './my_nets:build'.",
        ),
    ],
)
def test_what_cannot_be_found_is_said(reference, message):
    with pytest.raises(ConfigError) as caught:
        load_function(reference, "k")
    assert str(caught.value) == message.replace("FOLDER", str(Path.cwd()))


@pytest.mark.parametrize(
    ("reference", "line"),
    [
        ("broken:f", "1 / 0"),
        ("broken:f", "import not_installed_at_all"),
        ("./broken.py:f", "raise SystemExit(3)"),
        ("./broken.py:f", "def f(:"),
    ],
)
def test_a_module_that_raises_is_the_users(reference, line):
    Path("broken.py").write_text(line + "\n")
    with pytest.raises(UserCodeError, match=rf"^k: importing {reference} raised \w+") as caught:
        load_function(reference, "k")
    assert "broken.py" in user_traceback(caught.value.__cause__)


def test_an_exception_of_the_users_is_shown_from_the_users_frame_on():
    function = load_function("my_nets:fail", "model.builder")
    with pytest.raises(UserCodeError, match=r"^model.builder: fail raised ValueError: no such thing\.$") as caught:
        call_user(function, "model.builder")
    shown = user_traceback(caught.value.__cause__)
    assert "mpt_cli" not in shown
    assert "in fail" in shown and "in inner" in shown and shown.endswith("ValueError: no such thing")


def test_arguments_that_do_not_fit():
    with pytest.raises(ConfigError) as caught:
        call_user(load_function("my_nets:build", "k"), "k", UserCodeError, unit=3)
    assert str(caught.value) == (
        "k: build(units=3) cannot be called with unit: got an unexpected keyword argument 'unit'. Did you mean units?"
    )


def test_a_builtin_whose_arguments_nobody_can_tell():
    assert [*parameters_of(load_function("my_nets:build", "k"), "k")] == ["units"]
    with pytest.raises(ConfigError, match=r"^k: Python can't tell which arguments iter takes\. Wrap it in a function"):
        parameters_of(iter, "k")


def test_an_exit_of_the_users_does_not_end_the_run_and_the_callers_class_of_error_is_raised():
    with pytest.raises(DataError, match=r"^k: <lambda> raised SystemExit: 0"):
        call_user(lambda: sys.exit(0), "k", DataError)


def test_ctrl_c_passes_through():
    def interrupted():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        call_user(interrupted, "k")


class _Listing:
    """What a module of Keras is to the functions here."""

    class Loss:
        pass

    class HuberLoss:
        def __init__(self, delta=1):
            self.delta = delta


_OBJECTS = """\
class Kind:
    def __init__(self, size=1, inner=None):
        self.size, self.inner = size, inner

def factory(size=2):
    return Kind(size)

def distance(y_true, y_pred, margin=1):
    return (y_true, y_pred, margin)

instance = Kind(7)
"""


@pytest.mark.parametrize(
    ("value", "size"),
    [
        ("objects:Kind", 1),
        ("objects:factory", 2),
        ("objects:instance", 7),
        ("objects.py:Kind", 1),
        ({"object": "objects:factory", "kwargs": {"size": 5}}, 5),
    ],
)
def test_classes_and_functions_are_called_and_instances_taken(value, size):
    assert build_object("k", value, _Listing, arguments=2).size == size


def test_a_name_without_colon_is_one_of_keras():
    assert build_object("k", {"object": "huber_loss", "kwargs": {"delta": 3}}, _Listing).delta == 3
    with pytest.raises(ConfigError, match=r"^k: Keras has none of this name\. Received: 'hubr_loss'\. Did you mean"):
        build_object("k", "hubr_loss", _Listing)


def test_a_function_of_two_is_the_object_itself_with_its_kwargs_set_and_objects_are_made_inside_kwargs():
    assert build_object("k", "objects:distance", _Listing, arguments=2)(1, 2) == (1, 2, 1)
    wide = build_object("k", {"object": "objects:distance", "kwargs": {"margin": 3}}, _Listing, arguments=2)
    assert (wide(1, 2), wide.__name__) == ((1, 2, 3), "distance")
    value = {"object": "objects:Kind", "kwargs": {"inner": {"object": "objects:factory", "kwargs": {"size": 9}}}}
    assert build_object("k", value, _Listing).inner.size == 9


def test_an_instance_takes_no_kwargs():
    message = (
        r"^k.kwargs: must be left out: objects:instance is already an instance of Kind\. "
        r"Received: {'size': 4}\."
    )
    with pytest.raises(ConfigError, match=message):
        build_object("k", {"object": "objects:instance", "kwargs": {"size": 4}}, _Listing)
