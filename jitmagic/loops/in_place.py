"""Lowers functional forms of operators that write to their arguments to calls of the operators.

In: a call of a functional form (autograd/recording/foreign_writes.py), which would copy what it
writes. Out: one Extern step that writes in place. It writes to the argument itself where no later
step reads the old value, else to a copy: a nest, which may fuse with the argument's producer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.fx import Node

from ..graph.operators.foreign import is_foreign
from ..graph.operators.operator_library import IN_PLACE
from ..graph.operators.raising import may_raise_on_data
from ..graph.triton.launches import kernel_name
from ..spec import TensorSpec
from ..symbols.size import hint_of, is_same
from ..torch_types import OpOverload
from .builder import LOOP_DTYPES, LoopBuilder, Out
from .ir import BufferRef, Nest
from .tensor_view import NumberView, TensorView

__all__ = ["lower_in_place"]

aten = torch.ops.aten


def lower_in_place(
    builder: LoopBuilder, node: Node, env: Mapping[Node, object], args: Sequence[Any]
) -> list[TensorView] | None:
    """Return the values written, or None if the call must stay functional: the operator returns
    other tensors as well, or the copy of a written argument is no nest.
    """
    op = IN_PLACE.get(node.target) if isinstance(node.target, OpOverload) else None
    if op is None or op._schema.returns or node.kwargs:
        return None
    slots = [n for n, declared in enumerate(op._schema.arguments) if _is_written(declared)]
    if not all(n < len(args) and isinstance(args[n], TensorView) for n in slots):
        return None
    own = {n for n in slots if _may_overwrite(builder, node, n, args, env)}
    specs = {
        n: builder.spec_of(source)
        for n, (source, arg) in enumerate(zip(node.args, args, strict=True))
        if isinstance(source, Node) and isinstance(arg, TensorView)
    }
    if not all(n in own or _can_copy(builder, specs[n]) for n in slots):
        return None
    given = list(args)
    for n in slots:
        if n in own:
            _drop_fill(builder, node, n, args[n])
        else:
            given[n] = _copied(builder, f"{node.name}_{n}", specs[n], args[n])
    for n, spec in specs.items():
        if n not in slots:  # the operator takes strides as numbers
            given[n] = BufferRef(builder.memory(args[n], spec.stride))
    targets: list[TensorView] = [given[n] for n in slots]
    builder.call_in_place(node.name, op, given, targets, _reason(op))
    return targets


def _reason(op: OpOverload) -> str:
    return "it writes to its arguments" if kernel_name(op) is None else "the program calls it"


def _is_written(declared: torch.Argument) -> bool:
    return declared.alias_info is not None and declared.alias_info.is_write


def _may_overwrite(
    builder: LoopBuilder, node: Node, slot: int, args: Sequence[Any], env: Mapping[Node, object]
) -> bool:
    """Return whether no other argument and no later step reads the memory of an argument."""
    view, argument = args[slot], node.args[slot]
    assert isinstance(argument, Node)
    buffer = builder.buffers[view.buffer]
    same = (*map(is_same, buffer.stride, builder.spec_of(argument).stride),)
    if builder.memory(view) != view.buffer or not all(same) or view.buffer in builder.bases:
        return False
    shared = [
        other
        for n, other in enumerate(args)
        if n != slot and view.buffer in _buffers(builder, other)
    ]
    if shared or buffer.role not in ("temp", "input"):
        return False
    holders = [one for one, value in env.items() if view.buffer in _buffers(builder, value)]
    later = [user for one in holders for user in one.users if user not in env and user is not node]
    if buffer.role == "temp":
        return not later
    return _ends_in(node, slot, argument, later) and _writes_last(node)


def _drop_fill(builder: LoopBuilder, node: Node, slot: int, view: TensorView) -> None:
    """Remove the nest that fills a tensor of torch.empty, which only this call reads."""
    argument = node.args[slot]
    assert isinstance(argument, Node)
    if str(argument.target).startswith("aten.empty") and {*argument.users} == {node}:
        fills = [
            step
            for step in builder.steps
            if isinstance(step, Nest) and {store.buffer for store in step.stores} == {view.buffer}
        ]
        for step in fills:
            builder.steps.remove(step)


def _buffers(builder: LoopBuilder, value: object) -> set[str]:
    """Return the buffers that own the memory of a value of the graph."""
    if isinstance(value, NumberView):
        value = value.view
    if isinstance(value, TensorView):
        return {builder.root(value.buffer)}
    if isinstance(value, list | tuple):
        return {name for part in value for name in _buffers(builder, part)}
    return set()


def _ends_in(node: Node, slot: int, argument: Node, later: Sequence[Node]) -> bool:
    """Return whether the new value of an input is what the graph writes to it at its end, and the
    old value is not read any more.
    """
    op = IN_PLACE[node.target]  # type: ignore[index]
    index = [n for n, one in enumerate(op._schema.arguments) if _is_written(one)].index(slot)
    new = [user for user in node.users if user.args[1] == index]
    return len(later) == len(new) == 1 and (
        later[0].target is aten.copy_.default and later[0].args[:2] == (argument, new[0])
    )


def _writes_last(node: Node) -> bool:
    """Return whether a launch may write an input at once: eager repeats the frame if a call of the
    graph raises on data, and no such call, nor one that is unknown, may follow.
    """
    nodes = list(node.graph.nodes)
    following = nodes[nodes.index(node) + 1 :]
    if kernel_name(node.target) is None or not any(map(may_raise_on_data, nodes)):
        return kernel_name(node.target) is not None
    return not any(may_raise_on_data(one) or is_foreign(one.target) for one in following)


def _can_copy(builder: LoopBuilder, spec: TensorSpec) -> bool:
    """Return whether a nest can copy a tensor with its strides: without gaps and overlaps."""
    if spec.dtype not in LOOP_DTYPES or spec.device != builder.kernel_device:
        return False
    expected: int = 1
    dimensions = zip(spec.shape, spec.stride, strict=True)
    for size, stride in sorted(dimensions, key=lambda pair: hint_of(pair[1])):
        if not is_same(size, 1):
            if not is_same(stride, expected):
                return False
            expected = expected * size
    return True


def _copied(builder: LoopBuilder, name: str, spec: TensorSpec, view: TensorView) -> TensorView:
    builder.device = spec.device
    return builder.pointwise(Out(name, (spec,)), lambda point: builder.load(view, point))
