"""Interval rules: the range of an operation's result from the ranges of its operands.

Input: a `Call`. Output: an Interval of the exact results, widened by the rounding that eager's and
generated kernels may do beyond the result's dtype; None if nothing is known.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Node

from ...lazy_dataclass import dataclass
from ...operators.scalar import SCALARS
from ...symbols.interval import Interval
from ..memory import storage_of
from .intervals import rounded, whole_range
from .sym_node import as_dimension

__all__ = ["RULES", "Call", "Rule", "ranges_of"]


@dataclass(frozen=True, slots=True)
class Call:
    """An operation whose result range is computed; `read` gives the range of an argument."""

    name: str
    args: tuple[Any, ...]  # of the graph's node
    kwargs: dict[str, Any]
    value: torch.Tensor  # meta tensor of the result
    read: Callable[[Any], Interval]
    margin: float  # probability of the draws that are ignored at each end of their interval
    finite: bool  # whether computed values are assumed to be finite

    def given(self, position: int, name: str, default: object = None) -> Any:
        """Return an argument by position or by name."""
        argument = self.args[position] if position < len(self.args) else self.kwargs.get(name)
        return default if argument is None else argument


Rule = Callable[[Call], Interval | None]
RULES: dict[str, Rule] = {}


def ranges_of(*names: str) -> Callable[[Rule], Rule]:
    """Register the rule of these functions and methods, and of their in-place forms `name_`."""

    def register(rule: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, rule))
        return rule

    return register


def _widened(low: float, high: float, call: Call, scale: tuple[float, float]) -> Interval:
    """Widen an interval for the rounding of an inexact operation on numbers as large as `scale`."""
    if not call.value.dtype.is_floating_point:
        return Interval(low, high)
    eps = 4 * torch.finfo(call.value.dtype).eps
    return Interval(low - eps * scale[0], high + eps * scale[1])


# ------------------------------------------------------------------- what is drawn or filled


def _unit_draw(call: Call) -> Interval:
    """Return the range of a draw from [0, 1). float32 and float64 draws are multiples of their last
    bit below 1; smaller dtypes may round to 1, and there no value is rare.
    """
    dtype = call.value.dtype
    if dtype not in (torch.float32, torch.float64):
        return Interval(0.0, 1.0)
    margin = call.margin / max(1, call.value.numel())
    return Interval(margin, 1 - max(margin, torch.finfo(dtype).eps / 2))


@ranges_of("rand", "rand_like")
def _drawn(call: Call) -> Interval | None:
    return _unit_draw(call)


@ranges_of("uniform")
def _uniform(call: Call) -> Interval | None:
    low = call.read(call.given(1, "from", 0.0)).low
    high = call.read(call.given(2, "to", 1.0)).high
    unit, scale = _unit_draw(call), abs(low) + abs(high)
    if (low, high) == (0.0, 1.0):
        return unit
    if not math.isfinite(scale):
        return None
    ends = [low + (high - low) * end for end in (unit.low, unit.high)]
    return _widened(min(ends), max(ends), call, (scale, scale))


@ranges_of("bernoulli")
def _one_or_zero(call: Call) -> Interval | None:
    return Interval(0, 1)


@ranges_of("randint")
def _integers(call: Call) -> Interval | None:
    bounds = [arg for arg in call.args if type(arg) is int][:2]
    if not bounds or len(bounds) != len([arg for arg in call.args if not _is_size(arg)]):
        return None
    low, high = bounds if len(bounds) == 2 else (0, bounds[0])
    return Interval(low, high - 1)


def _is_size(value: object) -> bool:
    return isinstance(value, tuple | list)


@ranges_of("zeros", "zeros_like", "new_zeros", "zero")
def _zeros(call: Call) -> Interval | None:
    return Interval(0, 0)


@ranges_of("ones", "ones_like", "new_ones")
def _ones(call: Call) -> Interval | None:
    return Interval(1, 1)


@ranges_of("arange")
def _counted(call: Call) -> Interval | None:
    """Bound arange of integers, which does not reach its end."""
    start, end, step = {1: (0, *call.args, 1), 2: (*call.args, 1), 3: call.args}.get(
        len(call.args), (None, None, None)
    )
    if call.value.dtype.is_floating_point or not isinstance(step, int) or step < 1:
        return None
    return Interval(call.read(start).low, call.read(end).high)


@ranges_of("full", "full_like", "new_full", "fill")
def _filled(call: Call) -> Interval | None:
    name = "value" if call.name == "fill" else "fill_value"
    return call.read(call.given(2 if call.name == "new_full" else 1, name))


# ------------------------------------------------------------------- the same elements


@ranges_of(*"""view reshape clone detach contiguous expand expand_as unsqueeze squeeze transpose
    permute flatten select narrow getitem alias t""".split())  # fmt: skip
def _same(call: Call) -> Interval | None:
    source = call.args[0] if call.args else None
    meta = getattr(source, "meta", {}).get("val")
    if not isinstance(meta, torch.Tensor) or meta.dtype != call.value.dtype:
        return None  # `view` of another dtype
    return call.read(source)


@ranges_of(*"to type_as float double half bfloat16 int long short bool cpu cuda".split())
def _converted(call: Call) -> Interval | None:
    return call.read(call.args[0]) if call.args else None


@ranges_of("max", "min", "amax", "amin")
def _extreme(call: Call) -> Interval | None:
    """Bound the extreme of one tensor; two tensors are `maximum` and `minimum`."""
    if len(call.args) == 1:
        return call.read(call.args[0])
    if call.name in ("amax", "amin") or type(call.args[1]) is int:
        return call.read(call.args[0])
    return _larger_or_smaller(call)


@ranges_of("maximum", "minimum")
def _larger_or_smaller(call: Call) -> Interval | None:
    if len(call.args) != 2:
        return None
    a, b = map(call.read, call.args)
    return a.most(b) if call.name.startswith("max") else a.least(b)


@ranges_of("where")
def _either(call: Call) -> Interval | None:
    """Bound where; as a method the condition comes second, so all three arguments count."""
    if len(call.args) != 3:
        return None
    ranges = [call.read(arg) for arg in call.args]
    low, high = min(x.low for x in ranges), max(x.high for x in ranges)
    return Interval(low, high, any(x.nan for x in ranges))


# ------------------------------------------------------------------- functions


@ranges_of("relu")
def _relu(call: Call) -> Interval | None:
    x = call.read(call.args[0])
    return Interval(max(x.low, 0), max(x.high, 0), x.nan)


@ranges_of("clamp", "clip")
def _clamp(call: Call) -> Interval | None:
    """Bound clamp; the upper limit wins if it is below the lower one."""
    x = call.read(call.args[0])
    least = call.read(call.given(1, "min", -math.inf))
    most = call.read(call.given(2, "max", math.inf))
    if least.nan or most.nan:
        return None
    low, high = min(max(x.low, least.low), most.low), min(max(x.high, least.high), most.high)
    return Interval(low, high, x.nan)


@ranges_of("abs", "absolute")
def _absolute(call: Call) -> Interval | None:
    """Bound abs; the least integer has no absolute value in its dtype, which `rounded` handles."""
    return call.read(call.args[0]).abs()


@ranges_of("softmax")
def _softmax(call: Call) -> Interval | None:
    """Bound softmax, which is nan if all elements are -inf."""
    return _widened(0, 1, call, (0, 1))._replace(nan=True)


_BOUNDED = {
    row.packet: (row.bounds, Interval(*row.domain, nan=True))
    for row in SCALARS.values()
    if row.packet and row.bounds
}


@ranges_of(*_BOUNDED)
def _bounded(call: Call) -> Interval | None:
    """Bound approximations, which may exceed the interval by their last bits, but keep its sign."""
    x = call.read(call.args[0])
    (low, high), domain = _BOUNDED[call.name]
    found = _widened(low, high, call, (abs(low), abs(high)))
    return found._replace(nan=x.nan or not x.within(domain))


# ------------------------------------------------------------------- arithmetic


def _operands(call: Call) -> tuple[Interval, Interval] | None:
    """Return the ranges of two operands, if there are no options. A number may be converted to the
    dtype before or after the operation, so it must not overflow there.
    """
    if len(call.args) != 2 or call.kwargs:
        return None
    a, b = map(call.read, call.args)
    for x in (a, b):
        there = rounded(x, call.value.dtype)
        if (math.isinf(there.low), math.isinf(there.high)) != (
            math.isinf(x.low),
            math.isinf(x.high),
        ):
            return None
    return a, b


@ranges_of("add", "sub")
def _sum(call: Call) -> Interval | None:
    operands = _operands(call)
    if operands is None:
        return None
    a, b = operands
    if call.name == "sub":
        b = b.neg()
    if math.inf in (a.high, b.high) and -math.inf in (a.low, b.low):
        return None  # inf - inf
    scale = abs(a.low) + abs(b.low), abs(a.high) + abs(b.high)
    low, high, nan = a.add(b)
    return _widened(low, high, call, scale)._replace(nan=nan)


@ranges_of("mul", "truediv", "div")
def _product(call: Call) -> Interval | None:
    """Bound products, and quotients whose divisor cannot be zero."""
    operands = _operands(call)
    if operands is None:
        return None
    a, b = operands
    if a.is_endless or b.is_endless:
        return _sign_of_product(a, b) if call.name == "mul" else None
    result = a.mul(b) if call.name == "mul" else a.div(b)
    if result is None:
        return None
    low, high, nan = result
    return _widened(low, high, call, (abs(low), abs(high)))._replace(nan=nan)


def _sign_of_product(a: Interval, b: Interval) -> Interval | None:
    """Bound a product with factors that may be infinite: 0 * inf is nan."""
    return Interval(0.0, math.inf, nan=True) if a.low >= 0 and b.low >= 0 else None


@ranges_of("neg", "negative")
def _negative(call: Call) -> Interval | None:
    return call.read(call.args[0]).neg()


# ------------------------------------------------------------------- comparisons and truth


_COMPARISONS = {row.name: str(row.symbol) for row in SCALARS.values() if row.rule == "compare"}
_COMPARISONS |= {"less": "<", "greater": ">"}


@ranges_of(*_COMPARISONS)
def _comparison(call: Call) -> Interval | None:
    if len(call.args) != 2 or call.kwargs:
        return None
    operands = [getattr(arg, "meta", {}).get("val", arg) for arg in call.args]
    if not all(isinstance(operand, torch.Tensor | bool | int | float) for operand in operands):
        return None
    dtype = torch.result_type(*operands)
    representable = whole_range(dtype)
    numbers = [operand for operand in operands if not isinstance(operand, torch.Tensor)]
    if dtype.is_complex or not all(
        representable.low <= number <= representable.high for number in numbers
    ):
        return None  # a number that wraps around, or is nan
    exact = tuple(map(call.read, call.args))
    op = _COMPARISONS[call.name]
    (a, b), (c, d) = exact, (rounded(operand, dtype) for operand in exact)
    answers = {a.compare(op, b), c.compare(op, d)}
    answer = answers.pop()
    return None if answers or answer is None else Interval(answer, answer)


@ranges_of("logical_not", "invert", "bitwise_not")
def _not(call: Call) -> Interval | None:
    x = call.read(call.args[0]).truth
    if x is None or (call.name != "logical_not" and call.value.dtype != torch.bool):
        return None
    return Interval(not x, not x)


@ranges_of("logical_and", "and_", "and", "bitwise_and", "logical_or", "or_", "or", "bitwise_or")
def _both_or_either(call: Call) -> Interval | None:
    if call.value.dtype != torch.bool or len(call.args) != 2:
        return None
    truths = {call.read(arg).truth for arg in call.args}
    settles = "or" in call.name
    if settles in truths:
        return Interval(settles, settles)
    return None if None in truths else Interval(not settles, not settles)


# What tests of finite numbers answer.
_FINITE = {r.name: r.of_whole for r in SCALARS.values() if isinstance(r.of_whole, bool)}
_FINITE |= {"isposinf": False, "isneginf": False}


@ranges_of(*_FINITE)
def _finite(call: Call) -> Interval | None:
    """Bound isfinite and similar. Computed values are taken as finite; inputs may use nan for
    missing values.
    """
    node = call.given(0, "input")
    if not call.finite or not isinstance(node, Node):
        return None
    memory = storage_of(node)
    while node.op != "placeholder":
        source = next(iter(node.all_input_nodes), None)
        if source is None or storage_of(source) != memory:
            return Interval(_FINITE[call.name], _FINITE[call.name])
        node = source
    return None


@ranges_of("any", "all")
def _any_or_all(call: Call) -> Interval | None:
    x = call.read(call.args[0])
    count = as_dimension(call.args[0].meta["val"].numel())
    empty = count == 0 if isinstance(count, int) else count.known("==", 0)
    return None if empty is not False or x.truth is None else Interval(x.truth, x.truth)
