"""A finished run's model: loaded again, and its loss and metrics on the data of the run.

What can be wrong with the run, or is missing here, is found before Keras is imported, which happens inside functions.
"""

from pathlib import Path
from typing import Any

from mpt_cli.data.examples import DataSet
from mpt_cli.engine import backend
from mpt_cli.engine.distribution import Distribution, undistributed
from mpt_cli.errors import DataError, config_error
from mpt_cli.runs.directory import RunDirectory
from mpt_cli.runs.resume import is_recorded, stored_settings
from mpt_cli.settings.overrides import resume_command
from mpt_cli.settings.schema import Settings
from mpt_cli.training.run_from_settings import RunDefinition


def evaluate(run_path: str, split: str = "validation") -> dict[str, float]:
    """Return loss and metrics of a finished run's model on the `train` or `validation` split of the run's data."""
    run = RunDirectory.open(run_path)
    check_model(run)
    settings = undistributed(stored_settings(run))
    backend.prepare_backend(settings)
    from mpt_cli.engine.choose_engine import build_engine
    from mpt_cli.engine.step_batches import BatchPlan, Feed
    from mpt_cli.training.build_run_parts import call_capacity, data_for, put_to_evaluation
    from mpt_cli.training.model import policy_of

    data = RunDefinition(settings).load_data()
    _split(data, split)  # that there is none is said before the model is built
    model = load_trained(run, settings, data)
    data = data_for(settings, model, data)
    examples = _split(data, split)
    compiles = settings.trainer.jit_compile is True or settings.backend.name == "jax"  # as the run: the same numbers
    with policy_of(settings).scope():
        put_to_evaluation(settings, model, data, examples)
        engine = build_engine(model, compiles, Distribution())
        plan = BatchPlan(settings.trainer.batch_size, call_capacity(settings.trainer, resident=False))
        feed = Feed(examples, engine, plan, resident=False)
        feed.start(1)
        engine.reset_metrics()
        while (chunk := feed.take(plan.capacity)) is not None:
            engine.evaluate(chunk.source, chunk.batch_indices, chunk.count)
        return engine.metrics()


def check_model(run: RunDirectory) -> None:
    """Raise DataError where the run has no saved model, before Keras is imported to read one."""
    path = model_file(run)
    if path == run.model_weights:
        return
    if not path.is_file():
        why = "it is saved at the end of a run, unless trainer.save_model is false."
        if is_recorded(run):
            why = (
                "mpt recorded this run while another program trained, so it has no model. Call model.save(...) in that "
                "program."
            )
        elif run.is_unfinished:
            why += f" To finish this run: {resume_command(run.path)}"
        raise DataError(f"{path} does not exist: {why}")


def model_file(run: RunDirectory) -> Path:
    """Return where the run's model is: whole, or its weights alone."""
    return run.model_weights if run.model_weights.is_file() else run.model_keras


def load_trained(run: RunDirectory, settings: Settings, data: DataSet) -> Any:
    """Return the model of a run; DataError when it can't be read.

    Where the file holds its weights alone, and where a builder made it, which may bring its own loss, metrics and
    test_step, it is made anew as the run made it, and given its weights.
    """
    import keras

    path = model_file(run)
    if path == run.model_weights or settings.model.name == "builder":
        from mpt_cli.training.model import build_under_policy
        from mpt_cli.training.model_saving import load_weights

        model = build_under_policy(settings, data)
        load_weights(model, path)
        return model
    try:
        return keras.saving.load_model(path, compile=False, safe_mode=True)
    except Exception as error:
        raise DataError(f"{path} can't be read as a Keras model: {error}") from error


def _split(data: DataSet, split: str) -> Any:
    examples = data.train if split == "train" else data.validation
    if examples is None:
        raise config_error("--split", "this run's data has no validation split.", split, "Use --split train.")
    return examples
