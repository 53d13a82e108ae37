"""What `benchmarks.on_gpu` counts and judges by, on numbers worked out by hand."""

import keras

from benchmarks.on_gpu.flops import forward_multiply_adds, training_flops
from benchmarks.on_gpu.peaks import peak_of
from benchmarks.on_gpu.report import judge
from mpt_cli.data.examples import Shapes
from mpt_cli.models.build import build_model
from mpt_cli.settings.variants import ResNet, Transformer


def test_dense_layer_on_a_vector_counts_its_kernel() -> None:
    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(7)])

    assert training_flops(model) == 6 * 5 * 7


def test_resnet_without_projection_counts_stem_block_and_head() -> None:
    model = build_model(ResNet(filters=[4], blocks=[1]), Shapes((6, 6, 3), 10))

    assert forward_multiply_adds(model) == 36 * (27 * 4 + 2 * 36 * 4) + 4 * 10


def test_transformer_counts_projections_scores_feed_forward_and_head() -> None:
    length, width, classes = 8, 16, 50
    model = build_model(Transformer(layers=1, width=width, heads=2), Shapes((length,), classes, "int32", "tokens"))

    projections, scores = 4 * width * width, 2 * length * width
    assert forward_multiply_adds(model) == length * (projections + scores + 8 * width * width + width * classes)


def test_peak_is_that_of_the_chip_and_the_kind_of_number() -> None:
    assert peak_of("NVIDIA H200", "mixed_bfloat16", True) == 989e12
    assert peak_of("NVIDIA H100 80GB HBM3", "float32", True) == 495e12
    assert peak_of("NVIDIA A100-SXM4-80GB", "float32", False) == 19.5e12
    assert peak_of("NVIDIA H100 PCIe", "mixed_float16", False) == 756e12
    assert peak_of("NVIDIA GeForce RTX 3060", "mixed_float16", True) is None


def test_targets_are_judged_on_the_rows_of_one_model() -> None:
    def row(policy: str, scaling: str, seconds: float) -> dict[str, object]:
        return {
            "backend": "jax", "model": "transformer", "policy": policy, "scaling": scaling, "tokens_per_second": 1.0,
            "step_seconds": seconds, "step_seconds_no_telemetry": seconds, "share_of_peak": 0.44,
        }  # fmt: skip

    rows = [row("mixed_float16", "dynamic", 0.0101), row("mixed_bfloat16", "none", 0.01), row("float32", "none", 0.03)]
    report = {"backends": ["jax"], "models": ["transformer"], "rows": rows}

    verdicts = {verdict["target"]: verdict["met"] for verdict in judge(report)}

    assert verdicts == {
        "mixed_float16 at least 2 x float32": True,
        "loss scaling and telemetry at most 2% over mixed_bfloat16": True,
        "mixed_float16 at least 45% of peak": False,
    }
