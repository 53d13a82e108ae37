"""Keras's own tests of its optimizers and of the callbacks that move the rate, from the package that is installed, with
each optimizer in our LossScaleOptimizer (`plugin`). tf_keras is installed without its tests.
"""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from backends import only_on

from mpt_cli.precision.optimizer import BASE_OPTIONS

HERE = Path(__file__).parent / "keras_suites"
PRIVATE = "calls the inner optimizer's private part by the wrapper, whose base class has one of that name"
COUNTED = "counts the optimizer's variables, or expects the first of them to be `iterations`"
NOT_APPLICABLE = {
    "test_init_dynamic_arg": "refuses dynamic=False, which is our fixed mode",
    "test_serialization": "counts the keys of the configuration: ours has more, and is read back all the same",
    "test_learning_rate_scheduler_with_multi_optimizer": "the wrapper has no one learning rate; Keras's own has none",
    "test_reduce_lr_on_plateau_with_multi_optimizer": "the wrapper has no one learning rate; Keras's own has none",
    "test_adamw_single_step": PRIVATE,
    "test_adamw_weight_decay": PRIVATE,
    "test_muon_single_step": PRIVATE,
    "test_gradient_accumulation": PRIVATE,
    "test_overwrite_with_gradient_with_gradient_accumulation": PRIVATE,
    "test_get_method": "asks for an instance of the replaced class itself",
    "test_optimizer_auto_naming": "the wrapper has a name of its own",
    "test_static_loss_scaling": "the scale that an optimizer has by itself is put aside, and said to be",
    "test_fit_lr_correctness": COUNTED,
    "test_single_step": COUNTED,
    **{
        f"test_init_base_optimizer_unsupported_args_{name}": "ours takes it, as Keras documents it"
        for name in (*BASE_OPTIONS, "loss_scale_factor")
    },
}
AT_LEAST = {"tensorflow": 237, "jax": 237}


@only_on("tensorflow")
@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_all_that_applies_passes(backend, tmp_path):
    """What fails is exactly what is listed, so that the list can't outlive its reasons."""
    spec = importlib.util.find_spec("keras")
    assert spec is not None and spec.origin is not None
    keras_src = Path(spec.origin).parent / "src"
    names = ("reduce_lr_on_plateau_test.py", "learning_rate_scheduler_test.py")
    callbacks = [keras_src / "callbacks" / name for name in names]
    report = tmp_path / "report.xml"
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "plugin",
        "-p",
        "no:cacheprovider",
        "-c",
        str(HERE / "keras.ini"),
        "--rootdir",
        str(keras_src),
        "--junitxml",
        str(report),
        str(keras_src / "optimizers"),
        *map(str, callbacks),
    ]
    where = {"KERAS_BACKEND": backend, "PYTHONPATH": f"{HERE}:{HERE.parents[2]}", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(command, cwd=tmp_path, env=os.environ | where, capture_output=True, text=True, timeout=900)
    assert report.is_file(), done.stdout + done.stderr
    tree = ElementTree.parse(report)
    cases = [(case.get("name", ""), [child.tag for child in case]) for case in tree.iter("testcase")]
    failed = [name for name, tags in cases if {"failure", "error"} & {*tags}]
    passed = [name for name, tags in cases if not tags]
    assert [name for name in failed if name not in NOT_APPLICABLE] == [], done.stdout[-5000:]
    assert len(passed) >= AT_LEAST[backend]
    if backend == "tensorflow":
        assert [name for name in NOT_APPLICABLE if name not in failed] == []
