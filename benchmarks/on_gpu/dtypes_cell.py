"""What layers really compute in under each policy on this device, and how exact a float32 product is (TF32 or not).

`python -m benchmarks.on_gpu.dtypes_cell TASK`; prints a JSON object.
"""

import json
import sys
from dataclasses import replace
from typing import Any

import numpy as np

from mpt_cli.settings.load import load_settings

COMPUTE = {"float32": "float32", "mixed_float16": "float16", "mixed_bfloat16": "bfloat16"}


def main(task: dict[str, Any]) -> dict[str, Any]:
    from mpt_cli.engine.backend import prepare_backend

    settings = load_settings(task["words"])
    platform = prepare_backend(settings)
    from keras import ops

    from mpt_cli.data.sources import load_data
    from mpt_cli.training.model import build_under_policy

    data = load_data(settings.data, 0)
    wrong, layers = [], 0
    for name, dtype in COMPUTE.items():
        model = build_under_policy(replace(settings, policy=replace(settings.policy, name=name)), data)
        outputs, own_wrong = _outputs(model, data.train.x[:8]), []
        for layer, output in outputs:
            expected = "float32" if layer.name == "head" else dtype
            if str(ops.dtype(output)) != expected:
                own_wrong.append(f"{name}: {layer.name} gives {ops.dtype(output)}")
            own_wrong += [f"{name}: {w.path} is {w.dtype}" for w in layer.weights if w.dtype != "float32"]
            own_wrong += [f"{layer.name} on {_place(output)}"] if platform.gpus and _place(output) == "cpu" else []
        wrong += own_wrong
        layers += len(outputs)
    return {"wrong": wrong, "layers": layers, "platform": platform.device, "product_error": _product_error()}


def _outputs(model: Any, batch: Any) -> list[tuple[Any, Any]]:
    """Every layer but the input with what it computes of `batch`."""
    import keras

    layers = [layer for layer in model.layers if not isinstance(layer, keras.layers.InputLayer)]
    values = keras.Model(model.inputs, [layer.output for layer in layers])(batch)
    return list(zip(layers, values, strict=True))


def _place(tensor: Any) -> str:
    """cpu, gpu or cuda."""
    if hasattr(tensor, "devices"):
        return str(next(iter(tensor.devices())).platform)
    return "gpu" if "GPU" in tensor.device else "cpu"


def _product_error() -> float:
    """Largest error of a float32 matrix product over its largest element, against float64 on the host."""
    from keras import ops

    a, b = np.random.default_rng(0).standard_normal((2, 512, 512)).astype(np.float32)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    found = ops.convert_to_numpy(ops.matmul(ops.convert_to_tensor(a), ops.convert_to_tensor(b)))
    return float(np.abs(found - exact).max() / np.abs(exact).max())


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))
