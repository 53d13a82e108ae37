"""The steps of a run that overflowed, from its events. Reads files, imports no Keras."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mpt_cli.errors import ConfigError, DataError, Problem
from mpt_cli.runs.directory import RunDirectory
from mpt_cli.settings.command import command, conf_word
from mpt_cli.telemetry.tally import OVERFLOW

MOST_STEPS_NAMED = 12


@dataclass(frozen=True)
class Overflow:
    """The line of events.jsonl about the step that is looked into."""

    step: int
    loss_scale: float
    variable: str | None
    cause: str | None


def find_overflow(run: RunDirectory, step: int | None) -> Overflow:
    """The last step of the run that overflowed, or the given one; DataError or ConfigError where there is none."""
    found = [line for line in _events(run.events_jsonl) if line.get("kind") == OVERFLOW]
    if not found:
        measures = command("diagnose", conf_word(run.config_yaml))
        raise DataError(f"no step of {run.path} overflowed: {run.events_jsonl.name} has none, so no layer is bad; "
                        f"{measures} measures how far away an overflow is.")  # fmt: skip
    chosen = [line for line in found if step is None or line["step"] == step]
    if not chosen:
        steps = [str(line["step"]) for line in found]
        more = f" … {steps[-1]}" if len(steps) > MOST_STEPS_NAMED else ""
        raise ConfigError(Problem("--step", "must be a step that overflowed.", step,
                                  f"They are {', '.join(steps[:MOST_STEPS_NAMED])}{more}."))  # fmt: skip
    line = chosen[-1]
    return Overflow(line["step"], float(line["scale_before"]), line.get("variable"), line.get("cause"))


def _events(path: Path) -> list[dict[str, Any]]:
    """A partial last line is left out: the run may have been killed, or be running."""
    try:
        return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n")[:-1]]
    except OSError as error:
        raise DataError(f"{path} can't be read: {error.strerror}.") from error
    except ValueError as error:
        raise DataError(f"{path} is damaged: {error}.") from error
