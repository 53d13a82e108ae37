"""A plan: what a run's compiled program says of memory, work, bounds and devices, and how it is shown: one column per
configuration, then what each is made of. Nothing of it is run.

Bounds are not predictions: no kernel reaches its peak, so that a step takes longer than its bound. A kernel can't be
faster than its operations at the peak of their dtype, nor than its bytes at the memory's peak (Williams et al. 2009,
"Roofline"); kernels follow each other, so that their bounds add up; and the host starts them one by one.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from mpt_cli.engine.backend import Platform
from mpt_cli.errors import ConfigError
from mpt_cli.plan.device import Device, load_device
from mpt_cli.plan.program import (
    Compiled,
    CompileTarget,
    Memory,
    Planned,
    admit_compiler,
    assemble_for,
    assemble_program,
    batch_parts,
    check_plan,
    prepare_compiler,
)
from mpt_cli.plan.work import Buffer, Kernel, Product, Step, largest_buffers, parse_module, read_step, uneven
from mpt_cli.report.tables import plain_lines, print_labelled, text_columns
from mpt_cli.settings.load import load_settings
from mpt_cli.settings.overrides import keys_given
from mpt_cli.settings.schema import Settings, is_mixed
from mpt_cli.sweep.block import Block
from mpt_cli.sweep.overrides import read_grid
from mpt_cli.telemetry.format import format_bytes, format_fraction, format_seconds
from mpt_cli.training.program import Program

TILE = 8  # elements: matrix units multiply float16 in tiles of that many or multiples
LAUNCH_SECONDS = 2e-6  # assumed for the host to start a kernel; nobody measured it here
Say = Callable[[str], None]


@dataclass(frozen=True)
class Bound:
    """Seconds that a step takes at least: where arithmetic binds, where memory does, for all launches, for what goes
    between devices; `step` is the least of all together, without the last two where they can be hidden."""

    compute: float
    memory: float
    launches: float
    links: float

    @property
    def step(self) -> float:
        """Kernels one after the other; starting them, and talking to other devices, may go on meanwhile."""
        return max(self.compute + self.memory, self.launches, self.links)

    @property
    def by(self) -> str:
        """What binds most."""
        parts = {"compute": self.compute, "memory": self.memory}
        whole = {"kernel launches": self.launches, "links between devices": self.links}
        name = max(whole, key=lambda key: whole[key])
        return name if whole[name] >= self.compute + self.memory else max(parts, key=lambda key: parts[key])


@dataclass(frozen=True)
class PlanShare:
    """Part of a whole: of a layer's operations, or of a kind of kernel's bytes."""

    name: str
    count: int
    amount: float


@dataclass(frozen=True)
class Traffic:
    """What goes between the devices in one step: all collectives of a kind and dtype together."""

    opcode: str
    dtype: str
    count: int
    elements: int
    bytes: int


@dataclass(frozen=True)
class Extra:
    """What loss scaling, skips and records add to Keras's own step: kernels, bytes, operations, bytes of memory."""

    kernels: int
    bytes: int
    flops: float
    memory: int
    plain_kernels: int
    plain_bytes: int


@dataclass(frozen=True)
class Plan:
    """One configuration, compiled. Bytes and work are those of one device and one step."""

    overrides: dict[str, str]
    policy: str
    batch_size: int
    devices: int
    parameters: int
    memory: Memory
    held_bytes: int  # of data that stays on the device beside what the program is given
    usable_bytes: int
    buffers: list[Buffer]
    kernels: int
    flops: dict[str, float]
    product_flops: dict[str, float]
    matrix_share: float
    bytes: int
    moves: list[PlanShare]
    islands: list[PlanShare]
    uneven: list[str]
    traffic: list[Traffic]
    host_transfers: list[str]
    host_reads: int
    unknown_loops: int
    bound: Bound | None
    extra: Extra | None
    compile_seconds: float
    warnings: list[str] = field(default_factory=list)
    largest_batch: int | None = None

    @property
    def needed_bytes(self) -> int:
        """On one device at the peak."""
        return self.memory.peak + self.held_bytes

    @property
    def fits(self) -> bool:
        """Whether JAX's allocator has room for it."""
        return self.needed_bytes <= self.usable_bytes

    def as_dict(self) -> dict[str, Any]:
        """For `--json`."""
        bound = None if self.bound is None else {**asdict(self.bound), "step": self.bound.step, "by": self.bound.by}
        return {**asdict(self), "needed_bytes": self.needed_bytes, "fits": self.fits, "bound": bound}


@dataclass(frozen=True)
class PlanRequest:
    """What `mpt plan` was asked for beside the configuration."""

    device: str
    devices: int = 1
    find_batch: bool = False


def plan(words: Sequence[str], request: PlanRequest, say: Say = lambda text: None) -> tuple[Device, list[Plan]]:
    """The device and a plan of each configuration that `words` span (`policy=float32,mixed_float16`).

    ConfigError, with all problems, before anything is compiled; also where the compiler is not installed.
    """
    device = load_device(request.device)
    target = CompileTarget(device, request.devices)
    found = [(overrides, divisible_batch(settings_of(each), each, request.devices))
             for overrides, each in combinations_of(words)]  # fmt: skip
    problems = []
    for _, (settings, _) in found:
        try:
            check_plan(settings, request.devices)
        except ConfigError as error:
            problems += [problem for problem in error.problems if problem not in problems]
    if problems:
        raise ConfigError(problems)
    plans = []
    for overrides, (settings, notes) in found:
        of_settings = _Configuration(overrides, settings, partial(assemble_for, target=target))
        made = _plan_one(of_settings, prepare_compiler(settings, target), target, request, say)
        plans.append(replace(made, warnings=[*made.warnings, *notes]))
    return device, plans


def plan_program(program: Program, request: PlanRequest, say: Say = lambda text: None) -> tuple[Device, Plan]:
    """As `plan`, of a program of objects whose backend is there already, over devices that each have all of it."""
    device = load_device(request.device)
    target = CompileTarget(device, request.devices)
    check_plan(program.settings, request.devices)
    admit_compiler(target)

    def assembled(settings: Settings, platform: Platform) -> Planned:
        return assemble_program(program.with_settings(settings), settings.distribute, target, platform)

    of_program = _Configuration({}, program.settings, assembled)
    return device, _plan_one(of_program, program.prepare_backend(), target, request, say)


def divisible_batch(settings: Settings, words: Sequence[str], devices: int) -> tuple[Settings, list[str]]:
    """`settings`, with the batch of a recipe for one device rounded up to what the `devices` divide, where `words` name
    none; and what is said of that."""
    batch = settings.trainer.batch_size
    is_free = settings.distribute.name == "none" and "trainer.batch_size" not in keys_given(words)
    if not is_free or devices < 1 or batch % devices == 0:
        return settings, []
    rounded = -(-batch // devices) * devices
    note = (f"trainer.batch_size={rounded} was planned, the {batch} of the configuration rounded up to what {devices} "
            "devices divide.")  # fmt: skip
    return replace(settings, trainer=replace(settings.trainer, batch_size=rounded)), [note]


def settings_of(words: Sequence[str]) -> Settings:
    """The run of these words with JAX's program, unless they name another backend; the seed changes no program."""
    named = any(word.lstrip("+").startswith(("backend=", "backend.name=")) for word in words)
    settings = load_settings([*words] if named else [*words, "backend=jax"])
    return replace(settings, seed=settings.seed or 0)


def combinations_of(words: Sequence[str]) -> Iterator[tuple[dict[str, str], list[str]]]:
    """Of each configuration the values that not all have, and its words."""
    grid = read_grid(words)
    if grid.problems:
        raise ConfigError(grid.problems)
    for point in Block().with_words(grid).points():
        yield {key: point.values[key] for key in grid.varied}, list(point.words)


@dataclass(frozen=True)
class _Configuration:
    """What is planned, with what puts its run together under settings that may have another batch."""

    overrides: dict[str, str]
    settings: Settings
    assembled: Callable[..., Planned]


def _plan_one(
    configuration: _Configuration, platform: Platform, target: CompileTarget, request: PlanRequest, say: Say
) -> Plan:
    overrides, settings = configuration.overrides, configuration.settings
    name = ", ".join(f"{key}={value}" for key, value in overrides.items()) or settings.recipe
    say(f"compiling {name} for {target.count} x {request.device}")
    planned = configuration.assembled(settings, platform=platform)
    found = read_plan(planned, planned.compile(), planned.compile_plain())
    found = replace(found, overrides=overrides)
    if not request.find_batch:
        return found

    def compiled(batch_size: int) -> bool:
        say(f"compiling {name} for a batch of {batch_size}")
        larger = replace(settings, trainer=replace(settings.trainer, batch_size=batch_size))
        again = configuration.assembled(larger, platform=platform)
        return read_plan(again, again.compile(), None).fits

    parts = batch_parts(settings, target.count)
    return replace(found, largest_batch=largest_batch(compiled, settings.trainer.batch_size, found.fits, parts))


def largest_batch(fits: Callable[[int], bool], start: int, start_fits: bool, multiple: int) -> int | None:
    """The largest batch that fits, to an eighth and a multiple of `multiple`; None where not even the smallest does.

    The batch is doubled or halved from `start`, then the gap is halved.

    >>> largest_batch(lambda batch: batch <= 100, 8, True, 1)
    96
    """
    low, high = (start, start * 2) if start_fits else (0, start)
    while low and fits(high):
        low, high = high, high * 2
    while high - low > max(multiple, high // 8):
        middle = (low + high) // 2 // multiple * multiple
        if middle in (low, high):
            break
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low or None


def read_plan(planned: Planned, compiled: Compiled, plain: Compiled | None) -> Plan:
    """What the two programs say, of the run and of Keras's own step."""
    from mpt_cli.training.assembly import count_parameters

    parts, device = planned.parts, planned.target.device
    has_tf32 = device is not None and device.has_tf32
    module = parse_module(compiled.text)
    step = read_step(module, has_tf32)
    units = () if device is None else device.matrix_units
    flops, products = step.flops(), step.product_flops()
    on_units = sum(products.get(unit, 0.0) for unit in units)
    return Plan(
        overrides={}, policy=parts.settings.policy.name, batch_size=parts.settings.trainer.batch_size,
        devices=planned.target.count, parameters=count_parameters(parts.model), memory=compiled.memory,
        held_bytes=_held_bytes(planned), usable_bytes=0 if device is None else device.usable_bytes,
        buffers=largest_buffers(module, 8), kernels=len(step.kernels), flops=flops,
        product_flops=products, matrix_share=on_units / max(sum(flops.values()), 1.0),
        bytes=step.bytes, moves=_moves(step), islands=_islands(step.products, parts.settings.policy.name),
        uneven=_uneven(step.products, units), traffic=_traffic(step), host_transfers=step.host_transfers,
        host_reads=step.host_reads, unknown_loops=step.unknown_loops,
        bound=None if device is None else bound_of(step, device, planned.target.count),
        extra=None if plain is None else _extra(step, compiled, plain, has_tf32),
        compile_seconds=compiled.seconds, warnings=list(parts.warnings),
    )  # fmt: skip


def _held_bytes(planned: Planned) -> int:
    """Validation data that stays on the device during training."""
    from mpt_cli.engine.feed import byte_size

    parts = planned.parts
    return (byte_size(parts.data.validation) or 0) if parts.resident else 0


def bound_of(step: Step, device: Device, devices: int) -> Bound:
    """Each kernel at the peak of the device that binds it; what it sums over devices in a ring."""
    compute = memory = 0.0
    for kernel in step.kernels:
        arithmetic, moving = arithmetic_seconds(kernel, device), kernel.bytes / device.bytes_per_second
        compute, memory = (compute + arithmetic, memory) if arithmetic > moving else (compute, memory + moving)
    sent = sum(_sent(each.opcode, each.bytes, each.devices or devices) for each in step.collectives)
    return Bound(compute, memory, len(step.kernels) * LAUNCH_SECONDS, sent / device.link_bytes_per_second)


def arithmetic_seconds(kernel: Kernel, device: Device) -> float:
    """Products at the peak of their dtype, element-wise operations at that of float32 outside of the matrix units."""
    products = sum(product.flops / device.flops_per_second(product.dtype) for product in kernel.products)
    return products + sum(kernel.arithmetic.values()) / device.flops_per_second("float32")


def _sent(opcode: str, count: int, devices: int) -> float:
    """Bytes that each device of a ring sends for a result of `count` bytes: a sum takes two rounds of the ring, a
    gathering or scattering one.

    >>> _sent("all-reduce", 800, 8), _sent("all-gather", 800, 8), _sent("reduce-scatter", 100, 8)
    (1400.0, 700.0, 700.0)
    """
    if opcode == "collective-permute":
        return count
    whole = count * devices if opcode == "reduce-scatter" else count
    return (2 if opcode == "all-reduce" else 1) * whole * (devices - 1) / devices


def _moves(step: Step) -> list[PlanShare]:
    """Kernels that do nothing but cast, transpose or copy."""
    kinds = sorted({kernel.move for kernel in step.kernels} - {""})
    members = {kind: [kernel for kernel in step.kernels if kernel.move == kind] for kind in kinds}
    return [PlanShare(kind, len(found), sum(kernel.bytes for kernel in found)) for kind, found in members.items()]


def _islands(products: Sequence[Product], policy: str) -> list[PlanShare]:
    """Under a mixed policy: layers whose products are in float32 or tf32, with their operations."""
    if not is_mixed(policy):
        return []
    found: dict[str, list[float]] = {}
    for product in products:
        if product.dtype in ("float32", "tf32", "float64"):
            found.setdefault(product.layer.path or str(product.layer), []).append(product.flops)
    shares = [PlanShare(name, len(flops), sum(flops)) for name, flops in found.items()]
    return sorted(shares, key=lambda share: -share.amount)


def _uneven(products: Sequence[Product], units: tuple[str, ...]) -> list[str]:
    found = [product for product in products if uneven(product, units, TILE)]
    return list(dict.fromkeys(f"{product.layer} ({' x '.join(map(str, product.sizes))})" for product in found))


def _traffic(step: Step) -> list[Traffic]:
    kinds = sorted({(each.opcode, each.dtype) for each in step.collectives})
    groups = [[each for each in step.collectives if (each.opcode, each.dtype) == kind] for kind in kinds]
    return [Traffic(*kind, len(group), sum(each.elements for each in group), sum(each.bytes for each in group))
            for kind, group in zip(kinds, groups, strict=True)]  # fmt: skip


def _extra(step: Step, compiled: Compiled, plain: Compiled, has_tf32: bool) -> Extra:
    other = read_step(parse_module(plain.text), has_tf32)
    flops = sum(step.flops().values()) - sum(other.flops().values())
    return Extra(len(step.kernels) - len(other.kernels), step.bytes - other.bytes, flops,
                 compiled.memory.peak - plain.memory.peak, len(other.kernels), other.bytes)  # fmt: skip


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


def _scaling_adds(plan: Plan) -> str:
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
    ("scaling and records add", _scaling_adds),
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
