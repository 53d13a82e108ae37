"""The story of a run on one screen: settings in, a trained model and its record out."""

import dataclasses
import secrets
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from mpt_cli.errors import BUG, INTERRUPTED, NUMERICAL, OK, TERMINATED, MptError
from mpt_cli.runs.directory import RunDirectory
from mpt_cli.runs.provenance import RunFacts, collect_environment
from mpt_cli.runs.summary import write_json, write_summary
from mpt_cli.settings import load_settings, resolved_yaml
from mpt_cli.settings.schema import Settings
from mpt_cli.telemetry.fanout import Telemetry
from mpt_cli.telemetry.records import Summary
from mpt_cli.telemetry.setup import build_telemetry, check_logger
from mpt_cli.telemetry.verdict import COLLAPSED, NEVER_TRAINED, evidence_from, judge

if TYPE_CHECKING:
    from mpt_cli.training.build_check import BuildCheck
    from mpt_cli.training.session import Session
    from mpt_cli.training.trainer import Outcome


def train(settings: Settings, words: Sequence[str] = (), stream: TextIO | None = None) -> Summary:
    """One run from start to end; `words` is the command line for the record, `stream` where the console goes.

    Raises MptError for what keeps a run from starting, which then leaves nothing behind. A run that started ends with
    a summary, also when a health rule, a signal or an error ends it: `exit_code` says how.
    """
    check_logger(settings.logger)
    settings = with_drawn_seed(settings)
    run = RunDirectory.create(settings.run_dir, settings.recipe)
    with build_telemetry(run.telemetry_files, settings.logger, stream) as telemetry:
        try:
            session = _prepare(settings, run, telemetry, words)
        except BaseException:
            run.discard()
            raise
        return _run(session, run, telemetry)


def with_drawn_seed(settings: Settings) -> Settings:
    """`settings` with a seed drawn where it is null, so that the record holds the one that was used."""
    if settings.seed is not None:
        return settings
    return dataclasses.replace(settings, seed=secrets.randbelow(2**32))


def _prepare(settings: Settings, run: RunDirectory, telemetry: Telemetry, words: Sequence[str]) -> "Session":
    telemetry.message(f"{settings.recipe}: loading {settings.backend.name} and data")
    from mpt_cli.training.backend import prepare_backend

    platform = prepare_backend(settings)  # chooses the Keras backend, so before anything that imports Keras
    from mpt_cli.training.session import prepare

    session = prepare(settings, platform, telemetry)
    run.config_yaml.write_text(resolved_yaml(settings), encoding="utf-8")
    write_json(run.environment_json, collect_environment(_facts(session), list(words) or None))
    telemetry.start(session.header(run.path))
    return session


def _facts(session: "Session") -> RunFacts:
    parts, settings = session.assembly, session.assembly.settings
    assert settings.seed is not None
    return RunFacts(
        backend=parts.platform.backend, jit_compile=parts.jit_compile, devices=parts.platform.devices,
        seed=settings.seed, dataset_fingerprint=parts.data.fingerprint, policy=settings.policy.name,
    )  # fmt: skip


def _run(session: "Session", run: RunDirectory, telemetry: Telemetry) -> Summary:
    started = time.perf_counter()
    try:
        outcome = session.fit()
        session.finish(outcome, run.model_keras)
    except BaseException as error:
        summary = _summarise_failure(session, run, error, time.perf_counter() - started)
        write_summary(run.summary_json, summary)
        telemetry.finish(summary)
        raise
    summary = _summarise(session, run, outcome, time.perf_counter() - started)
    write_summary(run.summary_json, summary)
    telemetry.finish(summary)
    return summary


def _summarise(session: "Session", run: RunDirectory, outcome: "Outcome", seconds: float) -> Summary:
    verdict, explanation = _verdict(session)
    if outcome.stop is not None:
        explanation = f"Stopped: {outcome.stop}"
    status, exit_code = _status(outcome, verdict)
    return _summary(session, run, seconds, status, exit_code, verdict, explanation)


def _status(outcome: "Outcome", verdict: str) -> tuple[str, int]:
    """How the run ended and the exit code for it. A run that never trained or collapsed is never a success."""
    if outcome.stop is not None:
        return "stopped", NUMERICAL
    if outcome.signal is not None:
        return ("interrupted", INTERRUPTED) if outcome.signal.name == "SIGINT" else ("terminated", TERMINATED)
    return "finished", NUMERICAL if verdict in (NEVER_TRAINED, COLLAPSED) else OK


def _summarise_failure(session: "Session", run: RunDirectory, error: BaseException, seconds: float) -> Summary:
    exit_code = error.exit_code if isinstance(error, MptError) else BUG
    if isinstance(error, KeyboardInterrupt):
        exit_code = INTERRUPTED
    explanation = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return _summary(session, run, seconds, "failed", exit_code, _verdict(session)[0], explanation)


def _verdict(session: "Session") -> tuple[str, str]:
    ledger = session.trainer.ledger
    return judge(evidence_from(
        session.trainer.telemetry.tally, session.assembly.scaling, applied_steps=ledger.applied,
        final_scale=ledger.scale if ledger.seen else None, final_loss=ledger.last_mean_loss,
    ))  # fmt: skip


def _summary(
    session: "Session", run: RunDirectory, seconds: float, status: str, exit_code: int, verdict: str, explanation: str
) -> Summary:
    trainer, ledger = session.trainer, session.trainer.ledger
    seen = ledger.seen > 0
    return Summary(
        status=status, exit_code=exit_code, verdict=verdict, explanation=explanation, steps_seen=ledger.seen,
        applied_steps=ledger.applied, skipped_steps=ledger.skipped,
        final_loss_scale=ledger.scale if seen else None, min_loss_scale=ledger.lowest_scale if seen else None,
        max_loss_scale=ledger.highest_scale if seen else None, metrics=trainer.progress.metrics,
        best_metrics=trainer.progress.best, examples_per_second=trainer.stopwatch.examples_per_second,
        peak_memory_bytes=session.peak_memory(), seconds=seconds, recipe=session.assembly.settings.recipe,
        run_dir=str(run.path), epochs_completed=trainer.progress.epochs_completed,
    )  # fmt: skip


def evaluate(run_path: str, split: str = "validation") -> dict[str, float]:
    """Metrics of a finished run's model on the data of the run."""
    run = RunDirectory.open(run_path)
    settings = load_settings([f"conf={run.config_yaml}"])
    from mpt_cli.training.backend import prepare_backend

    platform = prepare_backend(settings)
    from mpt_cli.training.evaluation import evaluate_model

    return evaluate_model(settings, platform, run.model_keras, split)


def export(run_path: str, kind: str, output: str | None = None) -> Path:
    """Write a finished run's model in another format; returns where. Default: beside the run's own files."""
    run = RunDirectory.open(run_path)
    settings = load_settings([f"conf={run.config_yaml}"])
    from mpt_cli.training.backend import prepare_backend

    prepare_backend(settings)
    from mpt_cli.training.evaluation import export_model

    target = Path(output) if output else run.exported(kind)
    export_model(run.model_keras, kind, target)
    return target


def check_build(settings: Settings) -> "BuildCheck":
    """Build the model under its policy without training: the dtype audit, and what would be warned of.

    Raises what `train` would raise before its first step.
    """
    settings = with_drawn_seed(settings)
    from mpt_cli.training.backend import prepare_backend

    platform = prepare_backend(settings)
    from mpt_cli.training.build_check import check

    return check(settings, platform)
