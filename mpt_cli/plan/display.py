"""Plans as a person reads them: one column per configuration, then what each is made of."""

from collections.abc import Callable, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from mpt_cli.plan.device import Device
from mpt_cli.plan.plan import LAUNCH_SECONDS, Plan
from mpt_cli.report.tables import plain_lines, print_labelled, text_columns
from mpt_cli.telemetry.format import format_bytes, format_fraction, format_seconds

MOST_LINES = 6  # of each kind of detail; `--json` has all
NOTHING_RAN = "Compiled and bounded; nothing was run."


def print_plans(device: Device, plans: Sequence[Plan], console: Console) -> None:
    """A table of all, the details of each, and what the figures assume. Piped, aligned plain lines."""
    titles, rows = ["", *(_title(plan) for plan in plans)], _rows(device, plans)
    console.print(f"{plans[0].devices} x {device.description}. {NOTHING_RAN}", highlight=False, soft_wrap=True)
    if console.is_terminal:
        console.print(_rich_table(titles, rows))
    else:
        console.out("\n".join(plain_lines(text_columns(titles), rows)), highlight=False)
    for plan in plans:
        console.print(f"\n{_title(plan)}", highlight=False, soft_wrap=True)
        print_labelled(details(plan), console)
    console.print()
    print_labelled([("assumes", text) for text in assumptions(device, plans)], console)


def _title(plan: Plan) -> str:
    return ", ".join(plan.overrides.values()) or plan.policy


def _rich_table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    for name in titles:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    return table


def _rows(device: Device, plans: Sequence[Plan]) -> list[list[str]]:
    base = next((plan for plan in plans if plan.policy == "float32"), None)
    found = [[label, *(say(plan) for plan in plans)] for label, say in _LABELS]
    if base is not None and len(plans) > 1:
        found.append(["bound of float32 / bound", *(_gain(base, plan) for plan in plans)])
    return [row for row in found if any(row[1:])]


def _memory(plan: Plan) -> str:
    room = f"of {format_bytes(plan.usable_bytes)}"
    return f"{format_bytes(plan.needed_bytes)} {room}, {'fits' if plan.fits else 'DOES NOT FIT'}"


def _work(plan: Plan) -> str:
    total = sum(plan.flops.values())
    parts = sorted(plan.product_flops.items(), key=lambda item: -item[1])
    shares = ", ".join(f"{dtype} {format_fraction(count / total)}" for dtype, count in parts)
    return f"{total:.3g} flops: {shares}" if shares else f"{total:.3g} flops"


def _bound(plan: Plan) -> str:
    return "" if plan.bound is None else f"≥ {format_milliseconds(plan.bound.step)}, by {plan.bound.by}"


def _parts(plan: Plan) -> str:
    if plan.bound is None:
        return ""
    parts = {"compute": plan.bound.compute, "memory": plan.bound.memory, "launches": plan.bound.launches,
             "links": plan.bound.links}  # fmt: skip
    return ", ".join(f"{name} {format_milliseconds(seconds)}" for name, seconds in parts.items() if seconds)


def _rate(plan: Plan) -> str:
    return "" if plan.bound is None else f"≤ {plan.batch_size / plan.bound.step:,.0f}"


def _extra(plan: Plan) -> str:
    extra = plan.extra
    if extra is None:
        return "not known: the model has a train_step of its own"
    kernels = f"{extra.kernels:+} kernels ({format_fraction(extra.kernels / extra.plain_kernels)})"
    moved = f"{_signed_bytes(extra.bytes)} moved ({format_fraction(extra.bytes / extra.plain_bytes)})"
    return f"{kernels}, {moved}, {_signed_bytes(extra.memory)} of memory"


def _signed_bytes(count: int) -> str:
    return f"{'-' if count < 0 else '+'}{format_bytes(abs(count))}"


def _host(plan: Plan) -> str:
    transfers = f"{len(plan.host_transfers)} transfers" if plan.host_transfers else "no transfer"
    return f"{transfers}, {plan.host_reads} conditions read"


def _gain(base: Plan, plan: Plan) -> str:
    return "" if base.bound is None or plan.bound is None else f"{base.bound.step / plan.bound.step:.2f}"


_LABELS: list[tuple[str, Callable[[Plan], str]]] = [
    ("policy", lambda plan: plan.policy),
    ("batch, of all devices", lambda plan: f"{plan.batch_size:,}"),
    ("parameters", lambda plan: f"{plan.parameters:,}"),
    ("memory of a device", _memory),
    ("  weights, optimizer, data", lambda plan: format_bytes(plan.memory.arguments + plan.held_bytes)),
    ("  temporaries", lambda plan: format_bytes(plan.memory.temporaries)),
    ("largest batch that fits", lambda plan: "" if plan.largest_batch is None else f"about {plan.largest_batch:,}"),
    ("work of a step", _work),
    ("on matrix units", lambda plan: format_fraction(plan.matrix_share)),
    ("bytes of a step", lambda plan: format_bytes(plan.bytes)),
    ("kernels of a step", lambda plan: f"{plan.kernels:,}"),
    ("time of a step", _bound),
    ("  of that", _parts),
    ("examples per second", _rate),
    ("scaling and records add", _extra),
    ("host, in each step", _host),
]


def details(plan: Plan) -> list[tuple[str, str]]:
    """Label and sentence: the largest arrays, float32 in a mixed policy, uneven sizes, moves, collectives, warnings."""
    rows = [("memory", f"{format_bytes(each.bytes)}: {each.form}, {each.layer}") for each in plan.buffers[:MOST_LINES]]
    rows += _limited("float32", plan.islands,
                     lambda each: f"{each.name}: {each.count} products, {each.amount:.3g} flops")  # fmt: skip
    rows += _limited("uneven", plan.uneven, lambda text: f"{text}: a size that is no multiple of 8")
    rows += [("moves", f"{each.count} kernels that only move, {each.name}: {format_bytes(int(each.amount))}")
             for each in plan.moves]  # fmt: skip
    rows += [("devices", f"{each.opcode} of {each.elements:,} {each.dtype} elements, {format_bytes(each.bytes)}, in "
              f"{each.count} parts") for each in plan.traffic]  # fmt: skip
    rows += _limited("host", plan.host_transfers, str)
    if plan.unknown_loops:
        rows.append(("loops", f"{plan.unknown_loops} inner loops of unknown length, counted as one round each"))
    rows += [("warning", text) for text in plan.warnings]
    return [*rows, ("compiled", f"in {format_seconds(plan.compile_seconds)}")]


def _limited(label: str, entries: Sequence[Any], say: Callable[[Any], str]) -> list[tuple[str, str]]:
    rows = [(label, say(each)) for each in entries[:MOST_LINES]]
    return rows + ([(label, f"and {len(entries) - MOST_LINES} more")] if len(entries) > MOST_LINES else [])


def assumptions(device: Device, plans: Sequence[Plan]) -> list[str]:
    """What the figures stand on, for the page as for the console."""
    peaks = ", ".join(f"{dtype} {value:g}" for dtype, value in device.teraflops.items())
    found = [
        f"peaks of the data sheet: teraflops {peaks}; memory {device.memory_gb_per_second:,.0f} GB/s. No kernel "
        "reaches them: a step takes longer than its bound.",
        f"{LAUNCH_SECONDS * 1e6:g} µs to start a kernel (not measured), hidden while the device is busy.",
        "kernels as XLA chooses them without trying any; beside a GPU it may choose others of the same dtype.",
        f"JAX's allocator takes {format_bytes(device.usable_bytes)} of {format_bytes(device.memory_bytes)} at most "
        "(XLA_PYTHON_CLIENT_MEM_FRACTION).",
    ]
    if plans[0].devices > 1:
        found.append(f"{device.link_gb_per_second:g} GB/s from one device to the next, sums in a ring, hidden behind "
                     "kernels.")  # fmt: skip
    return found


def format_milliseconds(seconds: float) -> str:
    """
    >>> format_milliseconds(0.00615), format_milliseconds(0.0000021), format_milliseconds(2.5)
    ('6.15 ms', '0.0021 ms', '2,500 ms')
    """
    value = 1000 * seconds
    return f"{value:,.0f} ms" if value >= 100 else f"{value:.3g} ms" if value >= 0.1 else f"{value:.2g} ms"
