"""Arguments bound by the schema: a zero, False or -0.0 is not a missing argument."""

from __future__ import annotations

import inspect

import pytest
import torch
from recording import check

from jitmagic.loops.lower import _bound
from jitmagic.loops.registry import LOWERINGS

aten = torch.ops.aten
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int32, torch.uint8]
_FACTORS = [0, 1, 2, 3]
_RESOLVED = {
    name: getattr(getattr(aten, name.split(".")[1], None), name.split(".")[2], None)
    for name in LOWERINGS.load_all()
}
_WITH_DEFAULTS = sorted(
    name
    for name, op in _RESOLVED.items()
    if op is not None and any(a.has_default_value() for a in op._schema.arguments)
)


def values(dtype: torch.dtype, start: int) -> torch.Tensor:
    return (torch.arange(12).reshape(3, 4) % 5 + start).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["add", "sub", "rsub", "addcmul"])
def test_factors(name: str, dtype: torch.dtype) -> None:
    """Check alpha and value at 0, -0.0 and False, with operands that are not finite too."""
    operands = [values(dtype, n) for n in range(3 if name == "addcmul" else 2)]
    if dtype.is_floating_point:
        operands[-1][0, 0] = float("inf")
    key = "value" if name == "addcmul" else "alpha"
    factors = [*_FACTORS, -0.0, 0.5, 1e-8] if dtype.is_floating_point else _FACTORS
    function = getattr(torch, name)

    def each(*given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(function(*given, **{key: factor}) for factor in factors)

    check(each, *operands, exact=not dtype.is_floating_point)


@pytest.mark.parametrize("name", _WITH_DEFAULTS)
def test_declared_defaults_reach_every_lowering(name: str) -> None:
    """A lowering gets the same arguments with and without defaults, and has a parameter for
    each.
    """
    op = _RESOLVED[name]
    needed = [a for a in op._schema.arguments if not a.has_default_value()]
    args = [object() for a in needed if not a.kwarg_only]
    named = {a.name: object() for a in needed if a.kwarg_only}
    positional, keywords = _bound(op, args, named)
    explicit = {a.name: a.default_value for a in op._schema.arguments if a.has_default_value()}
    assert (positional, keywords) == _bound(op, args, {**named, **explicit})
    assert len(positional) + len(keywords) == len(op._schema.arguments)
    inspect.signature(LOWERINGS[name]).bind(None, None, *positional, **keywords)
