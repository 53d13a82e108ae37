"""The one family of errors a user can cause or meet, each with its exit code.

Anything raised that is not an `MptError` is a bug of ours and leaves with code 1.
"""

import signal
from dataclasses import dataclass

OK, BUG, BAD_CONFIG, BAD_DATA, NUMERICAL, MISMATCH, INTERRUPTED, TERMINATED = 0, 1, 2, 3, 4, 5, 130, 143
CODES_OF_SIGNALS: dict[int, int] = {signal.SIGINT: INTERRUPTED, signal.SIGTERM: TERMINATED}


class MptError(Exception):
    """Base of all errors with a plain sentence for the user; `exit_code` is what the process ends with."""

    exit_code = BUG


@dataclass(frozen=True)
class Problem:
    """One fault of a configuration: what must hold at `key`, what was received, what to do about it."""

    key: str
    rule: str
    received: object = None
    remedy: str = ""

    def __str__(self) -> str:
        received = "" if self.received is None else f" Received: {self.received!r}."
        remedy = f" {self.remedy}" if self.remedy else ""
        return f"{self.key}: {self.rule}{received}{remedy}"


class ConfigError(MptError):
    """Bad configuration or usage; carries every problem that was found, not only the first."""

    exit_code = BAD_CONFIG

    def __init__(self, problems: "list[Problem] | Problem") -> None:
        self.problems = [problems] if isinstance(problems, Problem) else list(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


class DataError(MptError):
    """Data or files that are missing, unreadable or unfit, and places that cannot be written."""

    exit_code = BAD_DATA


class NumericalError(MptError):
    """A run stopped by a numeric health rule."""

    exit_code = NUMERICAL


class ExpectationError(MptError):
    """A run that finished but missed what was expected of it."""

    exit_code = MISMATCH


class UserCodeError(MptError):
    """An exception inside a function of the user's; `__cause__` is theirs, shown from their frame on."""

    exit_code = BAD_CONFIG
