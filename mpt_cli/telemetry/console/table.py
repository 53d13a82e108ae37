"""The epochs of a run as one table: its columns, how wide they are, and which of them a narrow screen does without."""

import math
import re
import textwrap
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from rich.cells import cell_len

from mpt_cli.telemetry.format import format_count, format_number, format_scale, format_seconds
from mpt_cli.telemetry.palette import WARNING_STYLE
from mpt_cli.telemetry.records import Event, RunHeader, Snapshot

Line = list[tuple[str, str]]  # pieces of text, each with its style
GAP = "  "
HEADING_STYLE = "bold"
SCALE_STYLE = "magenta"
LONGEST_WORD = 12  # longer parts of a metric's name are cut in the heading
SHORT_NAME = 8  # a name as short stays on one line
NUMBER_WIDTH = 6  # of 0.9877
SHOWN_CHANGES = 6  # of the scale
BARS = "▁▂▃▄▅▆▇█"
UP, DOWN, LEVEL = "↑", "↓", " "
LEAST_TEXT_WIDTH = 24  # beside the epochs, where there is room for a sentence

# What a screen that is too narrow does without, first to last; epoch and loss always stay. Of several columns of a
# kind the last leaves first; "further" metrics are those after the first two.
LEAVING = ("learning rate", "step", "time", "examples/s", "of optimizers", "further metrics", "further val_ metrics",
           "changes", "grows in", "metrics", "phase", "skipped", "val_ metrics", "scale")  # fmt: skip
FIRST_METRICS = 2
STAYS = len(LEAVING)
OF_OPTIMIZERS = ("loss_scale/", "skipped_steps/", "applied_steps/")


@dataclass(frozen=True)
class Cell:
    """One value of a row: the name of its column, and how long that stays (`rank`, then the lower `place`)."""

    name: str
    text: str
    kind: str = ""  # a word of LEAVING; empty for what always stays
    place: int = 0
    style: str = ""
    width: int = 0  # kept free for later values

    @property
    def rank(self) -> tuple[int, int]:
        return LEAVING.index(self.kind) if self.kind else STAYS, -self.place


class ScaleTrend:
    """The last changes of the scale, as one line of bars."""

    def __init__(self) -> None:
        self._scales: deque[float] = deque(maxlen=SHOWN_CHANGES)

    def add(self, events: Sequence[Event], others: Sequence[str] = ()) -> None:
        """`others` are optimizers whose scale is not meant."""
        for event in events:
            if event.moves_scale and event.optimizer not in others:
                if not self._scales:
                    self._scales.append(event.scale_before)
                self._scales.append(event.scale_after)

    def __str__(self) -> str:
        return sparkline(list(self._scales))


def sparkline(scales: Sequence[float]) -> str:
    """Bars for loss scales: a doubling is one step of the bar, less where they span more than seven doublings.

    >>> sparkline([2.0**15, 2.0**14, 2.0**13, 2.0**14]), sparkline([1024.0])
    ('▃▂▁▂', '')
    """
    heights = [math.log2(scale) for scale in scales if scale > 0 and math.isfinite(scale)]
    if len(heights) < 2:
        return ""
    low, span = min(heights), max(heights) - min(heights)
    unit = max(1.0, span / (len(BARS) - 1))
    return "".join(BARS[round((height - low) / unit)] for height in heights)


def fit_number(value: float | None) -> str:
    """A loss or metric in at most eight characters wherever that is possible.

    >>> fit_number(0.98765), fit_number(1234.5678), fit_number(-0.0000123), fit_number(None)
    ('0.9877', '1234.568', '-1.2e-05', '-')
    """
    text = format_number(value)
    if value is None or len(text) <= 8:
        return text
    fitting = (f"{value:.{digits}{kind}}" for kind in "fe" for digits in (3, 2, 1) if kind == "e" or abs(value) >= 1e3)
    return next((shorter for shorter in fitting if len(shorter) <= 8), text)


def other_optimizers(snapshot: Snapshot) -> list[str]:
    """The optimizers whose scales stand among the metrics."""
    return [name.partition("/")[2] for name in snapshot.metrics if name.startswith("loss_scale/")]


def own_metrics(metrics: dict[str, float]) -> dict[str, float]:
    """Those of the model, without the counters of further optimizers."""
    return {name: value for name, value in metrics.items() if not name.startswith(OF_OPTIMIZERS)}


def beside_loss(snapshot: Snapshot) -> list[tuple[str, float]]:
    """The model's metrics, without a `loss` among them: the snapshot has its own."""
    return [(name, value) for name, value in own_metrics(snapshot.metrics).items() if name != "loss"]


def row_cells(snapshot: Snapshot, header: RunHeader, seconds: float | None, previous: Snapshot | None) -> list[Cell]:
    """A row of the table in order of its columns; `seconds` are the epoch's, None within one."""
    cells = [Cell("epoch", format_epoch(snapshot, header))]
    cells += [] if snapshot.phase is None else [Cell("phase", f"{snapshot.phase}/{len(header.phases)}", "phase")]
    total = format_count(header.total_steps) if header.total_steps else ""
    cells.append(Cell("step", format_count(snapshot.step), "step", width=len(total)))
    cells.append(Cell("loss", fit_number(snapshot.loss), style="bold", width=NUMBER_WIDTH))
    cells += _metric_cells(snapshot)
    cells.append(Cell("learning rate", f"{snapshot.learning_rate:.3g}", "learning rate", width=NUMBER_WIDTH))
    if header.scaling.scales:
        cells += _scale_cells(snapshot, header, previous)
    rate = snapshot.examples_per_second
    cells.append(Cell("examples/s", "" if rate is None else format_count(rate), "examples/s", width=7))
    return [*cells, Cell("time", "" if seconds is None else format_seconds(seconds), "time", width=6)]


def _metric_cells(snapshot: Snapshot) -> Iterator[Cell]:
    counts: Counter[str] = Counter()
    for name, value in beside_loss(snapshot):
        kind = "val_ metrics" if name.startswith("val_") else "metrics"
        place, counts[kind] = counts[kind], counts[kind] + 1
        kind = kind if place < FIRST_METRICS else f"further {kind}"
        yield Cell(name, fit_number(value), kind, place, width=NUMBER_WIDTH)


def format_epoch(snapshot: Snapshot, header: RunHeader) -> str:
    """Epochs done, with hundredths within one: "0.75/3"; "0+/3" where its length is not known."""
    if snapshot.epoch_end:
        return f"{snapshot.epoch}/{header.epochs}"
    if not header.steps_per_epoch:
        return f"{snapshot.epoch - 1}+/{header.epochs}"
    done = min(snapshot.step_in_epoch / header.steps_per_epoch, 0.99)
    return f"{snapshot.epoch - 1 + math.floor(100 * done) / 100:.2f}/{header.epochs}"


def _scale_cells(snapshot: Snapshot, header: RunHeader, previous: Snapshot | None) -> Iterator[Cell]:
    before = None if previous is None else previous.loss_scale
    moves = header.scaling.moves
    scale = format_scale(snapshot.loss_scale) + (direction(snapshot.loss_scale, before) if moves else "")
    yield Cell("scale", scale, "scale", style=SCALE_STYLE, width=7 if moves else 5)
    if moves:
        yield Cell("changes", "", "changes", style=SCALE_STYLE, width=SHOWN_CHANGES + 1)
    if growth_steps := header.scaling.growth_steps:
        left = format_count(max(0, growth_steps - snapshot.scale_counter))
        yield Cell("grows in", left, "grows in", style=SCALE_STYLE, width=len(format_count(growth_steps)))
    skipped = snapshot.skipped_steps
    yield Cell("skipped", format_count(skipped), "skipped", style=WARNING_STYLE if skipped else "")
    for place, name in enumerate(other_optimizers(snapshot)):
        now = snapshot.metrics[f"loss_scale/{name}"]
        was = None if previous is None else previous.metrics.get(f"loss_scale/{name}")
        yield Cell(f"scale {name}", format_scale(now) + direction(now, was), "of optimizers", place, SCALE_STYLE, 7)
        count = snapshot.metrics.get(f"skipped_steps/{name}", 0.0)
        yield Cell(f"skipped {name}", format_count(count), "of optimizers", place,
                   WARNING_STYLE if count else "")  # fmt: skip


def direction(now: float, before: float | None) -> str:
    """Which way the scale went since the row before; a space where it stayed, so that digits stand under digits."""
    if before is None or now == before:
        return LEVEL
    return UP if now > before else DOWN


def heading_words(name: str) -> list[str]:
    """The lines of a heading: broken at spaces, and a long one at `_` and `/` too, which stay.

    >>> heading_words("val_loss"), heading_words("val_sparse_top_k_accuracy"), heading_words("grows in")
    (['val_loss'], ['val_sparse_', 'top_k_', 'accuracy'], ['grows', 'in'])
    """
    lines = [""]
    for word in re.findall(r"[^_/ ]*[_/ ]|[^_/ ]+", name):
        word = word if len(word) <= LONGEST_WORD else f"{word[: LONGEST_WORD - 1]}…"
        is_over = len(name) > SHORT_NAME and len(lines[-1] + word) >= LONGEST_WORD
        if lines[-1] and (is_over or lines[-1].endswith(" ")):
            lines.append(word)
        else:
            lines[-1] += word
    return [line.rstrip() for line in lines]


@dataclass(frozen=True)
class Extent:
    """Of the screen, in characters: no `width` where nothing wraps; `height` is how many rows a heading is good for."""

    width: int | None = None
    height: int = 40


@dataclass
class EpochTable:
    """Gives out the lines of a run's table: each row, and before it the heading where one is due.

    That is at the first row, after a screenful, and where the columns become others: a metric that comes only every
    few epochs, a wider value, a screen that was resized. No line is wider than the screen, down to epoch and loss.
    """

    header: RunHeader
    bars: bool = True  # whether the stream has characters for them
    within: bool = False  # whether it has rows within epochs too
    trend: ScaleTrend = field(default_factory=ScaleTrend)
    _others: list[str] = field(default_factory=list)
    _columns: dict[str, Cell] = field(default_factory=dict)
    _widths: dict[str, int] = field(default_factory=dict)
    _shown: list[tuple[str, int]] = field(default_factory=list)
    _previous: Snapshot | None = None
    _lines: int = 0  # since the heading

    def __post_init__(self) -> None:
        hundredths = len(".00") if self.within else 0
        self._widths["epoch"] = max(len("epoch"), 2 * len(str(self.header.epochs)) + 1 + hundredths)

    def add(self, events: Sequence[Event]) -> None:
        """Changes of the scale on the way to the next row."""
        self.trend.add(events, self._others)

    def row(self, snapshot: Snapshot, seconds: float | None, extent: Extent) -> list[Line]:
        """The lines of one row."""
        self._others = other_optimizers(snapshot)
        found = {cell.name: cell for cell in row_cells(snapshot, self.header, seconds, self._previous)}
        self._previous = snapshot
        self._take_columns(found)
        shown = self._fitting(extent.width)
        is_due = shown != self._shown or self._lines >= extent.height
        lines = self._heading(shown) if is_due else []
        if is_due:
            self._shown, self._lines = shown, 0
        self._lines += 1
        return [*lines, self._line(found)]

    def beside(self, sentence: str, extent: Extent) -> list[Line]:
        """A sentence between two rows, to the right of the epochs, whose column stays free for the eye."""
        indent = " " * (self._widths["epoch"] + len(GAP))
        room = None if extent.width is None else extent.width - len(indent)
        if room is None or room < LEAST_TEXT_WIDTH:
            parts = [sentence]
        else:
            parts = textwrap.wrap(sentence, room, subsequent_indent=GAP, break_on_hyphens=False)
        self._lines += len(parts)
        return [[(f"{indent}{part}", WARNING_STYLE)] for part in parts]

    def _take_columns(self, found: dict[str, Cell]) -> None:
        """New columns stand where the row has them, and stay for the rows that lack them."""
        names = list(self._columns)
        for index, name in enumerate(found):
            if name not in names:
                names.insert(min([i for i, known in enumerate(names) if known in list(found)[index + 1 :]],
                                 default=len(names)), name)  # fmt: skip
        for name, cell in found.items():
            widest = max(cell.width, cell_len(cell.text), *map(cell_len, heading_words(name)))
            self._widths[name] = max(self._widths.get(name, 0), widest)
        if not self.bars:
            names = [name for name in names if name != "changes"]
        self._columns = {name: found.get(name) or self._columns[name] for name in names}

    def _fitting(self, width: int | None) -> list[tuple[str, int]]:
        """The columns that a line of `width` holds, with their widths."""
        columns = [(name, self._widths[name]) for name in self._columns]
        leaving = sorted(self._columns, key=lambda name: self._columns[name].rank)
        while width is not None and _width_of(columns) > width and self._columns[leaving[0]].kind:
            gone = leaving.pop(0)
            columns = [column for column in columns if column[0] != gone]
        return columns

    def _heading(self, shown: list[tuple[str, int]]) -> list[Line]:
        words = [heading_words(name) for name, _ in shown]
        height = max(map(len, words))
        rows = zip(*([""] * (height - len(column)) + column for column in words), strict=True)
        return [[(GAP.join(_right(word, column[1]) for word, column in zip(row, shown, strict=True)), HEADING_STYLE)]
                for row in rows]  # fmt: skip

    def _line(self, found: dict[str, Cell]) -> Line:
        pieces: Line = []
        for name, width in self._shown:
            cell = found.get(name)
            text = "" if cell is None else str(self.trend) if name == "changes" else cell.text
            pieces.append((f"{GAP if pieces else ''}{_right(text, width)}", cell.style if cell else ""))
        return pieces


def _width_of(columns: Sequence[tuple[str, int]]) -> int:
    return sum(width for _, width in columns) + len(GAP) * (len(columns) - 1)


def _right(text: str, width: int) -> str:
    return " " * (width - cell_len(text)) + text


def plain(line: Line) -> str:
    """Its text alone, without blanks at the end."""
    return "".join(text for text, _ in line).rstrip()
