"""Shape rules of factories and random draws.

torch's meta functions of these are Python: `torch._check` imports sympy (0.3 s) and `out_wrapper`
torch._dynamo (1.8 s) when first called. The results follow from sizes and dtypes alone, so each
family has one rule here. A rule returns None for arguments that eager may refuse (a negative size,
a deviation below zero, a special layout): torch's own function is asked then.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..fresh_meta import same_shape
from .shape_rules import infers

__all__: list[str] = []

aten = torch.ops.aten
META = torch.device("meta")
_EXACT = 1 << 24  # float32 holds all integers below it
_INTS = (int, torch.SymInt)
Tensor = torch.Tensor


def _made(
    size: Sequence[int], allowed: Callable[[torch.dtype], bool], default: Any, options: Any
) -> Tensor | None:
    """Return a new row-major tensor, or None for special options. `default`: the schema's dtype; a
    dtype of None means torch's default dtype whatever the schema says.
    """
    dtype = options.get("dtype", default) or torch.get_default_dtype()
    plain = options.get("device") == META and options.get("layout") in (None, torch.strided)
    if not plain or options.get("pin_memory") or options.get("memory_format") is not None:
        return None
    if not allowed(dtype) or not all(type(n) in _INTS and n >= 0 for n in size):
        return None
    return torch.empty(size, dtype=dtype, device=META)


def _is_float(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point and dtype.itemsize > 1


def _is_index(dtype: torch.dtype) -> bool:
    return dtype is torch.int64


def _is_single_or_index(dtype: torch.dtype) -> bool:
    return dtype in (torch.float32, torch.float64, torch.int64)


@infers(aten.rand.default, aten.rand.generator, aten.randn.default, aten.randn.generator)
def _drawn(size: Sequence[int], *args: object, **options: object) -> Tensor | None:
    """Infer rand, randn."""
    return _made(size, _is_float, torch.get_default_dtype(), options)


@infers(aten.normal.float_float)
def _normal(mean: float, std: float, size: Sequence[int], **options: object) -> Tensor | None:
    return _drawn(size, **options) if std >= 0 else None


@infers(aten.randint.default, aten.randint.low)
def _integers(*bounds_and_size: Any, **options: object) -> Tensor | None:
    """Infer randint(high, size), randint(low, high, size)."""
    low, high, size = (0, *bounds_and_size)[-3:]
    if not -_EXACT <= low < high <= _EXACT:
        return None
    return _made(size, _is_single_or_index, torch.int64, options)


@infers(aten.randperm.default)
def _permutation(n: int, **options: object) -> Tensor | None:
    return _made((n,), _is_index, torch.int64, options)


@infers(aten.eye.default, aten.eye.m)
def _identity(n: int, m: int | None = None, **options: object) -> Tensor | None:
    size = (n, n if m is None else m)
    return _made(size, _is_single_or_index, torch.get_default_dtype(), options)


@infers(aten.linspace.default, aten.logspace.default)
def _spaced(
    start: object, end: object, steps: int, *base: float, **options: object
) -> Tensor | None:
    """Infer linspace, logspace."""
    if isinstance(start, complex) or isinstance(end, complex):
        return None
    return _made((steps,), _is_float, torch.get_default_dtype(), options)


_WINDOWS = (
    *(aten.hann_window, aten.hamming_window, aten.blackman_window),
    *(aten.bartlett_window, aten.kaiser_window),
)


@infers(*(op.default for op in _WINDOWS), *(op.periodic for op in _WINDOWS))
def _window(length: int, *args: object, **options: object) -> Tensor | None:
    return _made((length,), _is_float, torch.get_default_dtype(), options)


@infers(aten.fft_fftfreq.default)
def _frequencies(n: int, d: float = 1.0, **options: object) -> Tensor | None:
    return _made((n,), _is_float, torch.get_default_dtype(), options) if n > 0 else None


@infers(aten.fft_rfftfreq.default)
def _frequencies_from_zero(n: int, d: float = 1.0, **options: object) -> Tensor | None:
    return _frequencies(n // 2 + 1, d, **options) if n > 0 else None


def _triangle_indices(upper: bool) -> Callable[..., Tensor | None]:
    def rule(rows: int, columns: int, offset: int = 0, **options: object) -> Tensor | None:
        if rows < 0 or columns < 0:
            return None
        below = _below(rows, columns, offset - upper)
        count = rows * columns - below if upper else below
        return _made((2, count), _is_index, torch.int64, options)

    return rule


infers(aten.tril_indices.default)(_triangle_indices(upper=False))
infers(aten.triu_indices.default)(_triangle_indices(upper=True))


def _below(rows: int, columns: int, offset: int) -> int:
    """Return how many elements of a matrix are on or below the diagonal that is `offset` to the
    right.
    """
    first = max(-offset, 0)  # the first row that has such elements
    some = rows - first
    if some <= 0 or columns == 0:
        return 0
    least = max(offset, 0) + 1  # their number in that row; each next row has one more
    if least >= columns:
        return some * columns
    growing = columns - least + 1  # rows until a row is full
    if some <= growing:
        return some * least + some * (some - 1) // 2
    return growing * least + growing * (growing - 1) // 2 + (some - growing) * columns


# -- from tensors ----------------------------------------------------------------------------------


def _alike(x: Tensor) -> Tensor | None:
    plain = x.is_contiguous() and _is_float(x.dtype)
    return torch.empty(x.shape, dtype=x.dtype, device=META) if plain else None


@infers(aten.poisson.default)
def _like_first(x: Tensor, *args: object, generator: object = None) -> Tensor | None:
    """Infer poisson."""
    return _alike(x)


@infers(aten.rrelu_with_noise.default)
def _leaky(x: Tensor, noise: Tensor, low: float = 0.125, high: float = 1 / 3, *args: object,
           generator: object = None) -> Tensor | None:  # fmt: skip
    """Infer rrelu_with_noise: row-major, whatever the layout of x."""
    if not _is_float(x.dtype) or low > high or not same_shape(noise.shape, x.shape):
        return None
    return torch.empty(x.shape, dtype=x.dtype, device=META)


@infers(aten.randint_like.default, aten.randint_like.low_dtype)
def _integers_like(x: Tensor, *bounds: int, **options: object) -> Tensor | None:
    low, high = (0, *bounds)[-2:]
    if options.pop("memory_format", None) not in (None, torch.preserve_format):
        return None
    if not x.is_contiguous() or not -_EXACT <= low < high <= _EXACT:
        return None
    return _made(x.shape, _is_single_or_index, x.dtype, {"device": META, **options})


@infers(aten.normal.Tensor_float, aten.normal.float_Tensor, aten.normal.Tensor_Tensor)
def _normal_around(mean: object, std: Any = 1.0, *, generator: object = None) -> Tensor | None:
    """Infer normal of a tensor and a number, or of two tensors of one shape."""
    tensors = [part for part in (mean, std) if isinstance(part, Tensor)]
    alike = all((t.shape, t.dtype) == (tensors[0].shape, tensors[0].dtype) for t in tensors)
    if not alike or not all(t.is_contiguous() for t in tensors):
        return None
    return _alike(tensors[0]) if isinstance(std, Tensor) or std >= 0 else None


@infers(aten.multinomial.default)
def _categories(
    x: Tensor, count: int, replacement: bool = False, *, generator: object = None
) -> Tensor | None:
    """Infer multinomial."""
    most = x.shape[-1] if x.dim() in (1, 2) else 0
    if not _is_float(x.dtype) or not 0 < most < _EXACT or count < 1:
        return None
    if count > most and not replacement:
        return None
    return torch.empty((*x.shape[:-1], count), dtype=torch.int64, device=META)


@infers(aten.repeat.default)
def _repeated(x: Tensor, times: Sequence[int]) -> Tensor | None:
    missing = len(times) - x.dim()
    if missing < 0 or any(n < 0 for n in times):
        return None
    shape = (1,) * missing + tuple(x.shape)
    extents = [a * n for a, n in zip(shape, times, strict=True)]
    return torch.empty(extents, dtype=x.dtype, device=META)


@infers(aten.diag_embed.default)
def _diagonal(x: Tensor, offset: int = 0, first: int = -2, second: int = -1) -> Tensor | None:
    if not x.dim() or (first, second) != (-2, -1):
        return None
    side = x.shape[-1] + abs(offset)
    return torch.empty((*x.shape[:-1], side, side), dtype=x.dtype, device=META)


@infers(aten.slice_backward.default, aten.select_backward.default, aten.diagonal_backward.default)
def _unviewed(grad: Tensor, size: Sequence[int], *args: object) -> Tensor:
    """Infer the gradient of a view: zeros of the base's size, with the view's part filled in."""
    return torch.empty(size, dtype=grad.dtype, device=META)


# -- in place --------------------------------------------------------------------------------------


def _filled(legal: Callable[..., bool]) -> Callable[..., Tensor | None]:
    """Return a rule of an in-place draw, which returns the tensor itself."""

    def rule(x: Tensor, *args: object, generator: object = None, **named: object) -> Tensor | None:
        writable = _is_float(x.dtype) and x.is_contiguous()
        return x if writable and legal(*args, **named) else None

    return rule


def _refilled(legal: Callable[..., bool]) -> Callable[..., Tensor | None]:
    """Return a rule of the functional form of an in-place draw, which returns a new tensor."""

    def rule(x: Tensor, *args: object, generator: object = None, **named: object) -> Tensor | None:
        return _alike(x) if legal(*args, **named) else None

    return rule


def _has_deviation(mean: float = 0, std: float = 1) -> bool:
    return std >= 0


def _has_positive_deviation(mean: float = 0, std: float = 1) -> bool:
    return std > 0


def _has_rate(lambd: float = 1) -> bool:
    return lambd > 0


def _has_width(median: float = 0, sigma: float = 1) -> bool:
    return sigma > 0


def _is_chance(p: float) -> bool:
    return 0 < p < 1


@infers(aten.arange.start, aten.arange.start_step)
def _counted(start: Any, end: Any, step: Any = 1, **kwargs: Any) -> Tensor | None:
    """Infer arange: ceil((end - start) / step) numbers, floats if one of the three is a float."""
    given = start, end, step
    if not all(type(v) in (float, *_INTS) for v in given) or step == 0:
        return None
    if all(type(v) in _INTS for v in given):
        count, default = -((start - end) // step), torch.int64
    elif all(abs(v) < _EXACT for v in given):  # no nan either
        count, default = math.ceil((end - start) / step), torch.get_default_dtype()
    else:
        return None
    dtype = kwargs.get("dtype") or default
    whole = default is torch.int64
    fits = dtype.is_floating_point or (whole and not dtype.is_complex)
    if (end - start) * step < 0 or not fits:
        return None
    return torch.empty((count,), dtype=dtype, device=META)


@infers(aten.arange.default)
def _counted_from_zero(end: object, **kwargs: object) -> Tensor | None:
    return _counted(0, end, **kwargs)


@infers(aten.scalar_tensor.default)
def _single(value: object, **kwargs: object) -> Tensor | None:
    return _made((), lambda dtype: True, None, kwargs)


for _legal, _in_place, _functional in (
    (_has_deviation, aten.normal_, aten.normal_functional),
    (_has_positive_deviation, aten.log_normal_, aten.log_normal),
    (_has_rate, aten.exponential_, aten.exponential),
    (_has_width, aten.cauchy_, aten.cauchy),
    (_is_chance, aten.geometric_, aten.geometric),
):
    infers(_in_place.default)(_filled(_legal))
    infers(_functional.default)(_refilled(_legal))
