"""Read from XLA's text of a compiled program (HLO) what one training step contains: the dtypes of its products, the
arrays it makes, and the exchange between devices.

XLA's own Python objects know opcodes and shapes of instructions and nothing of their attributes, such as the layer that
an instruction was traced in or the computation that a fusion calls.

A step is the body of the program's loop. Of a condition, the branch for true is read: in our program, that gradients
are finite, the step is applied, and the log gets a line. An inner loop is read once.
"""

import math
import re
from collections import Counter, defaultdict
from dataclasses import dataclass
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


class Instruction(NamedTuple):
    """One line of a computation. `shapes` are those of the result, of a tuple all its arrays."""

    name: str
    opcode: str
    shapes: tuple[Shape, ...]
    operands: tuple[str, ...]
    attributes: str
    is_root: bool

    def attribute(self, word: str) -> str:
        """Return the value of an attribute that is one word or stands in quotes; empty where it is missing."""
        found = re.search(rf'\b{word}=(?:"([^"]*)"|%?([^\s,}}]+))', self.attributes)
        return (found[1] or found[2] or "") if found else ""

    @property
    def called(self) -> str:
        """Return the computation that it runs: of a conditional the last, whose condition holds; empty for none."""
        if found := re.search(r"branch_computations=\{([^}]*)\}", self.attributes):
            return found[1].split(",")[-1].strip().lstrip("%")
        return next(filter(None, map(self.attribute, CALLED.get(self.opcode, ()))), "")

    @property
    def layer(self) -> str:
        """Return the layer that it was traced in."""
        return layer_of(self.attribute("op_name"))

    @property
    def is_product(self) -> bool:
        """Return whether it is a matrix product, a convolution or cuDNN's attention."""
        return self.opcode in ("dot", "convolution") or bool(_PRODUCT.match(self.attribute("custom_call_target")))


CALLED = {  # the attributes that name what an instruction runs
    "while": ("body",),
    "conditional": ("true_computation",),
    "call": ("to_apply",),
    "fusion": ("calls",),
    "async-start": ("calls", "to_apply"),
}
Computation = dict[str, Instruction]  # by their names, in the order of the text


def parse_program(text: str) -> tuple[dict[str, Computation], Computation]:
    """Return the computations of an HLO text by their names, and that at which it begins; ValueError where none is.

    >>> _, entry = parse_program('''
    ... ENTRY %main (x: f16[4,8]) -> f16[4,4] {
    ...   %x = f16[4,8]{1,0} parameter(0)
    ...   ROOT %dot = (f16[4,4]{1,0}, /*index=1*/ s32[]) dot(%x, %x), lhs_contracting_dims={1}, metadata={op_name="a/b"}
    ... }''')
    >>> dot = entry["dot"]
    >>> dot.opcode, dot.shapes[0].bytes, dot.operands, dot.attribute("op_name"), dot.is_root
    ('dot', 32, ('x', 'x'), 'a/b', True)
    """
    computations: dict[str, Computation] = {}
    entry, current = None, Computation()
    for line in text.splitlines():
        if head := _COMPUTATION.match(line):
            current = computations[head[2]] = {}
            entry = current if head[1] else entry
        elif found := _INSTRUCTION.match(line):
            root, name, result, opcode, inside, attributes = found.groups()
            operands = () if opcode in ("constant", "parameter") else tuple(_NAME.findall(inside))
            shapes = tuple(
                Shape(kind, tuple(map(int, re.findall(r"\d+", sizes)))) for kind, sizes in _LEAF.findall(result)
            )
            current[name] = Instruction(name, opcode, shapes, operands, attributes or "", bool(root))
    if entry is None:
        raise ValueError(f"An HLO text must have an ENTRY computation. Received: {text[:40]!r}.")
    return computations, entry


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
_CONTROL_FLOW = re.compile(
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
    return "/".join(name for name in names if name and not _CONTROL_FLOW.match(name)) or f"({operation or 'no layer'})"


@dataclass(frozen=True)
class Products:
    """The matrix products, convolutions and attentions of one layer that multiply in one dtype."""

    layer: str
    dtype: str
    count: int


@dataclass(frozen=True)
class Exchange:
    """The exchange between devices in one step, for one device: all collectives of a kind and dtype together."""

    opcode: str
    dtype: str
    elements: int


@dataclass(frozen=True)
class ArrayGroup:
    """Arrays of one form that one layer made: their bytes together."""

    bytes: int
    form: str
    layer: str


class StepReader:
    """Walks the step of a program and collects its products, the exchange between devices, and the arrays it makes.

    `has_tf32`: whether the device multiplies float32 as tf32 by default. ValueError if the program has no loop.
    """

    def __init__(self, text: str, has_tf32: bool) -> None:
        self.has_tf32 = has_tf32
        self.computations, entry = parse_program(text)
        self._products: Counter[tuple[str, str]] = Counter()
        self._exchanged: Counter[tuple[str, str]] = Counter()
        self._arrays: dict[tuple[str, str], list[int]] = defaultdict(list)
        loops = [self.computations[each.called] for each in entry.values() if each.opcode == "while"]
        if not loops:
            raise ValueError("The program must have a loop over steps. Received: one without.")
        self._read(max(loops, key=len))

    def _read(self, computation: Computation) -> None:
        carried = _carried(computation)
        for each in computation.values():
            if each.called and each.opcode != "fusion":
                self._read(self.computations[each.called])
            elif each.opcode not in NO_KERNEL and not each.opcode.endswith(("-done", "-update")):
                self._add_kernel(computation, each, each.name in carried)

    def _add_kernel(self, computation: Computation, each: Instruction, is_carried: bool) -> None:
        opcode = each.opcode.removesuffix("-start")
        if opcode in COLLECTIVES:
            shapes = each.shapes[len(each.shapes) // 2 :] if each.opcode == "all-gather-start" else each.shapes
            for shape in shapes:
                self._exchanged[opcode, shape.dtype] += shape.elements
        for shape in () if is_carried else each.shapes:
            self._arrays[f"{shape.dtype} {list(shape.sizes)}", each.layer].append(shape.bytes)
        self._add_products(computation, each)

    def _add_products(self, computation: Computation, each: Instruction) -> None:
        if each.is_product:
            self._products[each.layer, self._dtype(computation, each)] += 1
        elif each.opcode == "fusion":
            inner = self.computations[each.called]
            for one in inner.values():
                self._add_products(inner, one)

    def _dtype(self, computation: Computation, each: Instruction) -> str:
        """Return the dtype of the multiplication: float32 is tf32 unless a higher precision was asked for."""
        name = computation[each.operands[0]].shapes[0].dtype
        is_tf32 = name == "float32" and self.has_tf32 and not _HIGH_PRECISION.search(each.attributes)
        return "tf32" if is_tf32 else name

    def products(self) -> list[Products]:
        """Return the products by layer and dtype, in the order of the program."""
        return [Products(*layer_and_dtype, count) for layer_and_dtype, count in self._products.items()]

    def exchanges(self) -> list[Exchange]:
        """Return what goes between devices, by kind and dtype."""
        return [Exchange(*kind, elements) for kind, elements in sorted(self._exchanged.items())]

    def largest_arrays(self, count: int) -> list[ArrayGroup]:
        """Return the largest arrays that a step makes; equal forms of a layer are added up.

        Arrays written over weights, slots and records are left out. The others need not exist at the same time.
        """
        found = [
            ArrayGroup(sum(sizes), f"{len(sizes)} x {form}" if len(sizes) > 1 else form, layer)
            for (form, layer), sizes in self._arrays.items()
        ]
        return sorted(found, key=lambda arrays: -arrays.bytes)[:count]


def _carried(computation: Computation) -> set[str]:
    """Return the names of the values that the next iteration starts with, which overwrite those of this one."""
    every = [*computation.values()]
    names = set(next((each for each in every if each.is_root), every[-1]).operands)
    return names | {name for each in every if each.name in names and each.opcode in NO_KERNEL for name in each.operands}
