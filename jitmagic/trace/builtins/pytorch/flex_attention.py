"""flex_attention: attention whose scores a function of the program changes, and another masks.

The call becomes one node (graph/targets/flex_attention.py). Eager maps the two functions over
batch, head, query and key, so they see numbers; here each is traced into a graph on tensors with
one element and four axes, which stand for these four. That is the same if each of its operations
is elementwise or indexes a tensor completely; otherwise the call is a graph break. So are maxima of
scores and settings of torch's kernels that change results.

Eager does not read the blocks of a block mask, only its function. Here they decide which blocks of
scores are computed, as in torch's kernels; a mask without a function keeps every score.
"""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from typing import Any, NoReturn

import torch
from torch.fx import Node

from ....graph.attention.score_function import Captured, added_bias, biased_scores
from ....graph.autocast_mode import OFF
from ....graph.node_meta import device_of
from ....graph.target_names import target_name
from ....graph.targets.attention_operators import Form, working_dtype
from ....graph.targets.flex_attention import FlexAttention
from ....graph.targets.transforms import Slot
from ....operators.operation import is_elementwise
from ....spec import TensorSpec
from ....torch_types import AnyFunction
from ...breaks import GraphBreak, UnsupportedArguments
from ...values.base import Args, Kwargs, Machine, Value
from ...values.containers.sequences import TupleValue
from ...values.objects.constants import ConstantValue
from ...values.objects.operators import compare, is_none
from ...values.tensors.tensor import TensorValue, lift, record
from ..registry import handles_named
from .control_flow import BodyCall, TracedBody, with_captured

__all__: list[str] = []

_OF_TORCH = "torch.nn.attention.flex_attention"
_NAME = f"{_OF_TORCH}.flex_attention"
_TENSORS = ("query", "key", "value")
_NAMES = (*_TENSORS, "score_mod", "block_mask", "scale", "enable_gqa", "return_lse")
_MODULE, _WHOLE = "_operator", 1 << 30  # the block size of a mask without blocks
_CONVERSIONS = ("to", "float", "int", "bool", "clone")
_MOVING = ("getitem", "matmul", "setitem")
_BLOCKS = ("kv_num_blocks", "kv_indices", "q_num_blocks", "q_indices")
_ONE = (1, 1, 1, 1)
# The axes (batch, head, query, key) that a bias may have for its gradient to have a kernel.
_BIASES = ((2, 3), (0, 2, 3), (1, 2, 3), (0, 1, 2, 3))
_NARROW = (torch.float32, torch.float16, torch.bfloat16)


@handles_named(_OF_TORCH, "flex_attention")
def _flex_attention(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    if len(args) > len(_NAMES):
        _refuse("so many positional arguments")
    given = {**dict(zip(_NAMES, args, strict=False)), **kwargs}
    if "return_aux" in given and not is_none(given["return_aux"]):
        _refuse("return_aux")
    query, key, value = (_tensor(given[name]) for name in _TENSORS)
    _check_tensors(machine, query, key, value, given)
    score, mask = _function(given.get("score_mod")), given.get("block_mask")
    kept: Value | None = None
    blocks: tuple[TensorValue, ...] = ()
    size = 0, 0
    if mask is not None and not is_none(mask):
        kept = _mask_function(machine, mask, query, key)
        blocks, size = (blocks, size) if kept is None else _blocks(machine, mask)
    form, captured = _form(machine, query, score, kept)
    form, captured = _with_bias(machine, form, captured, query, key)
    form = replace(form, scale=_scale(machine, query, given), blocks=len(blocks), block_size=size)
    nodes = (*(each.node for each in (query, key, value, *blocks)), *captured)
    made = machine.graph.call_transform(
        FlexAttention(form), nodes, device_of(query.node), machine.lines()
    )
    out, lse = (lift(machine, node) for node in made)
    wants_lse = "return_lse" in given and given["return_lse"].as_constant(machine)
    return TupleValue([out, lse]) if wants_lse else out


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


def _scale(machine: Machine, query: TensorValue, given: Kwargs) -> float:
    scale = given.get("scale")
    if scale is None or is_none(scale):
        return 1.0 / math.sqrt(int(query.meta.shape[-1]))
    return float(scale.as_constant(machine))


# -- the block mask --------------------------------------------------------------------------------


def _mask_function(
    machine: Machine, mask: Value, query: TensorValue, key: TensorValue
) -> Value | None:
    """Return the function of a block mask; None if it keeps every score."""
    if tuple(_constant(machine, mask, "BLOCK_SIZE")) != (_WHOLE, _WHOLE):
        # Compared as the program would, so that lengths which vary stay sizes.
        two = machine.constant(2)
        sizes = [x.get_attr(machine, "shape").get_item(machine, two) for x in (query, key)]
        lengths = mask.get_attr(machine, "seq_lengths").realize(machine)
        if not compare(machine, "==", lengths, TupleValue(sizes)).truth(machine):
            _refuse("a block mask for other lengths")
    function = mask.get_attr(machine, "mask_mod").realize(machine)
    if getattr(function, "name", "") == "_sliced_mask_mod_error":
        _refuse("a sliced block mask")
    if function.identity() is not _no_mask():
        return function
    function.guard_identity(machine)
    return None


def _no_mask() -> object:
    """Return torch's function for no mask. The mask that may hold it is of the same module."""
    return sys.modules[_OF_TORCH].noop_mask


def _constant(machine: Machine, mask: Value, name: str) -> Any:
    return mask.get_attr(machine, name).realize(machine).as_constant(machine)


def _blocks(machine: Machine, mask: Value) -> tuple[tuple[TensorValue, ...], tuple[int, int]]:
    """Return the tensors of the blocks, and the block size; none without blocks of both sides."""
    size = _constant(machine, mask, "BLOCK_SIZE")
    found = [
        [mask.get_attr(machine, prefix + name).realize(machine) for name in _BLOCKS]
        for prefix in ("", "full_")
    ]
    present = [all(isinstance(one, TensorValue) for one in group) for group in found]
    absent = [is_none(one) for one in found[1]]
    if tuple(size) == (_WHOLE, _WHOLE) or not present[0] or not (present[1] or all(absent)):
        return (), (0, 0)
    groups = found if present[1] else found[:1]
    return tuple(map(_tensor, (one for group in groups for one in group))), tuple(size)


# -- the functions ---------------------------------------------------------------------------------


def _function(value: Value | None) -> Value | None:
    return None if value is None or is_none(value) else value


def _form(
    machine: Machine, query: TensorValue, score: Value | None, mask: Value | None
) -> tuple[Form, tuple[Node, ...]]:
    """Return the functions as graphs, and the tensors that they capture."""
    traced = [one if one is None else _traced(machine, query, one, n) for n, one in
              enumerate((score, mask))]  # fmt: skip
    captured = list(dict.fromkeys(node for one in traced if one for node in one.captured))
    bodies = [None if one is None else with_captured(one, captured) for one in traced]
    return Form(bodies[0], bodies[1], 1.0), tuple(captured)


def _with_bias(
    machine: Machine,
    form: Form,
    captured: tuple[Node, ...],
    query: TensorValue,
    key: TensorValue,
) -> tuple[Form, tuple[Node, ...]]:
    """Name the bias that a score function adds, if it is all that needs a gradient: there is a
    kernel for it, in four dimensions.
    """
    found = None if form.score is None else added_bias(form.score)
    learned = [
        n for n, node in enumerate(captured) if _tensor(lift(machine, node)).meta.requires_grad
    ]
    if found is None or learned != [found[0]]:
        return form, captured
    place, axes = found
    is_shared = form.mask is not None and ("captured", place) in form.mask.feeds
    if axes not in _BIASES or is_shared:
        return form, captured
    bias = _tensor(lift(machine, captured[place]))
    shape = query.meta.shape[0], query.meta.shape[1], query.meta.shape[2], key.meta.shape[2]
    if bias.meta.dtype not in _NARROW or tuple(bias.meta.shape) != tuple(shape[n] for n in axes):
        return form, captured
    for axis in {0, 1}.difference(axes):
        bias = _tensor(record(machine, "unsqueeze", [bias, machine.constant(axis)]))
    sizes = [shape[n] if n in axes else 1 for n in range(4)]
    score = biased_scores([Captured("bias", bias.node, tuple(sizes))], 1.0).score
    assert score is not None
    feeds = tuple((group, place if group == "captured" else n) for group, n in score.feeds)
    nodes = (*captured[:place], bias.node, *captured[place + 1 :])
    return replace(form, score=replace(score, feeds=feeds), bias=place), nodes


def _traced(machine: Machine, query: TensorValue, function: Value, first: int) -> TracedBody:
    """Trace a function; a mask does not take the score, which is the first of the five tensors."""
    call = BodyCall(machine, "flex_attention", shares=True)
    device, wide = device_of(query.node), working_dtype(query.meta.dtype)
    grad = query.meta.requires_grad and machine.graph.grad_enabled
    axis = TensorSpec(_ONE, _ONE, torch.int64, device)
    score = TensorSpec(_ONE, _ONE, wide, device, requires_grad=grad, is_leaf=not grad)

    def arguments(region: Any) -> list[Value]:
        specs = [score, axis, axis, axis, axis]
        nodes = [region.feed("given", n, spec) for n, spec in enumerate(specs)]
        return [lift(machine, node) for node in nodes[first:]]

    def checked(*args: Value) -> Value:
        return _called(machine, function, args, torch.bool if first else wide, device)

    traced = call.trace(_Caller(checked), arguments)
    if traced.draws or traced.structure != Slot(0):
        _refuse("a function that draws random numbers")
    return traced


class _Caller(Value):
    """Calls a function of the program, and checks what it has recorded."""

    __slots__ = ("run",)

    def __init__(self, run: AnyFunction) -> None:
        super().__init__()
        self.run = run

    def call(self, machine: Machine, args: Args, kwargs: Kwargs) -> Value:
        made: Value = self.run(*args)
        return made


def _called(
    machine: Machine,
    function: Value,
    args: Args,
    dtype: torch.dtype,
    device: torch.device,
) -> TensorValue:
    """Call a function of numbers on tensors with four axes."""
    before = set(machine.graph.graph.nodes)
    result = function.realize(machine).call(machine, args, {}).realize(machine)
    for node in machine.graph.graph.nodes:
        if node not in before and node.op != "placeholder":
            _check_elementwise(node)
    if isinstance(result, ConstantValue):
        options = {"dtype": machine.constant(dtype), "device": machine.constant(device)}
        result = record(machine, torch.full, [TupleValue([]), result], options)
    return _tensor(result)


@handles_named(_OF_TORCH, "create_mask")
def _create_mask(
    machine: Machine,
    mod_fn: Value,
    B: Value,
    H: Value,
    Q_LEN: Value,
    KV_LEN: Value,
    device: Value | None = None,
) -> Value:
    """Call a mask function on whole tensors, as for flex_attention, where torch maps it."""
    named = {} if device is None or is_none(device) else {"device": device}
    if not named:
        _refuse("a mask without a device")
    sizes = [machine.constant(1) if is_none(n) else n for n in (B, H, Q_LEN, KV_LEN)]
    axes = []
    for axis, size in enumerate(sizes):
        line = record(machine, torch.arange, [size], named)
        shape = [-1 if each == axis else 1 for each in range(4)]
        axes.append(record(machine, "view", [line, *map(machine.constant, shape)]))
    where = device_of(_tensor(axes[0]).node)
    made = _called(machine, mod_fn, axes, torch.bool, where)
    return record(machine, "contiguous", [record(machine, "expand", [made, *sizes])])


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


def _refuse(what: str) -> NoReturn:
    raise GraphBreak(UnsupportedArguments.of(name=_NAME, what=what))
