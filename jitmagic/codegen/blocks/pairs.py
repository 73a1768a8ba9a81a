"""Joins two operations on floats to one, so that a block passes the first cache once less.

In: the instructions of a kernel. Out: the same, in which an operation that alone reads what another
one makes does the work of both (extensions/interpreter/pairs.cpp). Each of the two is rounded.
"""

from __future__ import annotations

from collections import Counter

from .assembly import Instruction, Loop, Register
from .ops import pair_name

__all__ = ["join_pairs"]


def join_pairs(kernel: Loop) -> None:
    """Join the pairs in a kernel's outermost scope and all others."""
    _join(kernel, Counter(kernel.used()))


def _join(scope: Loop, uses: Counter[Register]) -> None:
    made: dict[Register, Instruction] = {}
    gone: set[Instruction] = set()
    for item in scope.items:
        if isinstance(item, Loop):
            _join(item, uses)
        elif item.out is not None and item.out.is_block:
            if (first := _joined(item, made, uses)) is not None:
                gone.add(first)
            made[item.out] = item
    scope.items = [item for item in scope.items if item not in gone]


def _joined(
    second: Instruction, made: dict[Register, Instruction], uses: Counter[Register]
) -> Instruction | None:
    """Let an instruction do the work of one of `made`; return that one, None if there is none."""
    name, _, kind = second.op.partition(".")
    operands = [part for part in second.operands if isinstance(part, Register)]
    if kind not in ("f32", "f64") or len(operands) < len(second.operands):
        return None
    for operand in dict.fromkeys(operands):
        first = made.get(operand)
        places = tuple([at for at, part in enumerate(operands) if part is operand])
        if first is None or uses[operand] != len(places):
            continue
        if not (pair := pair_name(first.op.partition(".")[0], name, places, len(operands))):
            continue
        second.op = f"{pair}.{kind}"
        second.operands = (*first.operands, *(part for part in operands if part is not operand))
        return first
    return None
