"""Records `x[i]` and `x[i] = y` where `i` is a 0-dim integer tensor without reading `i`.

Eager reads the integer and returns a view of x. Here the result is a copy of the selected part, by
a 1-element index. So neither the copy nor x may be written to, and the copy may not leave the
frame; otherwise the graph breaks before the index. On a GPU the index is always a graph break: an
index out of range is a device-side assert there, where eager raises IndexError. An assignment is an
`index_put_` on the view that the other parts of the key select.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch.fx import Node

from ....graph.builder import GraphBuilder
from ....graph.memory import memory_of, storage_of
from ....graph.node_meta import device_of
from ....graph.symbolic.known import known_number
from ....lazy_dataclass import dataclass
from ...breaks import TensorItem
from ..base import Builder, CannotRebuild, Machine, Value
from ..containers.sequences import SliceValue, TupleValue
from ..objects.constants import ConstantValue
from ..tensor_base import TensorBase

__all__ = ["assign_at_number", "index_at_numbers"]

_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8)
# The dimensions that each part of a key consumes and leaves; an Ellipsis stands for the rest (-1).
_TAKEN = {type(None): 0, int: 1, slice: 1, type(...): -1}
_LEFT = {type(None): 1, int: 0, slice: 1, type(...): -1}
_REASON = TensorItem.of(what="operator getitem()")


@dataclass
class _Part:
    """A copy of a part of `whole`, to which the graph had written `before` times."""

    whole: Node
    copy: Node
    key: Value
    indices: Sequence[Node]
    before: int
    unwritten: Sequence[int]  # how often the indices had been written to
    is_stored: bool = False  # the first write to `whole` after it is `whole[key] = copy`


class _Parts(list[_Part]):
    """The copied parts of one graph."""


def index_at_numbers(
    machine: Machine, owner: TensorBase, key: Value, lift: Callable[[Machine, Node], Value]
) -> list[Value]:
    """Return the tensor to index and the key, both unchanged without a 0-dim integer in the key.

    `lift` makes the Value of a node."""
    graph = machine.graph
    key = key.realize(machine)
    parts, indices, numbers = _parts_of(machine, key)
    dims = _dims(parts, _TAKEN, owner.meta.dim(), indices) if numbers else None
    # An index out of range on a GPU is a device-side assert, after which the process cannot use the
    # device any more; eager raises IndexError.
    usual = graph.is_frame and device_of(owner.node).type == "cpu"
    rows = owner.meta.is_contiguous() and owner.node not in graph.unknown_strides
    # Results computed from a non-contiguous view inherit its strides, those from a copy do not.
    if dims is None or not usual or not (rows or owner.meta.dim() - len(numbers) < 2):
        return [owner, key]
    picked: Node = owner.node
    for n in numbers:
        whole = (slice(None),) * dims[n]
        index = graph.call("reshape", (indices[n], (1,)), {}, machine.lines())
        picked = graph.call(operator.getitem, (picked, (*whole, index)), {}, machine.lines())
        parts[n] = machine.constant(0)
    in_front = [dims[n] for n in numbers] == list(range(len(numbers)))
    if not (in_front and rows):  # the copy is denser than eager's view
        graph.unknown_strides.add(picked)
    taken = [indices[n] for n in numbers]
    writes = _counts(graph, [owner.node, *taken])
    part = _Part(owner.node, picked, key, taken, writes[0], writes[1:])
    _break_if_aliasing_shows(machine, part)
    return [lift(machine, picked), TupleValue(parts)]


def assign_at_number(
    machine: Machine, owner: TensorBase, key: Value, value: Value
) -> tuple[str, list[Value]] | None:
    """Return the name and operands of the call that assigns; None for the usual `setitem`."""
    graph = machine.graph
    given, indices, numbers = _parts_of(machine, key.realize(machine))
    usual = graph.is_frame and device_of(owner.node).type == "cpu"
    if not numbers or not usual or len(numbers) < len(indices):
        return None
    rest: list[Value] = list(given)
    for n in numbers:
        rest[n] = SliceValue([machine.constant(None)] * 3)
    part = owner.get_item(machine, TupleValue(rest))
    assert isinstance(part, TensorBase)
    dims = _dims(rest, _LEFT, part.meta.dim(), {})
    assigned = value.realize(machine)
    if dims is None or (made := _as_part(machine, owner, part, assigned, len(numbers))) is None:
        return None
    # index_put_ with a tensor for the first dimensions alone needs no slices in its key.
    moves = [
        [machine.constant(n) for n in ns]
        for ns in ([dims[n] for n in numbers], range(len(numbers)))
    ]
    moved = part.call_method(machine, "movedim", [TupleValue(ns) for ns in moves], {})
    if isinstance(value, TensorBase):
        _note_stored(machine, owner.node, key, value.node)
    return "index_put_", [moved, TupleValue([given[n] for n in numbers]), made]


def _as_part(
    machine: Machine, owner: TensorBase, part: TensorBase, value: Value, taken: int
) -> Value | None:
    """Return the assigned value as a tensor that `index_put_` accepts, or None."""
    meta = owner.meta
    if isinstance(value, TensorBase):
        # setitem drops leading dimensions of 1, index_put_ does not.
        fits = value.meta.dim() <= part.meta.dim() - taken
        if not fits or device_of(value.node).type != "cpu":
            return None
        shares = machine.constant(storage_of(value.node) == storage_of(owner.node))
        dtype = [machine.constant(meta.dtype)]
        return value.call_method(machine, "to", dtype, {"copy": shares})
    if not isinstance(value, ConstantValue) or type(value.value) not in (bool, int, float):
        return None
    options = {"dtype": machine.constant(meta.dtype)}
    return part.call_method(machine, "new_full", [TupleValue([]), value], options)


def _is_number(graph: GraphBuilder, node: Node) -> bool:
    """Return whether a node is a 0-dim integer on the CPU that the trace does not know."""
    meta: torch.Tensor = node.meta["val"]
    usual = not meta.dim() and meta.dtype in _INTEGERS and device_of(node).type == "cpu"
    return usual and known_number(graph, node) is None


def _parts_of(machine: Machine, key: Value) -> tuple[list[Value], dict[int, Node], list[int]]:
    """Return the parts of a key, the tensors among them, and the positions of 0-dim integers."""
    parts = key.realized(machine) if isinstance(key, TupleValue) else [key]
    indices = {n: part.node for n, part in enumerate(parts) if isinstance(part, TensorBase)}
    numbers = [n for n, node in indices.items() if _is_number(machine.graph, node)]
    return parts, indices, numbers


def _dims(
    parts: Sequence[Value], counts: Mapping[type, int], rank: int, indices: Mapping[int, Node]
) -> list[int] | None:
    """Return the dimension at which each part of a key begins; None if masks or arrays occur."""
    taken = [counts.get(_kind(part, indices.get(n))) for n, part in enumerate(parts)]
    known = [n for n in taken if n is not None]
    if len(known) < len(parts) or known.count(-1) > 1:
        return None
    rest = rank - sum(n for n in known if n > 0)
    known = [rest if n == -1 else n for n in known]
    return [sum(known[:position]) for position in range(len(known))] if rest >= 0 else None


def _kind(part: Value, index: Node | None) -> type:
    """Return the class of a part of a key; an integer tensor takes a dimension as a slice does."""
    if isinstance(part, ConstantValue):
        return type(part.value)
    is_integer = index is not None and index.meta["val"].dtype in _INTEGERS
    return slice if is_integer or isinstance(part, SliceValue) else Value


def _counts(graph: GraphBuilder, nodes: Sequence[Node]) -> list[int]:
    return [len(graph.writes.to(node)) for node in nodes]


def _note_stored(machine: Machine, whole: Node, key: Value, value: Node) -> None:
    """Mark the copy that this assignment stores back: `x[i] += y` passes the same key object."""
    graph, memory = machine.graph, storage_of(value)
    for part in machine.notes.of(_Parts):
        if part.whole is whole and part.key is key and storage_of(part.copy) == memory:
            counts = [part.before, *part.unwritten]
            part.is_stored = _counts(graph, [whole, *part.indices]) == counts


def _break_if_aliasing_shows(machine: Machine, part: _Part) -> None:
    notes, graph = machine.notes, machine.graph
    notes.of(_Parts).append(part)
    created_at_step: int = machine.step
    memory = storage_of(part.copy)

    def check(builder: Builder) -> None:
        escapes = any(graph.is_output(n) and storage_of(n) == memory for n in notes.owners)
        if escapes or not _is_true_where_read(graph, part):
            raise CannotRebuild(
                "a part of a tensor, at an index read from data", created_at_step, _REASON
            )

    machine.at_exit(check)


def _is_true_where_read(graph: GraphBuilder, part: _Part) -> bool:
    """Return whether no read could tell the copy from a view: both are equal at each read."""
    own, writes = graph.writes.to(part.copy), graph.writes.to(part.whole)[part.before :]
    if not own and not writes:
        return True
    # `cm[a, b] += 1` writes to the copy and stores it back. The memory is as after a write to the
    # view, but the autograd history differs.
    if (own and not part.is_stored) or _takes_part_in_autograd(part):
        return False
    position = {node: n for n, node in enumerate(graph.graph.nodes)}
    stored = position[writes[0]]
    if any(position[node] > stored for node in _users(graph, part.copy)):
        return False
    first = position[own[0]] if own else stored
    return not any(first < position[node] < stored for node in _readers(graph, part.whole))


def _takes_part_in_autograd(part: _Part) -> bool:
    return any(node.meta["val"].requires_grad for node in (part.whole, part.copy))


def _users(graph: GraphBuilder, node: Node) -> Iterator[Node]:
    """Yield the nodes that use the memory of a tensor."""
    memory = storage_of(node)
    for user in graph.graph.nodes:
        if any(memory in memory_of(one) for one in user.all_input_nodes):
            yield user


def _readers(graph: GraphBuilder, node: Node) -> Iterator[Node]:
    """Yield the users of the memory of a tensor that are not views of it."""
    memory = storage_of(node)
    return (user for user in _users(graph, node) if memory not in memory_of(user))
