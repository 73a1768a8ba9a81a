"""Tensor operations that take an int which is data: `x * i`, `x > i`, `x.masked_fill(mask, i)`, ...

Comes in: a call whose arguments hold nodes and, at the top level, IntValues. Goes out: the same
result, to the last bit, by calls that take 0-dim tensors of the dtype that ATen casts a Python int
to beside these tensors: an int never widens a tensor, save that bools become int64. Integer dtypes
have to hold the int, so that nothing wraps around or raises. None: no rule says how an int enters
this call; powers among them, whose exponents choose the formula.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.fx import Node

from ...graph.builder import GraphBuilder
from ...graph.node_meta import device_of
from ...graph.propagate import Target, target_name
from .base import Machine
from .integers import IntValue

__all__ = ["call_with_integers"]

_CPU = torch.device("cpu")
_NARROW = (torch.float16, torch.bfloat16)
_FLOATS = (torch.float32, torch.float64, *_NARROW)
_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
# The CPU's kernels round an int to 16 bits first, as we do; on other devices they do not.
_ROUNDED_HALF = {torch.float16: 65504, torch.bfloat16: 2**24}  # what eager converts as we do
_EXACT_HALF = {torch.float16: 2**11, torch.bfloat16: 2**8}
_ALIASES = {
    "truediv": "div", "true_divide": "div", "divide": "div", "multiply": "mul", "subtract": "sub",
    "floordiv": "floor_divide", "mod": "remainder", "and": "bitwise_and", "or": "bitwise_or",
    "xor": "bitwise_xor", "lshift": "bitwise_left_shift", "rshift": "bitwise_right_shift",
    "greater": "gt", "greater_equal": "ge", "less": "lt", "less_equal": "le", "not_equal": "ne",
    "clip": "clamp", "and_": "bitwise_and", "or_": "bitwise_or",
}  # fmt: skip

_IN_PLACE = "iadd isub imul itruediv ifloordiv imod iand ior ixor ilshift irshift".split()


def call_with_integers(
    machine: Machine, target: Target, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Node | None:
    """The node of the result (the target itself for an in-place call), or None."""
    name, in_place = _name(target)
    form = _FORMS.get(name)
    tensors = [arg for arg in (*args, *kwargs.values()) if isinstance(arg, Node)]
    devices = {device_of(node) for node in tensors} or {_CPU}
    if form is None or len(devices) > 1:
        return None
    call = _Call(machine, name, devices.pop(), in_place, is_method=isinstance(target, str))
    return form(call, list(args), dict(kwargs))


def _name(target: Target) -> tuple[str, bool]:
    """The operation, and whether it writes to its first operand."""
    name = target_name(target)
    if getattr(target, "__module__", "") == "_operator":
        in_place = name in _IN_PLACE
        name = name[1:] if in_place else name
        return _ALIASES.get(name, name), in_place
    in_place = name.endswith("_") and not name.endswith("__")
    name = name[:-1] if in_place else name
    return _ALIASES.get(name, name), in_place


class _Call:
    """One call to be recorded: the operation, where its tensors are, whether in place."""

    def __init__(
        self,
        machine: Machine,
        name: str,
        device: torch.device,
        in_place: bool = False,
        is_method: bool = False,
    ) -> None:
        self.machine = machine
        self.graph: GraphBuilder = machine.graph
        self.name, self.device = name, device
        self.in_place, self.is_method = in_place, is_method

    def node(self, target: Target, *args: Any, **kwargs: Any) -> Node:
        made: Node = self.graph.call(target, args, kwargs, self.machine.lines())
        return made

    def number(self, value: IntValue, dtype: torch.dtype) -> Node | None:
        """The int as a 0-dim tensor beside the others, if the dtype holds it."""
        limits = torch.iinfo(dtype) if dtype in _INTEGERS else None
        low, high = (limits.min, limits.max) if limits else (-(2**63), 2**63 - 1)
        if dtype in _NARROW:
            high = (_ROUNDED_HALF if self.device == _CPU else _EXACT_HALF)[dtype]
            low = -high
        if not value.lies_within(self.machine, low, high):
            return None
        node = value.node if dtype is torch.int64 else self.node("to", value.node, dtype)
        return node if self.device == _CPU else self.node("to", node, self.device)

    def cast(self, node: Node, dtype: torch.dtype) -> Node:
        return node if _dtype(node) is dtype else self.node("to", node, dtype)


def _dtype(node: Node) -> torch.dtype:
    dtype: torch.dtype = node.meta["val"].dtype
    return dtype


def _common(node: Node) -> torch.dtype:
    """What a tensor and a Python int are computed as."""
    return torch.int64 if _dtype(node) is torch.bool else _dtype(node)


# -- operations of a tensor and an int -------------------------------------------------------------


def _arithmetic(call: _Call, args: list[Any], kwargs: dict[str, Any]) -> Node | None:
    """+, -, *; a factor is not rounded to 16 bits."""
    if not _is_pair(args, kwargs):
        return None
    tensor = _tensor_of(args)
    if call.name == "sub" and _dtype(tensor) is torch.bool:
        return None  # raises
    if call.name == "mul" and _dtype(tensor) in _NARROW:
        return _wide(call, tensor, args)
    return _plain(call, args, _common(tensor), _FLOATS + _INTEGERS)


def _division(call: _Call, args: list[Any], kwargs: dict[str, Any]) -> Node | None:
    """An int by a tensor is `reciprocal() * int`; integers are divided as floats."""
    if not _is_pair(args, kwargs):
        return None
    tensor = _tensor_of(args)
    if _dtype(tensor) not in _FLOATS:
        if call.in_place or isinstance(args[0], IntValue):
            return None
        wide = call.cast(tensor, torch.get_default_dtype())
        return _division(call, [wide, args[1]], kwargs)
    if isinstance(args[0], IntValue):
        if call.in_place:
            return None
        turned = _Call(call.machine, "mul", call.device)
        return _arithmetic(turned, [call.node("reciprocal", tensor), args[0]], {})
    if _dtype(tensor) in _NARROW:
        return _wide(call, tensor, args)
    return _plain(call, args, _dtype(tensor), _FLOATS)


def _wide(call: _Call, tensor: Node, args: list[Any]) -> Node | None:
    """Of a 16-bit tensor: computed in float32, rounded once."""
    number = call.number(_int_of(args), torch.float32)
    if number is None or (call.in_place and args[0] is not tensor):
        return None
    made = call.node(call.name, call.cast(tensor, torch.float32), number)
    if call.in_place:
        return call.node("copy_", tensor, made)
    return call.node("to", made, _dtype(tensor))


def _flooring(call: _Call, args: list[Any], kwargs: dict[str, Any]) -> Node | None:
    """Floor division and remainders by an int, which bounds keep from being zero."""
    if not _is_pair(args, kwargs) or not isinstance(args[1], IntValue):
        return None
    if not args[1].range.excludes_zero:
        return None
    wide = (torch.float32, torch.float64, *_INTEGERS)
    return _plain(call, args, _common(args[0]), wide)


def _comparison(call: _Call, args: list[Any], kwargs: dict[str, Any]) -> Node | None:
    if not _is_pair(args, kwargs) or call.in_place:
        return None
    return _plain(call, args, _common(_tensor_of(args)), _FLOATS + _INTEGERS)


def _bitwise(call: _Call, args: list[Any], kwargs: dict[str, Any]) -> Node | None:
    if not _is_pair(args, kwargs):
        return None
    return _plain(call, args, _common(_tensor_of(args)), _INTEGERS)


def _shift(call: _Call, args: list[Any], kwargs: dict[str, Any]) -> Node | None:
    if not _is_pair(args, kwargs) or not isinstance(args[1], IntValue):
        return None
    dtype = _dtype(args[0])
    if dtype not in _INTEGERS or not args[1].lies_within(
        call.machine, 0, torch.iinfo(dtype).bits - 1
    ):
        return None
    return _plain(call, args, dtype, _INTEGERS)


def _is_pair(args: list[Any], kwargs: dict[str, Any]) -> bool:
    """A tensor and an int in either order, and nothing else."""
    if len(args) != 2 or kwargs:
        return False
    return {type(one) for one in args} == {Node, IntValue}


def _tensor_of(args: list[Any]) -> Node:
    return next(one for one in args if isinstance(one, Node))


def _int_of(args: list[Any]) -> IntValue:
    return next(one for one in args if isinstance(one, IntValue))


def _plain(
    call: _Call, args: list[Any], dtype: torch.dtype, allowed: tuple[torch.dtype, ...]
) -> Node | None:
    """The operation itself, on tensors of one dtype."""
    number = call.number(_int_of(args), dtype) if dtype in allowed else None
    if number is None:
        return None
    if call.in_place:
        target = args[0]
        if not isinstance(target, Node) or _dtype(target) is not dtype:
            return None
        return call.node(f"{call.name}_", target, number)
    first, second = (number if isinstance(one, IntValue) else call.cast(one, dtype) for one in args)
    return call.node(call.name, first, second)


# -- operations that take an int as one of several values ------------------------------------------


def _clamp(call: _Call, args: list[Any], kwargs: dict[str, Any]) -> Node | None:
    """clamp(x, min, max), clamp_min(x, min), clamp_max(x, max)."""
    names = {"clamp": ("min", "max"), "clamp_min": ("min",), "clamp_max": ("max",)}[call.name]
    given = dict(zip(names, args[1:], strict=False)) | kwargs
    tensor = args[0] if args else None
    if not isinstance(tensor, Node) or len(args) > 1 + len(names) or set(given) - set(names):
        return None
    dtype = _dtype(tensor)
    if dtype not in (torch.float32, torch.float64, *_INTEGERS):
        return None
    limits = {name: _limit(call, one, dtype) for name, one in given.items() if one is not None}
    if not limits or None in limits.values():
        return None
    return call.node("clamp_" if call.in_place else "clamp", tensor, **limits)


def _limit(call: _Call, value: Any, dtype: torch.dtype) -> Node | None:
    """As a tensor; one that is zero gives zeros of another sign than a number does."""
    if isinstance(value, IntValue):
        signed = dtype in _INTEGERS or value.range.excludes_zero
        return call.number(value, dtype) if signed else None
    if type(value) is not int or (dtype in _INTEGERS and not _holds(dtype, value)):
        return None
    return call.node(torch.full, (), value, dtype=dtype, device=call.device)


def _holds(dtype: torch.dtype, value: int) -> bool:
    limits = torch.iinfo(dtype)
    return limits.min <= value <= limits.max


def _where(call: _Call, args: list[Any], kwargs: dict[str, Any]) -> Node | None:
    """where(condition, x, i), where(condition, i, x), x.where(condition, i)."""
    if len(args) != 3 or kwargs:
        return None
    condition, *values = (args[1], args[0], args[2]) if call.is_method else args
    if not isinstance(condition, Node) or not _is_pair(values, {}):
        return None
    dtype = _common(_tensor_of(values))
    number = call.number(_int_of(values), dtype) if dtype in _FLOATS + _INTEGERS else None
    if number is None:
        return None
    first, second = (number if isinstance(v, IntValue) else call.cast(v, dtype) for v in values)
    return call.node(torch.where, condition, first, second)


def _masked_fill(call: _Call, args: list[Any], kwargs: dict[str, Any]) -> Node | None:
    """masked_fill(x, mask, i)."""
    args = [*args, *(kwargs.pop("value", ()) for _ in range(len(args) == 2))]
    if len(args) != 3 or kwargs or not isinstance(args[2], IntValue):
        return None
    dtype = _dtype(args[0])
    number = call.number(args[2], dtype) if dtype in _FLOATS + _INTEGERS else None
    if number is None:
        return None
    return call.node("masked_fill_" if call.in_place else "masked_fill", *args[:2], number)


def _fill(call: _Call, args: list[Any], kwargs: dict[str, Any]) -> Node | None:
    """x.fill_(i)."""
    if not _is_pair(args, kwargs) or not call.in_place or not isinstance(args[0], Node):
        return None
    return _plain(call, args, _dtype(args[0]), _FLOATS + _INTEGERS)


def _full(call: _Call, args: list[Any], kwargs: dict[str, Any]) -> Node | None:
    """full(size, i), full_like(x, i), x.new_full(size, i): zeros filled with the int."""
    at = 2 if call.name == "new_full" else 1
    value = args[at] if len(args) == at + 1 else None
    if not isinstance(value, IntValue) or kwargs.get("out") is not None:
        return None
    dtype = kwargs.get("dtype")
    if dtype is None:
        dtype = torch.int64 if call.name == "full" else _dtype(args[0])
    number = call.number(value, dtype) if dtype in _FLOATS + _INTEGERS else None
    if number is None:
        return None
    target = call.name if call.is_method else getattr(torch, call.name)
    zeros = call.node(target, *args[:at], 0, **kwargs | {"dtype": dtype})
    if device_of(zeros) != call.device:
        number = call.node("to", number, device_of(zeros))
    return call.node(torch.fill, zeros, number)


def _set_item(call: _Call, args: list[Any], kwargs: dict[str, Any]) -> Node | None:
    """x[key] = i; the result is x."""
    tensor: Node
    tensor, key, value = args
    if isinstance(key, IntValue) or not isinstance(value, IntValue):
        return None
    dtype = _dtype(tensor)
    number = call.number(value, dtype) if dtype in _FLOATS + _INTEGERS else None
    if number is None:
        return None
    call.graph.call(operator.setitem, [tensor, key, number], {}, call.machine.lines())
    return tensor


def _tensor(call: _Call, args: list[Any], kwargs: dict[str, Any]) -> Node | None:
    """torch.tensor(i)."""
    dtype = kwargs.pop("dtype", None) or torch.int64
    if len(args) != 1 or any(value not in (None, False, _CPU, "cpu") for value in kwargs.values()):
        return None
    number = call.number(args[0], dtype) if dtype in _FLOATS + _INTEGERS else None
    return None if number is None else call.node("to", number, dtype, copy=True)


_FORMS: Mapping[str, Callable[[_Call, list[Any], dict[str, Any]], Node | None]] = {
    **dict.fromkeys(("add", "sub", "mul"), _arithmetic),
    "div": _division,
    **dict.fromkeys(("floor_divide", "remainder", "fmod"), _flooring),
    **dict.fromkeys(("eq", "ne", "lt", "le", "gt", "ge"), _comparison),
    **dict.fromkeys(("bitwise_and", "bitwise_or", "bitwise_xor"), _bitwise),
    **dict.fromkeys(("bitwise_left_shift", "bitwise_right_shift"), _shift),
    **dict.fromkeys(("clamp", "clamp_min", "clamp_max"), _clamp),
    "where": _where,
    "masked_fill": _masked_fill,
    "fill": _fill,
    "setitem": _set_item,
    **dict.fromkeys(("full", "full_like", "new_full"), _full),
    "tensor": _tensor,
}
