"""Commands on a Ray cluster, or on a Ray of one's own here. Imports ray, an extra, once it runs."""

import logging
import os
import secrets
import signal
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType
from typing import Any, Self

from mpt_cli.errors import DataError
from mpt_cli.jobs.executor import Command, Executor, LocalExecutor, Lost, Share
from mpt_cli.signals import SIGNALS

_KILL_SECONDS = 2.0  # for an actor to end its command; one that does not answer is ended with its process
_RESTARTS = 3  # of an actor whose machine is lost; the command goes on from its last checkpoint


class CommandActor:
    """Runs a command in a process of Ray's, on whatever machine that is, and ends with it."""

    def __init__(self, command: Command[None]) -> None:
        self._handle = LocalExecutor().start(command)

    def poll(self) -> int | None:
        return self._handle.poll()

    def terminate(self) -> None:
        self._handle.terminate()

    def kill(self) -> None:
        self._handle.kill()


class RayHandle:
    """One question to the actor is always open, so that nothing here waits for an answer."""

    def __init__(self, ray: ModuleType, actor: Any) -> None:
        self._ray, self._actor = ray, actor
        self._question = actor.poll.remote()
        self._code: int | None = None
        self._killed_at: float | None = None
        self.has_begun = False

    def poll(self) -> int | None:
        if self._code is not None:
            return self._code
        try:
            answered, _ = self._ray.wait([self._question], timeout=0)
            if answered:
                self._code, self.has_begun = self._ray.get(self._question), True
                self._question = self._actor.poll.remote()
        except self._ray.exceptions.RayError as error:
            raise Lost(f"Ray: {str(error).strip().splitlines()[0]}") from error
        is_overdue = self._killed_at is not None and time.monotonic() - self._killed_at > _KILL_SECONDS
        if self._code is not None or is_overdue:
            self._ray.kill(self._actor)
        return self._code

    def terminate(self) -> None:
        if self.has_begun:
            self._actor.terminate.remote()
        else:
            self.kill()

    def kill(self) -> None:
        """By the actor, which ends the whole group: Ray would end the command, and not what that started."""
        if self.has_begun:
            self._killed_at = time.monotonic()
            self._actor.kill.remote()
        else:
            self._ray.kill(self._actor)


class RayExecutor(Executor):
    """This process is a driver of Ray's; what it started there ends with it.

    `address` None starts a Ray here, with so many `cpus`. `options` are those of an actor, `inherited` its variables.
    """

    poll_seconds = 0.1

    def __init__(
        self, address: str | None, cpus: int, options: Mapping[str, Any], inherited: Mapping[str, str]
    ) -> None:
        self._address, self._cpus, self._options, self._inherited = address, cpus, options, inherited
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            if self._address is None:
                stack.enter_context(_token())
            self._ray = self._connect()
            stack.callback(self._ray.shutdown)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _connect(self) -> ModuleType:
        """Ray puts handlers of its own in the place of those of this process: they are put back."""
        import ray

        library: ModuleType = ray
        own: dict[str, Any] = {"address": self._address}
        if self._address is None:
            own = {"address": "local", "num_cpus": self._cpus, "include_dashboard": False}
        handlers = {number: signal.getsignal(number) for number in SIGNALS}
        try:
            ray.init(**own, log_to_driver=False, logging_level=logging.ERROR)
        except Exception as error:  # whatever keeps its processes from starting
            where = "started on this machine" if self._address is None else f"reached at {self._address}"
            raise DataError(f"Ray could not be {where}: {str(error).strip().splitlines()[0]}") from error
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
        return library

    def start(self, command: Command[Any], share: Share) -> RayHandle:
        options = {**self._options, "max_restarts": _RESTARTS, "max_task_retries": -1}
        actor = self._ray.remote(CommandActor).options(**options)
        return RayHandle(self._ray, actor.remote(command.elsewhere(self._inherited, share)))


def _token() -> ExitStack:
    """While this is open, only this user can give a Ray that is started here work."""
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())  # that only this user can read
        token = Path(folder) / "token"
        token.write_text(secrets.token_hex(32))
        own = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)}
        before = {name: os.environ.get(name) for name in own}
        os.environ.update(own)  # before Ray is imported
        for name, value in before.items():
            put_back = (os.environ.pop, name) if value is None else (os.environ.__setitem__, name, value)
            stack.callback(*put_back)
        return stack.pop_all()
