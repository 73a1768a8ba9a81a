"""Joins two operations on floats to one, so that a block passes the first cache once less.

In: the instructions of a kernel. Out: the same, in which an operation that alone reads what another
one makes does the work of both (extensions/interpreter/pairs.cpp). Each of the two is rounded.
"""

from __future__ import annotations

from collections import Counter

from .assembly import Instruction, Loop, Register

__all__ = ["join_pairs"]

_FIRST = ("add", "sub", "mul")
_SECOND = {1: ("exp", "relu", "tanh", "sigmoid"), 2: ("add", "sub", "rsub", "mul")}  # by operands


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
            if item.op.partition(".")[0] in _FIRST:
                made[item.out] = item
    scope.items = [item for item in scope.items if item not in gone]


def _joined(
    second: Instruction, made: dict[Register, Instruction], uses: Counter[Register]
) -> Instruction | None:
    """Let an instruction do the work of one of `made`; return that one, None if there is none."""
    name, _, kind = second.op.partition(".")
    operands = [part for part in second.operands if isinstance(part, Register)]
    for operand in dict.fromkeys(operands):
        first, count = made.get(operand), operands.count(operand)
        if first is None or kind not in ("f32", "f64") or uses[operand] != count:
            continue
        rest = [part for part in operands if part is not operand]
        joined = "rsub" if name == "sub" and operands[0] is not operand else name
        if count == 2 and name == "mul":
            joined = "square"
        elif count > 1 or joined not in _SECOND.get(len(operands), ()):
            continue
        second.op = f"{first.op.partition('.')[0]}_{joined}.{kind}"
        second.operands = (*first.operands, *rest)
        return first
    return None
