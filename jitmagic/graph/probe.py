"""Whether eager's elementwise kernels take these dtypes: they are asked themselves, on one element.

Comes in: a call on meta tensors and the device that they stand for. Goes out: nothing, or
`EagerRaises` with the kernel's own error. Meta functions accept dtypes that kernels refuse
(subtraction of bools, `int_tensor *= 0.5`, gcd of floats), and a functional graph would compute
something there. Each combination of operation and dtypes is tried once in a process, on the CPU:
what is no matter of the CPU's kernels (NotImplementedError) holds for other devices too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch

from .propagate import EagerRaises

__all__ = ["check_dtypes"]

_FUNCTIONS = (
    "add sub subtract rsub mul multiply div divide true_divide pow remainder fmod "
    "floor_divide atan2 arctan2 copysign maximum minimum fmax fmin lerp addcmul addcdiv xlogy "
    "heaviside clamp clip clamp_min clamp_max bitwise_and bitwise_or bitwise_xor bitwise_not "
    "bitwise_left_shift bitwise_right_shift logical_and logical_or logical_xor logical_not "
    "hypot nextafter gcd lcm ldexp logaddexp logaddexp2 eq ne lt le gt ge less greater "
    "less_equal greater_equal not_equal neg negative abs absolute sign sgn floor ceil round "
    "trunc fix frac exp exp2 expm1 log log2 log10 log1p sqrt rsqrt reciprocal square sin cos "
    "tan asin acos atan sinh cosh tanh asinh acosh atanh erf erfc erfinv lgamma digamma "
    "sigmoid logit relu signbit isposinf isneginf angle real deg2rad rad2deg sinc i0 positive "
    "float_power gelu elu celu selu mish hardswish hardtanh hardsigmoid leaky_relu softplus "
    "logsigmoid hardshrink softshrink relu6 silu"
)
_OPERATORS = (
    "add sub mul truediv floordiv mod pow and_ or_ xor lshift rshift iadd isub imul itruediv "
    "ifloordiv imod ipow iand ior ixor ilshift irshift neg pos invert inv abs"
)
_DUNDERS = "add sub mul truediv floordiv mod pow and or xor lshift rshift".split()
_NAMES = frozenset(
    (
        *_FUNCTIONS.split(),
        *(f"{name}_" for name in _FUNCTIONS.split()),
        *_OPERATORS.split(),
        *(f"__{kind}{name}__" for name in _DUNDERS for kind in ("", "r", "i")),
    )
)
_NUMBERS = (bool, int, float, complex)


def check_dtypes(
    target: Callable[..., Any] | str,
    name: str,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    device: torch.device,
) -> None:
    """Raise EagerRaises where the kernel of an elementwise operation refuses its arguments."""
    if name not in _NAMES:
        return
    described = tuple(_described(arg) for arg in args)
    named = tuple((key, _described(value)) for key, value in kwargs.items())
    if None in described or any(part is None for _, part in named):
        return
    error = _refusal(target, described, named)
    if error is not None and (device.type == "cpu" or not isinstance(error, NotImplementedError)):
        raise EagerRaises(error)


Described = tuple[Any, ...]


def _described(value: Any) -> Described | None:
    """What a kernel's choice hangs on: dtype and whether 0-dimensional, or a number's value."""
    if isinstance(value, torch.Tensor):
        return "tensor", value.dtype, value.dim() > 0
    if value is None or type(value) in _NUMBERS or isinstance(value, (str, torch.dtype)):
        return "plain", type(value), repr(value), value
    return None


def _made(described: Described) -> Any:
    if described[0] == "plain":
        return described[-1]
    _, dtype, has_dimensions = described
    return torch.ones((1,) if has_dimensions else (), dtype=dtype)


@lru_cache(maxsize=4096)
def _refusal(
    target: Callable[..., Any] | str,
    args: tuple[Described, ...],
    kwargs: tuple[tuple[str, Described], ...],
) -> Exception | None:
    """The error of the call on one element, without the frames that it came through."""
    try:
        with torch.inference_mode(False), torch.no_grad(), torch._C._DisableAutocast():
            given = [_made(arg) for arg in args]
            named = {key: _made(value) for key, value in kwargs}
            if isinstance(target, str):
                getattr(given[0], target)(*given[1:], **named)
            else:
                target(*given, **named)
    except Exception as error:  # whatever the kernel raises is what the program would see
        return error.with_traceback(None)
    return None
