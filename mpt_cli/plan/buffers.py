"""What lies in a device's memory when a step needs most of it, by the layers that made it.

XLA hands out no assignment of buffers for a GPU that is not there, so the lifetimes are read off the schedule, which is
the order of the text: an array is there from the kernel that makes it to the last that reads it. XLA may do with less,
where it writes a result over an operand. What the loop carries (weights, optimizer, data) is no part of it, nor are its
new values, which are written over the old ones.
"""

from dataclasses import dataclass

from mpt_cli.plan.hlo import Computation, Instruction
from mpt_cli.plan.work import layer_of, matrix_shape

SAME_ARRAY = {"bitcast", "get-tuple-element", "tuple", "opt-barrier"}
NO_ARRAY = {"parameter", "constant"}
Place = tuple[str, int]  # an instruction and which of its arrays


@dataclass(frozen=True)
class Buffer:
    """Arrays of one form that one layer made: their bytes together."""

    bytes: int
    form: str
    layer: str


def largest_buffers(body: Computation, count: int) -> list[Buffer]:
    """The `count` largest arrays that a step has made when most bytes are in use, those of a form and layer as one."""
    merged: dict[tuple[str, str], list[int]] = {}
    for name, index in _live_at_peak(body):
        instruction = body.instructions[name]
        shape = instruction.shapes[index]
        merged.setdefault((matrix_shape(shape), str(layer_of(instruction.op_name))), []).append(shape.bytes)
    found = [Buffer(sum(sizes), f"{len(sizes)} x {form}" if len(sizes) > 1 else form, layer)
             for (form, layer), sizes in merged.items()]  # fmt: skip
    return sorted(found, key=lambda buffer: -buffer.bytes)[:count]


def _live_at_peak(body: Computation) -> list[Place]:
    """All arrays in use where most bytes are."""
    order = list(body)
    sources: dict[str, list[list[Place]]] = {}  # of each instruction, the arrays that each of its results stands for
    last: dict[Place, int] = {}
    for number, each in enumerate(order):
        sources[each.name] = _sources(each, sources)
        for name in each.operands:
            last.update({place: number for result in sources.get(name, []) for place in result})
    carried = {place for result in sources[body.root.name] for place in result}
    live: dict[Place, int] = {}
    total = most = 0
    peak: list[Place] = []
    for number, each in enumerate(order):
        made = {(each.name, index): shape.bytes for index, shape in enumerate(each.shapes)
                if (each.name, index) not in carried}  # fmt: skip
        live |= {} if each.opcode in SAME_ARRAY | NO_ARRAY else made
        total = sum(live.values())
        if total > most:
            most, peak = total, list(live)
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
