"""Elementwise operations whose tags or schemas say too little."""

from __future__ import annotations

from functools import partial

from .operation import INTEGERS, NO_BOOLS, define

__all__: list[str] = []

# Operations that take a 0-dim CPU tensor as a number next to tensors of another device, like those
# of scalar operations. The kernels of others (clamp, logaddexp, nextafter) check devices.
_define_mixing = partial(define, mixes="scalars")

define("add mul", exact_numbers=True)
define("sub", takes=NO_BOOLS, exact_numbers=True)
define("div", raises="zero", exact_numbers=True)
define("remainder fmod", raises="zero")
define("floor_divide", raises="zero", is_elementwise=True)
_define_mixing("bitwise_left_shift bitwise_right_shift", takes=INTEGERS)
_define_mixing("rsub", promotion="common", arity=2)
_define_mixing("addcmul", promotion="common", arity=3)
_define_mixing("xlogy", promotion="floating", arity=2)
_define_mixing("float_power ldexp lerp addcdiv")
_define_mixing("where", is_elementwise=True, work=1)
define("clamp", promotion="common", arity=3, work=1)
define("clamp_min clamp_max", promotion="common", arity=2, work=1)
define(
    "complex elu_backward full_like hardshrink_backward leaky_relu_backward polar real "
    "softshrink_backward positive",
    is_elementwise=True,
)
define("copy fill zero", is_elementwise=True, mixes="any")
define("expand_as view_as reshape_as broadcast_to", mixes="any")
define("linspace logspace", floats_are_data=True)
define("full", is_elementwise=True, size_at=0, floats_are_data=True)
define("new_full", is_elementwise=True, size_at=1)
define("clone", is_elementwise=False, work=1)
define("_to_copy", work=1)
define("equal mvlgamma", is_elementwise=False)
