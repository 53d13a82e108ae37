"""The checkpoints of a run: the last few and the best are kept, and the newest whole one is found again."""

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from mpt_cli.errors import DataError
from mpt_cli.training.checkpoint_files import (
    DAMAGED,
    Arrays,
    Checkpoint,
    files_of,
    name_of,
    read_checkpoint,
    read_label,
    write_checkpoint,
)

__all__ = ["Arrays", "Checkpoint", "CheckpointStore"]
LATEST, BEST = "step-", "best-"  # before the number of the step


class CheckpointStore:
    """The checkpoints in one folder. `say` receives a sentence for the user about whatever is not as it should be."""

    def __init__(self, folder: Path, keep: int = 1, say: Callable[[str], None] = print) -> None:
        self.folder, self.keep, self.say = folder, keep, say

    def save(self, checkpoint: Checkpoint) -> None:
        """Write a checkpoint and drop what it makes obsolete; OSError where it can't be, and the others stay."""
        self.folder.mkdir(exist_ok=True)
        write_checkpoint(self.folder, _name(LATEST, checkpoint.step), checkpoint)
        self._prune(checkpoint.step)

    def save_best(self, checkpoint: Checkpoint) -> None:
        """Keep `checkpoint` as the best so far; OSError where it can't be.

        The best one before it stays until a checkpoint follows: a run resumed from before this one still has its best.
        """
        self.folder.mkdir(exist_ok=True)
        write_checkpoint(self.folder, _name(BEST, checkpoint.step), checkpoint)
        last_saved = max(self.steps(), default=0)
        self._drop(BEST, [step for step in self.steps(BEST) if last_saved < step < checkpoint.step])

    def cut_back(self, step: int) -> None:
        """Forget what was saved after `step`: the run goes on from there, perhaps differently."""
        for kind in (LATEST, BEST):
            self._drop(kind, [later for later in self._begun_steps(kind) if later > step])

    def go_on_from(self, checkpoint: Checkpoint) -> None:
        """Forget what was saved after `checkpoint`, and best ones of its own step or before that it knows nothing of.

        Those are of an epoch that is trained on and ends otherwise, such as one that `max_steps` had cut short.
        """
        self.cut_back(checkpoint.step)
        known = checkpoint.position["progress"]["best"]
        self._drop(BEST, [step for step in self.steps(BEST) if not self._is_known(step, known)])

    def newest(self, before: int | None = None) -> Checkpoint | None:
        """The latest checkpoint that is whole, of a step below `before`; None when the folder has none.

        A damaged one is reported and the one before it is taken. DataError when there are checkpoints, or variables
        without a label, and none is whole: starting again from the beginning must be the user's choice.
        """
        steps = [step for step in self._begun_steps() if before is None or step < before]
        for step in reversed(steps):
            try:
                return read_checkpoint(self.folder, _name(LATEST, step))
            except DAMAGED as error:
                self.say(f"checkpoint of step {step} is damaged ({_reason(error)}); trying the one before it")
        if steps:
            raise DataError(
                f"none of the {len(steps)} checkpoints in {self.folder} is whole. Start again in another run_dir, or "
                "put an undamaged copy in place."
            )
        return None

    def best(self) -> Checkpoint:
        """The best checkpoint, which has weights only; DataError when there is none or it is damaged."""
        steps = self.steps(BEST)
        if not steps:
            raise DataError(f"{self.folder} has no best weights: trainer.monitor was null, or no epoch was finished.")
        try:
            return read_checkpoint(self.folder, _name(BEST, steps[-1]))
        except DAMAGED as error:
            raise DataError(f"the best weights in {self.folder} are damaged ({_reason(error)}).") from error

    def steps(self, kind: str = LATEST) -> list[int]:
        """The steps of the checkpoints that have both files or only the label, ascending."""
        return _steps_in(kind, self.folder.glob(f"{kind}*.json"))

    def _begun_steps(self, kind: str = LATEST) -> list[int]:
        """As `steps`, also of those that have only their variables."""
        return sorted({*self.steps(kind), *_steps_in(kind, self.folder.glob(f"{kind}*.npz"))})

    def _is_known(self, step: int, best: dict[str, Any]) -> bool:
        """Whether the best checkpoint of `step` has the value that is the best of its metric."""
        try:
            position = read_label(self.folder, _name(BEST, step))["position"]
        except DAMAGED as error:
            self.say(f"the best weights of step {step} are damaged ({_reason(error)}) and are left out")
            return False
        monitor = position["monitor"]
        return bool(position["progress"]["best"][monitor] == best.get(monitor))

    def _prune(self, newest: int) -> None:
        """Keep the last few up to `newest` and the best of them.

        Later ones belong to a past that was given up because they were damaged. What a killed run left goes too:
        variables whose label was never written, and files half written.
        """
        kept = {_name(LATEST, step) for step in [step for step in self.steps() if step <= newest][-self.keep :]}
        kept |= {_name(BEST, step) for step in [step for step in self.steps(BEST) if step <= newest][-1:]}
        for path in sorted(self.folder.iterdir()):  # .json before .npz: without its label data is no checkpoint
            is_ours = path.name.startswith((LATEST, BEST)) and path.suffix in (".json", ".npz")
            if (is_ours and name_of(path) not in kept) or path.suffix == ".partial":
                path.unlink(missing_ok=True)

    def _drop(self, kind: str, steps: list[int]) -> None:
        for step in steps:
            for path in files_of(self.folder, _name(kind, step)):
                path.unlink(missing_ok=True)


class NoStore(CheckpointStore):
    """Keeps nothing: for a process that is not the one that writes."""

    def __init__(self) -> None:
        super().__init__(Path(os.devnull))

    def save(self, checkpoint: Checkpoint) -> None:
        """Left to the first process."""

    def save_best(self, checkpoint: Checkpoint) -> None:
        """Left to the first process."""

    def cut_back(self, step: int) -> None:
        """Left to the first process."""

    def go_on_from(self, checkpoint: Checkpoint) -> None:
        """Left to the first process."""


def _steps_in(kind: str, files: Iterable[Path]) -> list[int]:
    names = {name_of(path).removeprefix(kind) for path in files}
    return sorted(int(name) for name in names if name.isdigit())


def _name(kind: str, step: int) -> str:
    return f"{kind}{step:09d}"


def _reason(error: BaseException) -> object:
    return error.strerror if isinstance(error, OSError) and error.strerror else error
