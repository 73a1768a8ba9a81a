"""Scalar operations that are elementary or special functions: roots, exponentials, circular and
hyperbolic functions, powers. Their errors are those that tests/kernel allows the C++ kernels.
"""

from __future__ import annotations

import sys
from functools import partial
from math import pi

from .scalar import INFINITY, define, of_aten

__all__: list[str] = []

_real = partial(of_aten, operands="floats", rule="float")
_function = partial(_real, ulp=2)
_UNIT, _POSITIVE = (-1, 1), (0, INFINITY)
_FINITE = (-sys.float_info.max, sys.float_info.max)

define(
    _real("sqrt", 1, "default", cost=3, bounds=_POSITIVE, domain=_POSITIVE),
    _real("rsqrt", 1, "default", cost=3, ulp=1.5),
    _function("exp", 1, "default", cost=10, bounds=_POSITIVE),
    _function("exp2", 1, "default", cost=10, bounds=_POSITIVE),
    _function("expm1", 1, "default", cost=10, bounds=(-1, INFINITY)),
    _function("sigmoid", 1, "default", cost=10, bounds=(0, 1)),
    _function("log", 1, "default", cost=10),
    _function("log2", 1, "default", cost=10),
    _function("log10", 1, "default", cost=10),
    _function("log1p", 1, "default", cost=10),
    of_aten("pow", 2, operands="floats", cost=25, ulp=1.5, symbol="**"),
    # Its two terms may cancel. Its kernel of ATen checks devices and has no bools.
    _real("logaddexp", 2, "default", packet=None, cost=25, ulp=INFINITY),
)
define(
    _function("sin", 1, "default", cost=14, bounds=_UNIT, domain=_FINITE),
    _function("cos", 1, "default", cost=14, bounds=_UNIT, domain=_FINITE),
    _function("tan", 1, "default", cost=14, ulp=3),
    _function("asin", 1, "default", cost=16, bounds=(-pi / 2, pi / 2), domain=_UNIT),
    _function("acos", 1, "default", cost=16, bounds=(0, pi), domain=_UNIT),
    _function("atan", 1, "default", cost=16, bounds=(-pi / 2, pi / 2)),
    _function("atan2", 2, "default", cost=16, ulp=1.5),
    of_aten("hypot", 2, "default", operands="floats", cost=8, ulp=1.5),
)
define(
    _function("sinh", 1, "default", cost=14, ulp=2.5),
    _function("cosh", 1, "default", cost=14, bounds=(1, INFINITY)),
    _function("tanh", 1, "default", cost=14, bounds=_UNIT),
    _function("asinh", 1, "default", cost=16),
    _function("acosh", 1, "default", cost=16, bounds=_POSITIVE, domain=(1, INFINITY)),
    _function("atanh", 1, "default", cost=16),
    _function("erf", 1, "default", cost=14, bounds=_UNIT),
    _function("erfc", 1, "default", cost=25, ulp=3, bounds=(0, 2)),
    _function("erfinv", 1, "default", cost=25),
    _function("lgamma", 1, "default", cost=25, ulp=4),
)
