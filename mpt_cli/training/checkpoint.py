"""Checkpoints: the file of each, which of them are kept, the variables in them, and when one is saved.

`NAME.npz` holds every variable, and the label `label.json` with the position of the run; a zip file has a checksum of
each of them. It is made under another name; renaming it makes it a checkpoint.
"""

import errno
import hashlib
import json
import os
import shutil
import time
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from mpt_cli.errors import DataError, Say
from mpt_cli.files import open_file, remove_file, rename_durably, strict_json, write_durably
from mpt_cli.settings.schema import TrainerSettings

if TYPE_CHECKING:
    from mpt_cli.training.run_record import RunRecord

SCHEMA_VERSION = 1
SPARE_BYTES = 2**16  # for the label and what the file system keeps for itself
LABEL = "label.json"
NamedArrays = dict[str, NDArray[Any]]
NamedVariables = dict[str, Any]


@dataclass(frozen=True)
class Checkpoint:
    """Variables by name, and the position of the run: a JSON object."""

    step: int
    arrays: NamedArrays
    position: dict[str, Any]


def write_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Write the file whole; OSError without room or permission, and then an earlier file stays."""
    size, free = sum(array.nbytes for array in checkpoint.arrays.values()), shutil.disk_usage(path.parent).free
    if free < size + SPARE_BYTES:  # before the disk is full, to leave room for the run's other files
        needed = f"{os.strerror(errno.ENOSPC)}: {size / 2**20:.1f} MiB needed, {free / 2**20:.1f} MiB free"
        raise OSError(errno.ENOSPC, needed)
    partial = path.with_name(f".{path.name}.partial")
    try:
        write_durably(partial, lambda file: _fill(file, checkpoint))
        rename_durably(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def _fill(file: BinaryIO, checkpoint: Checkpoint) -> None:
    arrays: dict[str, Any] = checkpoint.arrays
    dtypes = {name: str(array.dtype) for name, array in arrays.items()}
    label = {
        "schema_version": SCHEMA_VERSION,
        "step": checkpoint.step,
        "dtypes": dtypes,
        "position": checkpoint.position,
    }
    np.savez(file, **arrays)
    with zipfile.ZipFile(file, "a") as packed:
        packed.writestr(LABEL, strict_json(label))


def read_checkpoint(path: Path) -> Checkpoint:
    """Read and check a checkpoint; where it is not whole, any Exception with the reason."""
    import ml_dtypes  # noqa: F401  # NumPy then knows bfloat16, of which its files hold the bits without the name

    with open_file(path) as file, np.load(file, allow_pickle=False) as stored:
        if (broken := stored.zip.testzip()) is not None:
            raise ValueError(f"{broken} in it does not match its checksum")
        label = json.loads(stored[LABEL])
        if label["schema_version"] != SCHEMA_VERSION:
            raise ValueError(f"it has schema_version {label['schema_version']}, this mpt reads {SCHEMA_VERSION}")
        if f"-{label['step']:09d}" not in path.name:
            raise ValueError("it is another checkpoint")
        arrays = {name: stored[name].view(np.dtype(dtype)) for name, dtype in label["dtypes"].items()}
    return Checkpoint(label["step"], arrays, label["position"])


@dataclass
class CheckpointStore:
    """The checkpoints in one folder. `say` receives a sentence for the user about every problem."""

    folder: Path
    keep: int = 1
    say: Say = print

    def save(self, checkpoint: Checkpoint) -> None:
        """Write a checkpoint and drop what it makes obsolete; OSError where it can't be, and the others stay."""
        self.folder.mkdir(exist_ok=True)
        write_checkpoint(self._file(checkpoint.step), checkpoint)
        self._prune(checkpoint.step)

    def cut_back(self, step: int) -> None:
        """Delete what was saved after `step`: the run continues from there, perhaps differently."""
        self._drop([later for later in self.steps() if later > step])

    def newest(self, before: int | None = None) -> Checkpoint | None:
        """Return the latest checkpoint that is whole, of a step below `before`; None when the folder has none.

        A damaged one is reported and the one before it is taken. DataError when there are checkpoints and none is
        whole: starting again from the beginning must be the user's choice.
        """
        steps = [step for step in self.steps() if before is None or step < before]
        for step in reversed(steps):
            try:
                return read_checkpoint(self._file(step))
            except Exception as error:  # whatever reading a damaged file can meet
                self.say(f"checkpoint of step {step} is damaged ({_reason(error)}); trying the one before it")
        if steps:
            raise DataError(
                f"none of the {len(steps)} checkpoints in {self.folder} is whole. Start again in another run_dir, or "
                "put an undamaged copy in place."
            )
        return None

    def steps(self) -> list[int]:
        """Return the steps of the checkpoints, ascending."""
        names = [path.stem.removeprefix("step-") for path in self.folder.glob("step-*.npz")]
        return sorted(int(name) for name in names if name.isdigit())

    def _prune(self, newest: int) -> None:
        """Keep the last few up to `newest`.

        Later checkpoints were damaged, and the run continued from an earlier one. Half-written files of a killed run
        are removed too.
        """
        files = [step for step in self.steps() if not self._file(step).is_dir()]
        kept = [step for step in self.steps() if step <= newest][-self.keep :]
        self._drop([step for step in files if step not in kept])
        for path in self.folder.glob("*.partial"):
            remove_file(path)

    def _drop(self, steps: list[int]) -> None:
        for step in steps:
            remove_file(self._file(step))

    def _file(self, step: int) -> Path:
        return self.folder / f"step-{step:09d}.npz"


class NoStore(CheckpointStore):
    """A store that keeps nothing, for a process that does not write."""

    def __init__(self) -> None:
        super().__init__(Path(os.devnull))

    def save(self, checkpoint: Checkpoint) -> None:
        """Save nothing: the first process saves."""

    def cut_back(self, step: int) -> None:
        """Delete nothing: the first process deletes."""


def _reason(error: BaseException) -> object:
    return error.strerror if isinstance(error, OSError) and error.strerror else error


SCALE_PREFIX = "scale/"
CALLBACK_PREFIX = "callback/"  # of what is no variable


def collect_state(model: Any) -> NamedArrays:
    """Copy every variable that a step reads: weights, statistics, seed generators, optimizer, scale, metrics."""
    return {name: np.asarray(variable.numpy()) for name, variable in _variables(model).items()}


def fingerprint_weights(model: Any) -> str:
    """Return 16 letters of a digest of what a model computes with (weights, statistics, seed generators): one bit more
    or less changes them."""
    return digest_of({name: np.asarray(each.numpy()) for name, each in _model_variables(model).items()})[:16]


def digest_of(arrays: NamedArrays, text: str = "") -> str:
    """Return the SHA-256 of `text` and of the names, dtypes, shapes and bits of `arrays`."""
    digest = hashlib.sha256(text.encode())
    for name, array in sorted(arrays.items()):
        digest.update(f"{name} {array.dtype} {array.shape} ".encode() + array.tobytes())
    return digest.hexdigest()


def restore_weights(model: Any, arrays: NamedArrays) -> None:
    """Load the weights of a checkpoint, perhaps from a file, into the same model; DataError for another model."""
    _assign(_model_variables(model), arrays)


def restore_state(model: Any, arrays: NamedArrays, other_scaling: bool = False) -> None:
    """Put `arrays` into the model's variables.

    With `other_scaling` the loss scale and its counters keep their fresh values, because the mode is another one now.
    DataError when the arrays are those of another model or optimizer; nothing is changed then.
    """
    left_out = (CALLBACK_PREFIX, SCALE_PREFIX) if other_scaling else CALLBACK_PREFIX
    both = _variables(model), arrays
    _assign(*({name: each[name] for name in each if not name.startswith(left_out)} for each in both))


def _assign(variables: NamedVariables, arrays: NamedArrays) -> None:
    for name in sorted(set(variables) ^ set(arrays)):
        where = "this run" if name in variables else "the checkpoint"
        raise DataError(f"the checkpoint is of another model or optimizer: only {where} has variable {name!r}.")
    for name, there in arrays.items():
        here = np.asarray(variables[name].numpy())
        if (here.dtype, here.shape) != (there.dtype, there.shape):
            raise DataError(
                f"the checkpoint is of another model or policy: variable {name!r} is {here.dtype} {here.shape} here "
                f"and {there.dtype} {there.shape} there."
            )
    for name, variable in variables.items():
        variable.assign(arrays[name])


def _variables(model: Any) -> NamedVariables:
    from mpt_cli.precision.train_step import (  # imports Keras, as this file must not
        metric_variables,
        optimizers_of,
    )

    inner: NamedVariables = {}
    scales: NamedVariables = {}
    for index, (attribute, optimizer) in enumerate(optimizers_of(model).items()):
        of = f"{attribute}/" if index else ""  # a run of one optimizer has no need of its name
        inner |= _numbered(f"optimizer/{of}".rstrip("/"), optimizer.inner_optimizer.variables)
        state = optimizer.scale_state
        scales |= {f"{SCALE_PREFIX}{of}{name}": variable for name, variable in (state.by_name if state else {}).items()}
    return _model_variables(model) | inner | _numbered("metric", metric_variables(model)) | scales


def _model_variables(model: Any) -> NamedVariables:
    """Return the model's variables by name.

    Weights are those that were made to be trained: which layers are frozen does not change their names.
    """
    from mpt_cli.precision.keras_internals import made_to_be_trained, untracked_variables  # imports Keras

    weights = made_to_be_trained(model)
    ids = {id(variable) for variable in weights}
    fixed = [v for v in model.variables if id(v) not in ids]
    return _numbered("weight", weights) | _numbered("frozen", fixed) | _numbered("state", untracked_variables(model))


def _numbered(kind: str, variables: Any) -> NamedVariables:
    """Name them by number within their kind: paths of Keras variables are not unique and change between processes."""
    return {f"{kind}/{i}": variable for i, variable in enumerate(variables)}


MOST_SAVING_SHARE = 0.02  # saving by time may cost this share of it


def check_data(made: str, before: str, now: str) -> None:
    """Raise DataError where what is called `made` was made on other data, by their fingerprints."""
    if before != now:
        raise DataError(
            f"{made} was made on other data (fingerprint {before[:12]}…, now {now[:12]}…). Restore that data, or start "
            "a new run."
        )


@dataclass
class Checkpointer:
    """Saves what `take` returns, of the run that `record` is of, when its settings say so. If a save fails, the user is
    told and training continues; the checkpoint before it stays."""

    store: CheckpointStore
    settings: TrainerSettings
    record: "RunRecord"
    take: Callable[[], Checkpoint]
    saved_step: int | None = None
    failure: str | None = None  # why the latest attempt to save failed
    _saved_position: tuple[int, int] | None = None
    _saved_at: float = field(default_factory=time.monotonic)
    _save_seconds: float = 0.0

    def resume(self, checkpoint: Checkpoint) -> None:
        """Take the run up at `checkpoint`."""
        self.store.cut_back(checkpoint.step)
        self.saved_step = checkpoint.step
        self._saved_position = checkpoint.step, checkpoint.position["progress"]["step_in_epoch"]

    def steps_until_due(self, seen: int) -> int | None:
        """Return the steps to the next checkpoint by steps, so that a call into the compiled loop ends there."""
        every = self.settings.checkpoint_every_steps
        return None if every is None else every - seen % every

    def save_if_due(self) -> None:
        """Save where the settings say that it is time."""
        steps, minutes = self.settings.checkpoint_every_steps, self.settings.checkpoint_every_minutes
        by_steps = steps is not None and self.record.counters.seen % steps == 0
        wait = None if minutes is None else max(60.0 * minutes, self._save_seconds / MOST_SAVING_SHARE)
        if by_steps or (wait is not None and time.monotonic() - self._saved_at >= wait):
            self.save()

    def save(self) -> None:
        """Save now, unless this step is saved already or has bad values: the last good checkpoint stays the latest."""
        counters = self.record.counters
        here = counters.seen, self.record.progress.step_in_epoch
        if self._saved_position == here:
            return
        started = time.monotonic()
        try:
            self.record.telemetry.flush()  # telemetry up to here must be on disk before a checkpoint says that it is
            if not counters.is_sound:
                raise DataError("the loss or a gradient of the last applied step was not finite")
            self.store.save(self.take())
        except (OSError, DataError) as error:
            self._note_failure(error)
        else:
            if self.failure is not None:
                self.store.say("checkpoints can be written again")
            self.failure, self.saved_step, self._saved_position = None, here[0], here
        self._saved_at = time.monotonic()
        self._save_seconds = self._saved_at - started

    def _note_failure(self, error: OSError | DataError) -> None:
        """Say when saving begins to fail."""
        reason = str(_reason(error))
        if self.failure is None:
            before = self.saved_step
            kept = "there is none before it" if before is None else f"that of step {before} is kept"
            self.store.say(f"a checkpoint could not be written ({reason}); {kept}, training continues")
        self.failure = reason
