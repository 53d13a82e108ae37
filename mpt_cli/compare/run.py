"""The story of a comparison on one screen: overrides in, runs one after another, models examined, verdict out; and what
the examination finds: how many bytes a configuration's model weighs, and the shapes that tensor cores don't like.

`python -m mpt_cli.compare.run RUN_DIR…` builds the models of runs of one backend once more, in a process of its own,
and prints one JSON object.
"""

import json
import math
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from mpt_cli.compare.comparison import (
    CompareDirectory,
    Comparison,
    Entry,
    NoiseMeter,
    make_comparison,
    read_comparison,
    read_workers,
)
from mpt_cli.compare.report import TILE, write_comparison
from mpt_cli.engine.distribution import undistributed
from mpt_cli.errors import MptError
from mpt_cli.jobs.executor import call, module_command
from mpt_cli.runs.directory import RunDirectory, write_json
from mpt_cli.runs.resume import stored_settings
from mpt_cli.settings import load_settings
from mpt_cli.settings.schema import Settings
from mpt_cli.sweep.plan import Job, check_objective, choose_objective
from mpt_cli.sweep.progress import Screen
from mpt_cli.sweep.run import Options, begin, exit_code, jobs_left, plan_facts, run_jobs, split_overrides


@dataclass(frozen=True)
class CompareSettings:
    """What the comparison rests on: seeds (rounds), and how much worse still counts as equal (None: by the metric)."""

    seeds: int | None = None
    tolerance: float | None = None


def start_compare(
    overrides: Sequence[str], measure: CompareSettings, options: Options, screen: Screen
) -> tuple[Comparison, int]:  # fmt: skip
    """A new comparison: all configurations are checked before the first job starts. Returns it and the exit code."""
    own, path = split_overrides(overrides, "compare_dir")
    plan, setups = make_comparison(own, measure.seeds)
    if options.objective is not None:
        choose_objective(options.objective, [])  # only one
        check_objective(options.objective, [load_settings(job.words) for job in plan.jobs])
    folder = CompareDirectory.create(path, plan.recipe)
    with folder.lock():
        facts = plan_facts(["mpt", "compare", *overrides], options)
        facts |= {"setups": [asdict(setup) for setup in setups], "workers": options.workers, **asdict(measure)}
        plan = begin(folder, plan, facts, options)
        return _run(folder, plan.jobs, options, screen)


def resume_compare(path: str, options: Options, screen: Screen) -> tuple[Comparison, int]:
    """Runs what is missing or not good in an earlier comparison, as many jobs at a time as there."""
    folder = CompareDirectory.open(path)
    with folder.lock():
        plan, facts = folder.read_plan()
        own = replace(options, workers=read_workers(facts))
        return _run(folder, jobs_left(folder, plan, screen), own, screen)


def _run(
    folder: CompareDirectory, jobs: Sequence[Job], options: Options, screen: Screen
) -> tuple[Comparison, int]:  # fmt: skip
    meter = [NoiseMeter(folder)] if options.workers == 1 else []
    stopped_by: signal.Signals | None = run_jobs(folder, jobs, options, screen, meter)
    found = read_comparison(folder, options.objective)
    if stopped_by is None and any(entry.finished for entry in found.entries):
        screen.say("examining the models")
        write_json(folder.footprints_json, _examine(found))
        found = read_comparison(folder, options.objective)
    write_comparison(found)
    return found, exit_code(stopped_by, found.results)


def _examine(found: Comparison) -> dict[str, Any]:
    """Footprints of each configuration, one process a backend."""
    groups: dict[str, list[Entry]] = {}
    for entry in found.entries:
        if entry.finished:
            groups.setdefault(_backend(found, entry), []).append(entry)
    runs: dict[str, Any] = {}
    devices: dict[str, Any] = {}
    for backend, entries in groups.items():
        names = {str(_first_run(entry).resolve()): _first_run(entry).name for entry in entries}
        answer = examine_runs([Path(path) for path in names], Path(found.facts["working_directory"]))
        for path, footprint in answer.pop("runs", {}).items():
            runs[names[path]] = {**footprint, "backend": backend}
        devices[backend] = answer
    return {"runs": runs, "devices": devices}


def _first_run(entry: Entry) -> Path:
    return next(iter(entry.finished.values())).run_dir


def _backend(found: Comparison, entry: Entry) -> str:
    environment = found.directory.run(next(iter(entry.finished.values())).job).environment_json
    return str(found.directory.read_extra(environment).get("backend", "tensorflow")).split()[0]


LIMIT_SECONDS = 600.0


def examine_runs(runs: Sequence[Path], cwd: Path) -> dict[str, Any]:
    """The answer of such a process: by run directory, or `error` where there was none."""
    answer = call(module_command("mpt_cli.compare.run", *map(str, runs)), LIMIT_SECONDS, cwd)
    try:
        return answer.json
    except ValueError as error:
        return {"error": f"its models could not be examined: {answer.why or error}"}


def measure_runs(paths: Sequence[str]) -> dict[str, Any]:
    """What this process finds; imports Keras on the backend of the first run."""
    all_settings = {path: stored_settings(RunDirectory.open(path)) for path in paths}
    from mpt_cli.engine.backend import prepare_backend

    platform = prepare_backend(undistributed(next(iter(all_settings.values()))))
    found: dict[str, Any] = {"device": platform.device, "kind": "gpu" if platform.gpus else "cpu", "runs": {}}
    for path, settings in all_settings.items():
        try:
            found["runs"][path] = _footprint(settings, platform)
        except MptError as error:
            found["runs"][path] = {"error": str(error)}
    return found


def _footprint(settings: Settings, platform: Any) -> dict[str, Any]:
    """Bytes of weights, optimizer and a whole batch's activations, and what may stand in the way of speed."""
    from mpt_cli.training.assembly import assemble
    from mpt_cli.training.settings_program import SettingsProgram

    program = SettingsProgram(undistributed(settings))
    parts = assemble(program, platform, program.load_data())
    return {
        "weights_bytes": _bytes_of(parts.model.variables),
        "optimizer_bytes": _bytes_of(parts.optimizer.variables),
        "activations_bytes": activation_bytes(parts.model, _first_inputs(parts.data.train),
                                              settings.trainer.batch_size),
        "resident": parts.resident,
        "jit_compile": parts.jit_compile,
        "uneven": uneven_layers(parts.model),
    }


def activation_bytes(model: Any, inputs: Any, batch_size: int) -> int | None:
    """The outputs of all innermost layers for one batch, each in the dtype it has, added up.

    `inputs` is an example of the model's input, arrays with a batch dimension of any size; the model is traced with the
    shapes of a batch and not run. It is what a plain backward pass keeps; a compiler may keep less of it. None where
    the model can't be traced.
    """
    import keras

    from mpt_cli.precision.keras_internals import calls_through

    sizes: list[int] = []
    try:
        with calls_through(innermost_layers(model), lambda _, call: _counting(call, sizes)):
            _traced_layer(model)(keras.tree.map_structure(lambda one: _batch_of(one, batch_size), inputs))
    except Exception:  # whatever a user's own layers raise when they are traced: the figure is left out
        return None
    return sum(sizes)


def _batch_of(array: Any, batch_size: int) -> Any:
    import keras

    return keras.KerasTensor((batch_size, *array.shape[1:]), keras.backend.standardize_dtype(array.dtype))


def _first_inputs(data: Any) -> Any:
    """The inputs of one training example, in their structure."""
    from mpt_cli.data.examples import Examples

    if isinstance(data, Examples):
        return data.take(slice(0, 1)).x
    return next(data.batches(1, epoch=1, seed=0, shuffle=False))[0]


def _counting(call: Any, sizes: list[int]) -> Any:
    import keras

    def counted(*args: Any, **kwargs: Any) -> Any:
        outputs = call(*args, **kwargs)
        sizes.extend(_tensor_bytes(tensor) for tensor in keras.tree.flatten(outputs) if hasattr(tensor, "shape"))
        return outputs

    return counted


def _traced_layer(model: Any) -> Any:
    """A layer whose output is worked out by calling `model`, as Keras does for layers that don't say their shapes."""
    import keras

    class Traced(keras.layers.Layer):  # type: ignore[misc]
        def call(self, inputs: Any) -> Any:
            return model(inputs, training=True)

    return Traced(autocast=False)


def innermost_layers(model: Any) -> list[Any]:
    """Layers with none inside them."""
    from mpt_cli.precision import layers_of
    from mpt_cli.precision.keras_internals import inner_layers

    return [layer for layer in layers_of(model) if not inner_layers(layer)]


def uneven_layers(model: Any) -> list[str]:
    """Matrix products with a dimension that is no multiple of TILE: the layer, and the dimensions of its kernel."""
    found = []
    for layer in innermost_layers(model):
        kernel = getattr(layer, "kernel", None)
        shape = tuple(getattr(kernel, "shape", ()))
        if len(shape) >= 2 and any(size % TILE for size in shape[-2:]):
            found.append(f"{layer.path or layer.name} ({shape[-2]} → {shape[-1]})")
    return found


def _bytes_of(variables: Sequence[Any]) -> int:
    return sum(_tensor_bytes(variable) for variable in variables)


def _tensor_bytes(tensor: Any) -> int:
    import keras

    name = keras.backend.standardize_dtype(tensor.dtype)
    digits = "".join(letter for letter in name if letter.isdigit())
    bits = 8 if name.startswith("float8") or name == "bool" else int(digits or 8)
    return math.prod(int(size) for size in tensor.shape) * bits // 8


if __name__ == "__main__":
    print(json.dumps(measure_runs(sys.argv[1:])))
