"""`python plain_fit.py NAME RUN`: an example under plain Keras, with the settings, in the order and from the seed of RUN.

Writes the weights at the start (start.npz) and at the end
(plain.npz), and those of the run's saved model (ours.npz), by their place in the model.
"""

import importlib.util
import sys
from pathlib import Path
from typing import Any

import numpy as np


def main(name: str, run: Path):
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
    asked, trainer = settings["optimizer"], settings["trainer"]
    options = {key: asked[key] for key in ("learning_rate", "weight_decay", "clipnorm")}
    optimizer = keras.optimizers.get({"class_name": asked["name"], "config": options})
    on_jax, losses = keras.backend.backend() == "jax", loss_of(trainer["loss"], module)
    model.compile(optimizer, losses, loss_weights=trainer["loss_weights"], jit_compile=on_jax)
    options = {key: trainer[key] for key in ("epochs", "batch_size", "class_weight")}
    model.fit(x, y, sample_weight=weight[0] if weight else None, shuffle=False, verbose=0, **options)
    write(model, "plain.npz")
    if (run / "model.keras").is_file():
        ours = keras.saving.load_model(run / "model.keras", compile=False)
    else:  # of a class that Keras can't read again
        ours = built()
        ours.load_weights(run / "model.weights.h5")
    write(ours, "ours.npz")


def loss_of(asked: Any, module: Any) -> Any:
    """The loss of a recipe: a name of Keras's, an object of `module` or of Keras's with arguments, or one an output."""
    import keras

    if not isinstance(asked, dict):
        return asked
    if "object" not in asked:
        return {output: loss_of(each, module) for output, each in asked.items()}
    name = asked["object"]
    found = module.loss if ":" in name else getattr(keras.losses, "".join(map(str.capitalize, name.split("_"))))
    return found(**asked["kwargs"])


def write(model: Any, path: str):
    np.savez(path, **{f"weight{place}": np.asarray(weight) for place, weight in enumerate(model.get_weights())})


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
