"""A Ray on this machine for as long as one sweep runs; as a program, the process that holds it."""

import logging
import os
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mpt_cli.errors import DataError


@dataclass(frozen=True)
class OwnRay:
    """Where it is, and what must stand in the environment of a process before that imports Ray."""

    address: str
    environment: dict[str, str]


@contextmanager
def ray_of_its_own(cpus: int) -> Iterator[OwnRay]:
    """It ends with the sweep, also when that is killed: the process waits for the end of its input."""
    command = [sys.executable, "-P", "-m", "mpt_cli.sweep.launchers.ray_head", str(cpus)]
    with tempfile.TemporaryDirectory() as folder:  # that only this user can read
        token = Path(folder) / "token"  # without which nobody can give it work
        token.write_text(secrets.token_hex(32))
        own = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)}
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, **own}, start_new_session=True
        ) as head:
            assert head.stdin is not None and head.stdout is not None
            try:
                address = head.stdout.readline().decode().strip()
                if not address:
                    raise DataError("Ray could not be started on this machine: see the lines above.")
                yield OwnRay(address, own)
            finally:
                head.stdin.close()


def main(cpus: int) -> None:
    import ray

    context: Any = ray.init(address="local", num_cpus=cpus, include_dashboard=False, logging_level=logging.ERROR)
    print(context.address_info["gcs_address"], flush=True)
    sys.stdin.read()
    ray.shutdown()


if __name__ == "__main__":
    main(int(sys.argv[1]))
