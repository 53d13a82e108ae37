"""A plan: what a run's compiled program says of memory, dtypes and devices, and how it is shown: one column per
configuration, then what each is made of. Nothing of it is run.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from rich.console import Console

from mpt_cli.engine.backend import Platform
from mpt_cli.errors import ConfigError
from mpt_cli.plan.compiled_program import (
    Compiled,
    CompileTarget,
    Memory,
    Planned,
    assemble_program,
    check_plan,
    prepare_compiler,
)
from mpt_cli.plan.device import Device, load_device
from mpt_cli.plan.step_cost import Shape, Step, parse_module, read_step
from mpt_cli.report.tables import print_labelled, print_table, text_columns
from mpt_cli.settings.load import load_with_recipe
from mpt_cli.settings.schema import Settings
from mpt_cli.sweep.overrides import read_grid, varied_values
from mpt_cli.telemetry.format import format_bytes, format_fraction, format_seconds
from mpt_cli.training.run_from_settings import Program

Say = Callable[[str], None]


@dataclass(frozen=True)
class Island:
    """A layer that multiplies in a wide dtype, with its products in it and their operations."""

    name: str
    dtype: str  # float32, tf32 or float64
    count: int
    flops: float


@dataclass(frozen=True)
class Traffic:
    """What goes between the devices in one step: all collectives of a kind and dtype together."""

    opcode: str
    dtype: str
    count: int
    elements: int
    bytes: int


@dataclass(frozen=True)
class Buffer:
    """Arrays of one form that one layer made: their bytes together."""

    bytes: int
    form: str
    layer: str


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
    product_flops: dict[str, float]
    islands: list[Island]
    traffic: list[Traffic]
    unknown_loops: int
    compile_seconds: float
    warnings: list[str] = field(default_factory=list)

    @property
    def needed_bytes(self) -> int:
        """Return the bytes at the peak on one device."""
        return self.memory.peak + self.held_bytes

    @property
    def fits(self) -> bool:
        """Return whether JAX's allocator has room for it."""
        return self.needed_bytes <= self.usable_bytes

    def as_dict(self) -> dict[str, Any]:
        """Return the entry of `--json`."""
        return {**asdict(self), "needed_bytes": self.needed_bytes, "fits": self.fits}


def plan(words: Sequence[str], device: str, devices: int = 1, say: Say = lambda text: None) -> list[Plan]:
    """Plan each configuration of `words` (`policy=float32,mixed_float16` are two).

    ConfigError, with all problems, before anything is compiled; also where the compiler is not installed.
    """
    target = CompileTarget(load_device(device), devices)
    found = [(overrides, *plan_settings(each)) for overrides, each in plan_combinations(words)]
    for note in dict.fromkeys(note for *_, notes in found for note in notes):
        say(note)
    problems = []
    for _, settings, _ in found:
        try:
            check_plan(settings, devices)
        except ConfigError as error:
            problems += [problem for problem in error.problems if problem not in problems]
    if problems:
        raise ConfigError(problems)
    return [
        _plan_one(Program(settings), prepare_compiler(settings, target), target, overrides, say)
        for overrides, settings, _ in found
    ]


def plan_settings(words: Sequence[str]) -> tuple[Settings, list[str]]:
    """Load the settings of these words, with JAX unless they name a backend, and what is said of where they come from;
    the seed does not matter here.
    """
    named = any(word.lstrip("+").startswith(("backend=", "backend.name=")) for word in words)
    settings, recipe = load_with_recipe([*words] if named else [*words, "backend=jax"])
    return replace(settings, seed=settings.seed or 0), recipe.notes


def plan_combinations(words: Sequence[str]) -> Iterator[tuple[dict[str, str], list[str]]]:
    """Yield the values that vary, and the words of each configuration."""
    grid = read_grid(words)
    if grid.problems:
        raise ConfigError(grid.problems)
    for combination in grid.combinations:
        yield varied_values(combination, grid.varied), [*combination]


def _plan_one(program: Program, platform: Platform, target: CompileTarget, overrides: dict[str, str], say: Say) -> Plan:
    assert target.device is not None
    name = ", ".join(f"{key}={value}" for key, value in overrides.items()) or program.settings.recipe
    say(f"compiling {name} for {target.count} x {target.device.name}")
    planned = assemble_program(program, target, platform)
    return replace(read_plan(planned, planned.compile()), overrides=overrides)


def read_plan(planned: Planned, compiled: Compiled) -> Plan:
    """Read the plan from the compiled program."""
    from mpt_cli.engine.step_batches import byte_size
    from mpt_cli.training.build_run_parts import count_parameters

    parts, device = planned.parts, planned.target.device
    step = read_step(parse_module(compiled.text), device is not None and device.has_tf32)
    flops = step.flops()
    return Plan(
        overrides={},
        policy=parts.settings.policy.name,
        batch_size=parts.settings.trainer.batch_size,
        devices=planned.target.count,
        parameters=count_parameters(parts.model),
        memory=compiled.memory,
        held_bytes=(byte_size(parts.data.validation) or 0) if parts.train_feed.is_resident else 0,
        usable_bytes=0 if device is None else device.usable_bytes,
        buffers=[Buffer(*row) for row in step.largest_arrays(8)],
        product_flops=flops,
        islands=_islands(step) if {"float16", "bfloat16"} & {*flops} else [],
        traffic=_traffic(step),
        unknown_loops=step.unknown_loops,
        compile_seconds=compiled.seconds,
        warnings=list(parts.warnings),
    )


def _islands(step: Step) -> list[Island]:
    found: dict[tuple[str, str], list[float]] = {}
    for product in step.products:
        if product.dtype in ("float32", "tf32", "float64"):
            found.setdefault((product.layer, product.dtype), []).append(product.flops)
    islands = [Island(*place, len(flops), sum(flops)) for place, flops in found.items()]
    return sorted(islands, key=lambda island: -island.flops)


def _traffic(step: Step) -> list[Traffic]:
    groups: dict[tuple[str, str], list[Shape]] = {}
    for opcode, shape in step.collectives:
        groups.setdefault((opcode, shape.dtype), []).append(shape)
    return [
        Traffic(*kind, len(shapes), sum(shape.elements for shape in shapes), sum(shape.bytes for shape in shapes))
        for kind, shapes in sorted(groups.items())
    ]


MOST_LINES = 6  # of each kind of detail; `--json` has all


def print_plans(device: Device, plans: Sequence[Plan], console: Console) -> None:
    """Print a table of all plans, the details of each, and what the figures assume; in a pipe, aligned plain lines."""
    heading = f"{plans[0].devices} x {device.description}. Compiled; nothing was run."
    console.print(heading, highlight=False, soft_wrap=True)
    rows = [[label, *(say(plan) for plan in plans)] for label, say in _LABELS]
    print_table(text_columns(["", *map(_title, plans)]), [row for row in rows if any(row[1:])], console)
    for plan in plans:
        console.print(f"\n{_title(plan)}", highlight=False, soft_wrap=True)
        print_labelled(details(plan), console)
    console.print()
    print_labelled([("assumes", text) for text in assumptions(device)], console)


def _title(plan: Plan) -> str:
    return ", ".join(plan.overrides.values()) or plan.policy


def _memory_cell(plan: Plan) -> str:
    room = f"of {format_bytes(plan.usable_bytes)}"
    return f"{format_bytes(plan.needed_bytes)} {room}, {'fits' if plan.fits else 'DOES NOT FIT'}"


def _products_cell(plan: Plan) -> str:
    total = sum(plan.product_flops.values())
    parts = sorted(plan.product_flops.items(), key=lambda item: -item[1])
    return f"{total:.3g} flops: {', '.join(f'{dtype} {format_fraction(count / total)}' for dtype, count in parts)}"


_LABELS: list[tuple[str, Callable[[Plan], str]]] = [
    ("policy", lambda plan: plan.policy),
    ("batch, of all devices", lambda plan: f"{plan.batch_size:,}"),
    ("parameters", lambda plan: f"{plan.parameters:,}"),
    ("memory of a device", _memory_cell),
    ("  weights, optimizer, data", lambda plan: format_bytes(plan.memory.arguments + plan.held_bytes)),
    ("  temporaries", lambda plan: format_bytes(plan.memory.temporaries)),
    ("products of a step", _products_cell),
]


def details(plan: Plan) -> list[tuple[str, str]]:
    """Return rows of label and sentence: the largest arrays, wide products in a mixed policy, collectives, warnings."""
    rows = [("arrays", f"{format_bytes(each.bytes)}: {each.form}, {each.layer}") for each in plan.buffers[:MOST_LINES]]
    rows += [
        ("wide", f"{each.name}: {each.count} products in {each.dtype}, {each.flops:.3g} flops")
        for each in plan.islands[:MOST_LINES]
    ]
    if len(plan.islands) > MOST_LINES:
        rows.append(("wide", f"and {len(plan.islands) - MOST_LINES} more layers"))
    rows += [
        (
            "devices",
            f"{each.opcode} of {each.elements:,} {each.dtype} elements, {format_bytes(each.bytes)}, in "
            f"{each.count} parts",
        )
        for each in plan.traffic
    ]
    if plan.unknown_loops:
        rows.append(("loops", f"{plan.unknown_loops} inner loops of unknown length, counted as one round each"))
    rows += [("warning", text) for text in plan.warnings]
    return [*rows, ("compiled", f"in {format_seconds(plan.compile_seconds)}")]


def assumptions(device: Device) -> list[str]:
    """Return what the figures assume."""
    return [
        "a step that is applied, of this program alone: what CUDA, cuDNN and NCCL take of the memory beside it is not "
        "counted, and the arrays listed need not be there at the same time.",
        "kernels as XLA chooses them without trying any; beside a GPU it may choose others of the same dtype.",
        f"JAX's allocator takes {format_bytes(device.usable_bytes)} of {format_bytes(device.memory_bytes)} at most, "
        "unless XLA_PYTHON_CLIENT_MEM_FRACTION says otherwise.",
    ]
