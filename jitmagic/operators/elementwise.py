"""Elementwise operations whose tags or schemas say too little."""

from __future__ import annotations

from .operation import INTEGERS, define

__all__: list[str] = []

define("div remainder fmod", raises="zero")
define("divide floor_divide", raises="zero", is_elementwise=True)
define(
    "bitwise_and bitwise_or bitwise_xor bitwise_not bitwise_left_shift bitwise_right_shift",
    takes=INTEGERS,
)
define(
    "absolute arctan2 complex elu_backward fill fix full_like greater greater_equal "
    "hardshrink_backward hardtanh_backward leaky_relu_backward less less_equal multiply negative "
    "not_equal polar real softplus_backward softshrink_backward subtract positive",
    is_elementwise=True,
)
define("full", is_elementwise=True, size_at=0)
define("new_full", is_elementwise=True, size_at=1)
define("clone equal mvlgamma", is_elementwise=False)
define(
    "_foreach_add _foreach_sub _foreach_mul _foreach_div _foreach_addcmul _foreach_addcdiv "
    "_foreach_lerp _foreach_clamp_min _foreach_clamp_max _foreach_maximum _foreach_minimum "
    "_foreach_pow _foreach_exp _foreach_sqrt _foreach_log _foreach_rsqrt _foreach_reciprocal "
    "_foreach_sign _foreach_neg _foreach_abs",
    is_elementwise=True,
)
