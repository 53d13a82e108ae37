"""What `benchmarks.on_gpu` counts, on numbers worked out by hand."""

from benchmarks.on_gpu.flops import forward_multiply_adds
from mpt_cli.data.examples import Shapes
from mpt_cli.models.build import build_model
from mpt_cli.settings.variants import ResNet, Transformer


def test_resnet_without_projection_counts_stem_block_and_head() -> None:
    model = build_model(ResNet(filters=[4], blocks=[1]), Shapes((6, 6, 3), 10))

    assert forward_multiply_adds(model) == 36 * (27 * 4 + 2 * 36 * 4) + 4 * 10


def test_transformer_counts_projections_scores_feed_forward_and_head() -> None:
    length, width, classes = 8, 16, 50
    model = build_model(Transformer(layers=1, width=width, heads=2), Shapes((length,), classes, "int32", "tokens"))

    projections, scores = 4 * width * width, 2 * length * width
    assert forward_multiply_adds(model) == length * (projections + scores + 8 * width * width + width * classes)
