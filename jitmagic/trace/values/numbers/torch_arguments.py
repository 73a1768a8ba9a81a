"""Lowers the arguments of a torch call: constants, numbers in tensors, offsets into a storage.

Input: a call about to be recorded. Output: constants in the form that torch takes, and the call in
the graph. Where torch reads a number from a tensor argument, the call takes the number itself: a
constant if the trace knows it, else a symbol, else the value in this call as a speculation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import torch
from torch.fx import Node

from ....compat.operators import OpOverloadPacket
from ....graph.builder import GraphBuilder
from ....graph.nested import map_nodes
from ....graph.operators.recurrent import sequences_in
from ....graph.propagate import DataDependent
from ....graph.symbolic.known import known_number
from ....graph.symbolic.sym_node import as_dimension
from ....graph.target_names import Target, call_name, target_name
from ....guards.guard import SizesRelate
from ....late import late_names
from ....symbols.expr import Integer
from ....symbols.interval import INT64
from ....symbols.size import OffsetOf
from ....symbols.symbolic_numbers import Symbol
from ...breaks import GraphBreak, RefusedTorchCall
from ..base import Machine
from ..numpy_scalars import ARRAY_SCALARS, np
from .arithmetic import Scalar
from .assertions import speculated_int
from .number import node_scalar
from .tensor_numbers import number_of

if TYPE_CHECKING:
    from .scalar_calls import call_with_scalars
else:
    late_names(globals(), {"trace.values.numbers.scalar_calls": "call_with_scalars"})

__all__ = [
    "call_with_known",
    "guard_storage_offsets",
    "is_number",
    "torch_constant",
    "with_known",
]

_FACTORS = ("alpha", "beta", "value")  # arguments that are numbers, whatever the operation
_PYTHON_DTYPES: dict[type, torch.dtype] = {
    # torch.tensor(1, dtype=float) is float64, whatever the default dtype is.
    float: torch.float64,
    int: torch.int64,
    bool: torch.bool,
    complex: torch.complex128,
}
_MOST_IN_RANGE = 1024
_NONZERO = ("nonzero", torch.nonzero)
_REPEATING = ("repeat_interleave", torch.repeat_interleave)
_LARGEST = torch.iinfo(torch.int64).max
_ASKING_FOR_DTYPES = ("torch tensor", "torch as_tensor", "torch asarray")
_TAKING_RANGES = ("operator getitem", *_ASKING_FOR_DTYPES)


def call_with_known(
    machine: Machine, target: Target, args: list[object], kwargs: dict[str, object]
) -> Any:
    """Record a call; where torch reads a number from a tensor argument, pass the number instead.

    It is a constant if the trace knows it, else a symbol, else this call's value as a speculation.
    """
    graph = machine.graph
    try:
        return graph.call(target, args, kwargs, machine.lines())
    except DataDependent:
        if (rows := _with_speculated_rows(machine, target, args, kwargs)) is not None:
            return rows
        # Known numbers and symbols come first: speculated ones can fail, and only library code may
        # speculate.
        given, named = map_nodes((args, kwargs), partial(with_known, graph))
        read = {name: _factor(machine, named[name]) for name in _FACTORS if name in named}
        if any(isinstance(number, Scalar) for number in read.values()):
            return call_with_scalars(machine, target, given, {**named, **read})
        if (given, named) == (args, kwargs):
            given, named = map_nodes((args, kwargs), partial(_with_speculated, machine))
        if (given, named) == (args, kwargs):
            raise
        return graph.call(target, given, named, machine.lines())


def _with_speculated(machine: Machine, node: Node) -> object:
    """Return the speculated integer in a 0-dim tensor that library code uses as a size."""
    return _in_place_of(node, partial(speculated_int, machine))


def _with_speculated_rows(
    machine: Machine, target: Target, args: list[object], kwargs: dict[str, object]
) -> object:
    """Record `nonzero()`, `torch.where(mask)` or `repeat_interleave` with a speculated row count.

    Used where the count must be a constant. Coordinates have eager's strides: each is contiguous.
    """
    if target in _REPEATING and not kwargs and all(isinstance(arg, Node) for arg in args):
        total = speculated_int(machine, machine.graph.call("sum", args[-1:], {}, machine.lines()))
        if total is None:
            return None
        return machine.graph.call(target, args, {"output_size": total}, machine.lines())
    if target not in (*_NONZERO, torch.where) or kwargs or len(args) != 1:
        return None
    graph, lines = machine.graph, machine.lines()
    rows = speculated_int(machine, graph.call("count_nonzero", args, {}, lines))
    if rows is None:
        return None
    # nonzero_static returns contiguous rows, eager's nonzero the transpose of contiguous columns;
    # programs read the strides.
    found = graph.call(torch.nonzero_static, args, {"size": rows}, lines)
    columns = graph.call("contiguous", [graph.call("t", [found], {}, lines)], {}, lines)
    if target not in _NONZERO:
        return graph.call("unbind", [columns], {}, lines)
    return graph.call("t", [columns], {}, lines)


def _factor(machine: Machine, value: object) -> object:
    """Return the number of a 0-dim tensor given for an argument that must be a number."""
    if not isinstance(value, Node) or value.meta["val"].dim():
        return value
    number = number_of(machine, value, "item")
    scalar = None if number is None else node_scalar(number)
    return value if scalar is None else scalar


def with_known(graph: GraphBuilder, node: Node) -> object:
    """Return the number in a 0-dim tensor if the trace knows it, else the node."""
    if (count := sequences_in(node)) is not None:
        return as_dimension(count)
    return _in_place_of(node, partial(known_number, graph))


def _in_place_of(node: Node, find: Callable[[Node], object]) -> object:
    """Return `find(node)` for a 0-dim tensor; the node itself for others, or if that is None."""
    meta = node.meta["val"]
    if not isinstance(meta, torch.Tensor) or meta.dim():
        return node
    number = find(node)
    return node if number is None else number


def torch_constant(constant: Any, name: str) -> object:
    """Return a constant in the form that a call takes it.

    `float` becomes a dtype, a numpy scalar a Python number, a range the list of its numbers.
    """
    kind = type(constant)
    if kind is type:
        return _PYTHON_DTYPES.get(constant, constant)
    if kind is range and name in _TAKING_RANGES and len(constant) <= _MOST_IN_RANGE:
        return [*constant]
    is_plain = kind not in ARRAY_SCALARS[1:] or name in _ASKING_FOR_DTYPES
    if is_plain or not is_number(kind, name):
        return constant
    number = constant.item()
    # No call of torch takes a larger int, and numpy's own operator makes an array of it.
    is_too_large = isinstance(number, int) and number > _LARGEST
    return constant if is_too_large else number


def is_number(kind: type, name: str) -> bool:
    """Return whether the call `name` treats an operand of this class as a Python number.

    Exceptions are numpy scalars: eager raises when a numpy.float32 is assigned to a tensor, and
    torch.tensor uses its dtype.
    """
    if name in _ASKING_FOR_DTYPES and kind in ARRAY_SCALARS[1:]:
        return False
    # numpy.float64 is a subclass of float, numpy.float32 is not: `x[0] = np.float32(1)` raises a
    # TypeError ("can't assign a numpy.float32").
    is_written = name == "operator setitem" and kind in ARRAY_SCALARS
    return not is_written or issubclass(kind, float | np.integer)


def guard_storage_offsets(
    machine: Machine, target: Target, given: Sequence[object], named: Mapping[str, object]
) -> None:
    """Guard that the inputs of as_strided and others begin at the start of their storage.

    Offsets into the storage then equal offsets into the input; otherwise the graph breaks. An
    omitted offset counts from the tensor's first element and needs no guard.
    """
    index = _offset_index(target_name(target))
    if index is None:
        return
    offset = given[index] if len(given) > index else named.get("storage_offset")
    tensor = given[0] if given else named.get("input")
    if offset is None or not isinstance(tensor, Node):
        return
    graph = machine.graph
    # As a graph break, as_strided of an input cut torch.stft, which calls it.
    for node in graph.inputs_sharing(tensor):
        if graph is not graph.root or node.meta["spec"].storage_offset:
            why = "its offset counts from the start of a storage that begins before the tensor"
            raise GraphBreak(RefusedTorchCall.of(name=call_name(target), why=why))
        begin = Symbol("offset", int, INT64, OffsetOf(machine.notes.inputs[node].source))
        machine.guard(SizesRelate("==", begin, Integer(0)))


@cache
def _offset_index(name: str) -> int | None:
    """Return the index of the `storage_offset` argument of an operator, or None."""
    packet = getattr(torch.ops.aten, name, None)
    if not isinstance(packet, OpOverloadPacket):
        return None
    arguments = getattr(packet, packet.overloads()[0])._schema.arguments
    names = [argument.name for argument in arguments]
    return names.index("storage_offset") if "storage_offset" in names[1:] else None
