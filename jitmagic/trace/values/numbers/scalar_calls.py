"""Records tensor operations with varying numbers: `x * i`, `x.addcdiv_(a, b, value=s)`, ...

Input: a call whose arguments are nodes and, at the top level, Scalars. Output: calls that take
0-dim tensors and compute the same result. FORMS maps each operation to its rule, whose signature is
the operation's. A number is converted in one of these ways:

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
from functools import cache, partial
from inspect import Signature, signature
from typing import TypeVar

import torch
from torch.fx import Node

from ....graph.node_meta import device_of
from ....graph.target_names import Target, target_name
from ....operators.operation import canonical, is_in_place
from ....symbols.expr import Integer
from ....symbols.interval import ANY_FLOAT, INT64, Interval
from ..base import Machine
from ..contexts.default_dtype import default_dtype
from .arithmetic import Scalar, is_nonzero, require_within
from .clamping import clamp
from .number_arguments import call_with_numbers, refuse_numbers

__all__ = ["FORMS", "call_with_scalars", "takes_number"]

_CPU = torch.device("cpu")
_NARROW = (torch.float16, torch.bfloat16)
_WIDE = (torch.float32, torch.float64)
_FLOATS = (*_WIDE, *_NARROW)
_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
# CPU kernels round an int to the 16-bit dtype first, so a 0-dim tensor of that dtype is equivalent.
# GPU kernels do not, so there it is equivalent only for ints that the dtype holds exactly.
_ROUNDED_HALF = {torch.float16: 65504, torch.bfloat16: 2**24}
_EXACT_HALF = {torch.float16: 2**11, torch.bfloat16: 2**8}


def call_with_scalars(
    machine: Machine, target: Target, args: Sequence[object], kwargs: Mapping[str, object]
) -> object:
    """Return the node of the result (the target itself for an in-place call)."""
    name, in_place = _name(target)
    tensors = [arg for arg in (*args, *kwargs.values()) if isinstance(arg, Node)]
    devices = {device_of(node) for node in tensors} or {_CPU}
    call = _Call(machine, name, devices.pop(), in_place, isinstance(target, str))
    # Tensors on two devices are left to torch: only its kernel knows whether it accepts that.
    made = None if devices else _by_form(call, args, kwargs)
    return call_with_numbers(machine, target, args, kwargs) if made is None else made


def _by_form(call: _Call, args: Sequence[object], kwargs: Mapping[str, object]) -> Node | None:
    """Record a call by its rule; None if it has no rule, or arguments that the rule lacks."""
    if (form := FORMS.get(call.name)) is None:
        return None
    try:
        bound = _signature(form).bind(call, *args, **kwargs)
    except TypeError:
        return None
    return form(*bound.args, **bound.kwargs)


@cache
def _signature(form: Form) -> Signature:
    return signature(form)


def takes_number(target: Target, number: Scalar) -> bool:
    """Return whether a call may accept a varying number: any call takes an int as a size."""
    return number.kind is int or _name(target)[0] in FORMS


def _name(target: Target) -> tuple[str, bool]:
    """Return the operation and whether it writes to its first operand."""
    name = target_name(target)
    # A method like __rsub__ has its operands in the other order.
    return (name, False) if name.startswith("__") else (canonical(name), is_in_place(name))


class _Call:
    """One call to record: the operation, the device of its tensors, whether it is in place."""

    def __init__(
        self, machine: Machine, name: str, device: torch.device, in_place: bool, is_method: bool
    ) -> None:
        self.machine = machine
        self.graph = machine.graph
        self.name, self.device = name, device
        self.in_place, self.is_method = in_place, is_method

    def node(self, target: Target, *args: object, **kwargs: object) -> Node:
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


def _pair(first: object, second: object) -> tuple[Node, Scalar] | None:
    """Return (tensor, number) if the operands are one of each, else None."""
    if isinstance(first, Node) and isinstance(second, Scalar):
        return first, second
    if isinstance(first, Scalar) and isinstance(second, Node):
        return second, first
    return None


Form = Callable[..., Node | None]
"""A rule: its parameters are the call and the arguments of the operation, numbers as Scalars."""
FORMS: dict[str, Form] = {}
Registered = TypeVar("Registered", bound=Form)


def _form(*names: str) -> Callable[[Registered], Registered]:
    """Register the rule of these operations."""

    def register(form: Registered) -> Registered:
        FORMS.update(dict.fromkeys(names, form))
        return form

    return register


# -- an operation of a tensor and a number ---------------------------------------------------------


def _promoted(
    dtypes: Sequence[torch.dtype],
    is_checked: bool,
    call: _Call,
    first: object,
    second: object,
    /,
) -> Node | None:
    """Record `x op s` or `s op x`, on tensors of one of the dtypes."""
    if (pair := _pair(first, second)) is None:
        return None
    tensor, value = pair
    dtype = call.common(tensor, value.kind)
    if dtype not in dtypes or (is_checked and dtype in _FLOATS and _dtype(tensor) != dtype):
        return None
    number = call.number(value, dtype, is_checked)
    if not call.in_place:
        sides = call.cast(tensor, dtype), number
        return call.node(call.name, *(sides if first is tensor else sides[::-1]))
    # If the target has another dtype than the result, eager raises.
    fits = first is tensor and _dtype(tensor) is dtype
    return call.node(f"{call.name}_", tensor, number) if fits else None


_form("pow")(partial(_promoted, _WIDE, False))
_form("bitwise_and", "bitwise_or", "bitwise_xor")(partial(_promoted, _INTEGERS, False))
# Eager casts the number to the tensor's dtype without a check: a uint8 of 44 equals 300, and a
# float16 inf equals 1e6. Numbers outside the dtype's range are left to the kernel as constants.
_form("eq", "ne", "lt", "le", "gt", "ge")(partial(_promoted, (*_FLOATS, *_INTEGERS), True))


@_form("mul", "div")
def _factor(call: _Call, first: object, second: object, /) -> Node | None:
    """Record x * s or x / s; a number divided by a tensor is `reciprocal() * number` in torch."""
    if (pair := _pair(first, second)) is None:
        return None
    tensor, value = pair
    divides = call.name == "div"
    dtype = call.common(tensor, float if divides else value.kind)
    if call.in_place and (first is value or dtype is not _dtype(tensor)):
        return None
    tensor = call.cast(tensor, dtype)
    number = call.number(value, _wide(dtype)) if dtype in _FLOATS + _INTEGERS else None
    if number is None:
        return None
    if divides and first is value:
        tensor = call.node("reciprocal", tensor)
    return call.finish("mul" if first is value else call.name, tensor, number)


@_form("add", "sub")
def _sum(call: _Call, first: object, second: object, /, *, alpha: object = 1) -> Node | None:
    """Record x + s, s - x, or x + alpha * y where alpha is the number."""
    if isinstance(alpha, Scalar):
        return _scaled_sum(call, first, second, alpha)
    pair = _pair(first, second)
    if pair is None or alpha != 1 or type(alpha) not in (int, float):
        return None
    tensor, value = pair
    dtype = call.common(tensor, value.kind)
    wanted = _dtype(tensor) is dtype or not call.in_place
    if not wanted or dtype not in _FLOATS + _INTEGERS or (call.in_place and first is value):
        return None
    if call.name == "sub" and _dtype(tensor) is torch.bool:
        return None  # eager raises
    tensor, number = call.cast(tensor, dtype), call.term(value, dtype)
    if first is value and call.name == "sub":
        made = call.node("sub", number, call.cast(tensor, _wide(dtype)))
        return call.cast(made, dtype)
    return call.finish(call.name, tensor, number)


def _scaled_sum(call: _Call, first: object, second: object, alpha: Scalar) -> Node | None:
    if (found := _alike(first, second)) is None:
        return None
    dtype, (target, tensor) = found
    if alpha.kind is int:  # eager negates it in 64 bits
        alpha.keep_within(call.machine, Interval(-INT64.high, INT64.high), "alpha")
    factor = call.term(alpha, dtype, is_checked=True)
    if call.name == "sub":
        factor = call.node("neg", factor)
    return call.finish("addcmul", target, call.cast(tensor, _wide(dtype)), factor)


def _alike(*args: object) -> tuple[torch.dtype, list[Node]] | None:
    """Return the float dtype of the arguments, and these, if they are tensors of one; else None."""
    tensors = [arg for arg in args if isinstance(arg, Node)]
    dtypes = set(map(_dtype, tensors))
    if len(tensors) < len(args) or len(dtypes) != 1 or not dtypes <= set(_FLOATS):
        return None
    return dtypes.pop(), tensors


@_form("floor_divide", "remainder", "fmod")
def _flooring(call: _Call, first: object, second: object, /) -> Node | None:
    """Record a floor division or remainder by a number that is not zero."""
    if not isinstance(second, Scalar) or _pair(first, second) is None:
        return None
    if not is_nonzero(call.machine, second):
        return None
    return _promoted((*_WIDE, *_INTEGERS), False, call, first, second)


@_form("bitwise_left_shift", "bitwise_right_shift")
def _shift(call: _Call, first: object, second: object, /) -> Node | None:
    if not isinstance(first, Node) or not isinstance(second, Scalar) or second.kind is float:
        return None
    if (dtype := _dtype(first)) not in _INTEGERS:
        return None
    second.keep_within(call.machine, Interval(0, torch.iinfo(dtype).bits - 1), "a shift")
    return _promoted(_INTEGERS, False, call, first, second)


# -- operations that take numbers as one of several values -----------------------------------------


@_form("addcmul", "addcdiv")
def _value(
    call: _Call, target: object, left: object, right: object, /, *, value: object = 1
) -> Node | None:
    """Record x + value * a * b or x + value * a / b."""
    if not isinstance(value, Scalar) or (found := _alike(target, left, right)) is None:
        return None
    dtype, (tensor, *factors) = found
    first, second = (call.cast(factor, _wide(dtype)) for factor in factors)
    # The kernel itself does the last two steps: on CPUs it uses a fused multiply-add, from which
    # `x + (value * a) * b` as three calls differs in the last bit.
    product = call.node("mul", first, call.number(value, _wide(dtype), is_checked=True))
    return call.finish(call.name, tensor, product, second)


@_form("lerp")
def _weight(call: _Call, start: object, end: object, /, weight: object) -> Node | None:
    """Record lerp(x, end, weight)."""
    if not isinstance(weight, Scalar) or (found := _alike(start, end)) is None:
        return None
    dtype, (tensor, other) = found
    number = call.number(weight, _wide(dtype), is_checked=True)
    return call.finish("lerp", tensor, call.cast(other, _wide(dtype)), number)


_PRODUCTS = {"addmm": "mm", "addmv": "mv", "baddbmm": "bmm"}


@_form(*_PRODUCTS)
def _product(
    call: _Call,
    target: object,
    left: object,
    right: object,
    /,
    *,
    beta: object = 1,
    alpha: object = 1,
) -> Node | None:
    """Record beta * x + alpha * (a @ b). Eager does not read x if beta is zero."""
    if (found := _alike(target, left, right)) is None or found[0] not in _WIDE:
        return None
    dtype, (tensor, *factors) = found
    if isinstance(beta, Scalar) and not call.machine.symbols.decide("!=", beta.expr, Integer(0)):
        return None
    if isinstance(beta, int | float) and beta == 0:  # 0 * x would be nan where x is not finite
        return None
    scales = [
        call.number(one, dtype, is_checked=True) if isinstance(one, Scalar) else one
        for one in (beta, alpha)
    ]
    # addmm takes alpha and beta as C++ numbers, so the multiplications are nodes of their own. In
    # 16 bits they would round the product once more than eager, hence only _WIDE above.
    product = call.node(_PRODUCTS[call.name], *factors)
    if _dtype(product) is not dtype:
        return None  # autocast computes the product in another dtype
    product = call.node("mul", product, scales[1])
    made = call.node("add", call.node("mul", tensor, scales[0]), product)
    return call.node("copy_", tensor, made) if call.in_place else made


@_form("clamp")
def _clamp(call: _Call, tensor: object, /, min: object = None, max: object = None) -> Node | None:
    """Record clamp(x, min, max), clamp_min(x, min) or clamp_max(x, max)."""
    if not isinstance(tensor, Node) or (dtype := _dtype(tensor)) not in (*_WIDE, *_INTEGERS):
        return None
    given = {"min": min, "max": max}
    limits = {name: _limit(call, one, dtype) for name, one in given.items() if one is not None}
    return clamp(call.node, tensor, limits, call.in_place)


@_form("clamp_min")
def _clamp_min(call: _Call, tensor: object, /, min: object) -> Node | None:
    return _clamp(call, tensor, min)


@_form("clamp_max")
def _clamp_max(call: _Call, tensor: object, /, max: object) -> Node | None:
    return _clamp(call, tensor, None, max)


def _limit(call: _Call, value: object, dtype: torch.dtype) -> Node | None:
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


@_form("where")
def _where(call: _Call, first: object, second: object, third: object, /) -> Node | None:
    """Record where(condition, x, s), where(condition, s, x) or x.where(condition, s)."""
    condition, *values = (second, first, third) if call.is_method else (first, second, third)
    pair = _pair(*values)
    if not isinstance(condition, Node) or pair is None:
        return None
    tensor, value = pair
    dtype = call.common(tensor, value.kind)
    # Eager first makes a tensor of the default dtype from a float, which has to hold it.
    number = call.number(value, dtype, is_checked=dtype in _FLOATS)
    sides = call.cast(tensor, dtype), number
    return call.node(torch.where, condition, *(sides if values[0] is tensor else sides[::-1]))


@_form("masked_fill", "fill")
def _filled(call: _Call, /, *given: object, value: object = None) -> Node | None:
    """Record x.fill_(s) or masked_fill(x, mask, s)."""
    *first, number = given if value is None else (*given, value)
    if not isinstance(number, Scalar) or len(first) != 1 + (call.name == "masked_fill"):
        return None
    if not isinstance(first[0], Node) or (call.name == "fill" and not call.in_place):
        return None
    made = call.number(number, _dtype(first[0]), is_checked=True)
    return call.node(f"{call.name}_" if call.in_place else call.name, *first, made)


@_form("full", "full_like", "new_full")
def _full(
    call: _Call,
    /,
    *given: object,
    fill_value: object = None,
    dtype: torch.dtype | None = None,
    **options: object,
) -> Node | None:
    """Record full(size, s), full_like(x, s) or x.new_full(size, s) as zeros that are filled."""
    *first, value = given if fill_value is None else (*given, fill_value)
    is_usual = len(first) == 1 + (call.name == "new_full") and options.get("out") is None
    if not isinstance(value, Scalar) or not is_usual:
        return None
    if dtype is None and isinstance(first[0], Node):
        dtype = _dtype(first[0])
    elif dtype is None:
        dtype = torch.int64 if value.kind is int else default_dtype(call.machine)
    number = call.number(value, dtype, is_checked=True)
    target = call.name if call.is_method else getattr(torch, call.name)
    zeros = call.node(target, *first, 0, **options, dtype=dtype)
    if device_of(zeros) != call.device:
        number = call.node("to", number, device_of(zeros))
    # torch.full(size, tensor) would read the number out of the tensor, which synchronises with a
    # GPU; torch.fill takes it as an operand of its kernel.
    return call.node(torch.fill, zeros, number)


@_form("setitem")
def _set_item(call: _Call, tensor: object, key: object, value: object, /) -> Node | None:
    """Record x[key] = s or x[s] = value; the result is x."""
    assert isinstance(tensor, Node)
    if isinstance(key, Scalar) and (index := key.as_size(call.machine)) is not None:
        key = index
    if isinstance(key, Scalar):
        refuse_numbers("an index", key)
    if isinstance(value, Scalar):
        value = call.number(value, _dtype(tensor), is_checked=True)
    call.node(operator.setitem, tensor, key, value)
    return tensor


@_form("tensor", "as_tensor")
def _tensor(
    call: _Call, data: object, /, *, dtype: torch.dtype | None = None, **options: object
) -> Node | None:
    """Record torch.tensor(s) or torch.as_tensor(s)."""
    is_usual = all(option in (None, False, _CPU, "cpu") for option in options.values())
    if not isinstance(data, Scalar) or not is_usual:
        return None
    if dtype is None:
        dtype = torch.int64 if data.kind is int else default_dtype(call.machine)
    # torch.tensor always copies. Without a copy, a write to the result would change the number,
    # whose node other operations of the program read.
    return call.node("to", call.number(data, dtype, is_checked=True), dtype, copy=True)
