"""What one training step of a compiled program does: its kernels, what each computes and moves, what goes between
devices and to the host, and what lies in memory meanwhile; read from the program as XLA prints it (HLO text).

XLA's own Python objects know opcodes and shapes of instructions and nothing of their attributes (which dimensions a
product contracts, which computation a fusion calls), and there are none of a program that was saved as text.

A step is the body of the program's loop, at whose conditions the branch is counted that is taken where they hold: of
ours, that the gradients are finite, the step is applied, and the log has a line of it.
"""

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

BYTES = {"pred": 1, "token": 0, "opaque": 0, "bf16": 2, "s4": 0.5, "u4": 0.5}  # others end in their bits: f32, u8
DTYPES = {"f16": "float16", "bf16": "bfloat16", "f32": "float32", "f64": "float64", "f8": "float8", "f4": "float4"}
_LEAF = re.compile(r"([a-z]\w*)\[([\d,<=]*)\](\{[^}]*\})?")
_HEAD = re.compile(r"^\s*(ROOT )?%?([\w.\-]+) = ")
_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{\s*$")
_NAME = re.compile(r"%([\w.\-]+)")
_CALLED = re.compile(r"\b(calls|to_apply|body|condition|true_computation|false_computation)=%?([\w.\-]+)")
_HOST = "S(5)"  # XLA's memory space of the host


class Shape(NamedTuple):
    """One array: XLA's name of its type, its sizes, and whether it lies in the host's memory."""

    kind: str
    sizes: tuple[int, ...]
    on_host: bool = False

    @property
    def elements(self) -> int:
        """1 for a scalar."""
        return math.prod(self.sizes)

    @property
    def bytes(self) -> int:
        """
        >>> Shape("f16", (4, 8)).bytes, Shape("pred", ()).bytes, Shape("f8e4m3fn", (8,)).bytes
        (64, 1, 8)
        """
        return int(self.elements * _element_bytes(self.kind))

    @property
    def dtype(self) -> str:
        """Keras's name of a floating-point type; empty for another.

        >>> Shape("bf16", ()).dtype, Shape("f8e5m2", ()).dtype, Shape("s32", ()).dtype
        ('bfloat16', 'float8', '')
        """
        return DTYPES.get(re.sub(r"^(f[48])e.*", r"\1", self.kind), "")


def _element_bytes(kind: str) -> float:
    if kind in BYTES:
        return BYTES[kind]
    digits = re.match(r"[a-z]+(\d+)", kind)
    return int(digits[1]) / 8 if digits else 0


@dataclass(frozen=True)
class Instruction:
    """One line of a computation. `shapes` are those of the result, of a tuple all its arrays."""

    name: str
    opcode: str
    shapes: tuple[Shape, ...]
    operands: tuple[str, ...]
    attributes: str
    is_root: bool = False
    literal: str = ""  # what stands between the parentheses

    @property
    def shape(self) -> Shape:
        """Of the result, or the first array of a tuple."""
        return self.shapes[0] if self.shapes else Shape("token", ())

    @property
    def bytes(self) -> int:
        """Of all arrays of the result."""
        return sum(shape.bytes for shape in self.shapes)

    @cached_property
    def called(self) -> dict[str, str]:
        """The computations it names, by the word before them."""
        return dict(_CALLED.findall(self.attributes))

    @property
    def branches(self) -> list[str]:
        """Of a conditional: the computation where its condition does not hold, then the one where it does."""
        if found := re.search(r"branch_computations=\{([^}]*)\}", self.attributes):
            return _NAME.findall(found[1]) or [name.strip() for name in found[1].split(",")]
        return [self.called[word] for word in ("false_computation", "true_computation") if word in self.called]

    def numbers(self, word: str) -> tuple[int, ...]:
        """The numbers of an attribute such as lhs_contracting_dims={1,2}; none where it is not there."""
        found = re.search(rf"\b{word}=\{{([\d,]*)\}}", self.attributes)
        return tuple(int(number) for number in found[1].split(",") if number) if found else ()

    def text(self, word: str) -> str:
        """The value of an attribute that is one word or is in quotes."""
        found = re.search(rf'\b{word}=(?:"([^"]*)"|([^\s,}}]+))', self.attributes)
        return (found[1] or found[2] or "") if found else ""

    @cached_property
    def config(self) -> dict[str, Any]:
        """Its backend_config; empty where it has none or one that is no JSON."""
        start = self.attributes.find("backend_config={")
        if start < 0:
            return {}
        try:
            found, _ = json.JSONDecoder().raw_decode(self.attributes[start + len("backend_config=") :])
        except ValueError:
            return {}
        return dict(found)

    @property
    def op_name(self) -> str:
        """The path of names under which JAX traced it."""
        return self.text("op_name")


@dataclass
class Computation:
    """Instructions by their names, in the order of the text."""

    name: str
    instructions: dict[str, Instruction] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Instruction]:
        return iter(self.instructions.values())

    def operand(self, instruction: Instruction, index: int) -> Instruction:
        """What makes its operand of this index."""
        return self.instructions[instruction.operands[index]]

    @property
    def root(self) -> Instruction:
        """What the computation returns."""
        return next((each for each in self if each.is_root), list(self)[-1])

    @property
    def parameters(self) -> list[Instruction]:
        """In the order of a call's operands."""
        found = [each for each in self if each.opcode == "parameter"]
        return sorted(found, key=lambda each: int(each.literal or 0))


@dataclass
class Module:
    """The computations of a program by their names, and that at which it begins."""

    computations: dict[str, Computation]
    entry: Computation


def parse_module(text: str) -> Module:
    """The program of an HLO text; ValueError where it has no entry.

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
    """One line; None for what is no instruction.

    >>> line = '  ROOT %t.1 = (f32[2,3]{1,0}, /*index=1*/ s32[]) tuple(%a, %b.2), metadata={op_name="x/y"}'
    >>> found = parse_instruction(line)
    >>> found.opcode, found.shapes[0].bytes, found.operands, found.op_name, found.is_root
    ('tuple', 24, ('a', 'b.2'), 'x/y', True)
    """
    head = _HEAD.match(line)
    if head is None:
        return None
    rest = line[head.end() :]
    ends = _closing(rest, 0) if rest.startswith("(") else rest.find(" ") - 1
    shapes = tuple(_shape(*found) for found in _LEAF.findall(rest[: ends + 1]))
    rest = rest[ends + 1 :].strip()
    opens = rest.find("(")
    closes = _closing(rest, opens)
    inside = rest[opens + 1 : closes]
    opcode = rest[:opens]
    operands = () if opcode in ("constant", "parameter") else tuple(_NAME.findall(inside))
    literal = inside if opcode == "parameter" else ""
    return Instruction(head[2], opcode, shapes, operands, rest[closes + 1 :], bool(head[1]), literal)


def _shape(kind: str, sizes: str, layout: str) -> Shape:
    return Shape(kind, tuple(int(size.lstrip("<=")) for size in sizes.split(",") if size), _HOST in layout)


def _closing(text: str, opens: int) -> int:
    """Where the parenthesis that opens there closes."""
    depth = 0
    for place in range(opens, len(text)):
        depth += (text[place] == "(") - (text[place] == ")")
        if depth == 0:
            return place
    return len(text)


NO_KERNEL = {"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "opt-barrier", "while",
             "conditional", "call", "partition-id", "replica-id", "add-dependency"}  # fmt: skip
COLLECTIVES = ("all-reduce", "reduce-scatter", "all-gather", "collective-permute", "all-to-all", "ragged-all-to-all")
ARITHMETIC = {"add", "subtract", "multiply", "divide", "maximum", "minimum", "exponential", "exponential-minus-one",
              "log", "log-plus-one", "tanh", "sqrt", "rsqrt", "power", "negate", "abs", "logistic", "sine", "cosine",
              "erf", "cbrt", "remainder", "atan2"}  # fmt: skip
REDUCTIONS = {"reduce", "reduce-window", "scatter", "select-and-scatter"}
MOVES = {"copy": "copies", "transpose": "transposes", "convert": "casts", "copy-start": "copies"}
CARRIED = {"bitcast", "reshape", "parameter", "broadcast", "constant", "slice", "concatenate", "pad", "tuple",
           "reverse", "get-tuple-element", "dynamic-slice"}  # fmt: skip  # go along with a move
SLICES = {"dynamic-slice", "slice", "gather"}
SAME_ARRAY = {"bitcast", "get-tuple-element", "tuple", "opt-barrier"}
NO_ARRAY = {"parameter", "constant"}
Place = tuple[str, int]  # an instruction and which of its arrays
_CONTROL = re.compile(r"^(jit\(.*\)|while|body|cond|closed_call|branch_\d+_fun|checkpoint|remat\d*|custom_vjp_call|"
                      r"custom_jvp_call|shard_map|body_jaxpr|cond_jaxpr)$")  # fmt: skip


@dataclass(frozen=True)
class Layer:
    """Where an instruction comes from, of the names under which it was traced: a layer's path, and whether it is part
    of the backward pass; the last name is JAX's operation."""

    path: str
    backward: bool
    operation: str

    def __str__(self) -> str:
        name = self.path or f"({self.operation})"
        return f"{name}, backward" if self.backward else name


def layer_of(op_name: str) -> Layer:
    """
    >>> str(layer_of("jit(<lambda>)/while/body/transpose(jvp(block_1))/query/dot_general"))
    'block_1/query, backward'
    >>> str(layer_of("jit(<lambda>)/while/body/cond/branch_1_fun/adam/mul")), str(layer_of("jit(f)/while/body/and"))
    ('adam', '(and)')
    """
    *path, operation = op_name.split("/") if op_name else [""]
    backward = any(part.startswith("transpose(") for part in path)
    names = [re.sub(r"^(?:transpose\(|jvp\(|vmap\(|rematted_computation\()+([^()]*)\)*$", r"\1", part) for part in path]
    return Layer("/".join(name for name in names if name and not _CONTROL.match(name)), backward, operation)


@dataclass(frozen=True)
class Product:
    """A matrix product or convolution: the dtype that it multiplies in, its floating-point operations (a multiplication
    and an addition count as two), rows, columns and terms of a sum (none known of an attention), and its layer."""

    dtype: str
    flops: float
    sizes: tuple[int, ...]
    layer: Layer


@dataclass(frozen=True)
class Collective:
    """Something summed or gathered over so many `devices`, all of them where None: bytes of one device's part."""

    opcode: str
    dtype: str
    elements: int
    bytes: int
    layer: Layer
    devices: int | None = None


@dataclass(frozen=True)
class Kernel:
    """What is started on the device as one piece; `move` is casts, transposes or copies where it does nothing else."""

    layer: Layer
    products: tuple[Product, ...]
    arithmetic: dict[str, float]
    bytes: int
    move: str = ""

    def flops(self) -> dict[str, float]:
        """Floating-point operations by dtype; element-wise ones count one each."""
        return _by_dtype([self.arithmetic, *({product.dtype: product.flops} for product in self.products)])


@dataclass
class Step:
    """One step: its kernels (each as often as it runs), collectives, instructions that reach the host, and the
    conditions of loops and branches, which the host reads unless XLA puts them into a graph of its own."""

    kernels: list[Kernel] = field(default_factory=list)
    collectives: list[Collective] = field(default_factory=list)
    host_transfers: list[str] = field(default_factory=list)
    host_reads: int = 0
    unknown_loops: int = 0  # inner loops of a length that is not in the program, counted as one round

    @property
    def bytes(self) -> int:
        """Read from and written to the device's memory."""
        return sum(kernel.bytes for kernel in self.kernels)

    @property
    def products(self) -> list[Product]:
        return [product for kernel in self.kernels for product in kernel.products]

    def product_flops(self) -> dict[str, float]:
        """Of matrix products and convolutions, by dtype."""
        return _by_dtype({product.dtype: product.flops} for product in self.products)

    def flops(self) -> dict[str, float]:
        """Of everything, by dtype."""
        return _by_dtype(kernel.flops() for kernel in self.kernels)


def _by_dtype(parts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Their sums."""
    found: dict[str, float] = {}
    for part in parts:
        for dtype, count in part.items():
            found[dtype] = found.get(dtype, 0.0) + count
    return found


def read_step(module: Module, has_tf32: bool) -> Step:
    """The step of a training loop. `has_tf32`: whether the device multiplies float32 as tf32 unless told otherwise.

    ValueError where the program has no loop.
    """
    reader = _Reader(module, has_tf32)
    reader.read_loop(step_loop(module), 1)
    return reader.step


def step_loop(module: Module) -> Instruction:
    """The loop over steps: that with the longest body. ValueError where there is none."""
    loops = [each for each in module.entry if each.opcode == "while"]
    if not loops:
        raise ValueError("The program must have a loop over steps. Received: one without.")
    return max(loops, key=lambda loop: len(module.computations[loop.called["body"]].instructions))


class _Reader:
    """Walks a program and fills a `Step`."""

    def __init__(self, module: Module, has_tf32: bool) -> None:
        self.computations, self.has_tf32, self.step = module.computations, has_tf32, Step()

    def read_loop(self, loop: Instruction, times: int) -> None:
        for word in ("body", "condition"):
            self._read(self.computations[loop.called[word]], times)

    def _read(self, computation: Computation, times: int) -> None:
        for each in computation:
            self._read_instruction(computation, each, times)

    def _read_instruction(self, computation: Computation, each: Instruction, times: int) -> None:
        if each.opcode == "while":
            rounds = each.config.get("known_trip_count", {}).get("n")
            self.step.unknown_loops += rounds is None
            self.step.host_reads += rounds is None
            self.read_loop(each, times * int(rounds or 1))
        elif each.opcode == "conditional":
            self.step.host_reads += times
            self._read(self.computations[each.branches[-1]], times)
        elif each.opcode in ("call", "async-start"):
            self._read(self.computations[each.called.get("to_apply") or each.called["calls"]], times)
        elif self._is_work(each):
            self._add(computation, each, times)

    def _is_work(self, each: Instruction) -> bool:
        return each.opcode not in NO_KERNEL and not each.opcode.endswith(("-done", "-update"))

    def _add(self, computation: Computation, each: Instruction, times: int) -> None:
        layer = layer_of(each.op_name)
        if (transfer := _host_transfer(each)) is not None:
            self.step.host_transfers.append(f"{transfer} of {layer}")
        opcode = each.opcode.removesuffix("-start")
        if opcode in COLLECTIVES:
            shapes = each.shapes[len(each.shapes) // 2 :] if each.opcode == "all-gather-start" else each.shapes
            self.step.collectives += [Collective(opcode, shape.dtype or shape.kind, shape.elements, shape.bytes, layer,
                                                 _group_size(each.attributes)) for shape in shapes] * times  # fmt: skip
        products = tuple(self._products(computation, each))
        moved = _bytes_of(self.computations, computation, each)
        kernel = Kernel(layer, products, self._arithmetic(computation, each), moved, self._move(each))
        self.step.kernels += [kernel] * times

    def _products(self, computation: Computation, each: Instruction) -> Iterator[Product]:
        found = _product(computation, each)
        if found is not None:
            yield Product(self._dtype(computation, each), *found, layer_of(each.op_name))
        elif each.opcode == "fusion":
            inner = self.computations[each.called["calls"]]
            for one in inner:
                yield from self._products(inner, one)

    def _dtype(self, computation: Computation, each: Instruction) -> str:
        """What is multiplied: float32 is tf32 where nobody asked for more."""
        name = computation.operand(each, 0).shape.dtype or "integer"
        precision = f"{each.text('algorithm')}{each.config.get('gemm_backend_config', {}).get('precision_config', '')}"
        raised = re.search("operand_precision=.[^}]*high|HIGH|f32_f32_f32", each.attributes + precision)
        return "tf32" if name == "float32" and self.has_tf32 and not raised else name

    def _arithmetic(self, computation: Computation, each: Instruction) -> dict[str, float]:
        if each.opcode == "fusion":
            inner = self.computations[each.called["calls"]]
            return _by_dtype(self._arithmetic(inner, one) for one in inner)
        if each.opcode in ARITHMETIC and each.shape.dtype:
            return {each.shape.dtype: float(each.shape.elements)}
        if each.opcode in REDUCTIONS and each.shape.dtype:
            return {each.shape.dtype: float(computation.operand(each, 0).shape.elements)}
        return {}

    def _move(self, each: Instruction) -> str:
        """casts, transposes or copies for a kernel that does nothing else, the first of them that it does."""
        opcodes = set(self._opcodes(each))
        found = [word for opcode, word in MOVES.items() if opcode in opcodes]
        return found[-1] if found and opcodes <= MOVES.keys() | CARRIED else ""

    def _opcodes(self, each: Instruction) -> Iterator[str]:
        if each.opcode != "fusion":
            yield each.opcode
            return
        for one in self.computations[each.called["calls"]]:
            yield from self._opcodes(one)


def _group_size(attributes: str) -> int | None:
    """Devices that a collective is among; None where it does not say.

    >>> _group_size("replica_groups={{0,1},{2,3}}, to_apply=%add"), _group_size("replica_groups=[2,4]<=[8]")
    (2, 4)
    """
    if found := re.search(r"replica_groups=\{\{([\d,]+)\}", attributes):
        return len(found[1].split(","))
    found = re.search(r"replica_groups=\[\d+,(\d+)\]", attributes)
    return int(found[1]) if found else None


def _host_transfer(each: Instruction) -> str | None:
    """What an instruction does with the host's memory or programs; None for nothing."""
    if each.opcode in ("infeed", "outfeed", "send", "recv"):
        return each.opcode
    if "callback" in each.text("custom_call_target"):
        return "a call into Python"
    return "a copy" if any(shape.on_host for shape in each.shapes) else None


def _product(computation: Computation, each: Instruction) -> tuple[float, tuple[int, ...]] | None:
    """Operations and sizes (rows, columns, terms) of an instruction that is a product; None for another."""
    target = each.text("custom_call_target")
    if each.opcode == "dot":
        return _dot(computation, each, each.numbers("lhs_contracting_dims"), each.numbers("lhs_batch_dims"))
    if target.startswith("__cublas$"):
        numbers = each.config.get("gemm_backend_config", {}).get("dot_dimension_numbers", {})
        sides = (tuple(map(int, numbers.get(f"lhs_{word}_dimensions", ()))) for word in ("contracting", "batch"))
        return _dot(computation, each, *sides)
    if each.opcode == "convolution" or target.startswith("__cudnn$conv"):
        return _convolution(computation, each, target)
    if target.startswith("__cudnn$fmha"):
        return _attention(computation, each, "Backward" in target)
    return None


def _dot(
    computation: Computation, each: Instruction, contracted: tuple[int, ...], batch: tuple[int, ...]
) -> tuple[float, tuple[int, ...]]:
    left = computation.operand(each, 0).shape.sizes
    terms = math.prod(left[index] for index in contracted)
    copies = math.prod(left[index] for index in batch)
    rows = math.prod(left) // max(terms * copies, 1)
    columns = each.shape.elements // max(rows * copies, 1)
    return 2.0 * each.shape.elements * terms, (rows, columns, terms)


def _convolution(computation: Computation, each: Instruction, target: str) -> tuple[float, tuple[int, ...]]:
    """Each output of the forward pass is a sum over the kernel and the input channels of its group.

    What cuDNN computes backward has as many operations, and names the dimensions of the forward pass.
    """
    shapes = [computation.operand(each, index).shape for index in (0, 1)]
    labels = re.match(r"\w+_(\w+)->\w+", each.text("dim_labels"))
    assert labels is not None
    place = labels[1].index("o")
    if not target:
        sizes = [int(size) for size in _window(each, "size").split("x") if size]
        dilation = math.prod(int(size) for size in _window(each, "lhs_dilate").split("x") if size)
        inputs = shapes[1].sizes[labels[1].index("i")]
        terms = math.prod(sizes) * inputs
        return 2.0 * each.shape.elements * terms / dilation, (shapes[1].sizes[place], inputs)
    kernel, outputs = {"BackwardFilter": (each.shape, shapes[1]), "BackwardInput": (shapes[1], shapes[0])}.get(
        target.removeprefix("__cudnn$conv"), (shapes[1], each.shape))  # fmt: skip
    channels = kernel.sizes[place]
    return 2.0 * outputs.elements * kernel.elements / channels, (channels, kernel.sizes[labels[1].index("i")])


def _window(each: Instruction, word: str) -> str:
    found = re.search(rf"window=\{{[^}}]*\b{word}=([\dx]+)", each.attributes)
    return found[1] if found else ""


def _attention(computation: Computation, each: Instruction, backward: bool) -> tuple[float, tuple[int, ...]]:
    """cuDNN's fused attention: two products forward, five backward (one of them repeats the forward's), each of queries
    by keys by head size. A causal mask saves it about half, which is not taken off."""
    query, key = (computation.operand(each, index).shape.sizes for index in (0, 1))
    axis = next((axis for axis in (1, 2) if query[axis] != key[axis]), 1)  # where lengths differ they show the layout
    return (10.0 if backward else 4.0) * math.prod(query) * key[axis], ()


def _bytes_of(computations: dict[str, Computation], computation: Computation, each: Instruction) -> int:
    """What a kernel reads and writes: of an array that it takes slices of, the slices; of one that it changes in place,
    the change; all else once and whole."""
    if each.opcode == "fusion":
        inner = computations[each.called["calls"]]
        read = sum(_bytes_read(inner, parameter) for parameter in inner.parameters)
        root = inner.root
        results = [inner.instructions[name] for name in root.operands] if root.opcode == "tuple" else [root]
        return read + sum(_bytes_written(inner, result) for result in results)
    if each.opcode in SLICES:
        return 2 * each.bytes
    if each.opcode == "dynamic-update-slice":
        return 2 * computation.operand(each, 1).bytes
    made = [shape for shape in each.shapes if each.opcode != "custom-call" or shape.kind != "u8"]  # its workspace
    if each.opcode.endswith("-start"):
        return 2 * sum(shape.bytes for shape in made)
    return sum(shape.bytes for shape in made) + sum(
        computation.instructions[name].bytes for name in dict.fromkeys(each.operands))  # fmt: skip


def _bytes_read(inner: Computation, parameter: Instruction) -> int:
    users = [each for each in inner if parameter.name in each.operands]
    total = 0
    for user in users:
        if user.opcode in SLICES and user.operands[0] == parameter.name:
            total += user.bytes
        elif user.opcode == "dynamic-update-slice" and user.operands[0] == parameter.name:
            total += 0  # changed in place
        elif user.opcode in ("bitcast", "reshape") and math.prod(user.shape.sizes) == parameter.shape.elements:
            total += _bytes_read(inner, user)
        else:
            return parameter.bytes
    return min(total, parameter.bytes)


def _bytes_written(inner: Computation, result: Instruction) -> int:
    while result.opcode in ("bitcast", "reshape"):
        result = inner.operand(result, 0)
    return inner.operand(result, 1).bytes if result.opcode == "dynamic-update-slice" else result.bytes


def uneven(product: Product, device_units: tuple[str, ...], multiple: int) -> bool:
    """Whether a product of the matrix units has a size that is no multiple, so that part of them idles.

    >>> layer = layer_of("")
    >>> uneven(Product("float16", 1.0, (64, 10, 512), layer), ("float16",), 8)
    True
    """
    return product.dtype in device_units and any(size % multiple for size in product.sizes)


def matrix_shape(shape: Shape) -> str:
    """
    >>> matrix_shape(Shape("f16", (4, 8)))
    'float16 [4, 8]'
    """
    return f"{shape.dtype or shape.kind} {list(shape.sizes)}"


@dataclass(frozen=True)
class Buffer:
    """Arrays of one form that one layer made: their bytes together."""

    bytes: int
    form: str
    layer: str


def largest_buffers(module: Module, count: int) -> list[Buffer]:
    """The `count` largest arrays that a step has made when most bytes are in use, those of a form and layer as one;
    while a loop inside of it runs, with those that one round of that has made at its own fullest.

    XLA hands out no assignment of buffers for a GPU that is not there, so lifetimes are read off the schedule, which is
    the order of the text: an array is there from the kernel that makes it to the last that reads it. XLA may do with
    less, where it writes a result over an operand. What the loop carries (weights, optimizer, data) is no part of it,
    nor are its new values, which are written over the old ones.
    """
    merged: dict[tuple[str, str], list[int]] = {}
    body = module.computations[step_loop(module).called["body"]]
    for instruction, index in _live_at_peak(module.computations, body):
        shape = instruction.shapes[index]
        merged.setdefault((matrix_shape(shape), str(layer_of(instruction.op_name))), []).append(shape.bytes)
    found = [Buffer(sum(sizes), f"{len(sizes)} x {form}" if len(sizes) > 1 else form, layer)
             for (form, layer), sizes in merged.items()]  # fmt: skip
    return sorted(found, key=lambda buffer: -buffer.bytes)[:count]


Array = tuple[Instruction, int]  # what made it, and which of its arrays it is


def _live_at_peak(computations: dict[str, Computation], body: Computation) -> list[Array]:
    """All arrays in use where most bytes are."""
    order = list(body)
    inside = {each.name: _live_at_peak(computations, computations[each.called["body"]])
              for each in order if each.opcode == "while"}  # fmt: skip
    sources: dict[str, list[list[Place]]] = {}  # of each instruction, the arrays that each of its results stands for
    last: dict[Place, int] = {}
    for number, each in enumerate(order):
        sources[each.name] = _sources(each, sources)
        for name in each.operands:
            last.update({place: number for result in sources.get(name, []) for place in result})
    carried = {place for result in sources[body.root.name] for place in result}
    live: dict[Place, int] = {}
    most = 0
    peak: list[Array] = []
    for number, each in enumerate(order):
        made = {(each.name, index): shape.bytes for index, shape in enumerate(each.shapes)
                if (each.name, index) not in carried}  # fmt: skip
        live |= {} if each.opcode in SAME_ARRAY | NO_ARRAY else made
        within = inside.get(each.name, [])
        total = sum(live.values()) + sum(maker.shapes[index].bytes for maker, index in within)
        if total > most:
            most, peak = total, [*((body.instructions[name], index) for name, index in live), *within]
        live = {place: size for place, size in live.items() if last.get(place, number) > number}
    return peak


def _sources(each: Instruction, sources: dict[str, list[list[Place]]]) -> list[list[Place]]:
    if each.opcode in NO_ARRAY:
        return [[] for _ in each.shapes]
    if each.opcode not in SAME_ARRAY:
        return [[(each.name, index)] for index in range(len(each.shapes))]
    given = [sources.get(name, []) for name in each.operands]
    if each.opcode == "get-tuple-element":
        index = int(each.text("index") or 0)
        return [given[0][index]] if given and index < len(given[0]) else [[]]
    return [result for results in given for result in results]
