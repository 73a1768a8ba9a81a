"""Shape rules of network layers: normalisations, adaptive pools, padding, losses.

As in fallback_shapes.py, each rule covers the usual case (row-major or channels_last, matching
dtypes and sizes) and returns None otherwise: torch's own meta function is asked then, which imports
torch._dynamo or sympy. A rule never answers for arguments that eager refuses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ...devices import row_of
from ...torch_types import AnyFunction
from ..devices import kernel_device
from ..fresh_meta import fresh_meta, has_elements, joins_to_rows, same_shape
from .shape_rules import infers
from .tensor_iterator import CHANNELS_LAST, is_of_images, like, strides_along

__all__: list[str] = []

aten = torch.ops.aten
Tensor = torch.Tensor
_NONE = 0  # reduction="none"
_REDUCTIONS = (0, 1, 2)  # none, mean, sum: kernels treat other numbers differently


def _usual(*tensors: Tensor | None) -> bool:
    """Return whether the tensors are row-major and floating, all of one dtype."""
    given = [t for t in tensors if t is not None]
    kind = given[0].dtype
    return kind.is_floating_point and all(t.is_contiguous() and t.dtype is kind for t in given)


def _like(x: Tensor) -> Tensor:
    return fresh_meta(x.shape, x.dtype, x.stride())


# -- normalisation ---------------------------------------------------------------------------------


@infers(aten.native_batch_norm.default, aten._native_batch_norm_legit.default)
def _batch_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor | None,
    variance: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor] | None:
    """Infer batch norm. Statistics are saved in training only; an image keeps its layout, all else
    becomes row-major.
    """
    given = [t for t in (weight, bias, mean, variance) if t is not None]
    kept = _dtype_of_statistics(x, given)
    if kept is None or x.dim() < 2 or not has_elements(x):
        return None
    if x.dim() == 5 and x.is_contiguous(memory_format=torch.channels_last_3d):
        return None
    if not training and (mean is None or variance is None):
        return None
    channels = x.shape[1]
    if any(not same_shape(t.shape, (channels,)) for t in given):
        return None
    saved = (channels if training else 0,)
    image = x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last)
    made = _like(x) if image else fresh_meta(x.shape, x.dtype)
    return made, fresh_meta(saved, kept), fresh_meta(saved, kept)


def _dtype_of_statistics(x: Tensor, given: Sequence[Tensor]) -> torch.dtype | None:
    """Return the dtype of saved statistics, or None.

    A GPU saves float32 for 16-bit images (ATen, Normalization.cpp); torch's decompositions do so
    for the CPU too.
    """
    kinds = {t.dtype for t in given} or {x.dtype}
    wide = x.dtype in (torch.float32, torch.float64)
    narrow = x.dtype in (torch.bfloat16, torch.float16) and row_of(kernel_device()).kernels == "cpu"
    if kinds == {x.dtype} and (wide or narrow):
        return x.dtype
    return torch.float32 if kinds == {torch.float32} and narrow else None


@infers(aten._native_batch_norm_legit.no_stats)
def _batch_norm_without_statistics(x: Tensor, weight: Any, bias: Any, *how: Any) -> object:
    return _batch_norm(x, weight, bias, None, None, *how)


@infers(aten._native_batch_norm_legit_no_training.default)
def _batch_norm_by_statistics(x: Tensor, *args: Any) -> object:
    return _batch_norm(x, *(*args[:4], False, *args[4:]))


def _batch_norm_with_reserve(training: bool) -> AnyFunction:
    """Return the rule of the overloads with cuDNN's `reserve` result."""

    def rule(x: Tensor, *args: Any) -> Any:
        made = _batch_norm(x, *(*args[:4], training, *args[4:]))
        return None if made is None else (*made, fresh_meta((0,), torch.uint8))

    return rule


def _updated(rule: AnyFunction) -> AnyFunction:
    """Return the rule of the functional form, which returns new running statistics."""

    def functional(x: Tensor, weight: object, bias: object, mean: Tensor, *args: object) -> Any:
        made = rule(x, weight, bias, mean, *args)
        return None if made is None else (*made, _like(mean), _like(mean))

    return functional


infers(aten._batch_norm_with_update.default)(_batch_norm_with_reserve(True))
infers(aten._batch_norm_no_update.default)(_batch_norm_with_reserve(False))
infers(aten._native_batch_norm_legit_functional.default)(_updated(_batch_norm))
infers(aten._batch_norm_with_update_functional.default)(_updated(_batch_norm_with_reserve(True)))


@infers(aten.native_group_norm.default)
def _group_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    batch: int,
    channels: int,
    extent: int,
    groups: int,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor] | None:
    if not _usual(x, weight, bias) or channels % groups or x.numel() != batch * channels * extent:
        return None
    if any(t is not None and not same_shape(t.shape, (channels,)) for t in (weight, bias)):
        return None
    saved = (batch, groups)
    return fresh_meta(x.shape, x.dtype), fresh_meta(saved, x.dtype), fresh_meta(saved, x.dtype)


# -- pooling, padding, resizing --------------------------------------------------------------------


@infers(aten._adaptive_avg_pool2d.default)
def _adaptive_average(x: Tensor, size: Sequence[int]) -> Tensor | None:
    if x.dim() not in (3, 4) or not _usual(x) or not has_elements(x) or any(n < 1 for n in size):
        return None
    return fresh_meta((*x.shape[:-2], *size), x.dtype) if len(size) == 2 else None


@infers(aten.adaptive_max_pool2d.default)
def _adaptive_maximum(x: Tensor, size: Sequence[int]) -> tuple[Tensor, Tensor] | None:
    made = _adaptive_average(x, size)
    return None if made is None else (made, fresh_meta(made.shape, torch.int64))


@infers(aten.adaptive_max_pool2d_backward.default, other=(2, torch.int64))
def _adaptive_maximum_gradient(grad: Tensor, x: Tensor, indices: Tensor) -> Tensor | None:
    fits = indices.dtype is torch.int64 and same_shape(grad.shape, indices.shape)
    return fresh_meta(x.shape, x.dtype) if fits and _usual(x, grad) else None


@infers(aten.constant_pad_nd.default)
def _padded(x: Tensor, pads: Sequence[int], value: object = 0) -> Tensor | None:
    """Infer constant_pad_nd: pairs (before, after) from the last dimension on. A padded result is
    row-major except for images; without padding it is a copy.
    """
    if pads and all(n == 0 for n in pads) and not x.dtype.is_complex and len(pads) <= 2 * x.dim():
        return like(x) if len(pads) % 2 == 0 else None
    is_certain = x.is_contiguous() or any(n > 0 for n in pads)
    if not is_certain or x.dtype.is_complex or len(pads) % 2 or len(pads) > 2 * x.dim():
        return None
    shape = list(x.shape)
    for i in range(len(pads) // 2):
        before, after = pads[2 * i : 2 * i + 2]
        if shape[-1 - i] + min(before, 0) + min(after, 0) < 1:
            return None
        shape[-1 - i] += before + after
    if x.is_contiguous() or not is_of_images(x):
        return fresh_meta(shape, x.dtype)
    return fresh_meta(shape, x.dtype, strides_along(shape, CHANNELS_LAST[x.dim()]))


@infers(aten.im2col.default)
def _patches(
    x: Tensor,
    kernel: Sequence[int],
    dilation: Sequence[int],
    pads: Sequence[int],
    steps: Sequence[int],
) -> Tensor | None:
    """Infer im2col: a column of pixels for each window position; row-major whatever x's layout."""
    if x.dim() not in (3, 4) or not x.dtype.is_floating_point or not has_elements(x):
        return None
    places = _places(x.shape[-2:], kernel, dilation, pads, steps)
    if any(n < 1 for n in places):
        return None
    rows = x.shape[-3] * kernel[0] * kernel[1]
    return fresh_meta((*x.shape[:-3], rows, places[0] * places[1]), x.dtype)


@infers(aten.col2im.default)
def _image(
    x: Tensor,
    size: Sequence[int],
    kernel: Sequence[int],
    dilation: Sequence[int],
    pads: Sequence[int],
    steps: Sequence[int],
) -> Tensor | None:
    """Infer col2im: the sums of the values at each pixel."""
    if x.dim() not in (2, 3) or not _usual(x) or not has_elements(x):
        return None
    places, area = _places(size, kernel, dilation, pads, steps), kernel[0] * kernel[1]
    fits = all(n > 0 for n in places) and x.shape[-1] == places[0] * places[1]
    if not fits or x.shape[-2] % area != 0:
        return None
    return fresh_meta((*x.shape[:-2], x.shape[-2] // area, *size), x.dtype)


def _places(
    size: Sequence[int],
    kernel: Sequence[int],
    dilation: Sequence[int],
    pads: Sequence[int],
    steps: Sequence[int],
) -> list[int]:
    """Return the number of windows along each dimension, or zeros for invalid ints."""
    ways = zip(size, kernel, dilation, pads, steps, strict=True)
    if any(min(k, d, s) < 1 or p < 0 for _, k, d, p, s in ways):
        return [0, 0]
    ways = zip(size, kernel, dilation, pads, steps, strict=True)
    return [(n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, d, p, s in ways]


def _resized(x: Tensor, size: Sequence[int], *how: object) -> Tensor | None:
    fits = x.dim() == len(size) + 2 and _usual(x) and has_elements(x)
    if not fits or any(n < 1 for n in size):
        return None
    return fresh_meta((*x.shape[:2], *size), x.dtype)


def _resized_gradient(
    grad: Tensor, size: Sequence[int], given: Sequence[int], *how: object
) -> Tensor | None:
    fits = same_shape(grad.shape, (*given[:2], *size))
    return fresh_meta(given, grad.dtype) if fits and _usual(grad) else None


# The gradient of each way to resize has a name that ends alike.
for _way in (
    *("linear1d", "bilinear2d", "bicubic2d", "trilinear3d"),
    *(f"nearest{kind}{n}d" for kind in ("", "_exact") for n in (1, 2, 3)),
    *("bilinear2d_aa", "bicubic2d_aa"),
):
    _name = f"{'_' * (_way.endswith('_aa') or 'exact' in _way)}upsample_{_way}"
    infers(getattr(aten, _name).default)(_resized)
    infers(getattr(aten, f"{_name}_backward").default)(_resized_gradient)


@infers(aten.masked_fill.Scalar, other=(1, torch.bool), in_place=True)
def _masked(x: Tensor, mask: Tensor, value: object) -> Tensor | None:
    """Infer masked_fill with a number: row-major whatever x's layout; the mask is broadcast to
    x.
    """
    if isinstance(value, complex) or mask.dtype is not torch.bool:
        return None
    extents = zip(reversed(mask.shape), reversed(x.shape))  # noqa: B905 - the mask may be shorter
    if mask.dim() > x.dim() or any(m not in (1, e) for m, e in extents):
        return None
    return fresh_meta(x.shape, x.dtype)


@infers(aten.stack.default)
def _stacked(tensors: Sequence[Tensor], dim: int = 0) -> Tensor | None:
    first = tensors[0]
    rank = first.dim() + 1
    kind = first.dtype
    if kind.is_complex or any(t.dtype is not kind for t in tensors):
        return None
    if any(not same_shape(t.shape, first.shape) for t in tensors):
        return None
    if not -rank <= dim < rank or not joins_to_rows(tensors):
        return None
    shape = list(first.shape)
    shape.insert(dim % rank, len(tensors))
    return fresh_meta(shape, first.dtype)


@infers(aten.glu.default)
def _gated(x: Tensor, dim: int = -1) -> Tensor | None:
    """Infer glu."""
    if not _usual(x) or not -x.dim() <= dim < x.dim() or x.shape[dim] % 2:
        return None
    shape = list(x.shape)
    shape[dim] //= 2
    return fresh_meta(shape, x.dtype)


# -- losses ----------------------------------------------------------------------------------------


@infers(aten.mse_loss.default)
def _loss(x: Tensor, target: Tensor, reduction: int = 1, *args: object) -> Tensor | None:
    """Infer mse_loss and similar losses of two tensors of one shape and dtype."""
    if (
        not _usual(x, target)
        or not same_shape(x.shape, target.shape)
        or reduction not in _REDUCTIONS
    ):
        return None
    return fresh_meta(x.shape if reduction == _NONE else (), x.dtype)


@infers(aten.smooth_l1_loss.default)
def _smooth_loss(x: Tensor, target: Tensor, reduction: int = 1, beta: float = 1) -> Tensor | None:
    if beta < 0:
        raise RuntimeError("smooth_l1_loss does not support negative values for beta.")
    return _loss(x, target, reduction)


@infers(aten.huber_loss.default)
def _huber_loss(x: Tensor, target: Tensor, reduction: int = 1, delta: float = 1) -> Tensor | None:
    if not delta > 0:
        raise RuntimeError("huber_loss does not support non-positive values for delta.")
    return _loss(x, target, reduction)


@infers(aten.binary_cross_entropy_with_logits.default)
def _logits_loss(
    x: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    positive: Tensor | None = None,
    reduction: int = 1,
) -> Tensor | None:
    return _loss(x, target, reduction) if weight is None and positive is None else None


@infers(aten.nll_loss_forward.default, aten.nll_loss2d_forward.default, other=(1, torch.int64))
def _likelihood(
    x: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignored: int
) -> tuple[Tensor, Tensor] | None:
    """Infer nll_loss_forward and nll_loss2d_forward: the classes are the second dimension."""
    if (
        not _usual(x, weight)
        or target.dtype is not torch.int64
        or x.dim() < 2
        or not has_elements(x)
    ):
        return None
    if not same_shape(target.shape, (x.shape[0], *x.shape[2:])) or reduction not in _REDUCTIONS:
        return None
    if weight is not None and not same_shape(weight.shape, (x.shape[1],)):
        return None
    shape = target.shape if reduction == _NONE else ()
    return fresh_meta(shape, x.dtype), fresh_meta((), x.dtype)


def _sampled(spatial: int) -> Callable[..., Tensor | None]:
    def rule(x: Tensor, grid: Tensor, mode: int, padding: int, aligned: bool) -> Tensor | None:
        if not _can_sample(spatial, x, grid):
            return None
        return fresh_meta((*x.shape[:2], *grid.shape[1:-1]), x.dtype)

    return rule


def _sampled_gradients(spatial: int) -> Callable[..., tuple[Tensor | None, Tensor | None] | None]:
    def rule(
        gradient: Tensor,
        x: Tensor,
        grid: Tensor,
        mode: int,
        padding: int,
        aligned: bool,
        wanted: Sequence[bool],
    ) -> tuple[Tensor | None, Tensor | None] | None:
        if not _can_sample(spatial, x, grid) or not _usual(gradient, x):
            return None
        if not same_shape(gradient.shape, (*x.shape[:2], *grid.shape[1:-1])):
            return None
        return _like(x) if wanted[0] else None, _like(grid)

    return rule


def _can_sample(spatial: int, x: Tensor, grid: Tensor) -> bool:
    """Return whether the rule covers the images. torch's own meta function is a decomposition that
    views the grid by sizes, which C++ reads as ints.
    """
    if not _usual(x, grid) or not has_elements(x) or not x.dim() == grid.dim() == spatial + 2:
        return False
    return same_shape((grid.shape[0], grid.shape[-1]), (x.shape[0], spatial))


for _spatial, _forward, _backward in (
    (2, aten.grid_sampler_2d, aten.grid_sampler_2d_backward),
    (3, aten.grid_sampler_3d, aten.grid_sampler_3d_backward),
):
    infers(_forward.default)(_sampled(_spatial))
    infers(_backward.default)(_sampled_gradients(_spatial))
