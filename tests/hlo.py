"""What XLA's simplifier would look at in a program's unoptimized HLO text."""

import re
from functools import cache

LINE = re.compile(r"^\s*(?:ROOT )?%?([\w.\-]+) = .*? ([a-z][a-z\-]*)\((.*?)\)(?:, |$)")
FOLLOWED = {"select": 1, "minimum": 0, "maximum": 0, "add": 0, "multiply": 0, "power": 0}  # from which operand on


def visits_from_comparisons(text: str) -> int:
    """The most visits of one comparison's operand, where what it is made of is visited once per use, as
    `AlgebraicSimplifierVisitor::IsNonNegative` does it for select, minimum, maximum, power and broadcast. Sums and
    products are followed here too, so that a later XLA that looks through them finds nothing either."""
    made = {name: (kind, re.findall(r"%([\w.\-]+)", rest)) for name, kind, rest in _instructions(text)}

    @cache
    def visits(name: str) -> int:
        kind, operands = made.get(name, ("", []))
        if kind in ("abs", "sqrt", "rsqrt", "broadcast", "reshape", "convert", "negate", "copy"):
            return 1 + visits(operands[0])
        return 1 + sum(visits(operand) for operand in operands[FOLLOWED[kind] :]) if kind in FOLLOWED else 1

    return max((visits(operand) for kind, operands in made.values() if kind == "compare" for operand in operands),
               default=0)


def _instructions(text: str) -> list[tuple[str, str, str]]:
    """Name, operation and operands of each instruction; of equal names in several computations the last is kept."""
    return [match.groups() for match in map(LINE.match, text.splitlines()) if match]
