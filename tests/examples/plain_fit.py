"""`python plain_fit.py NAME ARGUMENTS RUN`: an example under plain Keras, in the order and from the seed of RUN.

ARGUMENTS are those of `compile` and `fit` as JSON. Writes the weights at the start (start.npz) and at the end
(plain.npz), and those of the run's saved model (ours.npz), by their place in the model.
"""

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np


def main(name: str, arguments: dict[str, dict[str, Any]], run: Path) -> None:
    import keras
    import yaml

    spec = importlib.util.spec_from_file_location(name, Path("examples") / name / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    settings = yaml.safe_load((run / "config.yaml").read_text())
    keras.utils.set_random_seed(settings["seed"])
    returned = getattr(module, settings["data"]["loader"].rpartition(":")[2])()
    data = returned[0] if isinstance(returned, tuple) and isinstance(returned[0], tuple) else returned
    x, y, *weight = data if isinstance(data, tuple) else (data, None)
    if isinstance(x, np.ndarray) and x.dtype.kind == "U":  # `fit` takes text as a tensor of strings only
        x = keras.ops.convert_to_tensor(x, "string")
    build = getattr(module, settings["model"]["builder"].rpartition(":")[2])
    takes_shape = "input_shape" in build.__code__.co_varnames[: build.__code__.co_argcount]

    def built() -> Any:
        made = build(**({"input_shape": x.shape[1:]} if takes_shape else {}))
        if not made.built:
            made(x[:1])
        return made

    model = built()
    write(model, "start.npz")
    kind, rate, *more = arguments["compile"].pop("optimizer")
    smoothed = keras.losses.CategoricalCrossentropy(label_smoothing=0.1)
    logits = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    own = {"loss": lambda: module.loss(), "label_smoothing": lambda: smoothed, "sparse_logits": lambda: logits}
    arguments["compile"] = keras.tree.map_structure(
        lambda value: own[value]() if value in own else value, arguments["compile"]
    )
    optimizer = getattr(keras.optimizers, kind)(rate, **(more[0] if more else {}))
    model.compile(optimizer, jit_compile=keras.backend.backend() == "jax", **arguments["compile"])
    fit = arguments["fit"]
    if "class_weight" in fit:
        fit["class_weight"] = {int(label): weight for label, weight in fit["class_weight"].items()}
    if weight:
        fit["sample_weight"] = weight[0]
    model.fit(x, y, shuffle=False, verbose=0, **fit)
    write(model, "plain.npz")
    if (run / "model.keras").is_file():
        ours = keras.saving.load_model(run / "model.keras", compile=False)
    else:  # of a class that Keras can't read again
        ours = built()
        ours.load_weights(run / "model.weights.h5")
    write(ours, "ours.npz")


def write(model: Any, path: str) -> None:
    np.savez(path, **{f"weight{place}": np.asarray(weight) for place, weight in enumerate(model.get_weights())})


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]), Path(sys.argv[3]))
