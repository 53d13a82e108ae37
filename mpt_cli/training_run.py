"""The story of a run on one screen: settings in, a trained model and its record out."""

import secrets
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from mpt_cli.engine import backend
from mpt_cli.engine.distribution import broadcast_from_rank0, find_process_info, is_connected
from mpt_cli.errors import DataError
from mpt_cli.files import JsonObject, remove_file, write_atomic, write_json
from mpt_cli.runs.directory import RunDirectory, summary_dict, write_summary
from mpt_cli.runs.expectations import applicable_expectations, expectation_lines
from mpt_cli.runs.provenance import code_differences, collect_environment, known_environment
from mpt_cli.runs.resume import (
    check_checkpoints,
    check_resumable,
    find_run,
    finished_summary,
    past_attempts,
    stored_settings,
    truncate_telemetry,
    with_stored_choices,
)
from mpt_cli.settings.load import resolved_yaml
from mpt_cli.settings.overrides import keys_given
from mpt_cli.settings.schema import Settings
from mpt_cli.signals import ForcedEnd, at_forced_end
from mpt_cli.telemetry.record_types import Summary
from mpt_cli.telemetry.sink_interface import Sink, Telemetry
from mpt_cli.telemetry.sinks import build_telemetry
from mpt_cli.telemetry.trackers import chosen_trackers
from mpt_cli.training.checkpoint import Checkpoint, CheckpointStore, NoStore
from mpt_cli.training.run_from_settings import RunDefinition
from mpt_cli.training.summary_and_exit_code import (
    summarise,
    summarise_cut,
    summarise_failure,
)

if TYPE_CHECKING:
    from mpt_cli.training.build_run_parts import BuildCheck
    from mpt_cli.training.session import Session


@dataclass(frozen=True)
class Start:
    """The start of a run: in a new directory, or in an earlier one at `checkpoint` (None: at its beginning)."""

    definition: RunDefinition
    run: RunDirectory
    attempt: int = 1
    checkpoint: Checkpoint | None = None
    changes: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def settings(self) -> Settings:
        return self.definition.settings

    @property
    def position(self) -> tuple[int, int]:
        """Return the steps and whole epochs that are already done."""
        if self.checkpoint is None:
            return 0, 0
        return self.checkpoint.step, int(self.checkpoint.position["progress"]["epochs_completed"])


@dataclass(frozen=True)
class Reporters:
    """The receivers of reports on a run: the console on `stream` (None: standard output), and `sinks` of the caller."""

    stream: TextIO | None = None
    sinks: Sequence[Sink] = ()


def train(
    settings: Settings, command_line: Sequence[str] = (), reporters: Reporters = Reporters(), notes: Sequence[str] = ()
) -> Summary:
    """Train the run that `settings` describe, from start to end. See `train_run`.

    `command_line` goes into the record, and decides whether the recipe's expectations apply to this run. `notes` are
    printed above the header."""
    own = replace(settings, expect=applicable_expectations(settings.expect, keys_given(command_line)))
    return train_run(RunDefinition(own), command_line, reporters, notes)


def train_run(
    definition: RunDefinition, command_line: Sequence[str], reporters: Reporters, notes: Sequence[str] = ()
) -> Summary:
    """Train what is defined, once; every run happens here.

    Raises MptError if the run can't start, and then leaves no files. A run that started ends with a summary, also if a
    health rule, a signal or an error ends it: `exit_code` says how.
    """
    settings = definition.settings
    chosen_trackers(settings.logger)  # before a run directory exists
    earlier = find_run(settings)
    if earlier is not None:
        with earlier.lock():
            if (done := finished_summary(earlier, settings)) is not None:
                print(f"{earlier.path} is finished: nothing is left to train", file=reporters.stream or sys.stdout)
                return done
            start = _continue(earlier, definition)
            start.notes[:0] = notes
            return _train_from(start, command_line, reporters)
    settings, first = with_drawn_seed(settings), [*notes]
    first += ["resume=auto: there is no unfinished run to continue, so this is a new one"] if settings.resume else []
    with RunDirectory.begin(settings.run_dir, settings.recipe) as run:
        return _train_from(Start(definition.with_settings(settings), run, notes=first), command_line, reporters)


def with_drawn_seed(settings: Settings) -> Settings:
    """Return `settings`, with a drawn seed if it is null, so that the record has the seed that was used."""
    if settings.seed is not None:
        return settings
    return replace(settings, seed=secrets.randbelow(2**32))


def _continue(run: RunDirectory, definition: RunDefinition) -> Start:
    settings = with_stored_choices(definition.settings, stored_settings(run, definition.settings))
    changes = check_resumable(run, settings)
    notes: list[str] = []
    checkpoint = CheckpointStore(run.checkpoints, 1, notes.append).newest()
    check_checkpoints(run, checkpoint)
    notes.append(
        f"continuing at step {checkpoint.step} of {run.path}"
        if checkpoint
        else f"{run.path} has no checkpoint yet, so it starts from the beginning"
    )
    notes += [f"changed since: {key} was {old!r}, is {new!r}" for key, (old, new) in changes.items()]
    if "loss_scale.initial_scale" in changes:
        notes.append("a loss scale that moves continues from its last value")
    return Start(definition.with_settings(settings), run, len(past_attempts(run)) + 1, checkpoint, changes, notes)


def _train_from(start: Start, command_line: Sequence[str], reporters: Reporters) -> Summary:
    start.definition.check_present()
    telemetry = build_telemetry(start.run, start.settings.logger, reporters.stream)
    with telemetry, at_forced_end(lambda _: telemetry.close()):
        telemetry.sinks += tuple(reporters.sinks)
        telemetry.message(f"{start.settings.recipe}: loading {start.settings.backend.name} and data")
        session = _prepare(start, telemetry)
        with telemetry.busy("recording the environment"):  # asks git and the driver
            environment = _environment(start, session, command_line)
        for line in code_differences(known_environment(start.run), environment):
            telemetry.message(f"changed since: {line}")
        # from now on a signal ends the run with a summary
        with session.interruption, at_forced_end(partial(_cut_short, session, start.run, telemetry)):
            _write_record(start, session, environment)
            header = session.header(start.run.path, start.attempt)
            telemetry.start(header)
            return _run(session, start.run, telemetry)


def _cut_short(session: "Session", run: RunDirectory, telemetry: Telemetry, end: ForcedEnd) -> None:
    """Write the summary of a run that is ended from outside the training loop; its last checkpoint stays."""
    summary = summarise_cut(session, run.path, end)
    write_summary(run.summary_json, summary)
    telemetry.finish(summary)


def _prepare(start: Start, telemetry: Telemetry) -> "Session":
    with telemetry.busy(f"importing {start.settings.backend.name}"):
        platform = start.definition.prepare_backend()  # chooses the Keras backend: before anything that imports it
    if platform.process_info is not None:
        broadcast_from_rank0({"trains": True, "resume": start.checkpoint and str(start.run.path.absolute())})
    from mpt_cli.training.session import prepare

    store = CheckpointStore(start.run.checkpoints, start.settings.trainer.keep_checkpoints, telemetry.message)
    session = prepare(start.definition, platform, telemetry, store)
    if start.checkpoint is not None:
        # raises for a checkpoint of another model: then the files stay as they are
        session.resume(start.checkpoint)
        if start.changes:
            session.callbacks.ended = ""  # by a callback: more training was asked for
    telemetry.tally.add(truncate_telemetry(start.run, *start.position))
    for note in start.notes:
        telemetry.message(note)
    return session


def follow(settings: Settings) -> None:
    """Take part in a run of several processes, in each but the first, and write nothing."""
    platform = backend.prepare_backend(settings)
    told = broadcast_from_rank0(None)
    if not told["trains"]:
        return
    from mpt_cli.training.session import prepare

    telemetry = Telemetry([])
    session = prepare(RunDefinition(settings), platform, telemetry, NoStore())
    if told["resume"] is not None:
        run = RunDirectory.open(told["resume"])
        checkpoint = CheckpointStore(run.checkpoints).newest()
        if checkpoint is None:
            raise DataError(f"{run.path} has no checkpoint here: all processes of a run must see the same run_dir.")
        session.resume(checkpoint)
    session.finish(session.fit(), None)


@contextmanager
def others_released(settings: Settings) -> Iterator[None]:
    """Release the other processes if the first one ends before they are connected.

    Otherwise they would wait for JAX's five minutes.
    """
    try:
        yield
    except Exception:
        with suppress(Exception):  # the error that ended the run matters more
            _release(settings)
        raise
    _release(settings)


def _release(settings: Settings) -> None:
    if find_process_info(settings) is not None and not is_connected():
        backend.prepare_backend(settings)
        broadcast_from_rank0({"trains": False})


def check_build(settings: Settings) -> "BuildCheck":
    """Prepare a run as `train` does, without any step; raise what `train` would raise before its first step, except for
    an existing run directory.
    """
    definition = RunDefinition(with_drawn_seed(settings))
    chosen_trackers(settings.logger)
    definition.check_present()
    platform = definition.prepare_backend()
    from mpt_cli.training.build_run_parts import describe_build
    from mpt_cli.training.session import prepare

    with tempfile.TemporaryDirectory(prefix="mpt-check-") as folder:  # the {run_dir} of callbacks
        store = CheckpointStore(Path(folder) / "checkpoints")
        return describe_build(prepare(definition, platform, Telemetry([]), store).parts)


def _environment(start: Start, session: "Session", command_line: Sequence[str]) -> JsonObject:
    """Return the content of environment.json."""
    parts, settings = session.parts, start.settings
    facts = {
        "backend": parts.platform.backend,
        "jit_compile": parts.jit_compile,
        "devices": parts.platform.devices,
        "seed": settings.seed,
        "dataset_fingerprint": parts.data.fingerprint,
        "policy": settings.policy.name,
        "distribute": settings.distribute.name,
        "examples": parts.data.counts,  # of train and validation; None where not known
        "keras": parts.platform.keras,  # floatx, epsilon and image_data_format of all of Keras
    }
    environment = collect_environment(facts, list(command_line) or None)
    attempt = {
        "attempt": start.attempt,
        "started_at": environment["started_at"],
        "command_line": environment["command_line"],
        "from_step": start.position[0],
        "earlier_seconds": session.stopwatch.earlier_seconds,
        "changes": start.changes,
    }
    return {**environment, "attempts": [*past_attempts(start.run), attempt]}


def _write_record(start: Start, session: "Session", environment: JsonObject) -> None:
    write_json(start.run.environment_json, environment)
    remove_file(start.run.summary_json)  # of an earlier attempt: a run that trains again has not ended
    # where it ran is not part of what it was, and what XLA compiled is: the file can be run again as it is
    trainer = replace(start.settings.trainer, jit_compile=session.parts.jit_compile)
    policy = session.parts.settings.policy  # as it was chosen for the layers
    again = replace(start.settings, run_dir=None, resume=None, trainer=trainer, policy=policy)
    write_atomic(start.run.config_yaml, resolved_yaml(again))


def _run(session: "Session", run: RunDirectory, telemetry: Telemetry) -> Summary:
    try:
        summary = summarise(session, run.path, session.finish(session.fit(), run.model_keras))
        telemetry.flush()  # a summary says that the record is whole
        write_summary(run.summary_json, summary)
    except BaseException as error:
        summary = summarise_failure(session, run.path, error)
        with suppress(DataError):  # the error that ended the run matters more
            write_summary(run.summary_json, summary)
        telemetry.finish(summary)
        raise
    if summary.status == "finished":
        for line in expectation_lines(summary_dict(summary), session.parts.settings.expect):
            telemetry.message(line)
    telemetry.finish(summary)
    return summary
