"""Ints that are data: a graph made for one int gives eager's results, to the last bit, for others.

Each function is called with ints that make the first variant one of a constant and the second one
of data; `variants` says which of them there are.
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import Tensor

import jitmagic
from jitmagic.api import handle_of
from jitmagic.errors import RecompileWarning
from jitmagic.guards.guard import InRange, ValueEquals
from jitmagic.guards.source import Argument
from jitmagic.trace.result import Trace

FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
DTYPES = [*FLOATS, *INTEGERS, torch.bool]
# The first is a constant; then ints of each range, its ends among them.
VALUES = [0, 1, 7, 255, 256, 1023, 1024, 70001, 2**31 - 1, -1, -3, -1023, -1024, -(2**31)]
BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv,
    "//": operator.floordiv, "%": operator.mod, "&": operator.and_, "|": operator.or_,
    "^": operator.xor, "<<": operator.lshift, ">>": operator.rshift, "**": operator.pow,
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt,
    ">=": operator.ge,
}  # fmt: skip


def traces(compiled: Any) -> list[Trace]:
    handle = handle_of(compiled)
    assert handle is not None
    return [record.result("trace") for record in handle.journal]


def variants(compiled: Any) -> str:
    """"c" for each variant with a constant int, "d" for each whose numbers are data."""
    return "".join("d" if any(e.is_number for e in t.inputs) else "c" for t in traces(compiled))


def tensor_of(dtype: torch.dtype) -> Tensor:
    if dtype is torch.bool:
        return torch.tensor([[True, False, True]] * 5)
    if dtype.is_floating_point:
        special = [0.0, -0.0, 1.0, -1.0, 7.0, float("inf"), float("-inf"), float("nan"), 255.5]
        return torch.cat([torch.tensor(special), torch.randn(40) * 300]).to(dtype)
    info = torch.iinfo(dtype)
    ends = torch.tensor([info.min, info.max, 0, 1, 3, 7, info.max - 1], dtype=dtype)
    return torch.cat([ends, torch.randint(info.min // 4, info.max // 4, (30,)).to(dtype)])


def outcome(program: Callable[..., Any], *args: Any) -> Any:
    try:
        return program(*args)
    except (RuntimeError, ZeroDivisionError, TypeError, OverflowError) as error:
        return type(error)


def same(got: Any, wanted: Any) -> bool:
    """Dtypes, shapes and bits; of nans only that they are."""
    if not isinstance(wanted, Tensor):
        return type(got) is type(wanted) and got == wanted
    alike = (got.dtype, got.shape, got.stride()) == (wanted.dtype, wanted.shape, wanted.stride())
    if not alike or not wanted.dtype.is_floating_point:
        return alike and torch.equal(got, wanted)
    signs = torch.equal(got.signbit() & ~got.isnan(), wanted.signbit() & ~wanted.isnan())
    return signs and torch.equal(got.nan_to_num(0.5), wanted.nan_to_num(0.5)) and torch.equal(
        got.isnan(), wanted.isnan()
    )


def agrees(program: Callable[..., Any], x: Tensor, values: Iterable[int] = VALUES) -> str:
    """The program gives eager's results for all ints; which variants were made of it."""
    compiled = jitmagic.jit(program, options={"recompile_limit": 32})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", jitmagic.FallbackWarning)
        for value in values:
            mine, given = x.clone(), x.clone()
            wanted, got = outcome(program, mine, value), outcome(compiled, given, value)
            assert same(got, wanted), (value, got, wanted)
            assert same(given, mine), value
    return variants(compiled)


def of_operator(op: str, reflected: bool) -> Callable[[Tensor, int], Tensor]:
    apply = BINARY[op]
    return (lambda x, i: apply(i, x)) if reflected else (lambda x, i: apply(x, i))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("op", BINARY)
def test_operators(op: str, dtype: torch.dtype) -> None:
    x = tensor_of(dtype)
    for reflected in (False, True):
        print(op, dtype, reflected, agrees(of_operator(op, reflected), x))
