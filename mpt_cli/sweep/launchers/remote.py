"""What a proxy knows of a job that runs elsewhere."""

from typing import Protocol


class Lost(Exception):
    """The job ended without an exit code: its machine went away, or it never began. The message says what is known."""


class Remote(Protocol):
    """A job that a library was given."""

    def poll(self) -> int | None:
        """Waits a moment; its exit code once it has ended, negative for a signal. Lost when there will be none."""

    def stop(self) -> None:
        """Ask it to save and end."""
