"""The names of Keras's losses and metrics, from the listing in its files: importing Keras takes seconds."""

import re
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from mpt_cli.errors import Problem
from mpt_cli.settings.schema import Settings
from mpt_cli.settings.suggest import did_you_mean

SHORT = {"mse": "mean_squared_error", "mae": "mean_absolute_error", "mape": "mean_absolute_percentage_error",
         "msle": "mean_squared_logarithmic_error", "bce": "binary_crossentropy", "kld": "kl_divergence"}
NOT_OF_PREDICTIONS = ("Loss", "Metric", "MeanMetricWrapper", "Mean", "Sum")  # bases, and metrics of plain values


@cache
def keras_names(listing: str) -> tuple[str, ...]:
    """The classes of `losses` or `metrics` that a name can mean; empty where the installed Keras lists them elsewhere.

    >>> "BinaryCrossentropy" in keras_names("losses"), keras_names("nowhere")
    (True, ())
    """
    found = find_spec("keras")
    file = Path(found.origin).parent / listing / "__init__.py" if found is not None and found.origin else None
    if file is None or not file.is_file():
        return ()
    classes = re.findall(r"\b\w+ as ([A-Z]\w*)\b", file.read_text(encoding="utf-8"))
    return tuple(name for name in classes if name not in NOT_OF_PREDICTIONS)


def check_loss(settings: Settings) -> Iterator[Problem]:
    if settings.trainer.loss != "auto":
        yield from _check_name("trainer.loss", settings.trainer.loss, "losses")


def check_metrics(settings: Settings) -> Iterator[Problem]:
    for name in settings.trainer.metrics:
        if name != "auto":
            yield from _check_name("trainer.metrics", name, "metrics")


def _check_name(key: str, name: str, listing: str) -> Iterator[Problem]:
    names = keras_names(listing)
    if names and full_spelling(name) not in map(full_spelling, names):
        yield no_such_name(key, name, names)


def no_such_name(key: str, name: str, names: tuple[str, ...]) -> Problem:
    """What to say where none of the classes `names` is meant by `name`."""
    written = sorted(snake_case(each) for each in names)
    remedy = did_you_mean(name, written) or f"There are {', '.join(written)}."
    return Problem(key, "Keras has none of this name.", name, remedy)


def full_spelling(name: str) -> str:
    """What names of one class have in common: case, underscores and short names (mse) don't count.

    >>> full_spelling("mse") == full_spelling("MeanSquaredError") == full_spelling("mean_squared_error")
    True
    """
    return SHORT.get(name.lower(), name).lower().replace("_", "")


def snake_case(name: str) -> str:
    """
    >>> snake_case("KLDivergence"), snake_case("BinaryCrossentropy")
    ('kl_divergence', 'binary_crossentropy')
    """
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()
