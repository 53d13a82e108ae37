"""Which metrics should fall, by the Keras class behind the name that the user gave them."""

from mpt_cli.settings.references import SHORT_NAMES, canonical_name, keras_names, snake_case
from mpt_cli.training.progress import FALLING, falls

RISING = {
    "Accuracy",
    "BinaryAccuracy",
    "CategoricalAccuracy",
    "SparseCategoricalAccuracy",
    "TopKCategoricalAccuracy",
    "SparseTopKCategoricalAccuracy",
    "AUC",
    "Precision",
    "Recall",
    "PrecisionAtRecall",
    "RecallAtPrecision",
    "SensitivityAtSpecificity",
    "SpecificityAtSensitivity",
    "TruePositives",
    "TrueNegatives",
    "ConcordanceCorrelation",
    "PearsonCorrelation",
    "CosineSimilarity",
    "F1Score",
    "FBetaScore",
    "BinaryIoU",
    "IoU",
    "MeanIoU",
    "OneHotIoU",
    "OneHotMeanIoU",
    "R2Score",
}
LIKENESS = {"CosineSimilarity", "Dice", "Tversky"}  # losses whose names as metrics say the opposite


def test_every_metric_and_loss_of_keras_is_decided() -> None:
    metrics, losses = set(keras_names("metrics")), set(keras_names("losses"))
    assert metrics - set(FALLING) == RISING
    assert set(FALLING) == (metrics - RISING) | (losses - LIKENESS)


def test_what_falls_does_so_in_every_spelling_and_what_rises_does_not() -> None:
    for kind in FALLING:
        short = [word for word in SHORT_NAMES if canonical_name(word) == canonical_name(kind)]
        for name in (kind, snake_case(kind), *short, *(word.upper() for word in short)):
            assert falls(name) and falls(f"val_{name}") and falls(f"best_metrics.val_{name}"), name
    assert not any(
        falls(prefix + spelled(kind)) for kind in RISING for prefix in ("", "val_") for spelled in (str, snake_case)
    )


def test_other_names_are_told_by_their_words() -> None:
    assert all(
        map(
            falls,
            (
                "loss",
                "val_loss",
                "final_loss",
                "val_Perplexity",
                "edit_distance",
                "token_RMSE",
                "skipped_steps",
                "peak_memory_bytes",
            ),
        )
    )
    assert not any(map(falls, ("accuracy", "dice", "bleu", "examples_per_second")))
