"""Probes eager's kernels on stand-ins, to find whether they accept a call's dtypes and numbers.

Input: a call on meta tensors and the device that they stand for. Output: nothing, or `EagerRaises`
with the kernel's own error. Meta functions accept what kernels refuse (subtraction of bools,
`int_tensor *= 0.5`, 1e30 as a factor of float16), and a functional graph would compute a result.

An elementwise operation is probed on one element. Any other is probed on small tensors of the
call's own shapes, and only for dtypes or numbers that kernels are known to refuse. Large tensors
are cut down; shapes that no longer fit are refused for that reason, so then only a missing kernel
(NotImplementedError) counts.

Each combination is tried once in a process, at the sizes of this call: elementwise operations and
products on the call's device, others on the CPU, as is all where the device is absent. CPU errors
other than a missing kernel hold for other devices too. A call whose result is unused is always
probed: no kernel will run it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any

import torch

from ...symbols.context import Specialize
from ...symbols.scalar import symbols_of
from ..attribution import Silence, call_from
from ..node_meta import tensors_in
from ..propagate import EagerRaises
from ..symbolic.sym_node import sizes_in, with_hints
from .dtypes import why_dtypes_are_refused
from .recurrent import takes_packed_sequence

__all__ = ["check_dtypes", "why_refused"]

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
    "logsigmoid hardshrink softshrink relu6 silu threshold masked_fill where nan_to_num fill "
    "full_like threshold_backward hardtanh_backward elu_backward leaky_relu_backward "
    "softplus_backward hardshrink_backward softshrink_backward logit_backward gelu_backward "
    "polar complex"
)
_FOREACH = (
    "add sub mul div addcmul addcdiv lerp clamp_min clamp_max maximum minimum pow exp sqrt log "
    "rsqrt reciprocal sign neg abs"
)
_FILLS = {"full": 0, "new_full": 1}  # position of the size, which kernels accept in any case
# Not probed: their kernels refuse the values of stand-ins (singular matrices, wrong lengths).
_UNASKED = (
    *("linalg_", "_linalg_", "cholesky", "inverse", "logdet", "slogdet", "svd", "lu", "triangular"),
    *(
        "ctc_loss",
        "_ctc_loss",
        "segment_reduce",
        "pinverse",
        "det",
        "geqrf",
        "ormqr",
        "orgqr",
        "qr",
        "_pack_padded_sequence",
        "_pad_packed_sequence",
        "repeat_interleave",
    ),
)
_MOST = 1 << 14  # elements that the stand-ins of a call may have
_MOST_UNCUT = 1 << 25  # the same if shapes must not be cut, which is rare
_CUT = 8  # the extents that larger tensors are cut to; usual windows and kernels still fit in
_UNCUT = 1 << 62
# Modules of Python functions that are probed like operators: they call operators unknown here.
_IN_PYTHON = ("torch.functional", "torch.nn.functional", "torch._jit_internal")
_OPERATORS = (
    "add sub mul truediv floordiv mod pow and_ or_ xor lshift rshift iadd isub imul itruediv "
    "ifloordiv imod ipow iand ior ixor ilshift irshift neg pos invert inv abs"
)
# cuBLAS and cuDNN have no integer products, the CPU has. No input value makes their GPU kernels
# fail a device assertion, so they can be probed on the GPU.
_PRODUCTS = frozenset(
    "matmul mm bmm mv dot vdot inner addmm addmv addbmm baddbmm linear bilinear einsum tensordot "
    "conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d "
    "chain_matmul linalg_matmul linalg_multi_dot linalg_vecdot".split()
)
_DUNDERS = "add sub mul truediv floordiv mod pow and or xor lshift rshift".split()
_NAMES = frozenset(
    (
        *_FUNCTIONS.split(),
        *(f"{name}_" for name in _FUNCTIONS.split()),
        *_OPERATORS.split(),
        *(f"_foreach_{name}{end}" for name in _FOREACH.split() for end in ("", "_")),
        *_FILLS,
        *(f"__{kind}{name}__" for name in _DUNDERS for kind in ("", "r", "i")),
    )
)
_NUMBERS = (bool, int, float, complex)
_META = torch.device("meta")


def check_dtypes(
    target: Callable[..., Any] | str,
    name: str,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    device: torch.device,
) -> None:
    """Raise EagerRaises if the kernel refuses the dtypes or the numbers of the call, or may."""
    of_data = [
        symbol
        for size in sizes_in((args, kwargs))
        for symbol in symbols_of(size.expr)
        if size.context.of_data(symbol)
    ]
    args, kwargs = with_hints(args), with_hints(kwargs)
    elementwise = name in _NAMES
    answered = elementwise or _is_suspect(target, name, args, kwargs)
    tensors = list(tensors_in((args, kwargs)))
    several = len({t.dtype for t in tensors if t.is_floating_point()}) > 1
    if several and not elementwise:
        _refuse_by_rule(name, args, kwargs, tensors)
    if answered:
        # Mixed dtypes are probed uncut: sizes that other arguments name cannot be cut.
        most = _MOST_UNCUT if several else _MOST
        large = not elementwise and sum(t.numel() for t in tensors) > most
        extent = _CUT if large else _UNCUT
        try:
            answered = _probe(target, name, args, kwargs, device, elementwise, extent)
        except EagerRaises:
            if of_data:  # the error may be due to the example sizes
                raise Specialize(of_data, name) from None
            raise
    if tensors and not answered:
        _refuse_by_rule(name, args, kwargs, tensors)


def _refuse_by_rule(
    name: str, args: Sequence[Any], kwargs: dict[str, Any], tensors: list[torch.Tensor]
) -> None:
    refused = why_dtypes_are_refused(name, args, kwargs, tensors)
    if refused is not None:
        raise EagerRaises(RuntimeError(refused))


def why_refused(
    target: Callable[..., Any] | str,
    name: str,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    device: torch.device,
) -> Exception | None:
    """Return the error of a call that `check_dtypes` does not probe, from its kernel; None if it
    accepts the call's shapes and dtypes, or cannot be probed.
    """
    in_torch = getattr(target, "__module__", None) in _IN_PYTHON
    if name in _NAMES or not (in_torch or _number_places(name)[0]):
        return None
    args, kwargs = with_hints(args), with_hints(kwargs)
    if sum(t.numel() for t in tensors_in((args, kwargs))) > _MOST_UNCUT:
        return None
    described = tuple(_described(arg, False, _UNCUT) for arg in args)
    named = tuple((key, _described(value, False, _UNCUT)) for key, value in kwargs.items())
    if None in described or any(part is None for _, part in named):
        return None
    error = _refusal_on(name, device, target, described, named, False)
    if error is None or isinstance(error, NotImplementedError):
        return error
    return _refusal(target, described, named, "cpu", 1)  # with ones: it may refuse zeros


def _probe(
    target: Callable[..., Any] | str,
    name: str,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    device: torch.device,
    elementwise: bool,
    extent: int,
) -> bool:
    """Return whether a kernel of that device has accepted the call. Raises what it raised."""
    if name in _FILLS:
        at = _FILLS[name]
        size = (
            _shape_asked(args[at]) if len(args) > at and isinstance(args[at], tuple | list) else ()
        )
        args = (*args[:at], size, *args[at + 1 :]) if len(args) > at else args
    described = tuple(_described(arg, elementwise, extent) for arg in args)
    named = tuple((key, _described(value, elementwise, extent)) for key, value in kwargs.items())
    if None in described or any(part is None for _, part in named):
        return False
    error = _refusal_on(name, device, target, described, named, elementwise)
    if extent == _CUT and not _is_certain(error, name, device):
        return False
    if error is not None:
        raise EagerRaises(error)
    return device.type == "cpu"


def _is_certain(error: Exception | None, name: str, device: torch.device) -> bool:
    """Return whether the result on stand-ins of other shapes holds for the call. Products of
    integers hardly exist on a GPU: there a graph break is the better guess.
    """
    no_kernel = isinstance(error, NotImplementedError)
    return no_kernel or (device.type != "cpu" and name.removesuffix("_") in _PRODUCTS)


def _refusal_on(
    name: str,
    device: torch.device,
    target: Callable[..., Any] | str,
    args: tuple[Any, ...],
    kwargs: tuple[tuple[str, Any], ...],
    elementwise: bool,
) -> Exception | None:
    """Return the error of that device's kernel, or None.

    A GPU is probed for other calls than elementwise ones and products only if the CPU has no
    kernel: a failed device assertion would cost its context. While a CUDA graph is captured,
    nothing else may run on it.
    """
    here = device.type == "cuda" and torch.cuda.is_available()
    here = here and not torch.cuda.is_current_stream_capturing()
    if here and (elementwise or name.removesuffix("_") in _PRODUCTS):
        return _refusal(target, args, kwargs, "cuda")
    error = _refusal(target, args, kwargs, "cpu")
    if device.type == "cpu" or not isinstance(error, NotImplementedError):
        return error
    return _refusal(target, args, kwargs, "cuda") if here else None


def _is_suspect(
    target: Callable[..., Any] | str, name: str, args: Sequence[Any], kwargs: dict[str, Any]
) -> bool:
    """Return whether to probe: integer, bool or complex tensors, several dtypes, or a number that a
    dtype cannot hold; and stand-ins can answer.
    """
    plain = name.removesuffix("_")
    known = _number_places(plain)[0] or getattr(target, "__module__", None) in _IN_PYTHON
    if not known or (plain.startswith(_UNASKED) and plain not in _PRODUCTS):
        return False
    tensors = list(tensors_in((args, kwargs)))
    if not tensors:
        return _fills_beyond(plain, args, kwargs)
    if takes_packed_sequence(target, args):
        return False
    if not all(t.is_floating_point() for t in tensors) or len({t.dtype for t in tensors}) > 1:
        return True
    numbers = _numbers(plain, args, kwargs)
    return any(not _holds(t.dtype, number) for number in numbers for t in tensors)


def _fills_beyond(name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Return whether a factory takes a number that its dtype cannot hold.

    Infinite ranges are refused by the shape rule, so the stand-in is at most as large as the
    result.
    """
    dtype = kwargs.get("dtype") or torch.get_default_dtype()
    numbers = list(_numbers(name, args, kwargs))
    return not dtype.is_complex and any(not _holds(dtype, number) for number in numbers)


@lru_cache(maxsize=1024)
def _number_places(name: str) -> tuple[bool, frozenset[int], frozenset[str]]:
    """Return (is an ATen operation, positions, names) of its number arguments. Dimensions and flags
    do not count.
    """
    packet = getattr(torch.ops.aten, name, None)
    if packet is None:
        return False, frozenset(), frozenset()
    schemas = [getattr(packet, overload)._schema for overload in packet.overloads()]
    places = {
        (n, argument.name)
        for schema in schemas
        for n, argument in enumerate(schema.arguments)
        if "number" in str(argument.type)
    }
    return True, frozenset(n for n, _ in places), frozenset(name for _, name in places)


def _numbers(name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Iterator[Any]:
    """Yield the number arguments, and each float: composites may pass it on as a Scalar."""
    _, positions, names = _number_places(name)
    given = [arg for n, arg in enumerate(args) if n in positions or type(arg) is float]
    given += [value for key, value in kwargs.items() if key in names or type(value) is float]
    for value in given:
        yield from (v for v in (value if isinstance(value, (list, tuple)) else (value,)))


def _holds(dtype: torch.dtype, number: Any) -> bool:
    """Return whether the number converts without overflow and is of no type treated specially."""
    if type(number) not in _NUMBERS:
        return True
    if type(number) in (bool, complex):
        return False
    if not dtype.is_floating_point:
        return dtype is torch.bool or _holds_integer(torch.iinfo(dtype), number)
    return not abs(number) > torch.finfo(dtype).max


def _holds_integer(limits: torch.iinfo, number: float) -> bool:
    return limits.min <= number <= limits.max


Described = tuple[Any, ...]


def _described(value: object, elementwise: bool, extent: int) -> Described | None:
    """Return the properties that a kernel is chosen by: dtype and shape (elementwise: if 0-dim), or
    the value.
    """
    if isinstance(value, torch.Tensor):
        cut = tuple(min(n, extent) for n in value.shape)
        shape = _shape_asked(value.shape) if elementwise else cut
        return "tensor", value.dtype, shape, elementwise
    if isinstance(value, (list, tuple)):
        parts = tuple(_described(part, elementwise, extent) for part in value)
        return None if None in parts else ("list", type(value), parts)
    plain = (*_NUMBERS, str, torch.dtype, torch.device, torch.layout, torch.memory_format)
    if value is None or isinstance(value, plain):
        return "plain", type(value), repr(value), value
    return None


def _shape_asked(shape: Sequence[int]) -> tuple[int, ...]:
    """Return a stand-in's shape for elementwise operations: kernels treat 0-dim and single elements
    separately.
    """
    return (2 if math.prod(shape) != 1 else 1,) if shape else ()


def _made(described: Described, device: str, integer: int) -> Any:
    kind, *rest = described
    if kind == "plain":
        # The recorded call names the meta device, whose kernels accept every number.
        return device if rest[-1] == _META else rest[-1]
    if kind == "list":
        container, parts = rest
        return container(_made(part, device, integer) for part in parts)
    dtype, shape, elementwise = rest
    if elementwise:
        return torch.ones(shape, dtype=dtype, device=device)
    # Integers may be indices, of which only `integer` is known to be valid.
    half = dtype.is_floating_point or dtype.is_complex
    return torch.full(shape, 0.5 if half else integer, dtype=dtype, device=device)


@lru_cache(maxsize=4096)
def _refusal(
    target: Callable[..., Any] | str,
    args: tuple[Described, ...],
    kwargs: tuple[tuple[str, Described], ...],
    device: str,
    integer: int = 0,
) -> Exception | None:
    """Return the error of the call on stand-ins, without its traceback; random state is
    restored.
    """
    drawn_on = [torch.cuda.current_device()] if device == "cuda" else []
    try:
        with (
            torch.inference_mode(False),
            torch.no_grad(),
            torch._C._DisableAutocast(),
            torch.random.fork_rng(drawn_on),
        ):
            given = [_made(arg, device, integer) for arg in args]
            named = {key: _made(value, device, integer) for key, value in kwargs}
            if isinstance(target, str):
                call_from(Silence(), getattr(given[0], target), given[1:], named)
            else:
                call_from(Silence(), target, given, named)
    except Exception as error:  # any error of the kernel is what the program would see
        return error.with_traceback(None)
    return None
