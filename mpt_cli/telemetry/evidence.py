"""What the verdict on a run rests on."""

from collections.abc import Sequence
from dataclasses import dataclass

from mpt_cli.telemetry.records import Scaling
from mpt_cli.telemetry.tally import EventTally


@dataclass(frozen=True)
class Evidence:
    """What the verdict rests on: counters and events of the whole run, the attempts before a resume included."""

    scaling: Scaling
    steps_seen: int
    applied_steps: int
    skip_steps: Sequence[int] = ()  # the number of every skipped step, ascending
    first_growth_step: int | None = None
    bad_steps: int = 0  # steps with non-finite gradients that were applied all the same
    forward_skips: int = 0  # skipped steps whose loss was already not finite
    final_scale: float | None = None
    final_loss: float | None = None  # mean over the last applied steps; None when there were none
    flushed_share: float | None = None  # of gradient elements, where it was sampled

    @property
    def skipped_steps(self) -> int:
        return len(self.skip_steps)


def evidence_from(
    tally: EventTally, scaling: Scaling, *, applied_steps: int, final_scale: float | None, final_loss: float | None,
    flushed_share: float | None = None,
) -> Evidence:  # fmt: skip
    """The evidence of a run whose every event is in `tally`; `applied_steps` as the optimizer counted them."""
    skips = () if scaling.applies_overflows else tuple(tally.skip_steps)
    return Evidence(
        scaling=scaling,
        steps_seen=applied_steps + len(skips),
        applied_steps=applied_steps,
        skip_steps=skips,
        bad_steps=len(tally.skip_steps) - len(skips),
        first_growth_step=tally.first_growth_step,
        forward_skips=tally.forward_skips,
        final_scale=final_scale,
        final_loss=final_loss,
        flushed_share=flushed_share,
    )
