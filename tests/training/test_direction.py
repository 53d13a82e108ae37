"""Which metrics should fall, by the Keras class behind the name that the user gave them."""

import pytest

from mpt_cli.settings.references import SHORT_NAMES, canonical_name, keras_names, snake_case
from mpt_cli.training.progress import FALLING, falls

RISING = {
    "Accuracy", "BinaryAccuracy", "CategoricalAccuracy", "SparseCategoricalAccuracy", "TopKCategoricalAccuracy",
    "SparseTopKCategoricalAccuracy", "AUC", "Precision", "Recall", "PrecisionAtRecall", "RecallAtPrecision",
    "SensitivityAtSpecificity", "SpecificityAtSensitivity", "TruePositives", "TrueNegatives", "ConcordanceCorrelation",
    "PearsonCorrelation", "CosineSimilarity", "F1Score", "FBetaScore", "BinaryIoU", "IoU", "MeanIoU", "OneHotIoU",
    "OneHotMeanIoU", "R2Score",
}  # fmt: skip
LIKENESS = {"CosineSimilarity", "Dice", "Tversky"}  # losses whose names as metrics say the opposite


def test_every_metric_and_loss_of_keras_is_decided() -> None:
    metrics, losses = set(keras_names("metrics")), set(keras_names("losses"))
    assert metrics - set(FALLING) == RISING
    assert set(FALLING) == (metrics - RISING) | (losses - LIKENESS)


@pytest.mark.parametrize("kind", FALLING)
def test_what_falls_does_so_in_every_spelling(kind: str) -> None:
    short = [word for word in SHORT_NAMES if canonical_name(word) == canonical_name(kind)]
    spellings = [kind, snake_case(kind), *short, *(word.upper() for word in short)]
    assert all(falls(name) and falls(f"val_{name}") and falls(f"best_metrics.val_{name}") for name in spellings)


@pytest.mark.parametrize("kind", sorted(RISING))
def test_what_rises_does_so_in_every_spelling(kind: str) -> None:
    assert not any(falls(name) or falls(f"val_{name}") for name in (kind, snake_case(kind)))


@pytest.mark.parametrize(("name", "expected"), [
    ("loss", True), ("val_loss", True), ("final_loss", True), ("val_Perplexity", True), ("edit_distance", True),
    ("token_RMSE", True), ("skipped_steps", True), ("peak_memory_bytes", True), ("accuracy", False), ("dice", False),
    ("bleu", False), ("examples_per_second", False),
])
def test_other_names_are_told_by_their_words(name: str, expected: bool) -> None:
    assert falls(name) is expected
