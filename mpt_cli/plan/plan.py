"""Plan a run: read memory, dtypes and devices from its compiled program, which is not run, and print one column for
each configuration, then the details of each.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from mpt_cli.errors import Say, raise_problems
from mpt_cli.plan.compiled_program import CompileTarget, Planned, assemble_planned, plan_problems, prepare_compiler
from mpt_cli.plan.device import Device, load_device
from mpt_cli.plan.program_text import ArrayGroup, Exchange, Products, StepReader
from mpt_cli.report.tables import print_labelled, print_table, text_columns
from mpt_cli.settings.load import load_with_notes
from mpt_cli.settings.schema import Settings
from mpt_cli.sweep.overrides import read_grid, varied_values
from mpt_cli.telemetry.console import PrintableConsole
from mpt_cli.telemetry.format import Rows, format_bytes
from mpt_cli.training.run_from_settings import RunDefinition


@dataclass(frozen=True)
class Memory:
    """Bytes on one device: the arguments of the program, its temporaries, and the peak."""

    arguments: int
    temporaries: int
    peak: int


@dataclass(frozen=True)
class Plan:
    """One configuration, compiled. Bytes and products are those of one device and one step."""

    overrides: dict[str, str]
    policy: str
    batch_size: int
    devices: int
    parameters: int
    memory: Memory
    held_bytes: int  # of data that stays on the device beside what the program is given
    usable_bytes: int
    arrays: list[ArrayGroup]
    products: list[Products]
    exchanges: list[Exchange]
    warnings: list[str]

    @property
    def needed_bytes(self) -> int:
        """Return the bytes at the peak on one device."""
        return self.memory.peak + self.held_bytes

    @property
    def products_by_dtype(self) -> Counter[str]:
        """Return the number of products in each dtype."""
        counts: Counter[str] = Counter()
        for each in self.products:
            counts[each.dtype] += each.count
        return counts

    @property
    def wide_products(self) -> list[Products]:
        """Return the products in a wide dtype of a policy that has narrow ones."""
        narrow = {"float16", "bfloat16"}
        return (
            [each for each in self.products if each.dtype not in narrow] if narrow & {*self.products_by_dtype} else []
        )

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
    gpu, grid = load_device(device), read_grid(words)
    target = CompileTarget(gpu, devices)
    raise_problems(grid.problems)
    varied = [varied_values(words, grid.varied) for words in grid.combinations]
    found = [plan_settings(words) for words in grid.combinations]
    for note in dict.fromkeys(note for _, notes in found for note in notes):
        say(note)
    raise_problems(dict.fromkeys(problem for settings, _ in found for problem in plan_problems(settings, devices)))
    plans = []
    for (settings, _), overrides in zip(found, varied, strict=True):
        platform = prepare_compiler(settings, target)
        name = ", ".join(f"{key}={value}" for key, value in overrides.items()) or settings.recipe
        say(f"compiling {name} for {devices} x {gpu.name}")
        plans.append(compile_plan(assemble_planned(RunDefinition(settings), target, platform), overrides))
    return plans


def plan_settings(words: Sequence[str]) -> tuple[Settings, list[str]]:
    """Load the settings of these words, with JAX unless they name a backend, and notes on where they come from; the
    seed does not matter here.
    """
    named = any(word.lstrip("+").startswith(("backend=", "backend.name=")) for word in words)
    settings, notes = load_with_notes([*words] if named else [*words, "backend=jax"])
    return replace(settings, seed=settings.seed or 0), notes


def compile_plan(planned: Planned, overrides: dict[str, str]) -> Plan:
    """Compile the run and read its plan from the compiled program."""
    from mpt_cli.engine.step_batches import byte_size
    from mpt_cli.training.build_run_parts import count_parameters

    compiled = planned.compile()
    stats = compiled.memory_analysis()
    given, temporaries = stats.argument_size_in_bytes, stats.temp_size_in_bytes
    made = stats.output_size_in_bytes - stats.alias_size_in_bytes  # not in place of what it was given
    parts, device = planned.parts, planned.target.device
    has_tf32 = device is not None and device.at_least("8.0")
    step = StepReader(compiled.as_text(), has_tf32)
    return Plan(
        overrides=overrides,
        policy=parts.settings.policy.name,
        batch_size=parts.settings.trainer.batch_size,
        devices=planned.target.count,
        parameters=count_parameters(parts.model),
        memory=Memory(given, temporaries, given + made + temporaries),
        held_bytes=(byte_size(parts.data.validation) or 0) if parts.train_feed.is_resident else 0,
        usable_bytes=0 if device is None else device.usable_bytes,
        arrays=step.largest_arrays(8),
        products=step.products(),
        exchanges=step.exchanges(),
        warnings=list(parts.warnings),
    )


MOST_DETAILS = 6  # lines of each kind of detail; `--json` has all


def print_plans(device: Device, plans: Sequence[Plan], console: PrintableConsole) -> None:
    """Print a table of all plans, the details of each, and what the figures assume; in a pipe, aligned plain lines."""
    heading = f"{plans[0].devices} x {device.description}. Compiled; nothing was run."
    console.say(heading)
    rows = [[label, *(say(plan) for plan in plans)] for label, say in _LABELS]
    print_table(text_columns(["", *map(_title, plans)]), [row for row in rows if any(row[1:])], console)
    for plan in plans:
        console.say(f"\n{_title(plan)}")
        print_labelled(details(plan), console)
    console.print()
    assumptions = [
        "memory is that of one applied step of this program: what CUDA, cuDNN and NCCL take is not counted, and the "
        "arrays listed may not exist at the same time.",
        "kernels are those that XLA chooses without trying any; with a GPU it may choose others of the same dtype.",
        f"JAX's allocator takes {format_bytes(device.usable_bytes)} of {format_bytes(device.memory_bytes)} at most, "
        "unless XLA_PYTHON_CLIENT_MEM_FRACTION says otherwise.",
    ]
    print_labelled([("assumes", text) for text in assumptions], console)


def _title(plan: Plan) -> str:
    return ", ".join(plan.overrides.values()) or plan.policy


_LABELS: list[tuple[str, Callable[[Plan], str]]] = [
    ("policy", lambda plan: plan.policy),
    ("batch, of all devices", lambda plan: f"{plan.batch_size:,}"),
    ("parameters", lambda plan: f"{plan.parameters:,}"),
    (
        "memory of a device",
        lambda plan: (
            f"{format_bytes(plan.needed_bytes)} of {format_bytes(plan.usable_bytes)}, "
            f"{'fits' if plan.fits else 'DOES NOT FIT'}"
        ),
    ),
    ("  weights, optimizer, data", lambda plan: format_bytes(plan.memory.arguments + plan.held_bytes)),
    ("  temporaries", lambda plan: format_bytes(plan.memory.temporaries)),
    (
        "products of a step",
        lambda plan: ", ".join(f"{count} in {dtype}" for dtype, count in plan.products_by_dtype.most_common()),
    ),
]


def details(plan: Plan) -> Rows:
    """Return rows of label and sentence: the largest arrays, wide products in a mixed policy, collectives, warnings."""
    rows = [("arrays", f"{format_bytes(each.bytes)}: {each.form}, {each.layer}") for each in plan.arrays[:MOST_DETAILS]]
    wide = plan.wide_products
    rows += [("wide", f"{each.layer}: {each.count} products in {each.dtype}") for each in wide[:MOST_DETAILS]]
    if len(wide) > MOST_DETAILS:
        rows.append(("wide", f"and {len(wide) - MOST_DETAILS} more layers"))
    rows += [("devices", f"{each.opcode} of {each.elements:,} {each.dtype} elements") for each in plan.exchanges]
    rows += [("warning", text) for text in plan.warnings]
    return rows
