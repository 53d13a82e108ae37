"""scikit-learn's bundled sets: digits and the tables. No network, no files."""

from typing import Any

import numpy as np

from mpt_cli.data.assemble import Raw, build_data_set
from mpt_cli.data.examples import DataSet, Examples
from mpt_cli.settings.data import Digits, Tabular

_REGRESSION = ("diabetes", "linnerud")


def load_digits(settings: Digits, seed: int) -> DataSet:
    """1,797 scans as float32 (8, 8, 1), grey 0 … 16 divided by 16; labels 0 … 9."""
    from sklearn import datasets

    digits = datasets.load_digits()
    x = (digits.images[..., None] / 16).astype(np.float32)
    raw = Raw("digits", Examples(x, digits.target), num_classes=10, preprocessing={"divided_by": {"x": 16}})
    return build_data_set(raw, settings, seed)


def load_tabular(settings: Tabular, seed: int) -> DataSet:
    """A table with standardised columns; a regression's targets are standardised too, by the training split."""
    from sklearn import datasets

    # diabetes comes ready-scaled by all rows, the held-out ones among them; ours are scaled by the training split
    raw = {"scaled": False} if settings.dataset == "diabetes" else {}
    table = getattr(datasets, f"load_{settings.dataset}")(**raw)
    task = "regression" if settings.dataset in _REGRESSION else "classification"
    columns = np.ones(table.data.shape[1], bool)
    return build_data_set(Raw(settings.dataset, Examples(table.data, table.target), task=task, standardise=columns,
                              preprocessing=_names(table, task)), settings, seed)


def _names(table: Any, task: str) -> dict[str, Any]:
    targets = [str(name) for name in table.get("target_names", ["target"])]  # diabetes doesn't name its one
    inputs = [{"name": str(name)} for name in table.feature_names]
    return {"inputs": inputs} | (
        {"classes": targets} if task == "classification" else {"targets": [{"name": name} for name in targets]})
