"""What one training step of a compiled program holds: which dtypes its products multiply, which arrays it makes, and
what goes between devices; read from the program as XLA prints it (HLO text).

XLA's own Python objects know opcodes and shapes of instructions and nothing of their attributes, such as the layer that
an instruction was traced in or the computation that a fusion calls.

A step is the body of the program's loop. At a condition the branch is read that is taken where it holds: of ours, that
the gradients are finite, the step is applied, and the log has a line of it. An inner loop is read once.
"""

import math
import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import NamedTuple

BYTES = {"pred": 1, "token": 0, "opaque": 0, "bf16": 2}  # others end in their bits: f32, u8, s4
DTYPES = {"f16": "float16", "bf16": "bfloat16", "f32": "float32", "f64": "float64", "f8": "float8", "f4": "float4"}
_LEAF = re.compile(r"([a-z]\w*)\[([\d,<=]*)\]")
# ROOT, name, shapes, opcode, operands, attributes: of `ROOT %sum = (f32[2]{0}, s32[]) tuple(%a, %b), metadata={…}`
_INSTRUCTION = re.compile(r"\s*(ROOT )?%?([\w.\-]+) = (.*?) ([a-z][\w\-]*)\((.*?)\)(?:(?=, [\w\-]+=)(.*))?$")
_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{\s*$")
_NAME = re.compile(r"%([\w.\-]+)")
_PRODUCT = re.compile(r"__cublas\$|__cudnn\$(conv|fmha)")  # targets of custom calls
_HIGH_PRECISION = re.compile(r"operand_precision[^}\]]*high|f32_f32_f32", re.IGNORECASE)


class Shape(NamedTuple):
    """One array: XLA's name of its type, and its sizes."""

    kind: str
    sizes: tuple[int, ...]

    @property
    def elements(self) -> int:
        """Return the number of elements, 1 for a scalar."""
        return math.prod(self.sizes)

    @property
    def bytes(self) -> int:
        """Return the bytes of all elements.

        >>> Shape("f16", (4, 8)).bytes, Shape("pred", ()).bytes, Shape("f8e4m3fn", (8,)).bytes
        (64, 1, 8)
        """
        digits = re.match(r"[a-z]+(\d+)", self.kind)
        return int(self.elements * BYTES.get(self.kind, int(digits[1]) / 8 if digits else 0))

    @property
    def dtype(self) -> str:
        """Return Keras's name of a floating-point type, XLA's name of another.

        >>> Shape("bf16", ()).dtype, Shape("f8e5m2", ()).dtype, Shape("s32", ()).dtype
        ('bfloat16', 'float8', 's32')
        """
        return DTYPES.get(re.sub(r"^(f[48])e.*", r"\1", self.kind), self.kind)


@dataclass(frozen=True)
class Instruction:
    """One line of a computation. `shapes` are those of the result, of a tuple all its arrays."""

    name: str
    opcode: str
    shapes: tuple[Shape, ...]
    operands: tuple[str, ...]
    attributes: str
    is_root: bool = False

    def attribute(self, word: str) -> str:
        """Return the value of an attribute that is one word or stands in quotes; empty where it is missing."""
        found = re.search(rf'\b{word}=(?:"([^"]*)"|%?([^\s,}}]+))', self.attributes)
        return (found[1] or found[2] or "") if found else ""

    @property
    def called(self) -> str:
        """Return the computation that it runs: of a conditional the last, whose condition holds; empty for none."""
        if found := re.search(r"branch_computations=\{([^}]*)\}", self.attributes):
            return found[1].split(",")[-1].strip().lstrip("%")
        words = {
            "while": ("body",),
            "conditional": ("true_computation",),
            "call": ("to_apply",),
            "fusion": ("calls",),
            "async-start": ("calls", "to_apply"),
        }.get(self.opcode, ())
        return next(filter(None, map(self.attribute, words)), "")

    @property
    def layer(self) -> str:
        """Return the layer that it was traced in."""
        return layer_of(self.attribute("op_name"))

    @property
    def is_product(self) -> bool:
        """Return whether it is a matrix product, a convolution or cuDNN's attention."""
        return self.opcode in ("dot", "convolution") or bool(_PRODUCT.match(self.attribute("custom_call_target")))


@dataclass
class Computation:
    """Instructions by their names, in the order of the text."""

    instructions: dict[str, Instruction] = field(default_factory=dict)

    @property
    def carried(self) -> set[str]:
        """Return the names of what the next round begins with, written over what this one had."""
        every = [*self.instructions.values()]
        root = next((each for each in every if each.is_root), every[-1])
        names = set(root.operands)
        return names | {
            name for each in every if each.name in names and each.opcode in NO_KERNEL for name in each.operands
        }


@dataclass
class Module:
    """The computations of a program by their names, and that at which it begins."""

    computations: dict[str, Computation]
    entry: Computation

    def step_body(self) -> Computation:
        """Return the body of the loop over steps, which is the longest; ValueError where there is no loop."""
        loops = [self.computations[each.called] for each in self.entry.instructions.values() if each.opcode == "while"]
        if not loops:
            raise ValueError("The program must have a loop over steps. Received: one without.")
        return max(loops, key=lambda body: len(body.instructions))


def parse_module(text: str) -> Module:
    """Parse an HLO text; ValueError where it has no entry.

    >>> module = parse_module('''
    ... ENTRY %main (x: f16[4,8]) -> f16[4,4] {
    ...   %x = f16[4,8]{1,0} parameter(0)
    ...   ROOT %dot = f16[4,4]{1,0} dot(%x, %x), lhs_contracting_dims={1}, rhs_contracting_dims={1}
    ... }''')
    >>> module.entry.instructions["dot"].operands
    ('x', 'x')
    """
    computations: dict[str, Computation] = {}
    entry, current = None, None
    for line in text.splitlines():
        if current is None:
            if head := _COMPUTATION.match(line):
                current = computations[head[2]] = Computation()
                entry = current if head[1] else entry
        elif line.startswith("}"):
            current = None
        elif (instruction := parse_instruction(line)) is not None:
            current.instructions[instruction.name] = instruction
    if entry is None:
        raise ValueError(f"An HLO text must have an ENTRY computation. Received: {text[:40]!r}.")
    return Module(computations, entry)


def parse_instruction(line: str) -> Instruction | None:
    """Parse one line; None where it is no instruction.

    >>> line = '  ROOT %t.1 = (f32[2,3]{1,0}, /*index=1*/ s32[]) tuple(%a, %b.2), metadata={op_name="x/y"}'
    >>> found = parse_instruction(line)
    >>> found.opcode, found.shapes[0].bytes, found.operands, found.attribute("op_name"), found.is_root
    ('tuple', 24, ('a', 'b.2'), 'x/y', True)
    """
    if (found := _INSTRUCTION.match(line)) is None:
        return None
    root, name, result, opcode, inside, attributes = found.groups()
    shapes = tuple(
        Shape(kind, tuple(int(size.lstrip("<=")) for size in sizes.split(",") if size))
        for kind, sizes in _LEAF.findall(result)
    )
    operands = () if opcode in ("constant", "parameter") else tuple(_NAME.findall(inside))
    return Instruction(name, opcode, shapes, operands, attributes or "", bool(root))


NO_KERNEL = {
    "parameter",
    "constant",
    "tuple",
    "get-tuple-element",
    "bitcast",
    "after-all",
    "opt-barrier",
    "partition-id",
    "replica-id",
    "add-dependency",
}
COLLECTIVES = ("all-reduce", "reduce-scatter", "all-gather", "collective-permute", "all-to-all", "ragged-all-to-all")
_CONTROL = re.compile(
    r"^(jit\(.*\)|while|body|cond|closed_call|branch_\d+_fun|checkpoint|remat\d*|custom_vjp_call|"
    r"custom_jvp_call|shard_map|body_jaxpr|cond_jaxpr)$"
)


def layer_of(op_name: str) -> str:
    """Return the layer that an instruction was traced in; else JAX's name of the operation, if it has one.

    >>> layer_of("jit(<lambda>)/while/body/transpose(jvp(block_1))/query/dot_general")
    'block_1/query'
    >>> layer_of("jit(<lambda>)/while/body/cond/branch_1_fun/adam/mul"), layer_of("jit(f)/while/body/and")
    ('adam', '(and)')
    >>> layer_of("")
    '(no layer)'
    """
    *path, operation = op_name.split("/")
    names = [re.sub(r"^(?:transpose\(|jvp\(|vmap\(|rematted_computation\()+([^()]*)\)*$", r"\1", part) for part in path]
    return "/".join(name for name in names if name and not _CONTROL.match(name)) or f"({operation or 'no layer'})"


@dataclass(frozen=True)
class Products:
    """The matrix products, convolutions and attentions of one layer that multiply in one dtype."""

    layer: str
    dtype: str
    count: int


@dataclass(frozen=True)
class Exchange:
    """What goes between the devices in one step, one device's part: all collectives of a kind and dtype together."""

    opcode: str
    dtype: str
    count: int
    elements: int
    bytes: int


@dataclass(frozen=True)
class Arrays:
    """Arrays of one form that one layer made: their bytes together."""

    bytes: int
    form: str
    layer: str


class StepReader:
    """Walks the step of a program and gathers its products, what is exchanged, and the arrays that it makes.

    `has_tf32`: whether the device multiplies float32 as tf32 by default. ValueError where the program has no loop.
    """

    def __init__(self, module: Module, has_tf32: bool) -> None:
        self.computations, self.has_tf32 = module.computations, has_tf32
        self._products: Counter[tuple[str, str]] = Counter()
        self._exchanged: dict[tuple[str, str], list[Shape]] = defaultdict(list)
        self._arrays: dict[tuple[str, str], list[int]] = defaultdict(list)
        self._read(module.step_body())

    def _read(self, computation: Computation) -> None:
        carried = computation.carried
        for each in computation.instructions.values():
            if each.called and each.opcode != "fusion":
                self._read(self.computations[each.called])
            elif each.opcode not in NO_KERNEL and not each.opcode.endswith(("-done", "-update")):
                self._add_kernel(computation, each, each.name in carried)

    def _add_kernel(self, computation: Computation, each: Instruction, is_carried: bool) -> None:
        opcode = each.opcode.removesuffix("-start")
        if opcode in COLLECTIVES:
            shapes = each.shapes[len(each.shapes) // 2 :] if each.opcode == "all-gather-start" else each.shapes
            for shape in shapes:
                self._exchanged[opcode, shape.dtype].append(shape)
        for shape in () if is_carried else each.shapes:
            self._arrays[f"{shape.dtype} {list(shape.sizes)}", each.layer].append(shape.bytes)
        self._add_products(computation, each)

    def _add_products(self, computation: Computation, each: Instruction) -> None:
        if each.is_product:
            self._products[each.layer, self._dtype(computation, each)] += 1
        elif each.opcode == "fusion":
            inner = self.computations[each.called]
            for one in inner.instructions.values():
                self._add_products(inner, one)

    def _dtype(self, computation: Computation, each: Instruction) -> str:
        """Return the dtype of the multiplication: float32 is tf32 unless a higher precision was asked for."""
        name = computation.instructions[each.operands[0]].shapes[0].dtype
        is_tf32 = name == "float32" and self.has_tf32 and not _HIGH_PRECISION.search(each.attributes)
        return "tf32" if is_tf32 else name

    def products(self) -> list[Products]:
        """Return the products by layer and dtype, in the order of the program."""
        return [Products(*place, count) for place, count in self._products.items()]

    def exchanges(self) -> list[Exchange]:
        """Return what goes between devices, by kind and dtype."""
        return [
            Exchange(*kind, len(shapes), sum(shape.elements for shape in shapes), sum(shape.bytes for shape in shapes))
            for kind, shapes in sorted(self._exchanged.items())
        ]

    def largest_arrays(self, count: int) -> list[Arrays]:
        """Return the largest arrays that a step makes; equal forms of a layer are added up.

        Arrays written over weights, slots and records are left out. The others need not exist at the same time.
        """
        found = [
            Arrays(sum(sizes), f"{len(sizes)} x {form}" if len(sizes) > 1 else form, layer)
            for (form, layer), sizes in self._arrays.items()
        ]
        return sorted(found, key=lambda arrays: -arrays.bytes)[:count]
