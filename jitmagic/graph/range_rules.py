"""What the ranges of operands say of the result of an operation, one rule for some names each.

Comes in: a `Call`. Goes out: a Range of the exact results, widened by what kernels may round
beyond the result's dtype, eager's and generated ones; None where nothing can be said.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from .intervals import Range, rounded, whole_range

__all__ = ["RULES", "Call", "Rule", "ranges_of"]


@dataclass(frozen=True, slots=True)
class Call:
    """An operation whose result is asked for; `read` gives the range of an argument."""

    name: str
    args: tuple[Any, ...]  # as in the graph
    kwargs: dict[str, Any]
    value: torch.Tensor  # meta tensor of the result
    read: Callable[[Any], Range]
    margin: float  # the probability of the draws at each end of an interval that are left out

    def given(self, position: int, name: str, default: object = None) -> Any:
        """An argument by position or by name."""
        found = self.args[position] if position < len(self.args) else self.kwargs.get(name)
        return default if found is None else found


Rule = Callable[[Call], Range | None]
RULES: dict[str, Rule] = {}


def ranges_of(*names: str) -> Callable[[Rule], Rule]:
    """Register the rule of these functions and methods, and of their in-place forms `name_`."""

    def register(rule: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, rule))
        return rule

    return register


def _widened(low: float, high: float, call: Call, scale: tuple[float, float]) -> Range:
    """Room for the roundings of an inexact operation on numbers as large as `scale`."""
    if not call.value.dtype.is_floating_point:
        return Range(low, high)
    eps = 4 * torch.finfo(call.value.dtype).eps
    return Range(low - eps * scale[0], high + eps * scale[1])


# ------------------------------------------------------------------- what is drawn or filled


def _unit_draw(call: Call) -> Range:
    """Half-open: float32 and float64 draws are multiples of their last bit below 1; of smaller
    dtypes that is not relied on, and there no value is rare."""
    dtype = call.value.dtype
    if dtype not in (torch.float32, torch.float64):
        return Range(0.0, 1.0)
    margin = call.margin / max(1, call.value.numel())
    return Range(margin, 1 - max(margin, torch.finfo(dtype).eps / 2))


@ranges_of("rand", "rand_like")
def _drawn(call: Call) -> Range | None:
    return _unit_draw(call)


@ranges_of("uniform")
def _uniform(call: Call) -> Range | None:
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
def _one_or_zero(call: Call) -> Range | None:
    return Range(0, 1)


@ranges_of("randint")
def _integers(call: Call) -> Range | None:
    bounds = [arg for arg in call.args if type(arg) is int][:2]
    if not bounds or len(bounds) != len([arg for arg in call.args if not _is_size(arg)]):
        return None
    low, high = bounds if len(bounds) == 2 else (0, bounds[0])
    return Range(low, high - 1)


def _is_size(value: object) -> bool:
    return isinstance(value, tuple | list)


@ranges_of("zeros", "zeros_like", "new_zeros", "zero")
def _zeros(call: Call) -> Range | None:
    return Range(0, 0)


@ranges_of("ones", "ones_like", "new_ones")
def _ones(call: Call) -> Range | None:
    return Range(1, 1)


@ranges_of("arange")
def _counted(call: Call) -> Range | None:
    """Of integers; the end is not reached."""
    start, end, step = {1: (0, *call.args, 1), 2: (*call.args, 1), 3: call.args}.get(
        len(call.args), (None, None, None)
    )
    if call.value.dtype.is_floating_point or not isinstance(step, int) or step < 1:
        return None
    return Range(call.read(start).low, call.read(end).high)


@ranges_of("full", "full_like", "new_full", "fill")
def _filled(call: Call) -> Range | None:
    name = "value" if call.name == "fill" else "fill_value"
    return call.read(call.given(2 if call.name == "new_full" else 1, name))


# ------------------------------------------------------------------- the same elements


@ranges_of(*"""view reshape clone detach contiguous expand expand_as unsqueeze squeeze transpose
    permute flatten select narrow getitem alias t""".split())  # fmt: skip
def _same(call: Call) -> Range | None:
    source = call.args[0] if call.args else None
    meta = getattr(source, "meta", {}).get("val")
    if not isinstance(meta, torch.Tensor) or meta.dtype != call.value.dtype:
        return None  # `view` of another dtype
    return call.read(source)


@ranges_of(*"to type_as float double half bfloat16 int long short bool cpu cuda".split())
def _converted(call: Call) -> Range | None:
    return call.read(call.args[0]) if call.args else None


@ranges_of("max", "min", "amax", "amin")
def _extreme(call: Call) -> Range | None:
    """Of one tensor; two make `maximum` and `minimum`."""
    if len(call.args) == 1:
        return call.read(call.args[0])
    if call.name in ("amax", "amin") or type(call.args[1]) is int:
        return call.read(call.args[0])
    return _larger_or_smaller(call)


@ranges_of("maximum", "minimum")
def _larger_or_smaller(call: Call) -> Range | None:
    if len(call.args) != 2:
        return None
    a, b = map(call.read, call.args)
    pick = max if call.name.startswith("max") else min
    return Range(pick(a.low, b.low), pick(a.high, b.high), a.nan or b.nan)


@ranges_of("where")
def _either(call: Call) -> Range | None:
    """As a method the condition comes second: all three are looked at."""
    if len(call.args) != 3:
        return None
    found = [call.read(arg) for arg in call.args]
    low, high = min(x.low for x in found), max(x.high for x in found)
    return Range(low, high, any(x.nan for x in found))


# ------------------------------------------------------------------- functions


@ranges_of("relu")
def _relu(call: Call) -> Range | None:
    x = call.read(call.args[0])
    return Range(max(x.low, 0), max(x.high, 0), x.nan)


@ranges_of("clamp", "clip")
def _clamp(call: Call) -> Range | None:
    """The upper limit wins where it is below the lower one."""
    x = call.read(call.args[0])
    least = call.read(call.given(1, "min", -math.inf))
    most = call.read(call.given(2, "max", math.inf))
    if least.nan or most.nan:
        return None
    low, high = min(max(x.low, least.low), most.low), min(max(x.high, least.high), most.high)
    return Range(low, high, x.nan)


@ranges_of("abs", "absolute")
def _absolute(call: Call) -> Range | None:
    """The least integer has no absolute value in its dtype: `rounded` notices."""
    x = call.read(call.args[0])
    low = 0 if x.low <= 0 <= x.high else min(abs(x.low), abs(x.high))
    return Range(low, max(abs(x.low), abs(x.high)), x.nan)


@ranges_of("exp", "softmax", "sqrt")
def _not_negative(call: Call) -> Range | None:
    """-0.0 included; softmax of nothing but -inf is nan."""
    x = call.read(call.args[0])
    high = 1 + 4 * torch.finfo(call.value.dtype).eps if call.name == "softmax" else math.inf
    return Range(0.0, high, x.nan or call.name == "softmax" or x.low < 0)


@ranges_of("sigmoid", "tanh", "sin", "cos")
def _bounded(call: Call) -> Range | None:
    """Approximations may leave the interval by their last bits; sin and cos of inf are nan."""
    x = call.read(call.args[0])
    found = _widened(0.0 if call.name == "sigmoid" else -1.0, 1.0, call, (1.0, 1.0))
    endless = math.inf in (x.high, -x.low) and call.name in ("sin", "cos")
    return found._replace(nan=x.nan or endless)


# ------------------------------------------------------------------- arithmetic


def _operands(call: Call) -> tuple[Range, Range] | None:
    """Of two operands and no options; a number may be converted to the dtype before or after, so
    it must not overflow there."""
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
def _sum(call: Call) -> Range | None:
    operands = _operands(call)
    if operands is None:
        return None
    a, b = operands
    if call.name == "sub":
        b = Range(-b.high, -b.low, b.nan)
    if math.inf in (a.high, b.high) and -math.inf in (a.low, b.low):
        return None  # inf - inf
    scale = abs(a.low) + abs(b.low), abs(a.high) + abs(b.high)
    found = _widened(a.low + b.low, a.high + b.high, call, scale)
    return found._replace(nan=a.nan or b.nan)


@ranges_of("mul", "truediv", "div")
def _product(call: Call) -> Range | None:
    """Quotients only by what cannot be zero."""
    operands = _operands(call)
    if operands is None:
        return None
    a, b = operands
    endless = [math.inf in (x.high, -x.low) for x in (a, b)]
    if call.name != "mul":
        if b.low <= 0 <= b.high or any(endless):
            return None
        ends = [x / y for x in a[:2] for y in b[:2]]
    else:
        if any(endless):
            return _sign_of_product(a, b)
        ends = [x * y for x in a[:2] for y in b[:2]]
    low, high = min(ends), max(ends)
    return _widened(low, high, call, (abs(low), abs(high)))._replace(nan=a.nan or b.nan)


def _sign_of_product(a: Range, b: Range) -> Range | None:
    """Of factors that may be infinite: 0 * inf is nan."""
    return Range(0.0, math.inf, nan=True) if a.low >= 0 and b.low >= 0 else None


@ranges_of("neg", "negative")
def _negative(call: Call) -> Range | None:
    x = call.read(call.args[0])
    return Range(-x.high, -x.low, x.nan)


# ------------------------------------------------------------------- comparisons and truth


@ranges_of("lt", "le", "gt", "ge", "eq", "ne", "less", "greater")
def _comparison(call: Call) -> Range | None:
    if len(call.args) != 2 or call.kwargs:
        return None
    given = [getattr(arg, "meta", {}).get("val", arg) for arg in call.args]
    if not all(isinstance(one, torch.Tensor | bool | int | float) for one in given):
        return None
    dtype = torch.result_type(*given)
    whole = whole_range(dtype)
    numbers = [one for one in given if not isinstance(one, torch.Tensor)]
    if dtype.is_complex or not all(whole.low <= number <= whole.high for number in numbers):
        return None  # a number that wraps around, or is nan
    exact = tuple(map(call.read, call.args))
    answers = {
        _compare(call.name, *pair) for pair in (exact, tuple(rounded(one, dtype) for one in exact))
    }
    answer = answers.pop()
    return None if answers or answer is None else Range(answer, answer)


def _compare(name: str, a: Range, b: Range) -> bool | None:
    match name:
        case "ne":
            equal = _compare("eq", a, b)
            return None if equal is None else not equal
        case "gt" | "greater" | "ge":
            return _compare("lt" if name != "ge" else "le", b, a)
        case "eq":
            if a.high < b.low or b.high < a.low:
                return False
            one_value = a.low == a.high == b.low == b.high
            return True if one_value and not (a.nan or b.nan) else None
        case "le":
            yes, no = a.high <= b.low, a.low > b.high
        case _:
            yes, no = a.high < b.low, a.low >= b.high
    if no:  # comparisons with nan are false as well
        return False
    return True if yes and not (a.nan or b.nan) else None


@ranges_of("logical_not", "invert", "bitwise_not")
def _not(call: Call) -> Range | None:
    x = call.read(call.args[0]).truth
    if x is None or (call.name != "logical_not" and call.value.dtype != torch.bool):
        return None
    return Range(not x, not x)


@ranges_of("logical_and", "and_", "and", "bitwise_and", "logical_or", "or_", "or", "bitwise_or")
def _both_or_either(call: Call) -> Range | None:
    if call.value.dtype != torch.bool or len(call.args) != 2:
        return None
    truths = {call.read(arg).truth for arg in call.args}
    settles = "or" in call.name
    if settles in truths:
        return Range(settles, settles)
    return None if None in truths else Range(not settles, not settles)


@ranges_of("any", "all")
def _any_or_all(call: Call) -> Range | None:
    x = call.read(call.args[0])
    if call.args[0].meta["val"].numel() == 0:
        return None
    return None if x.truth is None else Range(x.truth, x.truth)
