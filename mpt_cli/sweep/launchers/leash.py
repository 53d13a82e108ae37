"""Becomes the command in its arguments, which then ends when its parent does: `leash.py PARENT COMMAND…`.

Run by path, without the package, so that it costs no more than starting Python. The second user signal, with which
Slurm announces the end of a job's time to all of its processes, is left to the parent.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main(parent: int, command: list[str]) -> None:
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it was gone before it could be told
        sys.exit(1)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
