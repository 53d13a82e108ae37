"""The program `mpt`, and `python -m mpt_cli`: hears signals before anything else is imported."""

import os
import sys

from mpt_cli.signals import Watch


def main() -> None:
    open_closed_streams()
    with Watch() as watch:
        from mpt_cli import cli

        watch.leave(cli.main())


def open_closed_streams() -> None:
    """Open /dev/null for each standard stream that the caller closed (`mpt … >&-`).

    The next file that is opened, perhaps one of the run, would have that stream's number otherwise, and receive what
    compiled code and other processes write there.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free, which is this one
        if number and getattr(sys, name) is None:
            setattr(sys, name, open(number, "w", closefd=False))  # noqa: SIM115


if __name__ == "__main__":
    main()
