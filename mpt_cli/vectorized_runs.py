"""Several jobs of a sweep in one process, as `mpt sweep --vectorize` starts it (`python -m mpt_cli.vectorized_runs
FILE`): each a run like any other, with directory, record and exit code of its own, by compiled programs that
they share.
"""

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpt_cli.cli import explain
from mpt_cli.engine.backend import prepare_backend
from mpt_cli.errors import OK, DataError
from mpt_cli.runs.directory import note_holder, read_json, take_lock, write_json
from mpt_cli.runs.expectations import own_expectations
from mpt_cli.runs.provenance import code_state
from mpt_cli.settings import load_settings
from mpt_cli.settings.limits import open_to_append
from mpt_cli.settings.overrides import keys_given
from mpt_cli.settings.schema import Settings
from mpt_cli.signals import SIGNAL_EXIT_CODES, Interruption, Watch, signal_of
from mpt_cli.sweep.vectorized import GroupFile, Member, with_numbers
from mpt_cli.training.program import MemberProgram
from mpt_cli.training_run import Reporters, train_program

if TYPE_CHECKING:
    from mpt_cli.engine.ensemble import Ensemble


@dataclass
class Group:
    """The jobs of one process. `first` are the settings of the first, of which those of the others differ in numbers;
    `code` is what git said of it when the process began, which imports it once for all.

    `ends` are exit code and seconds of those that have ended, by their names; they stand in a file at once.
    """

    file: GroupFile
    first: Settings
    ensemble: "Ensemble"
    code: dict[str, Any]
    ends: dict[str, dict[str, Any]] = field(default_factory=dict)

    def train(self, member: Member) -> None:
        """Never raises: what ends one job leaves the others alone."""
        began = time.monotonic()
        with Path(member.log).open("a", encoding="utf-8", errors="backslashreplace") as stream:
            try:
                code = train_program(self._program(member), member.command, Reporters(stream)).exit_code
            except (KeyboardInterrupt, SystemExit) as stop:
                number = signal_of(stop)
                code = SIGNAL_EXIT_CODES[number] if number is not None else int(str(stop))
            except Exception as error:
                with redirect_stderr(stream):
                    code = explain(error, ["train"])
        self.ends[member.name] = {"exit_code": code, "seconds": round(time.monotonic() - began, 3)}
        write_json(Path(self.file.ends), {"jobs": self.ends})

    def _program(self, member: Member) -> MemberProgram:
        settings = replace(with_numbers(self.first, member.numbers), run_dir=member.run_dir, resume="auto")
        others = [other.name for other in self.file.members if other is not member]
        own = replace(settings, expect=own_expectations(settings.expect, keys_given(member.command)))
        return MemberProgram(own, ensemble=self.ensemble, companions=others, code=self.code)


def train_together(file: GroupFile) -> int:
    """Trains the jobs to their ends; the exit code is that of a signal, where one ended them, else 0."""
    first, *others = file.members
    with ExitStack() as stack, Interruption() as interruption:
        for member in others:  # whoever started this process has given it the lock of the first
            stack.enter_context(_held(Path(member.lock)))
        settings = load_settings(first.words)
        prepare_backend(settings if settings.seed is not None else replace(settings, seed=0))
        from mpt_cli.engine.ensemble import Ensemble

        group = Group(file, settings, Ensemble(len(file.members), file.at_once), code_state())
        works = [lambda member=member: group.train(member) for member in file.members]
        group.ensemble.run(works, lambda: interruption.requested is not None)
    return SIGNAL_EXIT_CODES[interruption.requested] if interruption.requested else OK


@contextmanager
def _held(lock: Path) -> Iterator[None]:
    """A sweep that finds it held waits for the end of the job."""
    with open_to_append(lock) as file:
        if not take_lock(file, wait=True):
            raise DataError(f"another process is writing by {lock}. Wait for it, or stop it first.")
        try:
            note_holder(file)
        except OSError as error:
            raise DataError(f"{lock} can't be written: {error.strerror}.") from error
        yield


def main(arguments: Sequence[str]) -> int:
    """The exit code; what is wrong before any job begins is said as `mpt train` says it."""
    try:
        return train_together(GroupFile.read(read_json(Path(arguments[0]))))
    except Exception as error:
        return explain(error, ["train"])


if __name__ == "__main__":
    with Watch() as watch:
        watch.leave(main(sys.argv[1:]))
