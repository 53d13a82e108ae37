"""Which metrics should fall, by the Keras class behind the name that the user gave them."""

from mpt_cli.settings.python_references import SHORT_NAMES, canonical_name, keras_names, snake_case
from mpt_cli.training.progress import falls

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


def test_every_metric_and_loss_of_keras_is_decided_in_every_spelling():
    for kind in {*keras_names("metrics"), *keras_names("losses")} - LIKENESS:
        short = [word for word in SHORT_NAMES if canonical_name(word) == canonical_name(kind)]
        for name in (kind, snake_case(kind), *short):
            for metric in (name, f"val_{name}", f"best_metrics.val_{name}"):
                assert falls(metric) is (kind not in RISING), metric


def test_other_names_are_told_by_their_words():
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
