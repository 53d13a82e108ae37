"""Runs from Python: a compiled model trained in mpt's own loop, and diagnosed."""

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from functools import partial, wraps
from os import devnull
from pathlib import Path
from signal import SIGINT, SIGTERM
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from mpt_cli.errors import DataError, Problem, Say, config_error, did_you_mean, raise_problems
from mpt_cli.report.run import Run, load_run
from mpt_cli.settings.checks import check_combinations
from mpt_cli.settings.load import build_settings
from mpt_cli.settings.model_data_optimizer_keys import AUTO, GivenData, GivenModel
from mpt_cli.settings.schema import Settings, acts_on_record, all_keys, unknown_key_problem, variants_of
from mpt_cli.signals import raise_for
from mpt_cli.telemetry.record_types import RunHeader
from mpt_cli.telemetry.sink_interface import Sink
from mpt_cli.training_run import Reporters, train_run

if TYPE_CHECKING:
    from mpt_cli.data.examples import DataSet
    from mpt_cli.diagnose.diagnosis import Diagnosis

P = ParamSpec("P")
Result = TypeVar("Result")
_KERAS_WORDS = {"verbose": "logger.console", "validation_freq": "trainer.validate_every_epochs"}


def arguments_checked(name: str) -> Callable[[Callable[P, Result]], Callable[P, Result]]:
    """Decorate a function that users call `name`, so that an unknown argument raises ConfigError."""

    def decorate(function: Callable[P, Result]) -> Callable[P, Result]:
        known = [*inspect.signature(function).parameters]

        @wraps(function)
        def called(*given: P.args, **named: P.kwargs) -> Result:
            raise_problems(
                Problem(word, f"is no argument of {name}.", value, _remedy_for(word, value, name, known))
                for word, value in named.items()
                if word not in known
            )
            return function(*given, **named)

        return called

    return decorate


def _remedy_for(word: str, value: Any, name: str, known: Sequence[str]) -> str:
    path = _KERAS_WORDS.get(word) or next((key for key in all_keys() if key.endswith(f".{word}")), "")
    if path and (name == "mpt.fit" or (name == "mpt.Recorder" and acts_on_record(path))):
        return f"Give it as settings={ {path: 'quiet' if word == 'verbose' else value} }."
    return did_you_mean(word, known) or f"Arguments: {', '.join(word for word in known if word != 'self')}."


@arguments_checked("mpt.fit")
def fit(
    model: Any,
    x: Any,
    y: Any = None,
    *,
    validation_data: Any = None,
    validation_split: float = 0.0,
    sample_weight: Any = None,
    class_weight: Mapping[int, float] | None = None,
    epochs: int = 1,
    batch_size: int | None = None,
    shuffle: bool = True,
    seed: int | None = 0,
    policy: str | None = None,
    loss_scale: Any = None,
    callbacks: Sequence[Any] = (),
    run_dir: str | Path | None = None,
    resume: bool | str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Run:
    """Train a compiled Keras model in mpt's own loop and return the `Run`. Afterwards the model has the trained
    weights, and a file that you save of it also has the loss scale, if there was one.

    Data arguments, `epochs`, `batch_size` (32) and `shuffle` are those of Keras's `fit`. Unlike there, a step with
    non-finite gradients leaves the whole model unchanged, every skip and scale is recorded, an unhealthy run is
    stopped, and a run that was killed continues bit for bit.

    Args:
        x, y: arrays of any dtype with the examples along the first axis, or a list or dict of them; or a
            tf.data.Dataset or PyDataset of batches, without y. y is also left out if layers add the loss.
        policy: a Keras dtype policy for the layers of the built model, which keep it; the output layer and layers made
            with dtype="float32" stay in float32. None leaves the layers as they are. A policy that would change the
            dtype of weights is refused.
        loss_scale: a mode (auto, dynamic, fixed, logmax, none), a number for a fixed scale, a mapping of keys of
            `loss_scale`, or a `ScaleRule`. None: that of the model's LossScaleOptimizer if it has one, else auto.
        seed: seed of the order of the examples. The random state and the global policy of the process stay unchanged.
        callbacks: Keras callbacks. If one has hooks for batches, each call of the compiled loop is one step.
        run_dir: directory of the run; None for runs/MODEL/TIME.
        resume: a run directory to resume, or True for the one in `run_dir`, or the latest of this model.
        settings: any other key of a configuration by its path, as in {"trainer.log_every_steps": 10}.

    Raises ConfigError or DataError for what can't be trained, which leaves nothing behind. After a signal it saves the
    run, then raises KeyboardInterrupt or SystemExit(143).
    """
    from mpt_cli.data.batch_streams import is_tf_dataset
    from mpt_cli.training import run_from_model as given

    given.check_trainable(model)
    _check_arguments(settings, callbacks)
    arguments = given.DataArguments(x, y, sample_weight, class_weight, validation_data, validation_split)
    given.check_targets(model, arguments)
    data = given.read_given(arguments)
    shuffles = shuffle and not is_tf_dataset(x)
    trainer = {"epochs": epochs, "batch_size": _batch_size(batch_size, data), "shuffle": shuffles}
    asked = RunArguments(policy, loss_scale, seed, run_dir, resume, trainer=trainer, more=settings or {})
    definition = given.ModelRunDefinition(given_settings(model, asked), model, data, policy, tuple(callbacks))
    return _run(definition)


def _check_arguments(settings: Any, callbacks: Any) -> None:
    """Raise ConfigError unless settings map paths of keys to values, and callbacks are a list of Keras callbacks."""
    from mpt_cli.training.callbacks import check_callback

    problems = []
    if settings is not None and not (isinstance(settings, Mapping) and all(isinstance(path, str) for path in settings)):
        rule = 'must be a mapping from paths of keys, as in {"trainer.log_every_steps": 10}.'
        problems.append(Problem("settings", rule, settings))
    if not isinstance(callbacks, (list, tuple)):
        problems.append(Problem("callbacks", "must be a list of Keras callbacks.", callbacks))
    raise_problems(problems)
    for callback in callbacks:
        check_callback(callback, "callbacks")


@dataclass(frozen=True)
class RunArguments:
    """The settings that a caller asked for: `trainer` from arguments, `more` by paths of keys."""

    policy: str | None = None
    loss_scale: Any = None
    seed: int | None = 0
    run_dir: str | Path | None = None
    resume: bool | str | Path | None = None
    name: str | None = None
    trainer: dict[str, Any] = field(default_factory=dict)
    more: Mapping[str, Any] = field(default_factory=dict)


def _batch_size(batch_size: int | None, data: "DataSet") -> int:
    from mpt_cli.data.examples import Examples

    if isinstance(data.train, Examples):
        return 32 if batch_size is None else batch_size
    if batch_size is not None:
        raise config_error(
            "batch_size", "must be left out with a tf.data.Dataset or PyDataset, which is batched.", batch_size
        )
    first = data.train.first()
    assert first is not None
    return first.size


def given_settings(model: Any, asked: RunArguments) -> Settings:
    """Return the settings of the run, the given ones over the defaults; ConfigError with all problems."""
    import keras

    from mpt_cli.training.run_from_model import described_optimizer, described_policy

    plain = Settings(
        recipe=asked.name or model.name,
        description="a model of a Python program",
        model=GivenModel(class_name=type(model).__name__),
        data=GivenData(),
        optimizer=described_optimizer(model.optimizer),
        policy=described_policy(model, asked.policy),
    )
    tree = asdict(plain)
    tree |= {
        "seed": asked.seed,
        "run_dir": asked.run_dir and str(asked.run_dir),
        "resume": None if asked.resume in (None, False) else "auto" if asked.resume is True else str(asked.resume),
        "loss_scale": _loss_scale(model, asked.loss_scale),
    }
    tree["backend"]["name"] = keras.backend.backend()
    tree["trainer"] |= {"deterministic": False, **asked.trainer}  # it would change the whole process
    problems = [problem for path, value in asked.more.items() if (problem := _set(tree, path, value)) is not None]
    built = build_settings(tree, problems)
    problems += check_combinations(built, {problem.key for problem in problems})
    arguments = {"policy.name": "policy", **{f"trainer.{name}": name for name in asked.trainer}}
    raise_problems(replace(each, key=arguments.get(each.key, each.key)) for each in problems)
    return built


def _loss_scale(model: Any, given: Any) -> dict[str, Any]:
    """Return the keys of `loss_scale` that an argument stands for."""
    from mpt_cli.precision.scale_rules import ScaleRule
    from mpt_cli.training.run_from_model import rule_of

    given = rule_of(model.optimizer) if given is None else given
    if isinstance(given, ScaleRule):
        return {"mode": given.mode, **{name: getattr(given, name) for name in given.key_names()}}
    if isinstance(given, Mapping):
        return {"mode": _known_mode(given.get("mode", AUTO)), **given}
    if isinstance(given, (int, float)) and not isinstance(given, bool):
        return {"mode": "fixed", "initial_scale": given}
    return {"mode": AUTO if given is None else _known_mode(given)}


def _known_mode(name: Any) -> str:
    """Raise ConfigError where no mode has this name."""
    modes = variants_of("loss_scale")
    if isinstance(name, str) and name in modes:
        return name
    rule = f"must be one of {', '.join(modes)}, a number or a ScaleRule."
    raise config_error("loss_scale", rule, name, did_you_mean(name, modes))


def _set(tree: dict[str, Any], path: str, value: Any) -> Problem | None:
    """Put `value` at a dotted path of `tree`; return a problem if there is no such key, or an argument decides it."""
    section = path.partition(".")[0]
    if section in ("model", "data", "optimizer") or path in ("seed", "run_dir", "resume", "policy.name"):
        return Problem(path, "is decided by the arguments of fit, not by `settings`.", value)
    if path == "backend.name":
        return Problem(path, "is that of Keras, which is imported.", value, "KERAS_BACKEND chooses it before that.")
    if (problem := unknown_key_problem(path, value)) is not None:
        return problem
    *holders, name = path.split(".")
    for holder in holders:
        tree = tree.setdefault(holder, {})
    tree[name] = value
    return None


class _Started(Sink):
    """A sink that notes whether anything was left to train."""

    did = False

    def start(self, header: RunHeader) -> None:
        self.did = True


def _run(definition: Any) -> Run:
    started = _Started()
    quiet = definition.settings.logger.console == "quiet"
    with open(devnull, "w") if quiet else nullcontext(None) as stream:
        summary = train_run(definition, sys.argv, Reporters(stream, [started]))
    run = load_run(summary.run_dir)
    if not started.did:
        _take_weights(definition.model, run)
    # now that the run is saved, end the caller's program as the signal asks
    raise_for({"interrupted": SIGINT, "terminated": SIGTERM}.get(summary.status))
    return run


def _take_weights(model: Any, run: Run) -> None:
    """Load the weights of an already finished run, so that the caller's model is the trained one."""
    from mpt_cli.training.checkpoint import CheckpointStore, restore_weights

    checkpoint = CheckpointStore(run.directory.checkpoints).newest()
    if checkpoint is None:
        raise DataError(f"{run.path} is finished and its checkpoints are gone, so the model can't take its weights.")
    arrays = checkpoint.arrays.items()
    restore_weights(model, {name: array for name, array in arrays if name.startswith(("weight/", "frozen/"))})


@arguments_checked("mpt.diagnose")
def diagnose(
    model: Any,
    x: Any,
    y: Any = None,
    sample_weight: Any = None,
    *,
    after_steps: int = 0,
    batches: int = 8,
    batch_size: int | None = None,
    policy: str | None = None,
    loss_scale: Any = None,
    quiet: bool = False,
) -> "Diagnosis":
    """Measure `.layers` (ranges of gradients), `.window` (the safe scales) and `.recommended` (a scale).

    `model` is compiled; data arguments are those of Keras's `fit`. Copies of the model are measured, under `policy`,
    else in the model's own dtypes if it computes in float16, else under mixed_float16. Lost digits are measured in the
    model's own dtypes if one of them is half precision. `batches` of the data are measured after `after_steps` steps of
    training. Raises ConfigError or DataError for what can't be measured.
    """
    least = {"batches": (batches, 1), "after_steps": (after_steps, 0)}
    raise_problems(Problem(name, f"must be >= {low}.", value) for name, (value, low) in least.items() if value < low)
    from mpt_cli.diagnose.diagnosis import diagnose as examine
    from mpt_cli.samples.value_ranges import is_rounded
    from mpt_cli.training import run_from_model as given

    given.check_trainable(model)
    arguments = given.DataArguments(x, y, sample_weight)
    given.check_targets(model, arguments)
    data = given.read_given(arguments)
    size = _batch_size(batch_size, data)
    policy = policy or (None if is_rounded(model) else "mixed_float16")
    asked = RunArguments(policy, loss_scale, trainer={"batch_size": size, "save_model": False})
    settings = given_settings(model, asked)
    definition = given.ModelRunDefinition(settings, model, data, policy)
    say: Say = (lambda text: None) if quiet else partial(print, flush=True)
    with given.model_kept(model, data, size):
        return examine(definition, definition.prepare_backend(), say, after_steps, batches)
