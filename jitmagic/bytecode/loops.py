"""Natural loops of a Body: what runs between a loop's head and the jumps back to it.

Comes in: a Body. Goes out: the heads (targets of backward jumps), and for a head the instructions
of its loop, the handlers of exceptions raised in it included where they go on with the loop.
Invariant: an instruction that is not in a loop never leads back to the loop's head, except by way
of a loop around it.
"""

from __future__ import annotations

from .flow import successors
from .instruction import Body, Instruction

__all__ = ["loop_around", "loop_heads"]


def loop_heads(body: Body) -> frozenset[Instruction]:
    """The targets of backward jumps."""
    index = {instruction: number for number, instruction in enumerate(body.instructions)}
    return frozenset(
        instruction.target
        for number, instruction in enumerate(body.instructions)
        if instruction.target is not None and index[instruction.target] <= number
    )


def loop_around(body: Body, head: Instruction) -> frozenset[Instruction]:
    """The instructions from which control comes back to `head` without leaving the loop."""
    index = {instruction: number for number, instruction in enumerate(body.instructions)}
    before: dict[Instruction, list[Instruction]] = {}
    for instruction, ways in successors(body).items():
        for way in ways:
            before.setdefault(way, []).append(instruction)
    inside = {head}
    work = [one for one in before.get(head, ()) if index[one] >= index[head]]
    while work:
        instruction = work.pop()
        if instruction not in inside:
            inside.add(instruction)
            work += before.get(instruction, ())
    return frozenset(inside)
