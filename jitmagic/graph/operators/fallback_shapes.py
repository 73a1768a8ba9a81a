"""Shape rules of common ATen fallbacks: scans, sorting, pooling, indexing, attention.

torch's meta functions of these are Python that imports sympy (0.3 s) or torch._dynamo (1.8 s) when
first called. Each rule covers the usual case (row-major arguments, in-range dimensions) and returns
None otherwise: torch's own function is asked then.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ...torch_types import AnyFunction
from ..fresh_meta import broadcast, fresh_meta, has_elements, refuse_empty, same_shape
from ..symbolic.sym_node import expected_to_hold, is_dense_in
from .shape_rules import infers

__all__ = ["wrapped"]

aten = torch.ops.aten
Tensor = torch.Tensor
_MOST_DIMS = 64  # ATen/WrapDimUtilsMulti.h, dim_bitset_size


def _usual(*tensors: Tensor) -> bool:
    return all(t.is_contiguous() and not t.dtype.is_complex for t in tensors)


def _in_range(dim: int, x: Tensor) -> bool:
    return -x.dim() <= dim < x.dim()


def _same(x: Tensor, *args: object, **kwargs: object) -> Tensor | None:
    """Return a result of the first argument's shape and dtype."""
    return fresh_meta(x.shape, x.dtype) if _usual(x) else None


@infers(aten.masked_scatter.default)
def _masked_scatter(x: Tensor, mask: Tensor, source: Tensor) -> Tensor | None:
    """Infer masked_scatter; only for a mask of the tensor's shape, as they broadcast."""
    return _same(x) if same_shape(mask.shape, x.shape) else None


@infers(aten.roll.default)
def _rolled(x: Tensor, shifts: Any, dims: Any = ()) -> Tensor | None:
    """Infer roll like `_same`; joined parts keep channels_last, unlike in torch's meta kernel."""
    aligned = len(shifts) == (len(dims) or 1)
    if not aligned or not all(_in_range(d, x) for d in dims):
        return None
    layout = {4: torch.channels_last, 5: torch.channels_last_3d}.get(x.dim())
    if x.is_contiguous() or layout is None or not x.is_contiguous(memory_format=layout):
        return _same(x)
    rows = zip(shifts, dims, strict=False)
    joined = len(dims) and all(shift % x.shape[d] for shift, d in rows)
    return torch.empty_like(x, memory_format=layout) if joined else None


@infers(aten.flip.default, aten.index_add.default, aten.logcumsumexp.default)
def _along(x: Tensor, dim: Any, *args: object, **kwargs: object) -> Tensor | None:
    """Infer like `_same` where the second argument is one or several dimensions."""
    dims = dim if isinstance(dim, (list, tuple)) else [dim]
    if not all(_in_range(d, x) for d in dims):
        return None
    refuse_repeated([d % max(x.dim(), 1) for d in dims])
    return _same(x)


@infers(aten.cumsum.default, aten.cumprod.default)
def _scan(x: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Tensor | None:
    """Infer cumsum, cumprod: integers become int64; row-major whatever the layout of x."""
    if x.dtype.is_complex or not _in_range(dim, x):
        return None
    whole = not x.dtype.is_floating_point
    return fresh_meta(x.shape, dtype or (torch.int64 if whole else x.dtype))


@infers(aten.scatter.value, other=(1, torch.int64))
@infers(aten.scatter.src, aten.scatter_add.default, aten.scatter_reduce.two)
def _scattered(
    x: Tensor, dim: int, index: Tensor, *args: object, **kwargs: object
) -> Tensor | None:
    source = args[0] if args else None
    fits = index.dim() == x.dim() and _in_range(dim, x) and index.dtype is torch.int64
    fits = fits and _no_longer(index, x, dim % max(x.dim(), 1))
    if isinstance(source, Tensor):
        fits = fits and source.dtype is x.dtype and source.dim() == x.dim()
        fits = fits and _no_longer(index, source, None)
    return _same(x) if fits else None


def _no_longer(index: Tensor, x: Tensor, free: int | None) -> bool:
    """Return whether the index fits into the tensor in every dimension but `free`."""
    pairs = enumerate(zip(index.shape, x.shape, strict=True))
    return all(d == free or expected_to_hold("<=", a, b) for d, (a, b) in pairs)


@infers(aten.sort.default)
def _sorted(x: Tensor, dim: int = -1, descending: bool = False) -> tuple[Tensor, Tensor] | None:
    if not _usual(x) or not _in_range(dim, x):
        return None
    return fresh_meta(x.shape, x.dtype), fresh_meta(x.shape, torch.int64)


@infers(aten.topk.default)
def _top(x: Tensor, k: int, dim: int = -1, *args: object) -> tuple[Tensor, Tensor] | None:
    if (
        not _usual(x)
        or not _in_range(dim, x)
        or k < 0
        or not expected_to_hold("<=", k, x.shape[dim])
    ):
        return None
    shape = list(x.shape)
    shape[dim] = k
    return fresh_meta(shape, x.dtype), fresh_meta(shape, torch.int64)


# -- indexing --------------------------------------------------------------------------------------


@infers(aten.index.Tensor, other=(1, torch.int64))
def _indexed(x: Tensor, indices: Sequence[Tensor | None]) -> Tensor | None:
    """Infer indexing by integer tensors on adjacent dimensions, which their shape replaces."""
    given = [i for i in indices if i is not None]
    first = next((n for n, i in enumerate(indices) if i is not None), 0)
    last = first + len(given)
    if None in indices[first:last] or last > x.dim() or x.dtype.is_complex:
        return None
    if not (
        x.is_contiguous() or len(given) == x.dim()
    ):  # else the result's layout depends on its strides
        return None
    if any(i.dtype not in (torch.int64, torch.int32) or not _usual(i) for i in given):
        return None
    shape = broadcast([i.shape for i in given]) if given else ()
    return fresh_meta((*x.shape[:first], *shape, *x.shape[last:]), x.dtype)


@infers(aten.index_put.default, other=(1, torch.int64))
def _index_put(
    x: Tensor, indices: Sequence[Tensor | None], values: Tensor, *args: object
) -> Tensor | None:
    whole = all(i is None or i.dtype in (torch.int64, torch.int32) for i in indices)
    return _same(x) if whole and values.dtype is x.dtype else None


@infers(aten.index_select.default)
def _picked(x: Tensor, dim: int, index: Tensor) -> Tensor | None:
    """Infer index_select."""
    if not _usual(x) or not _in_range(dim, x) or index.dim() > 1 or not x.dim():
        return None
    shape = list(x.shape)
    shape[dim] = index.numel()
    return fresh_meta(shape, x.dtype)


@infers(aten.embedding_dense_backward.default)
def _embedding_gradient(grad: Tensor, indices: Tensor, rows: int, *args: object) -> Tensor:
    return fresh_meta((rows, grad.shape[-1]), grad.dtype)


# -- pooling ---------------------------------------------------------------------------------------


def _pair(values: Sequence[int], default: Sequence[int]) -> Sequence[int]:
    if not values:
        return default
    return values if len(values) == 2 else [values[0], values[0]]


def _pooled(extent: int, kernel: int, stride: int, pad: int, dilation: int, ceil: bool) -> int:
    """Compute pooling_output_shape (ATen/native/Pool.h): the last window must start inside."""
    reach = extent + 2 * pad - dilation * (kernel - 1) - 1 + (stride - 1 if ceil else 0)
    count = reach // stride + 1
    return count - 1 if ceil and (count - 1) * stride >= extent + pad else count


@infers(aten.max_pool2d_with_indices.default)
def _max_pool(
    x: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    ceil_mode: bool = False,
) -> tuple[Tensor, Tensor] | None:
    shape = _pool_shape(x, kernel, stride, padding, dilation, ceil_mode)
    return None if shape is None else (fresh_meta(shape, x.dtype), fresh_meta(shape, torch.int64))


@infers(aten.avg_pool2d.default)
def _average_pool(
    x: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    ceil_mode: bool = False,
    *args: object,
) -> Tensor | None:
    shape = _pool_shape(x, kernel, stride, padding, (1,), ceil_mode)
    return None if shape is None else fresh_meta(shape, x.dtype)


def _pool_shape(
    x: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
) -> list[int] | None:
    if x.dim() != 4 or not _usual(x) or not has_elements(x):
        return None
    kernel = _pair(kernel, kernel)
    settings = (kernel, _pair(stride, kernel), _pair(padding, (0, 0)), _pair(dilation, (1, 1)))
    if any(p * 2 > k for k, _, p, _ in zip(*settings, strict=True)):
        return None
    extents = [
        _pooled(x.shape[i + 2], k, s, p, d, ceil_mode)
        for i, (k, s, p, d) in enumerate(zip(*settings, strict=True))
    ]
    return [*x.shape[:2], *extents] if all(extent > 0 for extent in extents) else None


@infers(
    aten.max_pool2d_with_indices_backward.default,
    aten.avg_pool2d_backward.default,
    aten._adaptive_avg_pool2d_backward.default,
)
def _pool_gradient(grad: Tensor, x: Tensor, *args: object) -> Tensor | None:
    return _same(x) if x.dim() == 4 else None


# -- products, draws, attention --------------------------------------------------------------------


@infers(aten.mv.default)
def _mv(matrix: Tensor, vector: Tensor) -> Tensor | None:
    if matrix.dtype is not vector.dtype or matrix.shape[1] != vector.shape[0]:
        return None
    return fresh_meta(matrix.shape[:1], matrix.dtype)


@infers(aten.dot.default)
def _dot(a: Tensor, b: Tensor) -> Tensor | None:
    return fresh_meta((), a.dtype) if a.dtype is b.dtype and same_shape(a.shape, b.shape) else None


@infers(aten.randn_like.default, aten.rand_like.default)
def _drawn_like(x: Tensor, *args: object, **kwargs: Any) -> Tensor | None:
    if kwargs.get("memory_format") not in (None, torch.preserve_format) or not _usual(x):
        return None
    return fresh_meta(x.shape, kwargs.get("dtype") or x.dtype)


@infers(aten.native_dropout.default)
def _dropped(x: Tensor, p: float, train: bool | None) -> tuple[Tensor, Tensor] | None:
    return (fresh_meta(x.shape, x.dtype), fresh_meta(x.shape, torch.bool)) if _usual(x) else None


@infers(aten.binary_cross_entropy.default)
def _entropy(
    x: Tensor, target: Tensor, weight: Tensor | None = None, reduction: int = 1
) -> Tensor | None:
    if not _usual(x) or not same_shape(x.shape, target.shape):
        return None
    return fresh_meta(() if reduction else x.shape, x.dtype)


@infers(aten._scaled_dot_product_flash_attention_for_cpu.default)
def _attention(
    query: Tensor, key: Tensor, value: Tensor, *args: object, **kwargs: object
) -> tuple[Tensor, Tensor] | None:
    """Infer the CPU's flash attention: query's layout, log-sum-exp as (batch, length, heads)."""
    batch, heads, length, _ = query.shape
    order = sorted(range(4), key=query.stride, reverse=True)
    if not is_dense_in(query, order):
        return None
    kind = torch.float64 if query.dtype is torch.float64 else torch.float32
    return (
        fresh_meta(query.shape, query.dtype, query.stride()),
        _swapped((batch, length, heads), kind),
    )


def _swapped(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Return a row-major tensor with dimensions 1 and 2 swapped."""
    made = fresh_meta(shape, dtype)
    order = 0, 2, 1, *range(3, len(shape))
    return fresh_meta([made.shape[n] for n in order], dtype, [made.stride(n) for n in order])


@infers(aten._scaled_dot_product_flash_attention_for_cpu_backward.default)
def _attention_gradient(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, *args: object, **kwargs: object
) -> tuple[Tensor, ...]:
    return tuple(
        _swapped((t.shape[0], t.shape[2], t.shape[1], t.shape[3]), t.dtype)
        for t in (query, key, value)
    )


@infers(aten._softmax_backward_data.default, aten._log_softmax_backward_data.default)
def _row_major(x: Tensor, *args: object) -> Tensor:
    """Infer backwards of softmax: row-major whatever the layout of the arguments."""
    dtype = next((a for a in args if isinstance(a, torch.dtype)), x.dtype)
    return fresh_meta(x.shape, dtype)


@infers(aten.log_sigmoid_forward.default)
def _log_sigmoid(x: Tensor) -> tuple[Tensor, Tensor]:
    return fresh_meta(x.shape, x.dtype), fresh_meta(x.shape, x.dtype)


@infers(aten.angle.default)
def _angle(x: Tensor) -> Tensor | None:
    """Infer angle of complex numbers: row-major, as the real part of a temporary is copied."""
    return fresh_meta(x.shape, x.dtype.to_real()) if x.dtype.is_complex else None


@infers(aten.isin.Tensor_Tensor, aten.isin.Tensor_Scalar)
def _found(x: Tensor, *args: object, **kwargs: object) -> Tensor:
    """Return row-major flags. (torch 2.11's rule keeps the layout of x, its kernel does not.)"""
    return fresh_meta(x.shape, torch.bool)


@infers(aten.native_dropout_backward.default)
def _scaled(x: Tensor, mask: Tensor, scale: float) -> Tensor | None:
    order = sorted(range(x.dim()), key=x.stride, reverse=True)
    if not is_dense_in(x, order):
        return None
    return fresh_meta(x.shape, torch.result_type(x, 1.0), x.stride())


@infers(aten._linalg_svd.default)
def _singular_values(
    x: Tensor, full_matrices: bool = False, compute_uv: bool = True, *, driver: str | None = None
) -> tuple[Tensor, Tensor, Tensor] | None:
    """Infer U, S, Vh: column-major as in LAPACK. (torch's rule takes any meta for CUDA.)"""
    if x.dim() < 2 or not x.dtype.is_floating_point or not compute_uv:
        return None
    *batch, m, n = x.shape
    k = min(m, n)
    u = fresh_meta((*batch, m if full_matrices else k, m), x.dtype).mT
    vh = fresh_meta((*batch, n, n if full_matrices else k), x.dtype).mT
    return u, fresh_meta((*batch, k), x.dtype), vh


# -- reductions ------------------------------------------------------------------------------------


def wrapped(dim: int, rank: int) -> int:
    """Return the non-negative dimension. Raises IndexError."""
    bound = max(rank, 1)
    if not -bound <= dim < bound:
        raise IndexError(f"Dimension out of range: {dim} for {rank} dimensions")
    return dim % bound


def refuse_repeated(dims: Sequence[int]) -> None:
    """Raise as eager does if a (non-negative) dimension is named twice."""
    if len(set(dims)) < len(dims):
        raise RuntimeError("a dimension appears multiple times in the list of dims")


def _reduced(x: Tensor, dims: Any, keepdim: bool, dtype: torch.dtype | None = None) -> Tensor:
    """Return a result without these dimensions, or with extent 1; None or () means all."""
    rank = x.dim()
    if dims is None or (isinstance(dims, (list, tuple)) and not dims):
        gone = set(range(rank))
    else:
        listed = [wrapped(d, rank) for d in ([dims] if isinstance(dims, int) else dims)]
        refuse_repeated(listed)
        gone = set(listed)
    if rank > _MOST_DIMS:
        raise RuntimeError(f"only tensors with up to {_MOST_DIMS} dims are supported")
    extents = [1 if i in gone else n for i, n in enumerate(x.shape) if keepdim or i not in gone]
    return fresh_meta(extents, dtype or x.dtype)


def _reduction(kind: str) -> AnyFunction:
    def rule(
        x: Tensor, dims: object = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
    ) -> Tensor:
        made = dtype or x.dtype
        is_whole = not (made.is_floating_point or made.is_complex)
        if kind == "mean" and is_whole:
            raise RuntimeError(f"mean() of {made}: floating-point numbers are needed")
        if kind == "sum" and dtype is None and is_whole:
            made = torch.int64
        if kind == "bool":
            made = torch.uint8 if x.dtype is torch.uint8 else torch.bool
        if kind in ("same", "place"):
            refuse_empty(x.shape, dims)
        return _reduced(x, dims, keepdim, torch.int64 if kind == "place" else made)

    return rule


infers(aten.sum.dim_IntList, aten.sum.default)(_reduction("sum"))
infers(aten.mean.dim, aten.mean.default)(_reduction("mean"))
infers(aten.amax.default, aten.amin.default)(_reduction("same"))
infers(aten.argmax.default, aten.argmin.default)(_reduction("place"))
infers(aten.any.dim, aten.any.default, aten.all.dim, aten.all.default)(_reduction("bool"))


@infers(aten.max.dim, aten.min.dim)
def _extreme(x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor] | None:
    """Infer max.dim, min.dim; torch's meta functions accept empty tensors, eager does not."""
    refuse_empty(x.shape, dim)
    if not x.is_contiguous() or x.dtype.is_complex:
        return None
    return _reduced(x, dim, keepdim), _reduced(x, dim, keepdim, torch.int64)


@infers(aten.prod.dim_int)
def _product(x: Tensor, dim: int, keepdim: bool = False, **kwargs: object) -> Tensor | None:
    usual = x.dtype.is_floating_point and x.is_contiguous() and not kwargs and x.dim()
    if not usual or not expected_to_hold("!=", x.shape[dim], 0):
        return None
    return _reduced(x, dim, keepdim)


# -- statistics ------------------------------------------------------------------------------------


@infers(aten.var.correction, aten.std.correction)
def _variance(
    x: Tensor, dims: object = None, *, correction: object = None, keepdim: bool = False
) -> Tensor | None:
    usual = x.dtype.is_floating_point and x.is_contiguous() and has_elements(x)
    return _reduced(x, dims, keepdim) if usual else None


@infers(aten.var_mean.correction)
def _variance_and_mean(x: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor] | None:
    variance, mean = _variance(x, *args, **kwargs), _variance(x, *args, **kwargs)
    return None if variance is None or mean is None else (variance, mean)


@infers(aten.logsumexp.default)
def _logsumexp(x: Tensor, dims: object, keepdim: bool = False) -> Tensor | None:
    return _variance(x, dims, keepdim=keepdim) if dims else None


@infers(aten.linalg_vector_norm.default)
def _vector_norm(
    x: Tensor, order: object = 2, dims: object = None, keepdim: bool = False, **kwargs: object
) -> Tensor | None:
    is_cast = kwargs.get("dtype") is not None
    return None if is_cast else _variance(x, dims, keepdim=keepdim)
