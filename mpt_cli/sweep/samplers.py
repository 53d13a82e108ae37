"""How the values of the next job are chosen: the samplers by name and their settings, as they stand in sweep.json.
Light: `mpt sweep --help` reads the names here, and Optuna is an extra.
"""

import importlib.util
from dataclasses import dataclass, field

from mpt_cli.errors import ConfigError, Problem, install_command

SAMPLERS = ("tpe", "random")
MOST_ASKED = 100  # proposals in a row without a new combination, after which a search gives up


@dataclass(frozen=True)
class SearchSettings:
    """`words` are those that span the space; with the same `sampler_seed` one job at a time repeats the search."""

    trials: int
    sampler: str = "tpe"
    sampler_seed: int = 0
    words: list[str] = field(default_factory=list)


def check_optuna() -> None:
    if importlib.util.find_spec("optuna") is None:
        raise ConfigError(Problem("--trials", "optuna is not installed.", None, install_command("optuna")))
