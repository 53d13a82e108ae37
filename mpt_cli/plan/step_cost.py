"""What one training step of a compiled program does: what it multiplies in which dtype, which arrays it makes, and what
goes between devices; read from the program as XLA prints it (HLO text).

XLA's own Python objects know opcodes and shapes of instructions and nothing of their attributes (which dimensions a
product contracts, which computation a fusion calls).

A step is the body of the program's loop, at whose conditions the branch is counted that is taken where they hold: of
ours, that the gradients are finite, the step is applied, and the log has a line of it.
"""

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

BYTES = {"pred": 1, "token": 0, "opaque": 0, "bf16": 2}  # others end in their bits: f32, u8, s4
DTYPES = {"f16": "float16", "bf16": "bfloat16", "f32": "float32", "f64": "float64", "f8": "float8", "f4": "float4"}
_LEAF = re.compile(r"([a-z]\w*)\[([\d,<=]*)\]")
# ROOT, name, shapes, opcode, operands, attributes: of `ROOT %sum = (f32[2]{0}, s32[]) tuple(%a, %b), metadata={…}`
_INSTRUCTION = re.compile(r"\s*(ROOT )?%?([\w.\-]+) = (.*?) ([a-z][\w\-]*)\((.*?)\)(?:(?=, [\w\-]+=)(.*))?$")
_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{\s*$")
_NAME = re.compile(r"%([\w.\-]+)")


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
        """
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

    @property
    def shape(self) -> Shape:
        """Return the shape of the result; for a tuple, of its first array."""
        return self.shapes[0] if self.shapes else Shape("token", ())

    def called(self, word: str) -> str:
        """Return the computation named after this word; empty where there is none."""
        return self.text(word).lstrip("%")

    @property
    def branch_taken(self) -> str:
        """Return the branch of a conditional that runs where its condition holds, which is the last."""
        if found := re.search(r"branch_computations=\{([^}]*)\}", self.attributes):
            return found[1].split(",")[-1].strip().lstrip("%")
        return self.called("true_computation")

    def numbers(self, word: str) -> tuple[int, ...]:
        """Return the numbers of an attribute such as lhs_contracting_dims={1,2}; none where it is missing."""
        found = re.search(rf"\b{word}=\{{([\d,]*)\}}", self.attributes)
        return tuple(int(number) for number in found[1].split(",") if number) if found else ()

    def text(self, word: str) -> str:
        """Return the value of an attribute that is one word or stands in quotes."""
        found = re.search(rf'\b{word}=(?:"([^"]*)"|([^\s,}}]+))', self.attributes)
        return (found[1] or found[2] or "") if found else ""

    def config(self, word: str) -> dict[str, Any]:
        """Return this part of its backend_config; empty where it has none."""
        _, _, rest = self.attributes.partition("backend_config={")
        try:
            return dict(json.JSONDecoder().raw_decode("{" + rest)[0].get(word, {}))
        except ValueError:
            return {}


@dataclass
class Computation:
    """Instructions by their names, in the order of the text."""

    name: str
    instructions: dict[str, Instruction] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Instruction]:
        return iter(self.instructions.values())

    def operand(self, instruction: Instruction, index: int) -> Instruction:
        """Return the instruction that makes this operand."""
        return self.instructions[instruction.operands[index]]

    @property
    def root(self) -> Instruction:
        """Return the instruction whose result the computation returns."""
        return next((each for each in self if each.is_root), list(self)[-1])


@dataclass
class Module:
    """The computations of a program by their names, and that at which it begins."""

    computations: dict[str, Computation]
    entry: Computation

    def step_body(self) -> Computation:
        """Return the body of the loop over steps, which is the loop with the longest body; ValueError where there is
        none.
        """
        loops = [self.computations[each.called("body")] for each in self.entry if each.opcode == "while"]
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
    >>> module.entry.root.opcode, module.entry.root.numbers("lhs_contracting_dims"), module.entry.root.operands
    ('dot', (1,), ('x', 'x'))
    """
    computations: dict[str, Computation] = {}
    entry, current = None, None
    for line in text.splitlines():
        if current is None:
            if head := _COMPUTATION.match(line):
                current = computations[head[2]] = Computation(head[2])
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
    >>> found.opcode, found.shapes[0].bytes, found.operands, found.text("op_name"), found.is_root
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
    """Return the layer that an instruction was traced in; else JAX's name of the operation.

    >>> layer_of("jit(<lambda>)/while/body/transpose(jvp(block_1))/query/dot_general")
    'block_1/query'
    >>> layer_of("jit(<lambda>)/while/body/cond/branch_1_fun/adam/mul"), layer_of("jit(f)/while/body/and")
    ('adam', '(and)')
    """
    *path, operation = op_name.split("/")
    names = [re.sub(r"^(?:transpose\(|jvp\(|vmap\(|rematted_computation\()+([^()]*)\)*$", r"\1", part) for part in path]
    return "/".join(name for name in names if name and not _CONTROL.match(name)) or f"({operation})"


@dataclass(frozen=True)
class Product:
    """A matrix product or convolution: the dtype that it multiplies in, its floating-point operations (a multiplication
    and an addition count as two), and its layer."""

    dtype: str
    flops: float
    layer: str


@dataclass
class Step:
    """One step: its products, each as often as it runs; what is summed or gathered over devices, one device's part, by
    opcode; and the arrays that it makes with their layers.
    """

    products: list[Product] = field(default_factory=list)
    collectives: list[tuple[str, Shape]] = field(default_factory=list)
    arrays: list[tuple[Shape, str]] = field(default_factory=list)
    unknown_loops: int = 0  # inner loops of a length that is not in the program, counted as one round

    def flops(self) -> dict[str, float]:
        """Return the operations of matrix products and convolutions, by dtype."""
        found: dict[str, float] = {}
        for product in self.products:
            found[product.dtype] = found.get(product.dtype, 0.0) + product.flops
        return found

    def largest_arrays(self, count: int) -> list[tuple[int, str, str]]:
        """Return bytes, form and layer of the largest arrays that a step makes; equal forms of a layer are added up.

        Arrays written over weights, slots and records are left out. The others need not exist at the same time.
        """
        found: dict[tuple[str, str], list[int]] = {}
        for shape, layer in self.arrays:
            found.setdefault((f"{shape.dtype} {list(shape.sizes)}", layer), []).append(shape.bytes)
        rows = [
            (sum(sizes), f"{len(sizes)} x {form}" if len(sizes) > 1 else form, layer)
            for (form, layer), sizes in found.items()
        ]
        return sorted(rows, reverse=True)[:count]


def read_step(module: Module, has_tf32: bool) -> Step:
    """Read the step of a training loop. `has_tf32`: whether the device multiplies float32 as tf32 by default.

    ValueError where the program has no loop.
    """
    reader = _Reader(module.computations, has_tf32)
    reader.read(module.step_body(), 1)
    return reader.step


class _Reader:
    """Walks a program and fills a `Step`."""

    def __init__(self, computations: dict[str, Computation], has_tf32: bool) -> None:
        self.computations, self.has_tf32, self.step = computations, has_tf32, Step()

    def read(self, computation: Computation, times: int) -> None:
        carried = set(computation.root.operands)  # what the next round begins with, written over what this one had
        carried |= {
            name for each in computation if each.name in carried and each.opcode in NO_KERNEL for name in each.operands
        }
        for each in computation:
            if each.opcode == "while":
                rounds = each.config("known_trip_count").get("n")
                self.step.unknown_loops += rounds is None
                self.read(self.computations[each.called("body")], times * int(rounds or 1))
            elif each.opcode == "conditional":
                self.read(self.computations[each.branch_taken], times)
            elif each.opcode in ("call", "async-start"):
                self.read(self.computations[each.called("to_apply") or each.called("calls")], times)
            elif each.opcode not in NO_KERNEL and not each.opcode.endswith(("-done", "-update")):
                self._add(computation, each, times, each.name in carried)

    def _add(self, computation: Computation, each: Instruction, times: int, is_carried: bool) -> None:
        opcode = each.opcode.removesuffix("-start")
        if opcode in COLLECTIVES:
            shapes = each.shapes[len(each.shapes) // 2 :] if each.opcode == "all-gather-start" else each.shapes
            self.step.collectives += [(opcode, shape) for shape in shapes] * times
        if not is_carried:
            self.step.arrays += [(shape, layer_of(each.text("op_name"))) for shape in each.shapes]
        self.step.products += [*self._products(computation, each)] * times

    def _products(self, computation: Computation, each: Instruction) -> Iterator[Product]:
        flops = _product_flops(computation, each)
        if flops is not None:
            yield Product(self._dtype(computation, each), flops, layer_of(each.text("op_name")))
        elif each.opcode == "fusion":
            inner = self.computations[each.called("calls")]
            for one in inner:
                yield from self._products(inner, one)

    def _dtype(self, computation: Computation, each: Instruction) -> str:
        """Return the dtype of the multiplication: float32 is tf32 unless a higher precision was asked for."""
        name = computation.operand(each, 0).shape.dtype
        precision = f"{each.text('algorithm')}{each.config('gemm_backend_config').get('precision_config', '')}"
        raised = re.search("operand_precision=.[^}]*high|HIGH|f32_f32_f32", each.attributes + precision)
        return "tf32" if name == "float32" and self.has_tf32 and not raised else name


def _product_flops(computation: Computation, each: Instruction) -> float | None:
    """Return the operations of a matrix product or convolution; None for another instruction."""
    target = each.text("custom_call_target")
    if each.opcode == "dot":
        return _dot(computation, each, each.numbers("lhs_contracting_dims"))
    if target.startswith("__cublas$"):
        numbers = each.config("gemm_backend_config").get("dot_dimension_numbers", {})
        return _dot(computation, each, tuple(map(int, numbers.get("lhs_contracting_dimensions", ()))))
    if each.opcode == "convolution" or target.startswith("__cudnn$conv"):
        return _convolution(computation, each, target)
    if target.startswith("__cudnn$fmha"):
        return _attention(computation, each, "Backward" in target)
    return None


def _dot(computation: Computation, each: Instruction, contracted: tuple[int, ...]) -> float:
    left = computation.operand(each, 0).shape.sizes
    return 2.0 * each.shape.elements * math.prod(left[index] for index in contracted)


def _convolution(computation: Computation, each: Instruction, target: str) -> float:
    """Return its operations: each output of the forward pass is a sum over the kernel and the input channels of its
    group.

    What cuDNN computes backward has as many operations, and names the dimensions of the forward pass.
    """
    shapes = [computation.operand(each, index).shape for index in (0, 1)]
    labels = re.match(r"\w+_(\w+)->\w+", each.text("dim_labels"))
    assert labels is not None
    if not target:
        terms = _window(each, "size") * shapes[1].sizes[labels[1].index("i")]
        return 2.0 * each.shape.elements * terms / _window(each, "lhs_dilate")
    kernel, outputs = {"BackwardFilter": (each.shape, shapes[1]), "BackwardInput": (shapes[1], shapes[0])}.get(
        target.removeprefix("__cudnn$conv"), (shapes[1], each.shape)
    )
    return 2.0 * outputs.elements * kernel.elements / kernel.sizes[labels[1].index("o")]


def _window(each: Instruction, word: str) -> int:
    """Return the product of these sizes of a window, 1 where it has none."""
    found = re.search(rf"window=\{{[^}}]*\b{word}=([\dx]+)", each.attributes)
    return math.prod(map(int, found[1].split("x"))) if found else 1


def _attention(computation: Computation, each: Instruction, backward: bool) -> float:
    """Return the operations of cuDNN's fused attention: two products forward, five backward (one repeats the
    forward's), each of queries by keys by head size.

    A causal mask saves about half of them, which is not subtracted.
    """
    query, key = (computation.operand(each, index).shape.sizes for index in (0, 1))
    axis = next((axis for axis in (1, 2) if query[axis] != key[axis]), 1)  # where lengths differ they show the layout
    return (10.0 if backward else 4.0) * math.prod(query) * key[axis]
