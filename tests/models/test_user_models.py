"""Builders of the user's, keras.applications, and saved files: what is passed, what must come back."""

import sys

import keras
import numpy as np
import pytest

from mpt_cli.data.examples import Shapes
from mpt_cli.errors import ConfigError, DataError, UserCodeError
from mpt_cli.models.build import build_model
from mpt_cli.settings.model_data_optimizer_keys import Builder, Saved


@pytest.fixture
def build(here, monkeypatch):
    """Writes a builder's source to nets.py in the working directory and builds it."""

    def run(source: str, shape=(3,), num_classes=4, dtype="float32", task="classification", kwargs=None):
        monkeypatch.delitem(sys.modules, "nets", raising=False)
        (here / "nets.py").write_text("import keras\nfrom keras import layers, ops\n\n" + source)
        shapes = Shapes(shape, num_classes, dtype, task)
        return build_model(Builder(builder="nets.py:build", kwargs=kwargs or {}), shapes)

    return run


def test_a_builder_gets_shape_classes_and_its_kwargs(build):
    model = build(
        """
def build(input_shape, num_classes, width):
    return keras.Sequential([keras.Input(input_shape), layers.Dense(width), layers.Dense(num_classes)])
""",
        kwargs={"width": 7},
    )
    assert model.count_params() == (3 * 7 + 7) + (7 * 4 + 4)


def test_a_builder_with_open_keywords_gets_shape_and_classes(build):
    model = build(
        """
def build(**given):
    assert sorted(given) == ["depth", "input_shape", "num_classes"], given
    return keras.Sequential([layers.Dense(given["num_classes"])])
""",
        kwargs={"depth": 1},
    )
    assert model.count_params() == 3 * 4 + 4


def test_a_subclassed_model_is_built_on_the_data(build):
    model = build("""
class Net(keras.Model):
    def __init__(self):
        super().__init__()
        self.hidden, self.last = layers.Dense(5, activation="relu"), layers.Dense(4)

    def call(self, x):
        return self.last(self.hidden(x))

def build():
    return Net()
""")
    assert model.built and model.count_params() == (3 * 5 + 5) + (5 * 4 + 4)


@pytest.mark.parametrize("given", ["inputs", "[inputs['right'], inputs['left']]"])
def test_a_model_of_several_inputs_fits_data_of_several_inputs(build, given):
    model = build(
        f"""
def build(input_shape):
    inputs = {{name: keras.Input(shape, name=name) for name, shape in input_shape.items()}}
    return keras.Model({given}, layers.Dense(4)(layers.Concatenate()([layers.Reshape(x.shape[1:])(x) for x in inputs.values()])))
""",
        shape={"left": (2,), "right": (3,)},
        dtype={"left": "float32", "right": "int32"},
    )
    assert model.count_params() == 5 * 4 + 4


def test_one_output_is_enough_for_two_classes(build):
    source = "def build():\n    return keras.Sequential([layers.Dense(1, activation='sigmoid')])"
    assert build(source, num_classes=2).output_shape == (None, 1)
    with pytest.raises(ConfigError, match=r"the model has 1 outputs, the data 2 targets; they must agree"):
        build(source, num_classes=2, task="regression")
    quantiles = """
def build():
    model = keras.Sequential([layers.Dense(3)])
    model.compile("sgd", lambda y, y_pred: keras.ops.mean(keras.ops.abs(y - y_pred)))
    return model
"""
    assert build(quantiles, num_classes=1, task="regression").output_shape == (None, 3)  # its own loss takes them


def test_outputs_without_a_last_dimension_count_as_one(build):
    source = "def build():\n    return keras.Sequential([layers.Dense(1), layers.Reshape(())])"
    assert build(source, num_classes=1, task="regression").output_shape == (None,)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("def build():\n    pass", r"model.builder: nets.py:build must return a keras.Model. Received: 'NoneType'"),
        (
            "def build():\n    return keras.Sequential([keras.Input((5,)), layers.Dense(4)])",
            r"model.builder: the model must take the data's examples. The data gives inputs of shape \(3,\) "
            r"and dtype float32, 4 outputs. Keras says: .*expected shape=\(None, 5\), found shape=\(None, 3\)",
        ),
        (
            "def build():\n    return keras.Sequential([layers.Conv2D(4, 3), layers.Dense(4)])",
            r"the model must take the data's examples.*Keras says: .*expected min_ndim=4, found ndim=2",
        ),
        (
            "def build():\n    return keras.Sequential([layers.Dense(5)])",
            r"model.builder: the model has 5 outputs, the data 4 classes; they must agree. Give the last layer that many",
        ),
        (
            "def build(input_shape):\n    x = keras.Input(input_shape)\n"
            "    return keras.Model(x, [layers.Dense(4)(x), layers.Dense(4)(x)])",
            r"model.builder: the model must have one output. Received: 'list'",
        ),
    ],
)
def test_a_model_that_does_not_fit_is_a_configuration_error(build, source, message):
    with pytest.raises(ConfigError, match=message) as caught:
        build(source)
    assert "\n" not in str(caught.value) and "Arguments received" not in str(caught.value)


def test_what_the_call_of_a_model_raises_is_told_as_the_users(build):
    with pytest.raises(UserCodeError, match=r"model.builder: calling the model raised AttributeError: 'Net' object"):
        build("""
class Net(keras.Model):
    def call(self, x):
        return self.hiden(x)

def build():
    return Net()
""")


def test_an_unknown_keyword_is_named(build):
    with pytest.raises(ConfigError, match=r"model.builder: build.*Did you mean width\?"):
        build("def build(width=1):\n    pass", kwargs={"widht": 3})


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "model.keras"
    keras.Sequential([keras.Input((3,)), keras.layers.Dense(4, dtype="mixed_bfloat16")]).save(path)
    return path


def test_a_saved_model_keeps_its_weights_and_its_policies(saved):
    model = build_model(Saved(path=str(saved)), Shapes((3,), 4))
    np.testing.assert_array_equal(model.layers[0].kernel, keras.models.load_model(saved).layers[0].kernel)
    assert model.layers[0].dtype_policy.name == "mixed_bfloat16"


def test_a_file_that_is_no_model_of_this_data_is_said(saved):
    whole, other = saved.read_bytes(), saved.with_suffix(".h5")
    other.write_text("no model")

    def said(path, error, message):
        with pytest.raises(error, match=message):
            build_model(Saved(path=str(path)), Shapes((3,), 10))

    said(saved, ConfigError, r"model.path: the model has 4 outputs, the data 10 classes; they must agree")
    said(other, DataError, r"model.path: '.*model.h5' can't be read as a Keras model: ")
    saved.write_bytes(whole[:-300])
    said(saved, DataError, r"model.path: '.*model.keras' can't be read as a Keras model: ")
    saved.unlink()
    said(saved, DataError, r"model.path: '.*model.keras' can't be read as a Keras model: File not found")


def test_code_in_a_saved_model_is_not_run(tmp_path):
    layer = keras.layers.Lambda(lambda x, seen=str(tmp_path / "seen"): (open(seen, "a").close(), x)[1])
    keras.Sequential([keras.Input((3,)), layer, keras.layers.Dense(4)]).save(tmp_path / "code.keras")
    (tmp_path / "seen").unlink()
    with pytest.raises(DataError, match=r"holds Python code \(a Lambda layer\), which is not run.*model\.builder"):
        build_model(Saved(path=str(tmp_path / "code.keras")), Shapes((3,), 4))
    assert not (tmp_path / "seen").exists()


class ConcretizationTypeError(Exception):
    """As JAX calls the one for a value that is asked for while a program is traced."""


@pytest.mark.parametrize("where", ["calling", "building"])
def test_a_model_that_asks_for_a_value_while_it_is_traced_is_told_what_to_use(build, where, monkeypatch):
    """Keras says more of what a `call` raises, which JAX's errors do not let it: an AttributeError hides them."""
    monkeypatch.setattr("builtins.ConcretizationTypeError", ConcretizationTypeError, raising=False)
    asks = """
    try:
        raise ConcretizationTypeError("Abstract tracer value")
    except ConcretizationTypeError:
        raise AttributeError("no _error_repr") from None
"""
    called = f"class Net(keras.Model):\n  def call(self, x):{asks}\n\ndef build():\n    return Net()"
    words = (
        r"model.builder: its step can't be traced: it asks for a value .* \(ConcretizationTypeError: Abstract "
        r"tracer value\)\. Use keras.ops.where"
    )
    with pytest.raises(ConfigError, match=words):
        build(called if where == "calling" else f"def build():{asks}")
