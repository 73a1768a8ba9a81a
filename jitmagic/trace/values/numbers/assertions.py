"""Asserts in the graph what the trace assumes of data: the side of a branch, a valid size.

Input: the truth of a tensor, needed by a conditional jump; a number read from a tensor, used as a
size (`zeros(n)`, `x[:n]`). Output: the side to continue with, where the other one only raises or is
rarely taken; a Size over unbacked symbols (graph/symbolic/size_nodes.py). If the assumption fails,
the graph raises, and eager runs the frame from its start. If the frame cannot be restarted
(trace/residual/undo.py), the graph breaks before the read.
"""

from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING, Any

import torch
from torch.distributions.constraints import positive_definite, symmetric
from torch.fx import Node

from ....bytecode.instruction import Instruction
from ....graph.symbolic.size_nodes import LARGEST_SIZE
from ....graph.symbolic.sym_node import is_data_dependent, sizes_in
from ....late import late_names
from ....symbols.context import Specialize
from ....symbols.expr import Expr
from ....symbols.polynomial import is_integral, normal
from ....symbols.size import Dimension, Size, size_of
from ....symbols.symbolic_numbers import Symbol, evaluate, symbols_of
from ...breaks import TensorBranch, TensorItem
from ...graph_notes import GraphNotes
from ...residual.undo import can_assert, can_be_copied
from ...state import Frame, Program
from ..base import Machine

if TYPE_CHECKING:
    from ....graph.symbolic.ranges import likely_truth, truth_if_finite
    from .speculation import number_in_this_call, require_restart, tensor_in_this_call
else:
    late_names(
        globals(),
        {
            "graph.symbolic.ranges": "likely_truth, truth_if_finite",
            "trace.values.numbers.speculation": (
                "number_in_this_call, require_restart, tensor_in_this_call"
            ),
        },
    )

__all__ = ["assert_data", "asserted_truth", "size_from_data", "speculated_int", "speculated_list"]

# These checks of torch.distributions return False early for a matrix that is not square or
# symmetric, and their caller raises. Neither side of the branch raises, but True is the valid one.
_WANTED_TRUE = (type(positive_definite).check.__code__, type(symmetric).check.__code__)
_INTEGERS = (torch.int64, torch.int32, torch.bool)
_MOST_SPECULATED = 4096  # numbers of a list
_LONGEST = 100  # instructions that make the message of an error
# CPython 3.13 converts to bool by an instruction of its own, right before the jump.
_BOOL_CONVERSIONS = ("TO_BOOL", "COMPARE_OP")


def asserted_truth(machine: Machine, node: Node) -> bool | None:
    """Return the truth of `node` with which the trace continues; the graph asserts it.

    None if neither side of the branch raises, or user code catches the error. A caught error may
    occur in every call, and eager would have to rerun each of them.
    """
    wanted = likely_truth(machine.graph, node)
    if wanted is None and not machine.catches():
        wanted = _side_without_raise(machine.frame)
    taken = wanted is None
    if taken:  # neither side raises, so eager must be able to restart and take the other one
        wanted = truth_if_finite(machine.graph, node)
        if wanted is None:
            return _speculated_truth(machine, node)
    if wanted is None or not assert_data(machine, node, wanted):
        return None
    if taken:
        _require_restart(machine, node)
    return wanted


def _speculated_truth(machine: Machine, node: Node) -> bool | None:
    number = number_in_this_call(machine, node)
    return None if number is None else _speculate(machine, node, bool(number))


def _speculate(machine: Machine, node: Node, wanted: bool) -> bool:
    assert_data(machine, node, wanted)
    machine.graph.assertions[-1].meta["speculated"] = True
    _require_restart(machine, node)
    return wanted


def speculated_int(machine: Machine, node: Node) -> int | None:
    """Return the integer in a tensor in this call, which the graph asserts; None if speculation is
    not allowed here.
    """
    meta = node.meta["val"]
    if meta.is_floating_point() or meta.is_complex():
        return None
    number: int | None = number_in_this_call(machine, node)
    if number is not None:
        same = machine.graph.call(operator.eq, (node, number), {}, machine.lines())
        _speculate(machine, same, True)
    return number


def speculated_list(machine: Machine, node: Node) -> list[Any] | None:
    """Return `tolist()` of integers in this call, which the graph asserts; None if speculation is
    not allowed here.
    """
    meta = node.meta["val"]
    if meta.dtype not in _INTEGERS or (found := tensor_in_this_call(machine, node)) is None:
        return None
    numbers: list[Any] = found.tolist()
    if not 0 < found.numel() <= _MOST_SPECULATED:
        return None
    # With a varying length, broadcasting would let a list of another length pass the comparison.
    if sizes := [*sizes_in(meta)]:
        if not all(map(is_data_dependent, sizes)):
            return None
        raise Specialize([symbol for size in sizes for symbol in symbols_of(size.expr)], "tolist()")
    graph, lines = machine.graph, machine.lines()
    expected = graph.call(torch.tensor, (numbers,), {"dtype": meta.dtype}, lines)
    same = graph.call(operator.eq, (node, expected), {}, lines)
    _speculate(machine, graph.call("all", (same,), {}, lines), True)
    return numbers


def _require_restart(machine: Machine, node: Node) -> None:
    notes: GraphNotes = machine.notes.root
    owner = notes.owners.get(node)  # numbers read from tensors have no owner
    reason = TensorBranch.of(what="a number in a tensor" if owner is None else owner.describe())
    require_restart(machine, notes.graph, can_assert, "a branch on data", reason)


def assert_data(machine: Machine, node: Node, wanted: bool = True) -> bool:
    """Make the graph raise unless the truth of a one-element tensor is `wanted`.

    Returns False if `bool()` itself raises: it has several elements, or vmap has batched it.
    """
    if math.prod(node.meta["val"].shape) != 1 or machine.graph.root.is_transformed:
        return False
    wrong = machine.graph.call("to", (node, torch.bool), {}, machine.lines())
    if wanted:
        wrong = machine.graph.call(torch.logical_not, (wrong,), {}, machine.lines())
    machine.graph.assert_false(wrong, machine.lines())
    return True


def _side_without_raise(frame: Frame) -> bool | None:
    program, at = frame.program, frame.at
    if program.body.instructions[at].op in _BOOL_CONVERSIONS:
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
    """Return whether every path reaches a `raise` within the few instructions of a message."""
    waiting, seen = [start], set[int]()
    while waiting:
        at = waiting.pop()
        if at in seen:
            continue
        seen.add(at)
        instruction = program.body.instructions[at]
        if len(seen) > _LONGEST or _returns_or_loops(instruction):
            return False
        if instruction.op == "RAISE_VARARGS":
            continue
        if instruction.target is not None:
            waiting.append(program.index[instruction.target])
        if instruction.op != "JUMP_FORWARD":
            waiting.append(at + 1)
    return True


def _returns_or_loops(instruction: Instruction) -> bool:
    """Return whether an instruction returns, yields or loops."""
    return instruction.op.startswith(("RETURN", "YIELD", "RERAISE", "FOR_ITER", "SEND")) or (
        "BACKWARD" in instruction.op
    )


# -- sizes -----------------------------------------------------------------------------------------


def size_from_data(machine: Machine, expr: Expr) -> Dimension | None:
    """Return the expression as a size; None if a symbol is not a number in the graph."""
    known: dict[Expr, Any] = {}
    for symbol in symbols_of(expr):
        if machine.symbols.are_sizes((symbol,)):
            known[symbol] = size_of(symbol, machine.symbols)
        elif (size := _size_of_number(machine, symbol)) is not None:
            known[symbol] = size
        else:
            return None
    if not is_integral(normal(expr)):
        return None
    made: Dimension = evaluate(expr, known)
    return made


def _size_of_number(machine: Machine, symbol: Symbol) -> Size | None:
    symbols, graph = machine.symbols, machine.graph
    if symbol in symbols.read_sizes:
        known: Size = symbols.read_sizes[symbol]
        return known
    node = symbols.read_from.get(symbol)
    if node is None or graph.fresh_size is None or symbol.range.high < 0:
        return None
    low, high = max(symbol.range.low, 0), min(symbol.range.high, LARGEST_SIZE)
    size: Size | None = graph.fresh_size(int(low), int(high))
    if size is not None:
        # A drawn number: partitions begin with a call, not an input (graph/symbolic/data_split.py).
        if node.op == "placeholder":
            node = graph.call("clone", (node,), {}, machine.lines())
        symbols.read_sizes[symbol] = size
        graph.sizes.add_number(node, size.expr)
        # For an invalid size eager runs the frame from its start, so inputs that the graph may have
        # written by then are restored from copies.
        why = TensorItem.of(what="a tensor used as a size")
        require_restart(machine, graph, can_be_copied, "a size read from data", why)
    return size
