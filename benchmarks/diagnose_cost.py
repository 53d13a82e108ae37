"""What measuring costs: one batch of `mpt diagnose` against one plain float32 training step, on one backend.

    python -m benchmarks.diagnose_cost tensorflow                  the ResNet recipe
    python -m benchmarks.diagnose_cost jax digits_mlp

Both without the time to compile. Steps and measurements take turns; the middle of the rounds is printed.
"""

import statistics
import sys
import time
from collections.abc import Callable

ROUNDS, BATCHES = 7, 16


def seconds_each(work: Callable[[], object], times: int) -> float:
    started = time.perf_counter()
    for _ in range(times):
        work()
    return (time.perf_counter() - started) / times


def main(backend: str, recipe: str = "digits_resnet") -> None:
    from mpt_cli.engine.backend import prepare_backend
    from mpt_cli.settings import load_settings

    settings = load_settings([f"conf={recipe}", "policy=float32", f"backend={backend}"])
    platform = prepare_backend(settings)
    from mpt_cli.diagnose.examination import Examination, ExaminationRequest
    from mpt_cli.training.program import SettingsProgram

    examination = Examination(SettingsProgram(settings), platform, ExaminationRequest(batches=BATCHES))
    examination.measure_at(1)  # compiles both
    parts, course = examination.parts, examination._course
    (batch,) = course.peek_batches(1)
    course.begin()
    piece = parts.train_feed.take(BATCHES)
    assert piece is not None

    def train() -> None:
        parts.engine.train(piece.source, piece.batch_indices, piece.count).wait()

    train()
    rounds = [
        (seconds_each(lambda: examination._shadow_pass(batch), BATCHES), seconds_each(train, 1) / piece.count)
        for _ in range(ROUNDS)
    ]
    measured, plain = (statistics.median(column) for column in zip(*rounds, strict=True))
    print(f"{backend}, {recipe}: measuring {1e3 * measured:.1f} ms a batch, a float32 step {1e3 * plain:.1f} ms: "
          f"{measured / plain:.2f} times")  # fmt: skip


if __name__ == "__main__":
    main(*sys.argv[1:])
