"""Scalar operations that compare, test, and combine truth values or bits."""

from __future__ import annotations

from functools import partial

import torch

from .scalar import ScalarOperation, define, of_aten

__all__: list[str] = []

_comparison = partial(of_aten, operands="any", boolean=True, rule="compare")
_test = partial(of_aten, operands="floats", boolean=True, rule="predicate")
_logic = partial(of_aten, operands="bools", boolean=True, rule="logic")
_bits = partial(of_aten, operands="integers", rule="integral")
_BOTH = ("Tensor", "Scalar", "Scalar_Tensor")

define(
    _comparison("eq", 2, "Tensor", "Scalar", symbol="=="),
    _comparison("ne", 2, "Tensor", "Scalar", symbol="!="),
    _comparison("lt", 2, "Tensor", "Scalar", symbol="<"),
    _comparison("le", 2, "Tensor", "Scalar", symbol="<="),
    _comparison("gt", 2, "Tensor", "Scalar", symbol=">"),
    _comparison("ge", 2, "Tensor", "Scalar", symbol=">="),
    _test("isnan", 1, "default", of_whole=False),
    _test("isinf", 1, "default", of_whole=False),
    _test("isfinite", 1, "default", of_whole=True),
    _test("signbit", 1),
)
define(
    _logic("logical_and", 2, "default", symbol="and"),
    _logic("logical_or", 2, "default", symbol="or"),
    _logic("logical_xor", 2, "default"),
    _logic("logical_not", 1, "default"),
    _bits("bitwise_and", 2, *_BOTH, symbol="&", of_bools="logical_and"),
    _bits("bitwise_or", 2, *_BOTH, symbol="|", of_bools="logical_or"),
    _bits("bitwise_xor", 2, *_BOTH, symbol="^", of_bools="logical_xor"),
    _bits("bitwise_not", 1, "default", of_bools="logical_not"),
    ScalarOperation("lshift", 2, torch.bitwise_left_shift, "integers", symbol="<<"),
    ScalarOperation("rshift", 2, torch.bitwise_right_shift, "integers", symbol=">>"),
)
