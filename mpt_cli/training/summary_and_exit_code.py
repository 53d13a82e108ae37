"""The end of a run: its summary, verdict and exit code."""

from dataclasses import replace
from pathlib import Path
from signal import SIGINT, SIGTERM
from typing import TYPE_CHECKING

from mpt_cli.errors import BAD_DATA, BUG, NUMERICAL, OK, MptError
from mpt_cli.signals import SIGNAL_EXIT_CODES, ForcedEnd, signal_of
from mpt_cli.telemetry.health_and_verdict import COLLAPSED, GOOD_VERDICTS, NEVER_TRAINED, STOPPED, Stop, judge
from mpt_cli.telemetry.record_types import Summary
from mpt_cli.telemetry.run_state import RunState
from mpt_cli.training.checkpoint import fingerprint_weights
from mpt_cli.training.progress import Conclusion, Outcome

if TYPE_CHECKING:
    from mpt_cli.training.session import Session


_STATUSES: dict[int, str] = {SIGINT: "interrupted", SIGTERM: "terminated"}


def summarise(session: "Session", run_dir: Path, outcome: Outcome) -> Summary:
    """Return the summary of a run that finished, or that a health rule or a signal ended."""
    (status, exit_code, verdict, explanation), ended_early = conclude(session.run_state(), outcome)
    unsaved = session.checkpointer.failure
    if unsaved is not None and outcome.stop is None:
        if outcome.signal is not None:  # 130 and 143 promise that the run can continue from here
            exit_code, explanation = BAD_DATA, f"It ended on {outcome.signal.name} and could not be saved: {unsaved}"
        else:
            explanation += f" Its last state could not be saved ({unsaved}): more epochs would repeat steps."
    summary = _summary(session, run_dir, Conclusion(status, exit_code, verdict, explanation))
    exact = session.parts.settings.trainer.deterministic
    return replace(
        summary,
        ended_early=ended_early,
        weights_fingerprint=fingerprint_weights(session.parts.model) if exact else None,
    )


def summarise_failure(session: "Session", run_dir: Path, error: BaseException) -> Summary:
    """Return the summary of a run that an exception ended; a KeyboardInterrupt is the second Ctrl-C."""
    explanation = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return _summary(session, run_dir, conclude_unfinished(status_of_error(error), session.run_state(), explanation))


def summarise_cut(session: "Session", run_dir: Path, end: ForcedEnd) -> Summary:
    """Return the summary of a run that was ended outside of its loop; it can continue from its last checkpoint."""
    explanation = f"It was {end.reason}."
    if (seen := session.counters.seen) > 0:
        saved = session.checkpointer.saved_step
        lost = f", {seen - (saved or 0)} steps are lost" if seen != saved else ""
        explanation += f" {'Nothing was' if saved is None else f'Step {saved} is'} saved{lost}."
    ending = conclude_unfinished((_STATUSES[end.number], end.exit_code), session.run_state(), explanation)
    return _summary(session, run_dir, ending)


def conclude(run_state: RunState, outcome: Outcome, passed_over: Stop | None = None) -> tuple[Conclusion, str]:
    """Return how a run ended, and why before its last epoch (empty for another end); `passed_over` would have stopped a
    run of mpt. A run that never trained or collapsed is never a success."""
    verdict, explanation = judge(run_state)
    status, exit_code = "finished", NUMERICAL if verdict in (NEVER_TRAINED, COLLAPSED) else OK
    if outcome.signal is not None:
        status, exit_code = _STATUSES[outcome.signal], SIGNAL_EXIT_CODES[outcome.signal]
    if outcome.stop is not None:
        status, exit_code = "stopped", NUMERICAL
    if stop := outcome.stop or passed_over:
        explanation = f"{'Stopped' if outcome.stop else 'A run of mpt would have been stopped'}: {stop}"
        verdict = STOPPED if verdict in GOOD_VERDICTS else verdict
    spoiled = ", ".join(run_state.spoiled_metrics)
    if run_state.applied_steps and spoiled not in explanation:
        explanation += f" {spoiled} ended as inf or nan."
    ended_early = outcome.ended_early if status == "finished" else ""
    if ended_early:
        explanation += f" It ended early, in epoch {outcome.progress.epoch}: {ended_early}."
    return Conclusion(status, exit_code, verdict, explanation), ended_early


def status_of_error(error: BaseException | None) -> tuple[str, int]:
    """Return status and exit code of a run that an exception ended."""
    if (number := signal_of(error)) is not None:
        return _STATUSES[number], SIGNAL_EXIT_CODES[number]
    return "failed", error.exit_code if isinstance(error, MptError) else BUG


def conclude_unfinished(ending: tuple[str, int], run_state: RunState, explanation: str) -> Conclusion:
    """Return how an unfinished run ended; one that failed is not called healthy, however good its numbers were."""
    verdict, _ = judge(run_state)
    verdict = STOPPED if ending[0] == "failed" and verdict in GOOD_VERDICTS else verdict
    return Conclusion(*ending, verdict, explanation)


def _summary(session: "Session", run_dir: Path, ending: Conclusion) -> Summary:
    parts, processes = session.parts, session.parts.platform.process_info
    return session.summary(
        ending,
        parts.settings,
        run_dir,
        starter=processes.starter if processes else "",
        repeatable=parts.definition.repeatable,
    )
