"""Lowers a functional ATen graph to a LoopProgram, with one unfused nest per op.

In: a GraphModule of call_function nodes on ATen overloads, every tensor node with meta["spec"].
Out: a LoopProgram with the graph's own order of effects. Views are index maps without steps; an op
without a lowering, or whose lowering declines, is one Extern step with the reason. Trailing
`aten.copy_(input, value)` nodes become writes to the input's buffer, in graph order.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch
from torch.fx import GraphModule, Node

from ..budget import check
from ..errors import VerifyError
from ..extend.operator_rows import LOWERINGS
from ..graph.nested import map_nodes
from ..graph.operators.raising import may_raise_on_data
from ..graph.symbolic.concrete import Values, moved_to
from ..graph.symbolic.number_ranges import READS_NUMBER
from ..graph.symbolic.sym_node import sizes_in
from ..late import late_names
from ..spec import TensorSpec, contiguous_strides, spec_of
from ..symbols.size import Dimension
from ..torch_types import Args, Kwargs, OpOverload
from .builder import LOOP_DTYPES, Decline, LoopBuilder, Out
from .cpu_scalars import cpu_scalars_for
from .in_place import lower_in_place
from .ir import LoopProgram, kernel_device
from .ops.extern import fallback_to_aten, returns_view
from .registry import FALLBACKS, lowering_of
from .tensor_view import NumberView, TensorView, broadcast_point

if TYPE_CHECKING:
    from .registered import registered_lowering
else:
    late_names(globals(), {"loops.registered": "registered_lowering"})

__all__ = ["device_of_kernels", "lower"]


def lower(gm: GraphModule, name: str, values: Values = MappingProxyType({})) -> LoopProgram:
    """Return the graph as loops, with these values (ints or Sizes) of its symbols. Raises
    VerifyError for a graph that breaks the contract above.
    """
    # Reading sizes through `moved` costs a third of copying the graph with other sizes.
    return _lower(gm, name, moved_to(values) if values else None)


def _lower(gm: GraphModule, name: str, moved: Callable[[Any], Any] | None) -> LoopProgram:
    device, sizes = device_of_kernels(gm), partial(_sizes_of, gm, moved)
    try:
        return _lowered(gm, LoopBuilder(name, device, sizes, moved), cpu_scalars_for(device, gm))
    except Decline:  # a scalar could not be lowered: all stay ATen calls on the CPU
        return _lowered(gm, LoopBuilder(name, device, sizes, moved), frozenset())


def _sizes_of(gm: GraphModule, moved: Callable[[Any], Any] | None) -> Iterator[Dimension]:
    """Return the symbolic sizes of the graph."""
    for node in gm.graph.nodes:
        found = [*sizes_in((*node.args, *node.kwargs.values()))]
        if isinstance(spec := node.meta.get("spec"), TensorSpec):
            found += sizes_in((spec.shape, spec.stride))
        yield from found if moved is None else map(moved, found)


def _lowered(gm: GraphModule, builder: LoopBuilder, scalars: frozenset[Node]) -> LoopProgram:
    env: dict[Node, object] = {}
    for node in gm.graph.nodes:
        check()
        builder.node = node.name
        match node.op:
            case "placeholder":
                env[node] = _placeholder(builder, node)
            case "get_attr":
                env[node] = _constant(builder, node, gm)
            case "call_function":
                call = _cpu_scalar if node in scalars else _call
                env[node] = call(builder, node, env)
            case "output":
                _outputs(builder, node, env)
            case other:
                raise VerifyError(f"{other} node {node.name} in a graph to lower")
    return builder.finish()


def device_of_kernels(gm: GraphModule) -> torch.device:
    """Return the device on which the nests of a graph run."""
    specs = (node.meta.get("spec") for node in gm.graph.nodes)
    return kernel_device(spec.device for spec in specs if isinstance(spec, TensorSpec))


def _placeholder(builder: LoopBuilder, node: Node) -> TensorView | None:
    spec = builder.spec_of(node)
    if not isinstance(spec, TensorSpec):
        raise VerifyError(f"placeholder {node.name} has no spec")
    view = builder.define(node.name, spec, "input")
    builder.inputs.append(view.buffer)
    builder.offsets[view.buffer] = spec.storage_offset
    return view


def _constant(builder: LoopBuilder, node: Node, gm: GraphModule) -> TensorView:
    value = operator.attrgetter(str(node.target))(gm)
    if not isinstance(value, torch.Tensor):
        raise VerifyError(f"attribute {node.target} of the graph is not a tensor")
    view = builder.define(node.name, spec_of(value), "constant")
    builder.constants[view.buffer] = value.detach()
    return view


def _outputs(builder: LoopBuilder, node: Node, env: Mapping[Node, Any]) -> None:
    results = node.args[0]
    for result in results if isinstance(results, (tuple, list)) else (results,):
        if result is None:
            builder.output(None, None)
        elif isinstance(result, Node) and isinstance(env[result], TensorView):
            builder.output(env[result], builder.spec_of(result))
        else:
            raise VerifyError(f"graph output {result!r} is not a tensor")


def _call(builder: LoopBuilder, node: Node, env: Mapping[Node, Any]) -> object:
    args, kwargs = map_nodes((node.args, node.kwargs), env.__getitem__, builder.moved)
    if node.target is operator.getitem:
        return args[0][args[1]]
    if node.target is READS_NUMBER:
        return NumberView(args[0])
    op = _overload(node)
    if str(op) == "aten.copy_.default":
        return _write(builder, node, args[0], args[1])
    if (written := lower_in_place(builder, node, env, args)) is not None:
        return written
    out = Out(node.name, _result_specs(builder, node))
    functions = node.meta.get("functions", ())
    builder.functions = tuple(one and _lower(one, "function", builder.moved) for one in functions)
    registered = registered_lowering(op) if LOWERINGS.rows else None
    lowering = registered or lowering_of(str(op))
    if not node.users and may_raise_on_data(node):
        reason = "unused, but it may raise"
        return fallback_to_aten(builder, out, op, args, kwargs, reason)
    if lowering is None:
        reason = FALLBACKS.get(str(op), "no lowering or decomposition for these operands")
        return fallback_to_aten(builder, out, op, args, kwargs, reason)
    builder.device = next((spec.device for spec in out.specs if spec is not None), None)
    if builder.device not in (None, builder.kernel_device) and not returns_view(op):
        reason = f"it runs on {builder.device}, the kernels on {builder.kernel_device}"
        return fallback_to_aten(builder, out, op, args, kwargs, reason)
    bound, named = _bound(op, args, kwargs)
    before = builder.mark()
    bound = [_transferred(builder, arg) for arg in bound]
    mark = builder.mark()
    try:
        return lowering(builder, out, *bound, **named)
    except Decline as why:
        if builder.mark() != mark:
            raise VerifyError(f"the lowering of {op} declined halfway: {why}") from why
        builder.undo(before)  # undo the transfer: ATen takes CPU scalars directly
        return fallback_to_aten(builder, out, op, args, kwargs, str(why))


def _overload(node: Node) -> OpOverload:
    if not isinstance(node.target, OpOverload):
        raise VerifyError(f"{node.name} does not call an ATen overload")
    return node.target


def _cpu_scalar(builder: LoopBuilder, node: Node, env: Mapping[Node, Any]) -> object:
    """Lower a CPU scalar into the kernels that use it. Raises Decline."""
    builder.device = builder.kernel_device
    out = Out(node.name, (replace(builder.spec_of(node), device=builder.kernel_device),))
    given, options = map_nodes((node.args, node.kwargs), env.__getitem__, builder.moved)
    op = _overload(node)
    args, kwargs = _bound(op, given, options)
    lowering = lowering_of(str(op))
    assert lowering is not None  # cpu_scalars chose the node for it
    return lowering(builder, out, *args, **kwargs)


def _transferred(builder: LoopBuilder, arg: Any) -> Any:
    """Move a CPU scalar operand to the GPU, unless nests take it by value."""
    if isinstance(arg, NumberView):
        return NumberView(_transferred(builder, arg.view))
    device = builder.device
    if not isinstance(arg, TensorView) or arg.shape or device is None or arg.device == device:
        return arg
    if device == builder.kernel_device and builder.is_cpu_scalar(arg):
        return arg
    moved = Out(f"{arg.buffer}_on_{device.type}", (TensorSpec((), (), arg.dtype, device),))
    op, reason = torch.ops.aten._to_copy.default, "a scalar moves to the device of its op"
    return builder.extern(moved, op, (arg,), {"device": device}, reason)[0]


def _bound(op: OpOverload, args: Args, kwargs: Kwargs) -> tuple[list[object], dict[str, object]]:
    """Bind the arguments to the operator's schema, with its declared defaults filled in."""
    # Lowerings then never confuse a missing argument with a zero, False or None.
    positional: list[object] = list(args)
    named: dict[str, Any] = {}
    for argument in op._schema.arguments[len(args) :]:
        value = kwargs.get(argument.name, argument.default_value)
        if argument.kwarg_only:
            named[argument.name] = value
        else:
            positional.append(value)
    return positional, named


def _result_specs(builder: LoopBuilder, node: Node) -> tuple[TensorSpec | None, ...]:
    """Return the specs of the node's results; None for one of several results that no getitem
    reads.
    """
    spec = builder.spec_of(node)
    if isinstance(spec, TensorSpec):
        return (spec,)
    read = {
        int(user.args[1]): builder.spec_of(user)  # type: ignore[arg-type]
        for user in node.users
        if user.target is operator.getitem
    }
    returned = len(spec) if isinstance(spec, (tuple, list)) else 0
    count = max(len(node.target._schema.returns), returned)  # type: ignore[union-attr]
    return tuple(read.get(n) for n in range(max([count, *(n + 1 for n in read)])))


def _write(builder: LoopBuilder, node: Node, target: TensorView, value: TensorView) -> TensorView:
    """Lower aten.copy_(input, value): read what the write would destroy, then store."""
    same = builder.root(target.buffer) == builder.root(value.buffer)
    if same and target == value:
        return target
    if value.device != target.device:
        raise VerifyError(f"{node.name}: a copy_ between devices in the graph")
    builder.device = target.device
    if target.device != builder.kernel_device:
        return _write_by_aten(builder, node, target, value, f"it is on {target.device}")
    if not LOOP_DTYPES.issuperset((target.dtype, value.dtype)):
        return _write_by_aten(builder, node, target, value, f"{target.dtype} has no loops")
    if same:
        value = builder.copied(value)
    builder.write(
        node.name,
        target,
        lambda point: builder.load(value, broadcast_point(value.shape, point)),
    )
    return target


def _write_by_aten(
    builder: LoopBuilder, node: Node, target: TensorView, value: TensorView, reason: str
) -> TensorView:
    if builder.root(target.buffer) == builder.root(value.buffer):
        stride = contiguous_strides(value.shape)
        temporary = Out(
            f"{node.name}_kept", (TensorSpec(value.shape, stride, value.dtype, value.device),)
        )
        (saved,) = builder.extern(temporary, torch.ops.aten.clone.default, (value,), {}, reason)
        assert saved is not None, "a spec was given"
        value = saved
    builder.write_by_aten(node.name, target, value, reason)
    return target
