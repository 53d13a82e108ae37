"""How long a run trains, its speed without compile time, and how many steps fit into one call."""

import time

TARGET_SECONDS = 0.2  # long enough to hide the cost of a call, short enough for a lively screen and a prompt Ctrl-C


class Stopwatch:
    """Times a run, and its calls into the compiled loop, of which the first of each batch shape compiles and is left
    out of the speed.

    Both add up over the attempts of a run that was resumed, each up to the checkpoint that was gone on from: what it
    trained after that was lost and counts for nothing. What a rollback undid does count.
    """

    def __init__(self) -> None:
        self.examples, self.seconds, self.steps = 0, 0.0, 0
        self.earlier_seconds = 0.0  # of the attempts before this one
        self._began: float | None = None
        self._seen: set[int] = set()
        self._window = (0, 0.0)
        self._window_rate: float | None = None
        self._started = 0.0
        self._step_seconds: float | None = None

    def begin(self) -> None:
        """From here on this attempt trains."""
        self._began = time.perf_counter()

    @property
    def run_seconds(self) -> float:
        """Of the whole run: compiling, validating and saving included, loading the data not."""
        return self.earlier_seconds + (0.0 if self._began is None else time.perf_counter() - self._began)

    def position(self) -> dict[str, float]:
        """The totals, for a checkpoint."""
        return {"run_seconds": self.run_seconds, "timed_seconds": self.seconds, "timed_examples": self.examples}

    def resume(self, position: dict[str, float]) -> None:
        """Go on from what `position` gave."""
        self.earlier_seconds, self.seconds = position["run_seconds"], position["timed_seconds"]
        self.examples = int(position["timed_examples"])
        self._window = (self.examples, self.seconds)

    def start(self) -> None:
        self._started = time.perf_counter()

    def stop(self, steps: int, batch_size: int) -> None:
        """`steps` of `batch_size` examples were done since `start`."""
        seconds = time.perf_counter() - self._started
        if batch_size not in self._seen:
            self._seen.add(batch_size)
            return
        self.examples += steps * batch_size
        self.seconds += seconds
        self.steps += steps
        latest = seconds / steps
        self._step_seconds = latest if self._step_seconds is None else 0.5 * (self._step_seconds + latest)

    def steps_per_call(self, most: int) -> int:
        """How many steps the next call should have so that it takes about `TARGET_SECONDS`."""
        if self._step_seconds is None:
            return 1 if not self._seen else min(4, most)
        return max(1, min(most, int(TARGET_SECONDS / max(self._step_seconds, 1e-6))))

    @property
    def examples_per_second(self) -> float | None:
        """Over the whole run; None before a call was timed."""
        return self.examples / self.seconds if self.seconds else None

    def window_rate(self) -> float | None:
        """Examples per second since the last question; the answer to that where nothing was timed since.

        Lines of the log that lie in one call into the compiled loop share its rate. None before a call was timed.
        """
        examples, seconds = self.examples - self._window[0], self.seconds - self._window[1]
        self._window = (self.examples, self.seconds)
        if seconds:
            self._window_rate = examples / seconds
        return self._window_rate
