"""Assertions about data: branches on a tensor of which one way only raises, or is hardly taken.

Comes in: the truth of a tensor, asked by a conditional jump. Goes out: the way to go on with, and
a node that makes the graph raise where the other would be taken. The frame is then run by eager
from its start, which raises what the program raises; where that cannot be (trace/residual/undo.py)
the branch stays a graph break.
"""

from __future__ import annotations

import math
import operator
from typing import Any

import torch
from torch.distributions.constraints import positive_definite, symmetric
from torch.fx import Node

from ....bytecode.instruction import Instruction
from ....graph.symbolic.ranges import likely_truth, truth_if_finite
from ....graph.symbolic.sym_node import is_data_dependent, sizes_in
from ....symbols.context import Specialize
from ....symbols.scalar import symbols_of
from ...breaks import TensorBranch
from ...graph_notes import GraphNotes
from ...residual.undo import can_assert
from ...state import Frame, Program
from ..base import Builder, Unrestorable
from .speculation import number_in_this_call, tensor_in_this_call

__all__ = ["assert_data", "asserted", "foreseen_int", "foreseen_list"]

# Checks of torch.distributions that answer False for what is not square or symmetric, and so not
# worth a further look. Who asks them raises then.
_WANTED_TRUE = (type(positive_definite).check.__code__, type(symmetric).check.__code__)
_INTEGERS = (torch.int64, torch.int32, torch.bool)
_MOST_FORESEEN = 4096  # numbers of a list
_LONGEST = 100  # instructions that make the message of an error
_ASKING = (
    "TO_BOOL",
    "COMPARE_OP",
)  # 3.13: what makes the bool for a jump


def asserted(machine: Any, node: Node) -> bool | None:
    """The truth of `node` that the program goes on with, and that the graph asserts from now on.

    None where both ways lead on, or where the program handles the error: then it may come at every
    call, each of which eager would have to repeat.
    """
    wanted = likely_truth(machine.graph, node)
    if wanted is None and not machine.catches():
        wanted = _way_that_leads_on(machine.frame)
    taken = wanted is None
    if taken:  # where both ways lead on, eager has to be able to take the other
        wanted = truth_if_finite(machine.graph, node)
        if wanted is None:
            return _foreseen_truth(machine, node)
    if wanted is None or not assert_data(machine, node, wanted):
        return None
    if taken:
        _rely_on_starting_over(machine, node)
    return wanted


def _foreseen_truth(machine: Any, node: Node) -> bool | None:
    number = number_in_this_call(machine, node)
    return None if number is None else _foresee(machine, node, bool(number))


def _foresee(machine: Any, node: Node, wanted: bool) -> bool:
    assert_data(machine, node, wanted)
    machine.graph.assertions[-1].meta["foreseen"] = True
    _rely_on_starting_over(machine, node)
    return wanted


def foreseen_int(machine: Any, node: Node) -> int | None:
    """The integer in a tensor as it is in this call, which the graph asserts; None: it is not to be
    foreseen here.
    """
    meta = node.meta["val"]
    if meta.is_floating_point() or meta.is_complex():
        return None
    number: int | None = number_in_this_call(machine, node)
    if number is not None:
        same = machine.graph.call(operator.eq, (node, number), {}, machine.lines())
        _foresee(machine, same, True)
    return number


def foreseen_list(machine: Any, node: Node) -> list[Any] | None:
    """`tolist()` of integers as it is in this call, which the graph asserts; None: it is not to be
    foreseen here.
    """
    meta = node.meta["val"]
    if meta.dtype not in _INTEGERS or (found := tensor_in_this_call(machine, node)) is None:
        return None
    numbers: list[Any] = found.tolist()
    if not 0 < found.numel() <= _MOST_FORESEEN:
        return None
    if sizes := [*sizes_in(meta)]:  # other lists of one number would pass for this one
        if not all(map(is_data_dependent, sizes)):
            return None
        raise Specialize([symbol for size in sizes for symbol in symbols_of(size.expr)], "tolist()")
    graph, lines = machine.graph, machine.lines()
    expected = graph.call(torch.tensor, (numbers,), {"dtype": meta.dtype}, lines)
    same = graph.call(operator.eq, (node, expected), {}, lines)
    _foresee(machine, graph.call("all", (same,), {}, lines), True)
    return numbers


def _rely_on_starting_over(machine: Any, node: Node) -> None:
    notes: GraphNotes = machine.notes.root
    owner = notes.owners.get(node)  # numbers that were read have none
    reason = TensorBranch.of(what="a number in a tensor" if owner is None else owner.describe())
    born: int = machine.step

    def check(builder: Builder) -> None:
        if not can_assert(node.meta["spec"] for node in notes.graph.mutated_inputs):
            raise Unrestorable("a branch beside a write", born, reason)

    machine.at_exit(check)


def assert_data(machine: Any, node: Node, wanted: bool = True) -> bool:
    """Make the graph raise unless the truth of a one-element tensor is `wanted`. False: it cannot
    be, since `bool()` itself would raise.
    """
    if math.prod(node.meta["val"].shape) != 1:
        return False
    wrong = machine.graph.call("to", (node, torch.bool), {}, machine.lines())
    if wanted:
        wrong = machine.graph.call(torch.logical_not, (wrong,), {}, machine.lines())
    machine.graph.assert_false(wrong, machine.lines())
    return True


def _way_that_leads_on(frame: Frame) -> bool | None:
    program, at = frame.program, frame.at
    if program.body.instructions[at].op in _ASKING:
        at += 1
    jump = program.body.instructions[at]
    if "JUMP" not in jump.op or not jump.op.endswith(("_IF_TRUE", "_IF_FALSE")):
        return None
    if program.code in _WANTED_TRUE:
        return True
    jumps_if = jump.op.endswith("_IF_TRUE")
    assert jump.target is not None
    jumping, going_on = _raises(program, program.index[jump.target]), _raises(program, at + 1)
    return None if jumping == going_on else jumps_if == going_on


def _raises(program: Program, start: int) -> bool:
    """Whether every way from here ends in a `raise`, within the few instructions of a message."""
    waiting, seen = [start], set[int]()
    while waiting:
        at = waiting.pop()
        if at in seen:
            continue
        seen.add(at)
        instruction = program.body.instructions[at]
        if len(seen) > _LONGEST or _leads_away(instruction):
            return False
        if instruction.op == "RAISE_VARARGS":
            continue
        if instruction.target is not None:
            waiting.append(program.index[instruction.target])
        if instruction.op != "JUMP_FORWARD":
            waiting.append(at + 1)
    return True


def _leads_away(instruction: Instruction) -> bool:
    """Returns, yields and loops."""
    return instruction.op.startswith(("RETURN", "YIELD", "RERAISE", "FOR_ITER", "SEND")) or (
        "BACKWARD" in instruction.op
    )
