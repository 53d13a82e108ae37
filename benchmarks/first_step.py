"""A process of its own: how long `mpt train` takes up to the end of its first step.

    python -m benchmarks.first_step conf=digits_mlp backend=jax

Trains in an empty directory until the first call into the compiled loop returns, and ends.
"""

import os
import sys


class FirstStep(BaseException):
    """Ends the run from within: the first step is done."""


def main() -> None:
    from mpt_cli import training_run
    from mpt_cli.settings.load import load_settings
    from mpt_cli.telemetry.sink_interface import Sink

    class Watch(Sink):
        def progress(self, step: int, epoch: int, phase: str) -> None:
            raise FirstStep

    words = sys.argv[1:]
    try:
        reporters = training_run.Reporters(sinks=[Watch()])
        training_run.train(load_settings([*words, "logger.console=quiet"]), words, reporters)
    except FirstStep:
        os._exit(0)
    raise SystemExit("the run ended before its first step")


if __name__ == "__main__":
    main()
