"""Which files one setting visits on its way from the shell to the variable.

    python -m benchmarks.setting_path

Runs `mpt train conf=digits_mlp loss_scale.initial_scale=3072.1875 …` in this process up to the optimizer's variable.
Prints each file of the package with a function that is given the value, returns it, or has it in a local variable: as a
number, in a text, inside lists and mappings, or as the field of that name of an object. And how often Hydra composed
the configuration on that way.
"""

import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

KEY, VALUE = "initial_scale", 3072.1875  # which is in no text by chance, such as a list of process numbers
WORDS = ["train", "conf=digits_mlp", f"loss_scale.{KEY}={VALUE}", "trainer.max_steps=1", "backend=jax",
         "policy=mixed_float16", "logger.console=quiet", "run_dir=run"]  # fmt: skip
PACKAGE = str(Path(__file__).parents[1] / "mpt_cli") + os.sep
COMPOSES = ("settings/load.py", "_compose")  # the one function that has Hydra compose the configuration
DEPTH = 3  # of lists and mappings within each other


class Arrived(BaseException):
    """Ends the run from within: the variable has the value."""


def holds(value: Any, depth: int = DEPTH) -> bool:
    """Whether the value is in there."""
    if isinstance(value, str):
        return str(VALUE) in value
    if isinstance(value, int | float):
        return not isinstance(value, bool) and value == VALUE
    if type(value) in (dict, list, tuple) and depth:
        return any(holds(part, depth - 1) for part in (value.values() if isinstance(value, dict) else value))
    fields = getattr(value, "__dict__", None)
    return isinstance(fields, dict) and holds(fields.get(KEY), 0)


class Tracer:
    """Notes the functions that have the value, by file, in the order in which they first do."""

    def __init__(self) -> None:
        self.found: dict[str, dict[str, None]] = {}
        self.compositions = 0

    def __call__(self, frame: FrameType, event: str, result: Any) -> None:
        code = frame.f_code
        if event not in ("call", "return") or not code.co_filename.startswith(PACKAGE):
            return
        file, name = code.co_filename.removeprefix(PACKAGE), code.co_qualname
        self.compositions += event == "call" and (file, name) == COMPOSES
        if any(holds(value) for value in self._values(frame, event, result)):
            self.found.setdefault(file, {})[name] = None
        if event == "return" and (file, name) == ("precision/scale_state.py", "ScaleState.__init__"):
            raise Arrived

    def _values(self, frame: FrameType, event: str, result: Any) -> Iterator[Any]:
        yield from frame.f_locals.values()
        if event == "return":
            yield result


def trace() -> Tracer:
    """The way of the value in a run in an empty directory."""
    from mpt_cli.cli import main

    tracer = Tracer()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        sys.setprofile(tracer)
        try:
            main(WORDS)
        except Arrived:
            pass
        finally:
            sys.setprofile(None)
            os.chdir("/")
    return tracer


if __name__ == "__main__":
    way = trace()
    files = {file: list(names) for file, names in way.found.items()}
    print(json.dumps({"files": len(files), "times_composed": way.compositions, "functions": files}, indent=1))
