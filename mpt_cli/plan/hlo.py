"""A compiled program as XLA prints it (HLO text), read into instructions.

XLA's own Python objects know opcodes and shapes of instructions and nothing of their attributes (which dimensions a
product contracts, which computation a fusion calls), and there are none of a program that was saved as text.
"""

import json
import math
import re
from collections.abc import Iterator
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
