"""Elementwise operations whose tags or schemas say too little."""

from __future__ import annotations

from functools import partial

from .operation import INTEGERS, NO_BOOLS, define

__all__: list[str] = []

# Operations that take a 0-dim CPU tensor as a number next to tensors of another device. The kernels
# of others (clamp, logaddexp, nextafter) check devices themselves.
_define_mixing = partial(define, mixes="scalars")

_define_mixing("div remainder fmod", raises="zero")
_define_mixing("divide floor_divide", raises="zero", is_elementwise=True)
_define_mixing(
    "bitwise_and bitwise_or bitwise_xor bitwise_left_shift bitwise_right_shift", takes=INTEGERS
)
define("bitwise_not", takes=INTEGERS)
_define_mixing(
    "add mul true_divide rsub pow float_power eq ne lt le gt ge maximum minimum fmax fmin atan2 "
    "logical_and logical_or logical_xor where copysign hypot xlogy ldexp lerp addcmul addcdiv"
)
_define_mixing("sub", takes=NO_BOOLS)
_define_mixing(
    "multiply subtract arctan2 not_equal greater greater_equal less less_equal", is_elementwise=True
)
define(
    "absolute complex elu_backward fix full_like hardshrink_backward hardtanh_backward "
    "leaky_relu_backward negative polar real softplus_backward softshrink_backward positive",
    is_elementwise=True,
)
define("fill", is_elementwise=True, mixes="any")
define("copy_ expand_as view_as reshape_as broadcast_to", mixes="any")
define(
    "tensor zeros ones empty arange linspace logspace eye range scalar_tensor as_tensor "
    "empty_strided tril_indices triu_indices hann_window hamming_window blackman_window "
    "bartlett_window kaiser_window complex_window empty_permuted asarray vander",
    makes_tensor=True,
)
define("full", is_elementwise=True, size_at=0, makes_tensor=True)
define("new_full", is_elementwise=True, size_at=1)
define("clone equal mvlgamma", is_elementwise=False)
define(
    "_foreach_add _foreach_sub _foreach_mul _foreach_div _foreach_addcmul _foreach_addcdiv "
    "_foreach_lerp _foreach_clamp_min _foreach_clamp_max _foreach_maximum _foreach_minimum "
    "_foreach_pow _foreach_exp _foreach_sqrt _foreach_log _foreach_rsqrt _foreach_reciprocal "
    "_foreach_sign _foreach_neg _foreach_abs",
    is_elementwise=True,
)
