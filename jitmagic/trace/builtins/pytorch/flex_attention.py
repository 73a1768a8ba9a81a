"""flex_attention: attention whose scores a function of the program changes, and another masks.

The call becomes the operations of torch's own implementation without torch.compile. There the two
functions are mapped over batch, head, query and key, so they see numbers; here they are traced once
on whole tensors, whose axes are these four, and the compiler fuses them. That is the same if each
of their operations is elementwise or indexes a tensor completely; otherwise the call is a graph
break. So are auxiliary results and settings of torch's kernels that change results.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NoReturn

import torch
from torch.fx import Node

from ....graph.node_meta import device_of
from ....graph.operators.autocast import OFF
from ....graph.propagate import target_name
from ....operators.operation import is_elementwise
from ...breaks import GraphBreak, UnsupportedArguments
from ...values.base import Args, Kwargs, Machine, Value
from ...values.containers.sequences import TupleValue
from ...values.objects.constants import ConstantValue
from ...values.objects.operators import binary, is_none
from ...values.tensors.tensor import TensorValue, record
from ..registry import handles_named

__all__: list[str] = []

_NAME = "torch.nn.attention.flex_attention.flex_attention"
_TENSORS = ("query", "key", "value")
_NOT_GIVEN = ("return_lse", "return_aux")
_MODULE, _WHOLE = "_operator", 1 << 30  # the block size of a mask without blocks
_CONVERSIONS = ("to", "float", "int", "bool", "clone")
_MOVING = ("getitem", "matmul", "setitem")


@handles_named("torch.nn.attention.flex_attention", "flex_attention")
def _flex_attention(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    names = (*_TENSORS, "score_mod", "block_mask", "scale", "enable_gqa")
    if len(args) > len(names):
        _refuse("a positional return_lse")
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    for name in _NOT_GIVEN:
        if name in given and given[name].as_constant(machine):
            _refuse(name)
    query, key, value = (_tensor(given[name]) for name in _TENSORS)
    _check_tensors(machine, query, key, value, given)
    keys, values = (_spread(machine, query, each) for each in (key, value))
    scores = _scores(machine, query, keys, given.get("scale"))
    axes = _axes(machine, scores)
    changed = _mapped(machine, given.get("score_mod"), (scores, *axes)) or scores
    if (mask := _mask(machine, given.get("block_mask"), scores, axes)) is not None:
        nothing = record(machine, torch.full, [TupleValue([]), machine.constant(-math.inf)], {
            "dtype": machine.constant(scores.meta.dtype), "device": _device(machine, scores)
        })  # fmt: skip
        changed = record(machine, torch.where, [mask, changed, nothing])
    shares = record(machine, torch.ops.aten._safe_softmax.default, [changed, machine.constant(-1)])
    dtype = machine.constant(query.meta.dtype)
    made = record(machine, torch.matmul, [record(machine, "to", [shares, dtype]), values])
    return _laid_out(machine, made, query)


def _tensor(value: Value) -> TensorValue:
    if not isinstance(value, TensorValue):
        _refuse(f"a {value.describe()}")
    return value


def _check_tensors(
    machine: Machine, query: TensorValue, key: TensorValue, value: TensorValue, given: Kwargs
) -> None:
    """Break for calls that torch refuses, or casts."""
    tensors = query, key, value
    if any(each.meta.dim() != 4 for each in tensors):
        _refuse("other than four dimensions")
    if len({(each.meta.dtype, device_of(each.node)) for each in tensors}) > 1:
        _refuse("several dtypes or devices")
    if device_of(query.node).type == "cpu" and any(each.meta.requires_grad for each in tensors):
        _refuse("gradients on the CPU")  # torch refuses them, whatever the grad mode
    if machine.graph.autocast != OFF or query.meta.dtype.itemsize < 2:
        _refuse("autocast, or 8-bit tensors")
    wide = "enable_gqa" in given and given["enable_gqa"].as_constant(machine)
    heads, of_key = query.meta.shape[1], key.meta.shape[1]
    batch, same = key.meta.shape[0], key.meta.shape[:3] == value.meta.shape[:3]
    fits = heads % of_key == 0 if wide else heads == of_key
    shared = batch == query.meta.shape[0] or (batch == 1 and "block_mask" in given)
    if not (fits and same and shared and query.meta.shape[-1] == key.meta.shape[-1]):
        _refuse("such shapes")


def _spread(machine: Machine, query: TensorValue, each: TensorValue) -> Value:
    """Return keys or values with one head for each of the queries', and their batch."""
    groups = query.meta.shape[1] // each.meta.shape[1]
    made: Value = each
    if groups > 1:
        named = {"dim": machine.constant(1)}
        made = record(machine, torch.repeat_interleave, [made, machine.constant(groups)], named)
    if each.meta.shape[0] != query.meta.shape[0]:
        sizes = [query.meta.shape[0], *_tensor(made).meta.shape[1:]]
        made = record(machine, "expand", [made, *map(machine.constant, sizes)])
    return made


def _scores(machine: Machine, query: Value, key: Value, scale: Value | None) -> TensorValue:
    meta = _tensor(query).meta
    dtype = torch.float64 if meta.dtype is torch.float64 else torch.float32
    wide = [record(machine, "to", [each, machine.constant(dtype)]) for each in (query, key)]
    last = machine.constant(-2), machine.constant(-1)
    product = record(
        machine, torch.matmul, [wide[0], record(machine, "transpose", [wide[1], *last])]
    )
    if scale is None or is_none(scale):
        scale = machine.constant(1.0 / math.sqrt(meta.shape[-1]))
    return _tensor(binary(machine, "*", product, scale))


def _axes(machine: Machine, scores: TensorValue) -> list[Value]:
    """Return the indices of batch, head, query and key, each along its own axis."""
    device, made = {"device": _device(machine, scores)}, []
    for axis, size in enumerate(scores.meta.shape):
        line = record(machine, torch.arange, [machine.constant(size)], device)
        shape = [-1 if each == axis else 1 for each in range(4)]
        made.append(record(machine, "view", [line, *map(machine.constant, shape)]))
    return made


def _device(machine: Machine, scores: TensorValue) -> Value:
    return machine.constant(device_of(scores.node))


def _mask(
    machine: Machine, block_mask: Value | None, scores: TensorValue, axes: Sequence[Value]
) -> Value | None:
    """Return where the mask keeps scores; None if it keeps all."""
    if block_mask is None or is_none(block_mask):
        return None
    blocks = block_mask.get_attr(machine, "BLOCK_SIZE").realize(machine).as_constant(machine)
    lengths = block_mask.get_attr(machine, "seq_lengths").realize(machine).as_constant(machine)
    if tuple(blocks) != (_WHOLE, _WHOLE) and tuple(lengths) != tuple(scores.meta.shape[-2:]):
        _refuse("a block mask for other lengths")
    function = block_mask.get_attr(machine, "mask_mod")
    if getattr(function.realize(machine), "name", "") == "_sliced_mask_mod_error":
        _refuse("a sliced block mask")
    return _mapped(machine, function, axes)


def _mapped(machine: Machine, function: Value | None, args: Sequence[Value]) -> Value | None:
    """Call a function of numbers on whole tensors."""
    if function is None or is_none(function):
        return None
    before = set(machine.graph.graph.nodes)
    result = function.realize(machine).call(machine, args, {}).realize(machine)
    for node in machine.graph.graph.nodes:
        if node not in before and node.op != "placeholder":
            _check_elementwise(node)
    if isinstance(result, ConstantValue):
        result = record(machine, torch.full, [TupleValue([]), result])
    return _tensor(result)


def _check_elementwise(node: Node) -> None:
    value, name = node.meta.get("val"), target_name(node.target)  # type: ignore[arg-type]
    is_operator = getattr(node.target, "__module__", "") == _MODULE and name not in _MOVING
    if not isinstance(value, torch.Tensor) or value.dim() not in (0, 4):
        _refuse(f"{name}(), whose result has other axes")
    if name == "getitem" and isinstance(node.args[1], tuple | Node):
        index = node.args[1] if isinstance(node.args[1], tuple) else (node.args[1],)
        if all(isinstance(each, Node | int) for each in index):
            return
    if not (
        is_operator or name in _CONVERSIONS or is_elementwise(name) or not node.all_input_nodes
    ):
        _refuse(f"{name}(), which is not elementwise")


def _laid_out(machine: Machine, made: Value, query: TensorValue) -> Value:
    """Give the result the order of axes that the query has in memory, as torch does."""
    order = sorted(range(4), key=query.meta.stride, reverse=True)
    if order == [0, 1, 2, 3]:
        return made
    moved = record(machine, "permute", [made, *map(machine.constant, order)])
    back = [order.index(axis) for axis in range(4)]
    whole = record(machine, "contiguous", [moved])
    return record(machine, "permute", [whole, *map(machine.constant, back)])


def _refuse(what: str) -> NoReturn:
    raise GraphBreak(UnsupportedArguments.of(name=_NAME, what=what))
