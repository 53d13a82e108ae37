"""How a run ended: from the trainer's state to the summary, its verdict and its exit code."""

import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from mpt_cli.errors import BAD_DATA, BUG, INTERRUPTED, NUMERICAL, OK, TERMINATED, MptError
from mpt_cli.telemetry.evidence import evidence_from
from mpt_cli.telemetry.records import Summary
from mpt_cli.telemetry.verdict import COLLAPSED, GOOD_VERDICTS, NEVER_TRAINED, STOPPED, judge

if TYPE_CHECKING:
    from mpt_cli.training.session import Session
    from mpt_cli.training.trainer import Outcome


def summarise(session: "Session", run_dir: Path, outcome: "Outcome") -> Summary:
    """The summary of a run that came to an end of its own, by a health rule or by a signal."""
    verdict, explanation = _verdict(session)
    rollbacks = len(session.trainer.telemetry.tally.rollbacks)
    words = f"{rollbacks} rollback{'' if rollbacks == 1 else 's'}"
    if outcome.stop is not None:
        explanation = f"Stopped after {words}: {outcome.stop}" if rollbacks else f"Stopped: {outcome.stop}"
        verdict = STOPPED if verdict in GOOD_VERDICTS else verdict
    elif rollbacks:
        explanation += f" That is after {words} to a good checkpoint."
    status, exit_code = _status(outcome, verdict)
    unsaved = session.trainer.checkpointer.failure
    if unsaved is not None and outcome.stop is None:
        if outcome.signal is not None:  # 130 and 143 promise that it can go on from here
            exit_code, explanation = BAD_DATA, f"It ended on {outcome.signal.name} and could not be saved: {unsaved}"
        else:
            explanation += f" Its end could not be saved ({unsaved}): more epochs would go on from before it."
    summary = _summary(session, run_dir, (status, exit_code, verdict, explanation))
    return summary if outcome.stop is None else replace(summary, change=outcome.stop.change)


def summarise_failure(session: "Session", run_dir: Path, error: BaseException) -> Summary:
    """The summary of a run that an exception ended."""
    exit_code = error.exit_code if isinstance(error, MptError) else BUG
    if isinstance(error, KeyboardInterrupt):
        exit_code = INTERRUPTED
    explanation = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return _summary(session, run_dir, ("failed", exit_code, _verdict(session)[0], explanation))


def _status(outcome: "Outcome", verdict: str) -> tuple[str, int]:
    """A run that never trained or collapsed is never a success."""
    if outcome.stop is not None:
        return "stopped", NUMERICAL
    if outcome.signal is not None:
        return ("interrupted", INTERRUPTED) if outcome.signal.name == "SIGINT" else ("terminated", TERMINATED)
    return "finished", NUMERICAL if verdict in (NEVER_TRAINED, COLLAPSED) else OK


def _verdict(session: "Session") -> tuple[str, str]:
    ledger, metrics = session.trainer.ledger, session.trainer.progress.metrics
    sample = ledger.sample
    spoiled = [value for name, value in metrics.items() if name.endswith("loss") and not math.isfinite(value)]
    return judge(evidence_from(
        session.trainer.telemetry.tally, session.assembly.scaling, applied_steps=ledger.applied,
        final_scale=ledger.scale if ledger.seen else None, final_loss=spoiled[0] if spoiled else ledger.last_mean_loss,
        flushed_share=None if sample is None else sample.flushed_share,
    ))  # fmt: skip


def _summary(session: "Session", run_dir: Path, ending: tuple[str, int, str, str]) -> Summary:
    status, exit_code, verdict, explanation = ending
    trainer, ledger = session.trainer, session.trainer.ledger
    seen = ledger.seen > 0
    return Summary(
        status=status, exit_code=exit_code, verdict=verdict, explanation=explanation, steps_seen=ledger.seen,
        applied_steps=ledger.applied, skipped_steps=ledger.skipped,
        final_loss_scale=ledger.scale if seen else None, min_loss_scale=ledger.lowest_scale if seen else None,
        max_loss_scale=ledger.highest_scale if seen else None, metrics=trainer.progress.metrics,
        best_metrics=trainer.progress.best, examples_per_second=trainer.stopwatch.examples_per_second,
        peak_memory_bytes=session.peak_memory(), seconds=trainer.stopwatch.run_seconds,
        recipe=session.assembly.settings.recipe, run_dir=str(run_dir),
        epochs_completed=trainer.progress.epochs_completed,
        rollbacks=len(trainer.telemetry.tally.rollbacks),
        gradients=None if ledger.sample is None else asdict(ledger.sample),
    )  # fmt: skip
