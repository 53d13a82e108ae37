"""The rules that end a run which no longer trains, each with its key, its evidence and what to try."""

from dataclasses import dataclass

from mpt_cli.settings.schema import LossScale, Trainer
from mpt_cli.telemetry.block import NEVER, Streaks, Watch
from mpt_cli.telemetry.console.words import scale_words
from mpt_cli.telemetry.ledger import Ledger

# 29 halvings lead from the default 2**15 to the smallest normal float16, 2**-14: a longer streak is no settling.
SETTLING_SKIPS = 29
ZERO_GRADIENTS = "trainer.max_zero_gradients"
DYNAMIC, WIDER, CLIP = "loss_scale=dynamic", "policy=mixed_bfloat16", "optimizer.global_clipnorm=1.0"


@dataclass(frozen=True)
class Stop:
    """Why a run was ended: the key of the rule, what was seen, and what to try.

    `change` are the words that do so when they are added to the command; empty where that takes a look first.
    """

    key: str
    evidence: str
    remedy: str
    change: str = ""

    def __str__(self) -> str:
        return f"{self.evidence} (rule {self.key}). {self.remedy}"


@dataclass(frozen=True)
class Health:
    """The rules of one run. `check` is asked after every call into the compiled loop."""

    loss_scale: LossScale
    trainer: Trainer

    def check(self, ledger: Ledger) -> Stop | None:
        """The first rule that a step since the last question broke, or None."""
        for rule in (self._overflow, self._floor, self._streak, self._rate, self._loss, self._zero):
            stop = rule(ledger)
            if stop is not None:
                return stop
        return None

    def watch(self, ledger: Ledger) -> Watch:
        """What ends the next call at the very step that breaks a rule.

        The skip rate can't exceed its limit before so many more steps were skipped as now are missing: there a call
        ends as well, to count again.
        """
        limits = (
            1 if self.loss_scale.on_overflow == "abort" else self.loss_scale.max_consecutive_skips, self._floor_limit,
            self.trainer.max_nonfinite_losses, self.trainer.max_zero_gradients, self._skips_missing(ledger),
        )  # fmt: skip
        return Watch(
            Streaks(ledger.consecutive_skips, ledger.floor_skips, ledger.non_finite_losses, ledger.zero_steps, 0),
            Streaks(*(limit or NEVER for limit in limits)),
        )

    @property
    def _floor_limit(self) -> int | None:
        """A fixed scale has no floor to come to."""
        return None if self.loss_scale.mode == "fixed" else self.loss_scale.max_skips_at_floor

    def steps_to_window(self, ledger: Ledger) -> int | None:
        """Steps until the skip rate counts for the first time, None where it does already or never will: a call ends
        there."""
        left = 2 * ledger.window_steps - ledger.seen
        return left if left > 0 and self.loss_scale.max_skip_rate is not None else None

    def _skips_missing(self, ledger: Ledger) -> int | None:
        """How many more skipped steps it takes at least to exceed the skip rate."""
        rate = self.loss_scale.max_skip_rate
        if rate is None or self.steps_to_window(ledger) is not None:
            return None
        return max(1, int(rate * ledger.window_steps) - int(ledger.window.sum()))

    def check_epoch(self, ledger: Ledger) -> Stop | None:
        """At the end of an epoch: did it train at all?"""
        if ledger.applied_in_epoch > 0 or not self.loss_scale.stop_on_idle_epoch or self._is_settling(ledger):
            return None
        evidence = f"an epoch ended in which every step was skipped, the last at loss scale {scale_words(ledger.scale)}"
        return Stop("loss_scale.stop_on_idle_epoch", evidence, *self._advice(ledger, ledger.consecutive_skips))

    def check_weights(self, are_finite: bool) -> Stop | None:
        """At the end of an epoch: a nan weight can hide behind a relu and leave the loss finite."""
        if are_finite or not self.trainer.stop_on_nonfinite_weights:
            return None
        return Stop(
            "trainer.stop_on_nonfinite_weights", "the weights hold inf or nan",
            "Lower optimizer.learning_rate, clip with optimizer.global_clipnorm=1.0, or use another optimizer.", CLIP,
        )  # fmt: skip

    def _is_settling(self, ledger: Ledger) -> bool:
        """Whether a scale that still falls explains the skips: a short epoch may lie within its first steps."""
        falls = self.loss_scale.mode != "fixed" and ledger.scale > self.loss_scale.min_scale
        return falls and ledger.consecutive_skips < SETTLING_SKIPS

    def _overflow(self, ledger: Ledger) -> Stop | None:
        if self.loss_scale.on_overflow != "abort" or ledger.peak_skips == 0:
            return None
        evidence = f"gradients were not finite at loss scale {scale_words(ledger.scale)}"
        return Stop("loss_scale.on_overflow=abort", evidence, *self._advice(ledger, 1))

    def _floor(self, ledger: Ledger) -> Stop | None:
        limit = self._floor_limit
        if limit is None or ledger.peak_floor_skips < limit:
            return None
        floor = scale_words(self.loss_scale.min_scale)
        skips = ledger.peak_floor_skips
        evidence = f"{skips} steps were skipped though the loss scale is at its floor, {floor}"
        return Stop("loss_scale.max_skips_at_floor", evidence, *self._advice(ledger, skips))

    def _streak(self, ledger: Ledger) -> Stop | None:
        limit = self.loss_scale.max_consecutive_skips
        if limit is None or ledger.peak_skips < limit:
            return None
        evidence = f"{ledger.peak_skips} steps in a row were skipped, the loss scale is {scale_words(ledger.scale)}"
        return Stop("loss_scale.max_consecutive_skips", evidence, *self._advice(ledger, ledger.peak_skips))

    def _rate(self, ledger: Ledger) -> Stop | None:
        limit, window, rate = self.loss_scale.max_skip_rate, ledger.window_steps, ledger.peak_skip_rate
        if limit is None or not rate > limit:
            return None
        evidence = f"{rate:.0%} of {window} steps in a row were skipped"
        return Stop("loss_scale.max_skip_rate", evidence, *self._advice(ledger, int(rate * window)))

    def _loss(self, ledger: Ledger) -> Stop | None:
        limit = self.trainer.max_nonfinite_losses
        if limit is None or ledger.peak_bad_losses < limit:
            return None
        return Stop(
            "trainer.max_nonfinite_losses",
            f"the loss was not finite in {ledger.peak_bad_losses} applied steps in a row",
            "Lower optimizer.learning_rate, or clip with optimizer.global_clipnorm=1.0; in float16 without "
            "loss scaling set loss_scale=dynamic.", CLIP,
        )

    def _zero(self, ledger: Ledger) -> Stop | None:
        limit = self.trainer.max_zero_gradients
        if limit is None or ledger.peak_zero_steps < limit:
            return None
        evidence = f"every gradient was exactly 0 in {ledger.peak_zero_steps} applied steps in a row"
        return Stop(ZERO_GRADIENTS, evidence, *self._lift(ledger))

    def _lift(self, ledger: Ledger) -> tuple[str, str]:
        """What to try against gradients that are zero: a higher scale where one is seen to help."""
        sample = ledger.sample
        if sample is not None and sample.step == ledger.seen and sample.flushed_share > 0:
            unscaled = self.loss_scale.mode == "none"
            higher = "loss_scale=dynamic" if unscaled else "raise loss_scale.initial_scale"
            remedy = f"float16 flushed them to zero, a higher loss scale keeps them: {higher}."
            return remedy, DYNAMIC if unscaled else ""
        return (
            "No loss scale brings them back: look for a loss that does not depend on the weights, for units that are "
            "dead (a lower optimizer.learning_rate), or for targets that are met already."
        ), ""

    def _advice(self, ledger: Ledger, skips: int) -> tuple[str, str]:
        """What to try, and as a change, by where the latest `skips` skipped steps went wrong."""
        if ledger.forward_share(skips) > 0.5:
            return (
                "The loss itself was not finite, which no scale can cause or cure: look for nan or inf in the data, "
                "lower optimizer.learning_rate, or keep a layer that overflows in float32 (policy.overrides)."
            ), ""
        if self.loss_scale.mode == "fixed":
            lower = f"loss_scale.initial_scale={scale_words(ledger.scale / 2**8).replace('^', '**')}"
            return f"The fixed scale is too high for this model: try {lower} or {DYNAMIC}.", DYNAMIC
        if ledger.scale <= self.loss_scale.min_scale * 2:
            return (
                "No scale is low enough, so scaling is not the cause: look for nan in the model or data, lower "
                "optimizer.learning_rate, or run with policy=mixed_bfloat16 or policy=float32 to compare."
            ), WIDER
        remedy = "Lower loss_scale.initial_scale, or run with policy=mixed_bfloat16 or policy=float32 to compare."
        return remedy, WIDER
