"""The rules that end a run which no longer trains, each with its key, its evidence and what to try."""

from dataclasses import dataclass

from mpt_cli.settings.schema import LossScale, Trainer
from mpt_cli.telemetry.console.words import scale_words
from mpt_cli.telemetry.ledger import Ledger


@dataclass(frozen=True)
class Stop:
    """Why a run was ended: the key of the rule, what was seen, and the next command to try."""

    key: str
    evidence: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.evidence} (rule {self.key}). {self.remedy}"


@dataclass(frozen=True)
class Health:
    """The rules of one run. `check` is asked after every call into the compiled loop."""

    loss_scale: LossScale
    trainer: Trainer

    def check(self, ledger: Ledger) -> Stop | None:
        """The first rule that is broken, or None."""
        return self._overflow(ledger) or self._streak(ledger) or self._rate(ledger) or self._loss(ledger)

    def check_epoch(self, ledger: Ledger) -> Stop | None:
        """At the end of an epoch: did it train at all?"""
        if ledger.applied_in_epoch > 0 or not self.loss_scale.stop_on_idle_epoch:
            return None
        return Stop(
            "loss_scale.stop_on_idle_epoch", "an epoch ended in which every step was skipped", self._advice(ledger)
        )

    def _overflow(self, ledger: Ledger) -> Stop | None:
        if self.loss_scale.on_overflow != "abort" or ledger.skipped == 0:
            return None
        return Stop(
            "loss_scale.on_overflow=abort",
            f"gradients were not finite at loss scale {scale_words(ledger.scale)}",
            self._advice(ledger),
        )

    def _streak(self, ledger: Ledger) -> Stop | None:
        limit = self.loss_scale.max_consecutive_skips
        if limit is None or ledger.consecutive_skips < limit:
            return None
        return Stop(
            "loss_scale.max_consecutive_skips",
            f"{ledger.consecutive_skips} steps in a row were skipped, the loss scale is down to "
            f"{scale_words(ledger.scale)}",
            self._advice(ledger),
        )

    def _rate(self, ledger: Ledger) -> Stop | None:
        limit, window = self.loss_scale.max_skip_rate, self.loss_scale.skip_rate_window
        if limit is None or ledger.seen < 2 * window or not ledger.skip_rate() > limit:
            return None
        return Stop(
            "loss_scale.max_skip_rate",
            f"{ledger.skip_rate():.0%} of the last {window} steps were skipped",
            self._advice(ledger),
        )

    def _loss(self, ledger: Ledger) -> Stop | None:
        limit = self.trainer.max_nonfinite_losses
        if limit is None or ledger.non_finite_losses < limit:
            return None
        return Stop(
            "trainer.max_nonfinite_losses",
            f"the loss was not finite in {ledger.non_finite_losses} applied steps in a row",
            "Lower optimizer.learning_rate, or clip with optimizer.global_clipnorm=1.0; in float16 without "
            "loss scaling set loss_scale=dynamic.",
        )

    def _advice(self, ledger: Ledger) -> str:
        if self.loss_scale.mode == "fixed":
            return (
                f"The fixed scale is too high for this model: try loss_scale.initial_scale="
                f"{scale_words(ledger.scale / 2**8)} or loss_scale=dynamic."
            )
        if ledger.scale <= self.loss_scale.min_scale * 2:
            return (
                "The scale is at its floor, so scaling is not the cause: look for nan in the model or data, lower "
                "optimizer.learning_rate, or run with policy=mixed_bfloat16 or policy=float32 to compare."
            )
        return "Lower loss_scale.initial_scale, or run with policy=mixed_bfloat16 or policy=float32 to compare."
