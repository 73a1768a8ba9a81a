"""Finds the natural loops of a Body.

Input: a Body. Output: for each loop head, the instructions of its loop, including exception
handlers that continue the loop. Invariant: a loop is only entered through its head. A backward jump
alone is not a loop: since 3.12 exception handlers are at the end of the code and jump back to the
code after the `try`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from .flow import successors
from .instruction import Body, Instruction

__all__ = ["loops_in"]

Ways = Mapping[Instruction, Iterable[Instruction]]


def loops_in(body: Body) -> dict[Instruction, frozenset[Instruction]]:
    """Return inner and outer loops by head, in the order of the code."""
    index = {instruction: number for number, instruction in enumerate(body.instructions)}
    jumps: dict[Instruction, list[Instruction]] = {}
    for number, instruction in enumerate(body.instructions):
        if instruction.target is not None and index[instruction.target] <= number:
            jumps.setdefault(instruction.target, []).append(instruction)
    if not jumps:
        return {}
    after = successors(body)
    before: dict[Instruction, list[Instruction]] = {one: [] for one in body.instructions}
    for instruction, ways in after.items():
        for way in ways:
            before[way].append(instruction)
    start, found = body.instructions[0], {}
    possible = _reached([start], after, frozenset())
    for head in sorted(jumps, key=index.__getitem__):
        past_head = _reached([start], after, frozenset({head})) if head is not start else set()
        back = [jump for jump in jumps[head] if jump in possible and jump not in past_head]
        if back:
            inside = _reached(back, before, frozenset({head}))
            found[head] = frozenset(inside & possible | {head})
    return found


def _reached(
    begin: Iterable[Instruction], ways: Ways, walls: frozenset[Instruction]
) -> set[Instruction]:
    """Return the instructions reached from `begin` without passing one of `walls`."""
    seen: set[Instruction] = set()
    work = [one for one in begin if one not in walls]
    while work:
        instruction = work.pop()
        if instruction not in seen:
            seen.add(instruction)
            work += [way for way in ways[instruction] if way not in walls]
    return seen
