"""What a command is started by that a guard is to end: it tells the guard of its group and becomes the command. Until
then it holds the guard's input open, so that the guard knows of every command before it ends them, at whatever moment
the process that starts them is killed.

`python -I -S guarded_start.py GUARD FAILURE PROGRAM ARGUMENTS…`, with the descriptors of the guard's input and of a
pipe that takes the number of the error where the program can't be started. It imports next to nothing: milliseconds.
"""

import os
import sys
from _signal import SIG_DFL, SIGPIPE, SIGXFSZ, signal

PATH = __file__


def become(guard: int, failure: int, arguments: list[str]) -> None:
    """Returns only where the program can't be started."""
    try:  # noqa: SIM105 (contextlib takes longer to import than all of this)
        os.write(guard, b"add -%d\n" % os.getpid())
    except OSError:  # it was killed: then nothing is guarded
        pass
    for number in (SIGPIPE, SIGXFSZ):  # Python ignores them, which what it becomes would go on with
        signal(number, SIG_DFL)
    for descriptor in (guard, failure):
        os.set_inheritable(descriptor, False)
    try:
        os.execvp(arguments[0], arguments)
    except OSError as error:
        os.write(failure, b"%d" % (error.errno or 0))


if __name__ == "__main__":
    become(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
