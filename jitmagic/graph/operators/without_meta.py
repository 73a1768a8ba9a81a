"""Shape rules of operators that have no meta function in torch, and would be graph breaks.

As in fallback_shapes.py, a rule covers the usual case and returns None for arguments that the
kernel may refuse; the operators are extern calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Any

import torch

from ...compat.operators import DispatchKey
from ...operators.operation import ALL
from ...torch_types import OpOverload
from ..fresh_meta import fresh_meta
from .foreign import is_foreign
from .shape_rules import infers

__all__ = ["only_writes"]

aten = torch.ops.aten
_infers = partial(infers, accepts=ALL, by_strides=False)  # these rules check the dtypes
Tensor = torch.Tensor
_COUNTED = (torch.float32, torch.float64)  # dtypes that histogram kernels accept
_ATTENDED = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


_KNOWN_BY = (
    DispatchKey.Meta,
    DispatchKey.CompositeExplicitAutograd,
    DispatchKey.CompositeExplicitAutogradNonFunctional,
    DispatchKey.CompositeImplicitAutograd,
)


@lru_cache(maxsize=4096)
def only_writes(op: OpOverload) -> bool:
    """Return whether a torch operator has no results and no meta function, like the updates of
    `fused=True`: the tensors that it writes to keep their size.
    """
    if op._schema.returns or not op._schema.is_mutable or is_foreign(op):
        return False
    return not any(map(op.has_kernel_for_dispatch_key, _KNOWN_BY))


@_infers(
    aten.multi_margin_loss_backward.default,
    aten.multilabel_margin_loss_backward.default,
    aten.fractional_max_pool3d_backward.default,
    aten._ctc_loss_backward.default,
    aten._ctc_loss_backward.Tensor,
)
def _gradient(grad: Tensor, x: Tensor, *args: object) -> Tensor | None:
    """Infer gradients of losses and pools: row-major, of the input's shape."""
    if not x.dtype.is_floating_point or grad.dtype is not x.dtype:
        return None
    return fresh_meta(x.shape, x.dtype)


# -- histograms ------------------------------------------------------------------------------------


def _counts(x: Tensor, bins: Sequence[int], limits: Any, weight: Tensor | None) -> bool:
    """Return whether the kernel accepts these bins, limits and weights."""
    if x.dtype not in _COUNTED or not bins or any(count < 1 for count in bins):
        return False
    if limits is not None:
        pairs = list(zip(limits[::2], limits[1::2], strict=False))
        if len(limits) != 2 * len(bins) or not all(low <= high for low, high in pairs):
            return False
    return weight is None or weight.dtype is x.dtype


@_infers(aten.histogram.bin_ct)
def _histogram(
    x: Tensor,
    bins: int = 100,
    *,
    range: Sequence[float] | None = None,
    weight: Tensor | None = None,
    density: bool = False,
) -> tuple[Tensor, Tensor] | None:
    if not _counts(x, [bins], range, weight) or (weight is not None and weight.shape != x.shape):
        return None
    return fresh_meta((bins,), x.dtype), fresh_meta((bins + 1,), x.dtype)


@_infers(aten.histogram.bins_tensor)
def _histogram_between(
    x: Tensor, edges: Tensor, *, weight: Tensor | None = None, density: bool = False
) -> tuple[Tensor, Tensor] | None:
    """Infer a histogram with edges in a tensor."""
    if edges.dim() != 1 or edges.dtype is not x.dtype or len(edges) < 2:
        return None
    if not _counts(x, [1], None, weight) or (weight is not None and weight.shape != x.shape):
        return None
    return fresh_meta((len(edges) - 1,), x.dtype), fresh_meta(edges.shape, x.dtype)


def _points(x: Tensor, bins: Sequence[object], weight: Tensor | None) -> bool:
    """Return whether x has rows of one coordinate per axis, each with one weight."""
    rows = x.shape[:-1]
    return x.dim() >= 2 and x.shape[-1] == len(bins) and (weight is None or weight.shape == rows)


@_infers(aten._histogramdd_bin_edges.default)
def _edges(
    x: Tensor,
    bins: Sequence[int],
    *,
    range: Sequence[float] | None = None,
    weight: Tensor | None = None,
    density: bool = False,
) -> list[Tensor] | None:
    if not _counts(x, bins, range, weight) or not _points(x, bins, weight):
        return None
    return [fresh_meta((count + 1,), x.dtype) for count in bins]


@_infers(aten._histogramdd_from_bin_cts.default)
def _histogram_of_points(x: Tensor, bins: Sequence[int], **options: Any) -> Tensor | None:
    return None if _edges(x, bins, **options) is None else fresh_meta(bins, x.dtype)


@_infers(aten._histogramdd_from_bin_tensors.default)
def _histogram_of_points_between(
    x: Tensor, edges: Sequence[Tensor], *, weight: Tensor | None = None, density: bool = False
) -> Tensor | None:
    fits = all(e.dim() == 1 and e.dtype is x.dtype and len(e) > 1 for e in edges)
    if not fits or not _points(x, edges, weight) or not _counts(x, [1], None, weight):
        return None
    return fresh_meta([len(e) - 1 for e in edges], x.dtype)


# -- linear algebra --------------------------------------------------------------------------------


@_infers(aten.geqrf.default)
def _factors(x: Tensor) -> tuple[Tensor, Tensor] | None:
    """Infer geqrf: column-major, as in LAPACK."""
    if x.dim() < 2 or not (x.dtype.is_floating_point or x.dtype.is_complex):
        return None
    *batch, m, n = x.shape
    return fresh_meta((*batch, n, m), x.dtype).mT, fresh_meta((*batch, min(m, n)), x.dtype)


# -- attention -------------------------------------------------------------------------------------

_LAYER_WEIGHTS = 8  # weights after the first residual sum


def _masked(x: Tensor, num_heads: int) -> dict[int | None, tuple[int, ...]]:
    """Return the shapes of masks by their types: of pairs, of padding, of both."""
    batch, length, _ = x.shape
    return {
        0: (length, length),
        1: (batch, length),
        2: (batch, num_heads, length, length),
    }


@_infers(aten._transformer_encoder_layer_fwd.default)
def _encoder_layer(
    x: Tensor,
    embed_dim: int,
    num_heads: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    *others: Any,
    mask: Tensor | None = None,
    mask_type: int | None = None,
) -> Tensor | None:
    """Infer the fused inference layer, which has a meta function from torch 2.13 on."""
    width = (embed_dim,)
    if x.dim() != 3 or len(others) < _LAYER_WEIGHTS or num_heads < 1:
        return None
    masked = [*others[_LAYER_WEIGHTS:], mask, mask_type]  # by position or by name
    if masked[0] is not None and masked[0].shape != _masked(x, num_heads).get(masked[1]):
        return None
    *vectors, wide, wide_bias, narrow, narrow_bias = others[:_LAYER_WEIGHTS]
    vectors += [proj_bias, narrow_bias]
    hidden = wide_bias.shape[0] if wide_bias.dim() == 1 else 0
    shapes = {
        (3 * embed_dim, embed_dim): [qkv_weight],
        (3 * embed_dim,): [qkv_bias],
        (embed_dim, embed_dim): [proj_weight],
        (hidden, embed_dim): [wide],
        (embed_dim, hidden): [narrow],
        width: [*vectors, x[0, 0]],
    }
    fit = all(t.shape == shape for shape, tensors in shapes.items() for t in tensors)
    alike = all(t.dtype is x.dtype for tensors in shapes.values() for t in tensors)
    if not fit or not alike or embed_dim % num_heads or x.dtype not in _ATTENDED:
        return None
    return fresh_meta(x.shape, x.dtype)


@_infers(aten._padded_dense_to_jagged_forward.default)
def _jagged(dense: Tensor, offsets: Sequence[Tensor], total: int | None = None) -> Tensor | None:
    """Infer the values of a nested tensor of padded rows; their number is known if it is given."""
    if total is None or len(offsets) != 1 or dense.dim() < 2:
        return None
    return fresh_meta((total, *dense.shape[2:]), dense.dtype)


# -- quantized and back ----------------------------------------------------------------------------


@_infers(aten.fake_quantize_per_tensor_affine_cachemask.default)
def _fake_quantized(
    x: Tensor, scale: float, zero_point: int, quant_min: int, quant_max: int
) -> tuple[Tensor, Tensor] | None:
    """Infer the result and the mask of unclamped elements, for the backward."""
    if x.dtype not in _ATTENDED or not quant_min <= zero_point <= quant_max:
        return None
    return torch.empty_like(x), torch.empty_like(x, dtype=torch.bool)


@_infers(aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default)
def _fake_quantized_by_tensors(
    x: Tensor, scale: Tensor, zero_point: Tensor, enabled: Tensor, quant_min: int, quant_max: int
) -> tuple[Tensor, Tensor] | None:
    fits = scale.numel() == zero_point.numel() == 1 and scale.dtype is torch.float32
    fits = fits and zero_point.dtype in (torch.int32, torch.float32)
    if not fits or x.dtype not in _ATTENDED or quant_min > quant_max:
        return None
    return torch.empty_like(x), torch.empty_like(x, dtype=torch.bool)
