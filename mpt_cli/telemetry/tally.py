"""What the events of a whole run add up to: the evidence of the verdict."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from mpt_cli.telemetry.records import Event

OVERFLOW, GROWTH, FLOOR, CEILING = "overflow", "growth", "floor", "ceiling"
ROLLBACK = "rollback"  # back to the checkpoint of its step, from `from_step`
DECLINE = "decline"  # a fall without an overflow: loss_scale=logmax follows the gradients both ways


@dataclass
class EventTally:
    """Counts over all events so far; `skip_steps` holds the number of every skipped step, ascending.

    `latest` are the last events themselves, for a post-mortem.
    """

    skip_steps: list[int] = field(default_factory=list)
    first_growth_step: int | None = None
    growths: int = 0
    forward_skips: int = 0
    lowest_scale: float | None = None
    highest_scale: float | None = None
    rollbacks: list[Event] = field(default_factory=list)
    latest: deque[Event] = field(default_factory=lambda: deque(maxlen=100))

    def add(self, events: Iterable[Event]) -> None:
        for event in events:
            self._add_one(event)

    def _add_one(self, event: Event) -> None:
        self.latest.append(event)
        if event.kind == OVERFLOW:
            self.skip_steps.append(event.step)
            self.forward_skips += event.cause == "forward"
        elif event.kind == GROWTH:
            self.growths += 1
            if self.first_growth_step is None:
                self.first_growth_step = event.step
        elif event.kind == ROLLBACK:
            self.rollbacks.append(event)
        scales = [event.scale_before, event.scale_after]
        self.lowest_scale = min(scales if self.lowest_scale is None else [*scales, self.lowest_scale])
        self.highest_scale = max(scales if self.highest_scale is None else [*scales, self.highest_scale])
