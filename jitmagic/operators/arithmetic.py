"""Scalar operations of arithmetic: sums, products, quotients, order, rounding, signs and choice."""

from __future__ import annotations

import torch

from .scalar import ScalarOperation, define, of_aten

__all__: list[str] = []


def _fma(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    """Return a * b + c with one rounding: float32 through float64, float64 by ATen's fused
    kernel.
    """
    if a.dtype is torch.float64:
        a, b, c = (part.contiguous() for part in torch.broadcast_tensors(a, b, c))
        return torch.addcmul(c, a, b)
    return (a.double() * b.double() + c.double()).to(a.dtype)


define(
    of_aten("add", 2, symbol="+", of_bools="logical_or"),
    of_aten("sub", 2, symbol="-"),
    of_aten("mul", 2, "Tensor", "Scalar", symbol="*", of_bools="logical_and", rule="arith_wide"),
    ScalarOperation("fma", 3, _fma, "floats"),
    ScalarOperation(
        "truediv",
        2,
        torch.true_divide,
        "floats",
        cost=3,
        symbol="/",
        packet="div",
        rule="float_wide",
        overloads=("aten.div.Tensor", "aten.div.Scalar", "aten.true_divide.Tensor"),
    ),
    ScalarOperation("floordiv", 2, torch.floor_divide, cost=8, symbol="//", packet="floor_divide"),
    of_aten("remainder", 2, cost=8),
    of_aten("fmod", 2, cost=8),
    of_aten("reciprocal", 1, "default", operands="floats", rule="float", cost=3),
)
define(
    of_aten("maximum", 2, of_bools="logical_or"),
    of_aten("minimum", 2, of_bools="logical_and"),
    of_aten("fmax", 2),
    of_aten("fmin", 2),
    of_aten("relu", 1, "default"),
    ScalarOperation("where", 3, torch.where, "any", conditional=True),
)
define(
    of_aten("neg", 1, "default", "negative.default"),
    of_aten("abs", 1),
    of_aten("sign", 1),
    of_aten("copysign", 2, "Tensor", "Scalar", operands="floats", rule="float"),
    of_aten("nextafter", 2, operands="floats", packet=None, cost=8),
    of_aten("floor", 1, "default", operands="floats", of_whole="same"),
    of_aten("ceil", 1, "default", operands="floats", of_whole="same"),
    of_aten("round", 1, "default", operands="floats", of_whole="same"),
    of_aten("trunc", 1, "default", "fix.default", operands="floats", of_whole="same"),
    of_aten("frac", 1, "default", operands="floats"),
)
