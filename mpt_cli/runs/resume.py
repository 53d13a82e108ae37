"""Continue an earlier run: find it, check that the settings allow it and that work is left, and cut its telemetry files
back to the checkpoint.
"""

from dataclasses import asdict, replace
from typing import Any, TypeVar

from mpt_cli.errors import DataError, Problem, raise_problems
from mpt_cli.files import strict_json, write_atomic
from mpt_cli.redaction import REDACTED
from mpt_cli.runs.directory import RunDirectory, default_parent, read_whole_lines
from mpt_cli.runs.provenance import flatten, known_environment
from mpt_cli.settings.model_data_optimizer_keys import (
    Builder,
    DataSettings,
    Loader,
    ModelSettings,
)
from mpt_cli.settings.overrides import format_override
from mpt_cli.settings.python_references import is_same_function
from mpt_cli.settings.schema import PolicySettings, Settings
from mpt_cli.settings.search_path import expanded
from mpt_cli.settings.yaml_reader import load_mapping
from mpt_cli.telemetry.record_types import Event, Summary, record_from
from mpt_cli.training.checkpoint import Checkpoint

# What decides the variables, the examples or their order can't change in the middle of a run.
FIXED_KEYS = (
    "seed",
    "model.",
    "data.",
    "backend.name",
    "distribute.name",
    "distribute.devices",
    "optimizer.name",
    "optimizer.use_ema",
    "optimizer.gradient_accumulation_steps",
    "trainer.batch_size",
    "trainer.shuffle",
)
UNIMPORTANT_KEYS = (
    "run_dir",
    "resume",
    "recipe",
    "description",
    "requires",
    "expect.",
    "logger.",
)


def find_run(settings: Settings) -> RunDirectory | None:
    """Return the run that `resume` means: the directory it names, or with `auto` the run to continue; None if there is
    none.

    `auto` takes `run_dir` if it is given, else the newest directory of the recipe; its settings must fit and it must
    not have finished. DataError if a named directory is no run.
    """
    if settings.resume is None:
        return None
    if settings.resume != "auto":
        return _check_has_checkpoints(RunDirectory.open(settings.resume))
    if settings.run_dir is not None:
        named = RunDirectory(expanded(settings.run_dir))
        if named.config_yaml.is_file():
            return _check_has_checkpoints(named)
        if named.path.is_dir():
            named.clear_unstarted()
        return None
    for run in map(RunDirectory, sorted(default_parent(settings.recipe).glob("*"), reverse=True)):
        is_none = not run.config_yaml.is_file() or is_recorded(run) or run.ending.get("status") == "finished"
        if not (is_none or forbidden_changes(stored_settings(run, settings), settings)):
            return run
    return None


def is_recorded(run: RunDirectory) -> bool:
    """Return whether another program trained the run and mpt only recorded its steps."""
    return "recorded_by" in known_environment(run)


def _check_has_checkpoints(run: RunDirectory) -> RunDirectory:
    if is_recorded(run):
        raise DataError(
            f"{run.path} can't be resumed: mpt only recorded it while another program trained, so it has no "
            "checkpoints. Run that program again."
        )
    return run


def stored_settings(run: RunDirectory, given: Settings | None = None) -> Settings:
    """Return the settings of the run. Secrets, which its record leaves out, are taken from `given`."""
    from mpt_cli.settings.load import load_settings

    stored = load_settings([f"conf={run.config_yaml}", *(_secrets_as_overrides(run, given) if given else ())])
    if stored.seed is None:
        raise DataError(f"{run.config_yaml} is damaged: seed must be the number that the run used, not null.")
    return stored


def _secrets_as_overrides(run: RunDirectory, given: Settings) -> list[str]:
    """Return the values that the record leaves out, as overrides."""
    now = flatten(asdict(given))
    left_out = [key for key, value in flatten(load_mapping(run.config_yaml)).items() if REDACTED in str(value)]
    return [format_override(key, now[key]) for key in left_out if isinstance(now.get(key), str)]


def with_stored_choices(settings: Settings, stored: Settings) -> Settings:
    """Return `settings` with the choices made when the run started, where they leave them open: seed, jit_compile and
    the policies of layers.
    """
    seed = stored.seed if settings.seed is None else settings.seed
    asked = settings.trainer.jit_compile
    jit_compile = stored.trainer.jit_compile if asked == "auto" else asked
    policy = _stored_policy(settings.policy, stored.policy)
    model, data = _with_stored_function(settings.model, stored.model), _with_stored_function(settings.data, stored.data)
    trainer = replace(settings.trainer, jit_compile=jit_compile)
    return replace(settings, seed=seed, policy=policy, model=model, data=data, trainer=trainer)


_Named = TypeVar("_Named", bound=ModelSettings | DataSettings)


def _with_stored_function(asked: _Named, stored: _Named) -> _Named:
    """Return `asked` with the name of the function in the record, if it is the same function.

    The record holds the path of a module beside the recipe, which has another relative path from another folder.
    """
    key = {Builder: "builder", Loader: "loader"}.get(type(asked))
    if key is None or type(asked) is not type(stored):
        return asked
    is_same = is_same_function(getattr(asked, key), getattr(stored, key))
    return replace(asked, **{key: getattr(stored, key)}) if is_same else asked


def _stored_policy(asked: PolicySettings, stored: PolicySettings) -> PolicySettings:
    """Return what auto_float16 resolved to: the record has mixed_float16 with overrides, the user's last.

    If the record has only the user's overrides, choose again: the run may have been plain mixed_float16.
    """
    more = len(stored.overrides) - len(asked.overrides)
    is_of_it = asked.is_auto and stored.name == asked.base and stored.head == asked.head and more > 0
    return stored if is_of_it and [*stored.overrides.items()][more:] == [*asked.overrides.items()] else asked


def changed_settings(before: Settings, now: Settings) -> dict[str, tuple[Any, Any]]:
    """Return the keys whose values differ and matter, with old and new value; of another mode, those of both."""
    now = with_stored_choices(now, before)
    old, new = flatten(asdict(before)), flatten(asdict(now))
    of_one_mode = {key for key in old.keys() ^ new.keys() if key.startswith("loss_scale.")}
    return {
        key: (old.get(key), new.get(key))
        for key in sorted((old.keys() | new.keys()) - of_one_mode)
        if old.get(key) != new.get(key) and not key.startswith(UNIMPORTANT_KEYS)
    }


def forbidden_changes(before: Settings, now: Settings) -> list[Problem]:
    """Return a problem for each changed key that prevents resuming."""
    return [
        Problem(
            key,
            "can't change in the middle of a run.",
            new,
            f"The run was started with {old!r}; give that, or start a new run.",
        )
        for key, (old, new) in changed_settings(before, now).items()
        if key.startswith(FIXED_KEYS)
    ]


def check_resumable(run: RunDirectory, settings: Settings) -> dict[str, tuple[Any, Any]]:
    """Return the allowed changes against the run's settings; ConfigError with all that are not allowed."""
    before = stored_settings(run, settings)
    raise_problems(forbidden_changes(before, settings))
    return changed_settings(before, settings)


def past_attempts(run: RunDirectory) -> list[dict[str, Any]]:
    """Return the attempts so far from environment.json, oldest first."""
    return list(known_environment(run).get("attempts", []))


def finished_summary(run: RunDirectory, settings: Settings) -> Summary | None:
    """Return the summary of a finished run that has nothing left to do under `settings`; None where work is left."""
    found, trainer = run.ending, settings.trainer
    if found.get("status") != "finished":
        return None
    whole = found["epochs_completed"] >= trainer.epochs or bool(found.get("ended_early"))
    is_done = whole or (trainer.max_steps is not None and found["steps_seen"] >= trainer.max_steps)
    return record_from(Summary, found) if is_done and not check_resumable(run, settings) else None


def check_checkpoints(run: RunDirectory, found: Checkpoint | None) -> None:
    """Raise DataError when the run had checkpoints and they are gone: starting over must be the user's choice."""
    if found is None and any(attempt.get("from_step") for attempt in past_attempts(run)):
        raise DataError(
            f"the checkpoints that {run.path} had are gone. Restore them, or start again in another run_dir."
        )


def truncate_telemetry(run: RunDirectory, step: int, epochs_completed: int) -> list[Event]:
    """Remove the lines after the checkpoint from the telemetry files; return the events that stay.

    The steps after it run again and write their lines again, so that there are neither gaps nor doubles. DataError if a
    file is damaged.
    """
    paths = run.metrics_jsonl, run.events_jsonl, run.layers_jsonl
    for path, lines in [(path, read_whole_lines(path)) for path in paths]:  # all are read before any is cut
        kept = [  # without the end of an epoch that was not completed
            line
            for line in lines
            if line["step"] <= step and not (line.get("epoch_end") and line["epoch"] > epochs_completed)
        ]
        if len(kept) < len(lines):
            write_atomic(path, "".join(f"{strict_json(line)}\n" for line in kept))
    return [record_from(Event, event) for event in read_whole_lines(run.events_jsonl)]
