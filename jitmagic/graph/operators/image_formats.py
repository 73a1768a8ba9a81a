"""Corrects the layout of image results that keep channels_last where torch's meta says row-major.

Input: an operator, its arguments as meta tensors, and its results by a meta function written in
Python. Output: these results in the kernel's layout. Many kernels ask at::suggest_memory_format
(pads, max_unpool2d, pixel_shuffle), which torch's decompositions omit. The CPU's kernel runs on
tensors of this call's sizes, or on a batch of two; only the memory format of its results is used,
which does not depend on sizes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ..fresh_meta import fresh_meta
from ..node_meta import tensors_in
from ..symbolic.sym_node import as_dimensions, has_strides_along, with_hints
from .kernel_probing import kernel_result
from .tensor_iterator import strides_along

__all__ = ["CHANNELS_LAST", "in_kernel_format", "is_of_images"]

CHANNELS_LAST = {4: (1, 3, 2, 0), 5: (1, 4, 3, 2, 0)}  # the fastest dimension first
_MOST = 1 << 22  # elements of arguments, and of results: the kernel takes some milliseconds
_FEW = 2  # images that the kernel runs on instead of a large batch


def is_of_images(x: torch.Tensor) -> bool:
    """Return whether at::suggest_memory_format gives channels_last."""
    order = CHANNELS_LAST.get(x.dim())
    sizes, strides = as_dimensions(x.shape), as_dimensions(x.stride())
    return order is not None and has_strides_along(order, sizes, strides)


def in_kernel_format(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any], made: Any) -> Any:
    """Return the meta results `made` in the memory format of the CPU's kernel."""
    images = [t for t in tensors_in((tuple(args), dict(kwargs))) if t.dim() in CHANNELS_LAST]
    results = list(tensors_in(made))
    if op._schema.is_mutable or not any(t.dim() in CHANNELS_LAST for t in results):
        return made
    if not any(map(is_of_images, images)):
        return made
    known = _kernel_formats(
        op, with_hints(tuple(args)), with_hints(dict(kwargs)), with_hints(results)
    )
    return made if known is None else _relaid(made, iter(known))


def _kernel_formats(op: Any, args: object, kwargs: object, results: list[torch.Tensor]) -> Any:
    """Return the kernel's results, or None if it cannot run or gives other shapes."""
    (batch, *_) = (t.shape[0] for t in tensors_in((args, kwargs)) if t.dim() in CHANNELS_LAST)
    for few in (batch, _FEW):
        shapes = [(few, *t.shape[1:]) if _counts(t, batch) else t.shape for t in results]
        if sum(torch.Size(shape).numel() for shape in shapes) > _MOST:
            continue
        known = kernel_result(op, _cut(args, batch, few), _cut(kwargs, batch, few), _MOST)
        if known is not None:
            laid_out = list(tensors_in(known))
            return laid_out if [t.shape for t in laid_out] == shapes else None
    return None


def _counts(t: torch.Tensor, batch: int) -> bool:
    return t.dim() in CHANNELS_LAST and t.shape[0] == batch


def _cut(value: Any, batch: int, few: int) -> Any:
    """Return the nested arguments with `few` images in place of `batch`."""
    if isinstance(value, torch.Tensor):
        return value[:few] if few < batch and _counts(value, batch) else value
    if isinstance(value, dict):
        return {key: _cut(item, batch, few) for key, item in value.items()}
    if type(value) in (tuple, list):
        return type(value)(_cut(item, batch, few) for item in value)
    return value


def _relaid(made: Any, known: Any) -> Any:
    if isinstance(made, torch.Tensor):
        return _in_format(made, next(known))
    if isinstance(made, tuple | list):
        return type(made)(_relaid(part, known) for part in made)
    return made


def _in_format(made: torch.Tensor, known: torch.Tensor) -> torch.Tensor:
    last = CHANNELS_LAST.get(made.dim())
    if last is None or with_hints(made).stride() == known.stride():
        return made
    for order in (last, range(made.dim() - 1, -1, -1)):
        if known.stride() == strides_along(known.shape, order):
            return fresh_meta(made.shape, made.dtype, strides_along(made.shape, order))
    return made
