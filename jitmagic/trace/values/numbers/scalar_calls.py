"""Records tensor operations with varying numbers: `x * i`, `x.addcdiv_(a, b, value=s)`, ...

Input: a call whose arguments are nodes and, at the top level, Scalars. Output: calls that take
0-dim tensors and compute the same result. FORMS maps each operation to its rule. A number is
converted in one of these ways:

    promoted   to the dtype that type promotion gives for the tensor and a Python number
    factor     to the precision of the computation: float32 for 16-bit floats, rounded once at
               the end
    term       as `factor`, but on the CPU rounded to the tensor's dtype first, as its kernels do
    filled     to the tensor's own dtype; eager raises if it cannot hold the number
    limited    as `promoted`, but within the range of the tensor's dtype: for other numbers, eager
               raises (clamp) or casts without a check (comparisons)

By type promotion, numbers never widen a tensor of their own kind; a float turns ints into floats.
Guards restrict an int to the range of an integer dtype, so that it does not wrap around. A call
without a rule records the number itself or a size (number_arguments.py), or raises `Specialize`,
which makes the number a constant.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.fx import Node

from ....compat.behaviour import CLAMP_GRADIENT_AT_NUMBER
from ....graph.node_meta import device_of
from ....graph.propagate import Target, target_name
from ....symbols.expr import Integer
from ....symbols.interval import ANY_FLOAT, INT64, Interval
from ..base import Machine
from ..contexts.default_dtype import default_dtype
from .arithmetic import Scalar, is_nonzero, require_within
from .number_arguments import call_with_numbers, refuse_numbers

__all__ = ["call_with_scalars", "takes_number"]

_CPU = torch.device("cpu")
_NARROW = (torch.float16, torch.bfloat16)
_WIDE = (torch.float32, torch.float64)
_FLOATS = (*_WIDE, *_NARROW)
_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
# CPU kernels round an int to the 16-bit dtype first, so a 0-dim tensor of that dtype is equivalent.
# GPU kernels do not, so there it is equivalent only for ints that the dtype holds exactly.
_ROUNDED_HALF = {torch.float16: 65504, torch.bfloat16: 2**24}
_EXACT_HALF = {torch.float16: 2**11, torch.bfloat16: 2**8}
_ALIASES = {
    "truediv": "div", "true_divide": "div", "divide": "div", "multiply": "mul", "subtract": "sub",
    "floordiv": "floor_divide", "mod": "remainder", "and": "bitwise_and", "or": "bitwise_or",
    "xor": "bitwise_xor", "lshift": "bitwise_left_shift", "rshift": "bitwise_right_shift",
    "greater": "gt", "greater_equal": "ge", "less": "lt", "less_equal": "le", "not_equal": "ne",
    "clip": "clamp", "and_": "bitwise_and", "or_": "bitwise_or",
}  # fmt: skip
_IN_PLACE = "iadd isub imul itruediv ifloordiv imod iand ior ixor ilshift irshift ipow".split()


def call_with_scalars(
    machine: Machine, target: Target, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    """Return the node of the result (the target itself for an in-place call)."""
    name, in_place = _name(target)
    form = FORMS.get(name)
    tensors = [arg for arg in (*args, *kwargs.values()) if isinstance(arg, Node)]
    devices = {device_of(node) for node in tensors} or {_CPU}
    call = _Call(machine, name, devices.pop(), in_place, isinstance(target, str))
    made = None if form is None or devices else form(call, list(args), dict(kwargs))
    # Tensors on two devices are left to torch: only its kernel knows whether it accepts that.
    return call_with_numbers(machine, target, args, kwargs) if made is None else made


def takes_number(target: Target, number: Scalar) -> bool:
    """Return whether a call may accept a varying number: any call takes an int as a size."""
    return number.kind is int or _name(target)[0] in FORMS


def _name(target: Target) -> tuple[str, bool]:
    """Return the operation and whether it writes to its first operand."""
    name = target_name(target)
    if getattr(target, "__module__", "") == "_operator":
        in_place = name in _IN_PLACE
        name = name[1:] if in_place else name
        return _ALIASES.get(name, name), in_place
    in_place = name.endswith("_") and not name.endswith("__")
    name = name[:-1] if in_place else name
    return _ALIASES.get(name, name), in_place


class _Call:
    """One call to record: the operation, the device of its tensors, whether it is in place."""

    def __init__(
        self, machine: Machine, name: str, device: torch.device, in_place: bool, is_method: bool
    ) -> None:
        self.machine = machine
        self.graph = machine.graph
        self.name, self.device = name, device
        self.in_place, self.is_method = in_place, is_method

    def node(self, target: Target, *args: Any, **kwargs: Any) -> Node:
        made: Node = self.graph.call(target, args, kwargs, self.machine.lines())
        return made

    def common(self, tensor: Node, kind: type) -> torch.dtype:
        """Return the dtype that type promotion gives for a tensor and a Python number."""
        dtype = _dtype(tensor)
        if kind is float and dtype not in _FLOATS:
            return default_dtype(self.machine) if not dtype.is_complex else dtype
        return torch.int64 if dtype is torch.bool else dtype

    def cast(self, node: Node, dtype: torch.dtype) -> Node:
        return node if _dtype(node) is dtype else self.node("to", node, dtype)

    # -- one number ------------------------------------------------------------------------------

    def number(self, value: Scalar, dtype: torch.dtype, is_checked: bool = False) -> Node:
        """Return the number as a 0-dim tensor on the call's device. `is_checked`: eager raises if a
        float exceeds the dtype's largest.
        """
        if dtype not in _FLOATS and (dtype not in _INTEGERS or value.kind is float):
            refuse_numbers(self.name, value)
        limits = self._limits(value.kind, dtype, is_checked)
        require_within(self.machine, value, limits, f"{self.name}() of {dtype}")
        given = value.argument(self.machine, full=True)
        node = self.cast(given, dtype)
        # Kernels take this copy by value (loops/cpu_scalars.py), so that nothing waits for the GPU.
        return node if self.device == _CPU else self.node("to", node, self.device)

    def _limits(self, kind: type, dtype: torch.dtype, is_checked: bool) -> Interval:
        if dtype in _INTEGERS:
            info = torch.iinfo(dtype)
            return Interval(info.min, info.max)
        if kind is float:
            most = torch.finfo(dtype).max
            return Interval(-most, most) if is_checked and dtype != torch.float64 else ANY_FLOAT
        if dtype in _NARROW:
            most = (_ROUNDED_HALF if self.device == _CPU else _EXACT_HALF)[dtype]
            return Interval(-most, most)
        return INT64

    def term(self, value: Scalar, dtype: torch.dtype, is_checked: bool = False) -> Node:
        """Return the number in the computation's precision; on the CPU, rounded to `dtype`."""
        rounded = dtype if self.device == _CPU or value.kind is int else _wide(dtype)
        return self.cast(self.number(value, rounded, is_checked), _wide(dtype))

    def finish(self, name: str, target: Node, *args: Node) -> Node:
        """Record `target.name(*args)`, computed in the wide dtype and rounded once."""
        dtype = _dtype(target)
        if dtype not in _NARROW:
            return self.node(f"{name}_" if self.in_place else name, target, *args)
        made = self.node(name, self.cast(target, _wide(dtype)), *args)
        return self.node("copy_", target, made) if self.in_place else self.node("to", made, dtype)


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype in _NARROW else dtype


def _dtype(node: Node) -> torch.dtype:
    dtype: torch.dtype = node.meta["val"].dtype
    return dtype


def _pair(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Node, Scalar] | None:
    """Return (tensor, number) if the call has just these arguments, in either order, else None."""
    if len(args) != 2 or kwargs or {type(arg) for arg in args} != {Node, Scalar}:
        return None
    first, second = args
    return (first, second) if isinstance(first, Node) else (second, first)


def _apply(
    call: _Call, args: list[Any], tensor: Node, number: Node, dtype: torch.dtype
) -> Node | None:
    """Record the operation itself, on tensors of one dtype.

    None for an in-place call whose result has another dtype than its target; eager raises.
    """
    if call.in_place:
        if args[0] is not tensor or _dtype(tensor) is not dtype:
            return None
        return call.node(f"{call.name}_", tensor, number)
    sides = [call.cast(arg, dtype) if arg is tensor else number for arg in args]
    return call.node(call.name, *sides)


Form = Callable[[_Call, list[Any], dict[str, Any]], Node | None]


# -- an operation of a tensor and a number ---------------------------------------------------------


def _promoted(*dtypes: torch.dtype, is_checked: bool = False) -> Form:
    """Return the rule for `x op s` and `s op x` in one of the dtypes."""

    def rule(call: _Call, args: list[Any], kwargs: dict[str, Any]) -> Node | None:
        if (pair := _pair(args, kwargs)) is None:
            return None
        tensor, value = pair
        dtype = call.common(tensor, value.kind)
        if dtype not in dtypes or (is_checked and dtype in _FLOATS and _dtype(tensor) != dtype):
            return None
        return _apply(call, args, tensor, call.number(value, dtype, is_checked), dtype)

    return rule


def _factor(call: _Call, args: list[Any], kwargs: dict[str, Any]) -> Node | None:
    """Record x * s or x / s; a number divided by a tensor is `reciprocal() * number` in torch."""
    if (pair := _pair(args, kwargs)) is None:
        return None
    tensor, value = pair
    divides = call.name == "div"
    dtype = call.common(tensor, float if divides else value.kind)
    if call.in_place and (args[0] is not tensor or dtype is not _dtype(tensor)):
        return None
    tensor = call.cast(tensor, dtype)
    number = call.number(value, _wide(dtype)) if dtype in _FLOATS + _INTEGERS else None
    if number is None:
        return None
    if divides and args[0] is value:
        tensor = call.node("reciprocal", tensor)
    return call.finish("mul" if args[0] is value else call.name, tensor, number)


def _sum(call: _Call, args: list[Any], kwargs: dict[str, Any]) -> Node | None:
    """Record x + s, s - x, or x + alpha * y where alpha is the number."""
    alpha = kwargs.pop("alpha", 1)
    if isinstance(alpha, Scalar):
        return _scaled_sum(call, args, alpha) if len(args) == 2 and not kwargs else None
    pair = _pair(args, kwargs)
    if pair is None or alpha != 1 or type(alpha) not in (int, float):
        return None
    tensor, value = pair
    dtype = call.common(tensor, value.kind)
    wanted = _dtype(tensor) is dtype or not call.in_place
    if not wanted or dtype not in _FLOATS + _INTEGERS or (call.in_place and args[0] is value):
        return None
    if call.name == "sub" and _dtype(tensor) is torch.bool:
        return None  # eager raises
    tensor, number = call.cast(tensor, dtype), call.term(value, dtype)
    if args[0] is value and call.name == "sub":
        made = call.node("sub", number, call.cast(tensor, _wide(dtype)))
        return call.cast(made, dtype)
    return call.finish(call.name, tensor, number)


def _scaled_sum(call: _Call, args: list[Any], alpha: Scalar) -> Node | None:
    dtype = _alike(*args)
    if dtype is None:
        return None
    if alpha.kind is int:  # eager negates it in 64 bits
        alpha.keep_within(call.machine, Interval(-INT64.high, INT64.high), "alpha")
    factor = call.term(alpha, dtype, is_checked=True)
    if call.name == "sub":
        factor = call.node("neg", factor)
    return call.finish("addcmul", args[0], call.cast(args[1], _wide(dtype)), factor)


def _alike(*tensors: Any) -> torch.dtype | None:
    """Return the float dtype that all tensors have, or None."""
    dtypes = {_dtype(arg) if isinstance(arg, Node) else None for arg in tensors}
    return next(iter(dtypes)) if len(dtypes) == 1 and dtypes <= set(_FLOATS) else None


def _flooring(call: _Call, args: list[Any], kwargs: dict[str, Any]) -> Node | None:
    """Record a floor division or remainder by a number that is not zero."""
    if _pair(args, kwargs) is None or not isinstance(args[1], Scalar):
        return None
    if not is_nonzero(call.machine, args[1]):
        return None
    return _promoted(*_WIDE, *_INTEGERS)(call, args, kwargs)


def _shift(call: _Call, args: list[Any], kwargs: dict[str, Any]) -> Node | None:
    if _pair(args, kwargs) is None or not isinstance(args[1], Scalar):
        return None
    dtype = _dtype(args[0])
    if dtype not in _INTEGERS or args[1].kind is float:
        return None
    args[1].keep_within(call.machine, Interval(0, torch.iinfo(dtype).bits - 1), "a shift")
    return _promoted(*_INTEGERS)(call, args, kwargs)


# -- operations that take numbers as one of several values -----------------------------------------


def _value(call: _Call, args: list[Any], kwargs: dict[str, Any]) -> Node | None:
    """Record x + value * a * b or x + value * a / b."""
    value = kwargs.pop("value", None)
    dtype = _alike(*args) if len(args) == 3 and not kwargs else None
    if dtype is None or not isinstance(value, Scalar):
        return None
    first, second = (call.cast(arg, _wide(dtype)) for arg in args[1:])
    # The kernel itself does the last two steps: on CPUs it uses a fused multiply-add, from which
    # `x + (value * a) * b` as three calls differs in the last bit.
    product = call.node("mul", first, call.number(value, _wide(dtype), is_checked=True))
    return call.finish(call.name, args[0], product, second)


def _weight(call: _Call, args: list[Any], kwargs: dict[str, Any]) -> Node | None:
    """Record lerp(x, end, weight)."""
    given = [*args, *(kwargs.pop("weight", ()) for _ in range(len(args) == 2))]
    dtype = _alike(*given[:2]) if len(given) == 3 and not kwargs else None
    if dtype is None or not isinstance(given[2], Scalar):
        return None
    weight = call.number(given[2], _wide(dtype), is_checked=True)
    return call.finish("lerp", given[0], call.cast(given[1], _wide(dtype)), weight)


_PRODUCTS = {"addmm": "mm", "addmv": "mv", "baddbmm": "bmm"}


def _product(call: _Call, args: list[Any], kwargs: dict[str, Any]) -> Node | None:
    """Record beta * x + alpha * (a @ b). Eager does not read x if beta is zero."""
    scale = {name: kwargs.pop(name, 1) for name in ("beta", "alpha")}
    dtype = _alike(*args) if len(args) == 3 and not kwargs else None
    if dtype not in _WIDE:
        return None
    beta, alpha = scale.values()
    if isinstance(beta, Scalar) and not call.machine.symbols.decide("!=", beta.expr, Integer(0)):
        return None
    if isinstance(beta, int | float) and beta == 0:  # 0 * x would be nan where x is not finite
        return None
    left, right = (
        call.number(one, dtype, is_checked=True) if isinstance(one, Scalar) else one
        for one in (beta, alpha)
    )
    # addmm takes alpha and beta as C++ numbers, so the multiplications are nodes of their own. In
    # 16 bits they would round the product once more than eager, hence only _WIDE above.
    product = call.node(_PRODUCTS[call.name], *args[1:])
    if _dtype(product) is not dtype:
        return None  # autocast computes the product in another dtype
    product = call.node("mul", product, right)
    made = call.node("add", call.node("mul", args[0], left), product)
    return call.node("copy_", args[0], made) if call.in_place else made


def _clamp(call: _Call, args: list[Any], kwargs: dict[str, Any]) -> Node | None:
    """Record clamp(x, min, max), clamp_min(x, min) or clamp_max(x, max)."""
    names = {"clamp": ("min", "max"), "clamp_min": ("min",), "clamp_max": ("max",)}[call.name]
    given = dict(zip(names, args[1:], strict=False)) | kwargs
    tensor = args[0] if args else None
    if not isinstance(tensor, Node) or len(args) > 1 + len(names) or set(given) - set(names):
        return None
    dtype = _dtype(tensor)
    if dtype not in (*_WIDE, *_INTEGERS):
        return None
    limits = {name: _limit(call, one, dtype) for name, one in given.items() if one is not None}
    if not limits or None in limits.values():
        return None
    if CLAMP_GRADIENT_AT_NUMBER or not tensor.meta["val"].requires_grad:
        return call.node("clamp_" if call.in_place else "clamp", tensor, **limits)
    # A tensor limit would get half of the gradient where the two are equal; a number gets none of
    # it, and the tensor neither.
    clamped = call.node("clamp", call.node("detach", tensor), **limits)
    is_inside = [call.node(_STRICTLY[name], tensor, limit) for name, limit in limits.items()]
    condition = is_inside[0] if len(is_inside) == 1 else call.node("logical_and", *is_inside)
    made = call.node(torch.where, condition, tensor, clamped)
    return call.node("copy_", tensor, made) if call.in_place else made


_STRICTLY = {"min": "gt", "max": "lt"}


def _limit(call: _Call, value: Any, dtype: torch.dtype) -> Node | None:
    """Return a limit as a tensor, or None for zero.

    With a zero as a tensor limit, the result can be a zero of another sign than with a number.
    """
    if isinstance(value, Scalar):
        if dtype in _FLOATS and not call.machine.symbols.decide("!=", value.expr, Integer(0)):
            return None
        return call.number(value, dtype, is_checked=True)
    if type(value) is float and dtype in _FLOATS and not math.isnan(value) and value:
        return call.node(torch.full, (), value, dtype=dtype, device=call.device)
    if type(value) is not int or (dtype in _INTEGERS and not _holds(dtype, value)):
        return None
    return call.node(torch.full, (), value, dtype=dtype, device=call.device)


def _holds(dtype: torch.dtype, value: int) -> bool:
    limits = torch.iinfo(dtype)
    return limits.min <= value <= limits.max


def _where(call: _Call, args: list[Any], kwargs: dict[str, Any]) -> Node | None:
    """Record where(condition, x, s), where(condition, s, x) or x.where(condition, s)."""
    if len(args) != 3 or kwargs:
        return None
    condition, *values = (args[1], args[0], args[2]) if call.is_method else args
    pair = _pair(values, {})
    if not isinstance(condition, Node) or pair is None:
        return None
    tensor, value = pair
    dtype = call.common(tensor, value.kind)
    # Eager first makes a tensor of the default dtype from a float, which has to hold it.
    number = call.number(value, dtype, is_checked=dtype in _FLOATS)
    first, second = (call.cast(v, dtype) if v is tensor else number for v in values)
    return call.node(torch.where, condition, first, second)


def _filled(call: _Call, args: list[Any], kwargs: dict[str, Any]) -> Node | None:
    """Record x.fill_(s) or masked_fill(x, mask, s)."""
    name, at = call.name, 1 if call.name == "fill" else 2
    args = [*args, *(kwargs.pop("value", ()) for _ in range(len(args) == at))]
    if len(args) != at + 1 or kwargs or not isinstance(args[at], Scalar):
        return None
    if (name == "fill" and not call.in_place) or not isinstance(args[0], Node):
        return None
    number = call.number(args[at], _dtype(args[0]), is_checked=True)
    return call.node(f"{name}_" if call.in_place else name, *args[:at], number)


def _full(call: _Call, args: list[Any], kwargs: dict[str, Any]) -> Node | None:
    """Record full(size, s), full_like(x, s) or x.new_full(size, s) as zeros that are filled."""
    at = 2 if call.name == "new_full" else 1
    if len(args) == at and "fill_value" in kwargs:
        args = [*args, kwargs.pop("fill_value")]
    value = args[at] if len(args) == at + 1 else None
    if not isinstance(value, Scalar) or kwargs.get("out") is not None:
        return None
    dtype = kwargs.get("dtype")
    if dtype is None:
        made = torch.int64 if value.kind is int else default_dtype(call.machine)
        dtype = made if call.name == "full" else _dtype(args[0])
    number = call.number(value, dtype, is_checked=True)
    target = call.name if call.is_method else getattr(torch, call.name)
    zeros = call.node(target, *args[:at], 0, **kwargs | {"dtype": dtype})
    if device_of(zeros) != call.device:
        number = call.node("to", number, device_of(zeros))
    # torch.full(size, tensor) would read the number out of the tensor, which synchronises with a
    # GPU; torch.fill takes it as an operand of its kernel.
    return call.node(torch.fill, zeros, number)


def _set_item(call: _Call, args: list[Any], kwargs: dict[str, Any]) -> Node | None:
    """Record x[key] = s or x[s] = value; the result is x."""
    tensor: Node
    tensor, key, value = args
    if isinstance(key, Scalar) and (index := key.as_size(call.machine)) is not None:
        key = index
    if isinstance(key, Scalar):
        refuse_numbers("an index", key)
    if isinstance(value, Scalar):
        value = call.number(value, _dtype(tensor), is_checked=True)
    call.graph.call(operator.setitem, [tensor, key, value], {}, call.machine.lines())
    return tensor


def _tensor(call: _Call, args: list[Any], kwargs: dict[str, Any]) -> Node | None:
    """Record torch.tensor(s) or torch.as_tensor(s)."""
    dtype = kwargs.pop("dtype", None)
    if len(args) != 1 or any(value not in (None, False, _CPU, "cpu") for value in kwargs.values()):
        return None
    if dtype is None:
        dtype = torch.int64 if args[0].kind is int else default_dtype(call.machine)
    # torch.tensor always copies. Without a copy, a write to the result would change the number,
    # whose node other operations of the program read.
    return call.node("to", call.number(args[0], dtype, is_checked=True), dtype, copy=True)


FORMS: Mapping[str, Form] = {
    **dict.fromkeys(("mul", "div"), _factor),
    **dict.fromkeys(("add", "sub"), _sum),
    **dict.fromkeys(("addcmul", "addcdiv"), _value),
    **dict.fromkeys(_PRODUCTS, _product),
    "lerp": _weight,
    "pow": _promoted(*_WIDE),
    **dict.fromkeys(("floor_divide", "remainder", "fmod"), _flooring),
    # Eager casts the number to the tensor's dtype without a check: a uint8 of 44 equals 300,
    # and a float16 inf equals 1e6. Numbers outside the dtype's range are left to the kernel as
    # constants.
    **dict.fromkeys(
        ("eq", "ne", "lt", "le", "gt", "ge"), _promoted(*_FLOATS, *_INTEGERS, is_checked=True)
    ),
    **dict.fromkeys(("bitwise_and", "bitwise_or", "bitwise_xor"), _promoted(*_INTEGERS)),
    **dict.fromkeys(("bitwise_left_shift", "bitwise_right_shift"), _shift),
    **dict.fromkeys(("clamp", "clamp_min", "clamp_max"), _clamp),
    "where": _where,
    **dict.fromkeys(("masked_fill", "fill"), _filled),
    "setitem": _set_item,
    **dict.fromkeys(("full", "full_like", "new_full"), _full),
    **dict.fromkeys(("tensor", "as_tensor"), _tensor),
}
