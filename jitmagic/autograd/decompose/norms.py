"""Layer, group and batch norm with their backwards.

Statistics are computed in fp32 (fp64 for doubles) with the two-pass variance and saved in that
dtype. Sums of batch norm use the accumulation dtype of eager's kernels. Batch norm returns (out,
mean, invstd, new running mean | None, new running var | None); functionalize writes the last two.
"""

from __future__ import annotations

import math

import torch

from ...devices import row_of
from ...symbols.size import Size
from ..recording.recorder import Recorder, Sym
from .moments import mean_of
from .registry import is_half, moments_dtype, rule, up

__all__: list[str] = []

aten = torch.ops.aten
Mask = list[bool]


def _moments(x: Sym, dims: list[int]) -> tuple[Sym, Sym]:
    """Return mean and biased variance over dims, dims kept as 1."""
    # Two passes, not E[x^2] - E[x]^2: that difference cancels for rows far from zero (in fp32 by
    # several percent at a mean of 1000 and a deviation of 1).
    mean = mean_of(x, dims)
    centred = x - mean
    return mean, (centred * centred).mean(dims, True)


def _affine(value: Sym, weight: Sym | None, bias: Sym | None) -> Sym:
    if weight is not None:
        value = value * up(weight)
    return value if bias is None else value + up(bias)


# -- layer norm ------------------------------------------------------------------------------------


@rule(aten.native_layer_norm.default)
def _layer_norm(
    r: Recorder, x: Sym, shape: list[int], weight: Sym | None, bias: Sym | None, eps: float
) -> list[Sym] | None:
    if not x.numel:
        return None
    wide = up(x)
    dims = list(range(len(x.shape) - len(shape), len(x.shape)))
    mean, variance = _moments(wide, dims)
    rstd = (variance + eps).rsqrt()
    out = _affine((wide - mean) * rstd, weight, bias)
    return [out.to(x.dtype), mean, rstd]


@rule(aten.native_layer_norm_backward.default)
def _layer_norm_backward(
    r: Recorder,
    grad: Sym,
    x: Sym,
    shape: list[int],
    mean: Sym,
    rstd: Sym,
    weight: Sym | None,
    bias: Sym | None,
    mask: Mask,
) -> list[Sym | None] | None:
    if not x.numel:
        return None
    first = len(x.shape) - len(shape)
    inner, outer = list(range(first, len(x.shape))), list(range(first))
    g, wide = up(grad), up(x)
    xhat = (wide - up(mean)) * up(rstd)
    dx = dw = db = None
    if mask[0]:
        gw = g if weight is None else g * up(weight)
        # Mean and rstd depend on x too: the two means subtract what they contribute to the
        # gradient.
        dx = (gw - gw.mean(inner, True) - xhat * (gw * xhat).mean(inner, True)) * up(rstd)
        dx = dx.to(x.dtype)
    if mask[1] and weight is not None:
        dw = _sum_to(g * xhat, outer).to(weight.dtype)
    if mask[2] and bias is not None:
        db = _sum_to(g, outer).to(bias.dtype)
    return [dx, dw, db]


def _sum_to(value: Sym, dims: list[int]) -> Sym:
    return value.sum(dims) if dims else value


@rule(aten._fused_rms_norm.default)
def _rms_norm(
    r: Recorder, x: Sym, shape: list[int], weight: Sym | None, eps: float | None
) -> list[Sym] | None:
    if not x.numel:
        return None
    wide = up(x)
    dims = list(range(len(x.shape) - len(shape), len(x.shape)))
    # Eager takes float32's epsilon (1.2e-7) for 16-bit rows too: with their own (9.8e-4), results
    # for inputs near 0.003 were a tenth of eager's.
    epsilon = torch.finfo(wide.dtype).eps if eps is None else eps
    squares = (wide * wide).mean(dims, True)
    if not _sums_squares(x, dims):
        squares = squares + (wide - wide).mean(dims, True)
    rstd = (squares + epsilon).rsqrt()
    return [_affine(wide * rstd, weight, None).to(x.dtype), rstd]


@rule(aten._fused_rms_norm_backward.default)
def _rms_norm_backward(
    r: Recorder,
    grad: Sym,
    x: Sym,
    shape: list[int],
    rstd: Sym,
    weight: Sym | None,
    mask: Mask,
) -> list[Sym | None] | None:
    """Use only the length of `shape`: torch passes dynamic sizes there as if they were ints."""
    if not x.numel:
        return None
    first = len(x.shape) - len(shape)
    g, xhat = up(grad), up(x) * up(rstd)
    dx = dw = None
    if mask[0]:
        gw = g if weight is None else g * up(weight)
        dx = (gw - xhat * (gw * xhat).mean(list(range(first, len(x.shape))), True)) * up(rstd)
        dx = dx.to(x.dtype)
    if mask[1] and weight is not None:
        dw = _sum_to(g * xhat, list(range(first))).to(weight.dtype)
    return [dx, dw]


def _sums_squares(x: Sym, dims: list[int]) -> bool:
    """Return whether eager's GPU kernel sums squares. For other rows it computes Welford's moments,
    in which one infinity turns the whole row into NaN; the squares alone would give 0 for finite
    elements. x - x reproduces that. (The CPU has no such operator.)
    """
    count = math.prod(x.shape[d] for d in dims)
    return isinstance(count, Size) or (count % 4 == 0 and x.dtype is not torch.float64)


# -- group norm ------------------------------------------------------------------------------------


def _per_channel(value: Sym, rank: int) -> Sym:
    """Reshape a vector of length C to broadcast against (N, C, ...)."""
    return value.view(1, *value.shape, *(1,) * (rank - 2))


@rule(aten.native_group_norm.default)
def _group_norm(
    r: Recorder,
    x: Sym,
    weight: Sym | None,
    bias: Sym | None,
    n: int,
    c: int,
    hxw: int,
    groups: int,
    eps: float,
) -> list[Sym] | None:
    # F.group_norm passes matching sizes; a direct call may not, and eager's kernel checks them.
    if not x.numel or min(n, c, hxw, groups) <= 0 or n * c * hxw != x.numel:
        return None
    if any(part is not None and part.shape != (c,) for part in (weight, bias)):
        return None
    grouped = up(x).view(n, groups, c // groups * hxw)
    mean, variance = _moments(grouped, [2])
    rstd = (variance + eps).rsqrt()
    normal = ((grouped - mean) * rstd).view(*x.shape)
    rank = len(x.shape)
    out = _affine(
        normal,
        None if weight is None else _per_channel(weight, rank),
        None if bias is None else _per_channel(bias, rank),
    )
    return [out.to(x.dtype), mean.view(n, groups), rstd.view(n, groups)]


@rule(aten.native_group_norm_backward.default)
def _group_norm_backward(
    r: Recorder,
    grad: Sym,
    x: Sym,
    mean: Sym,
    rstd: Sym,
    weight: Sym | None,
    n: int,
    c: int,
    hxw: int,
    groups: int,
    mask: Mask,
) -> list[Sym | None] | None:
    if not x.numel:
        return None
    shape = (n, groups, c // groups, hxw)
    g, wide = up(grad).view(*shape), up(x).view(*shape)
    scale = up(rstd).view(n, groups, 1, 1)
    xhat = (wide - up(mean).view(n, groups, 1, 1)) * scale
    dx = dw = db = None
    if mask[0]:
        gw = g if weight is None else g * up(weight).view(1, groups, c // groups, 1)
        dx = gw - gw.mean([2, 3], True) - xhat * (gw * xhat).mean([2, 3], True)
        dx = (dx * scale).view(*x.shape).to(x.dtype)
    kept = x.dtype if weight is None else weight.dtype
    if mask[1]:
        dw = (g * xhat).sum([0, 3]).view(c).to(kept)
    if mask[2]:
        db = g.sum([0, 3]).view(c).to(kept)
    return [dx, dw, db]


# -- batch norm ------------------------------------------------------------------------------------


@rule(aten.native_batch_norm.default, aten._native_batch_norm_legit.default)
def _batch_norm(
    r: Recorder,
    x: Sym,
    weight: Sym | None,
    bias: Sym | None,
    running_mean: Sym | None,
    running_var: Sym | None,
    training: bool,
    momentum: float,
    eps: float,
) -> list[Sym | None] | None:
    rank, c = len(x.shape), x.shape[1]
    if not _are_per_channel(x, weight, bias, running_mean, running_var):
        return None
    wide = up(x)
    new_mean = new_var = None
    if training:
        count = math.prod(x.shape) // max(c, 1)
        mean, squares = _spread(wide, [0, *range(2, rank)])
        invstd = _inverse_deviation(squares / count, eps, moments_dtype(wide))
        saved = [mean, invstd]
        if running_mean is not None:
            new_mean = _blend(running_mean, mean, momentum)
        if running_var is not None:
            # The running variance is the unbiased one (n - 1), while the batch is normalised by the
            # biased one (n), as torch.nn.BatchNorm documents.
            new_var = _blend(running_var, squares / max(count - 1, 1), momentum)
    else:
        assert running_mean is not None
        assert running_var is not None
        # In evaluation mode eager's CPU kernel returns empty statistics: its backward reads the
        # running ones.
        nothing = r.full((0,), 0.0, wide.dtype, x.device)
        saved = [nothing, nothing]
        mean, invstd = up(running_mean), _inverse_deviation(up(running_var), eps)
    # Folding x.t() of 1000.1 gave 0.42 where eager, which does not fold it, gives 0.
    form = _folded if _folds_parameters(x, weight, bias) else _normalized
    out = form(wide, mean, invstd, weight, bias)
    return [out.to(x.dtype), *saved, new_mean, new_var]


def _are_per_channel(x: Sym, *parts: Sym | None) -> bool:
    """Return whether each part has one element per channel; eager's kernel handles other shapes."""
    return all(part is None or part.shape == (x.shape[1],) for part in parts)


def _spread(x: Sym, dims: list[int]) -> tuple[Sym, Sym]:
    """Return the mean of each channel and the sum of squared distances from it."""
    dtype = moments_dtype(x)
    mean = mean_of(x, dims) if dtype is None else x.mean(dims, True, dtype).to(x.dtype)
    centred = x - mean
    squares = (centred * centred).sum(dims, dtype=dtype).to(x.dtype)
    return mean.view(x.shape[1]), squares


def _inverse_deviation(variance: Sym, eps: float, dtype: torch.dtype | None = None) -> Sym:
    return (variance.to(dtype or variance.dtype) + eps).rsqrt().to(variance.dtype)


def _folds_parameters(x: Sym, *parameters: Sym | None) -> bool:
    """Return whether eager's kernel first computes a factor and an offset per channel. It does so
    on the CPU for dense memory in a known format. For 16-bit numbers it rounds both to 16 bits,
    which is not reproduced.
    """
    if row_of(x.device).kernels != "cpu" or is_half(x.dtype):
        return False
    formats = [torch.contiguous_format]
    formats += {4: [torch.channels_last], 5: [torch.channels_last_3d]}.get(len(x.shape), [])
    dense = any(x.meta.is_contiguous(memory_format=form) for form in formats)
    return dense and all(part is None or part.meta.is_contiguous() for part in parameters)


def _folded(x: Sym, mean: Sym, invstd: Sym, weight: Sym | None, bias: Sym | None) -> Sym:
    """Apply factor and offset per channel, rounded where eager rounds (one fused multiply-add). The
    next operation may have kinks (relu6), where the last bit decides about whole gradients.
    """
    rank = len(x.shape)
    slope = invstd if weight is None else invstd * up(weight)
    if bias is None:
        offset = -(mean * slope)
    else:
        offset = up(bias).one(aten.addcmul.default, mean, slope, value=-1)
    return _per_channel(offset, rank).one(aten.addcmul.default, x, _per_channel(slope, rank))


def _normalized(x: Sym, mean: Sym, invstd: Sym, weight: Sym | None, bias: Sym | None) -> Sym:
    rank = len(x.shape)
    normal = (x - _per_channel(mean, rank)) * _per_channel(invstd, rank)
    affine = [None if one is None else _per_channel(one, rank) for one in (weight, bias)]
    return _affine(normal, *affine)


def _blend(old: Sym, new: Sym, momentum: float) -> Sym:
    return (new * momentum + up(old) * (1 - momentum)).to(old.dtype)


@rule(aten._native_batch_norm_legit.no_stats)
def _batch_norm_no_stats(
    r: Recorder,
    x: Sym,
    weight: Sym | None,
    bias: Sym | None,
    training: bool,
    momentum: float,
    eps: float,
) -> list[Sym | None] | None:
    made = _batch_norm(r, x, weight, bias, None, None, True, momentum, eps)
    return None if made is None else made[:3]


@rule(aten._native_batch_norm_legit_no_training.default)
def _batch_norm_inference(
    r: Recorder,
    x: Sym,
    weight: Sym | None,
    bias: Sym | None,
    running_mean: Sym,
    running_var: Sym,
    momentum: float,
    eps: float,
) -> list[Sym | None] | None:
    made = _batch_norm(r, x, weight, bias, running_mean, running_var, False, momentum, eps)
    return None if made is None else made[:3]


@rule(aten._native_batch_norm_legit_functional.default)
def _batch_norm_functional(
    r: Recorder,
    x: Sym,
    weight: Sym | None,
    bias: Sym | None,
    running_mean: Sym | None,
    running_var: Sym | None,
    training: bool,
    momentum: float,
    eps: float,
) -> list[Sym | None] | None:
    if not (training and x.numel):
        return None
    return _batch_norm(r, x, weight, bias, running_mean, running_var, True, momentum, eps)


@rule(aten.cudnn_batch_norm.default)
def _cudnn_batch_norm(
    r: Recorder,
    x: Sym,
    weight: Sym | None,
    bias: Sym | None,
    running_mean: Sym | None,
    running_var: Sym | None,
    training: bool,
    momentum: float,
    eps: float,
) -> list[Sym | None] | None:
    made = _batch_norm(r, x, weight, bias, running_mean, running_var, training, momentum, eps)
    if made is None:
        return None
    out, mean, invstd, new_mean, new_var = made
    # cuDNN's workspace for its own backward, which `_cudnn_batch_norm_backward` does not read.
    reserve = r.full((0,), 0, torch.uint8, x.device)
    return [out, mean, invstd, reserve, new_mean, new_var]


@rule(aten.native_batch_norm_backward.default)
def _batch_norm_backward(
    r: Recorder,
    grad: Sym,
    x: Sym,
    weight: Sym | None,
    running_mean: Sym | None,
    running_var: Sym | None,
    save_mean: Sym | None,
    save_invstd: Sym | None,
    train: bool,
    eps: float,
    mask: Mask,
) -> list[Sym | None] | None:
    rank, c = len(x.shape), x.shape[1]
    if not _are_per_channel(x, weight, running_mean, running_var):
        return None
    dims = [0, *range(2, rank)]
    if train:
        assert save_mean is not None
        assert save_invstd is not None
        mean, invstd = up(save_mean), up(save_invstd)
    else:
        assert running_mean is not None
        assert running_var is not None
        mean, invstd = up(running_mean), (up(running_var) + eps).rsqrt()
    g = up(grad)
    scale = _per_channel(invstd, rank)
    xhat = (up(x) - _per_channel(mean, rank)) * scale
    # Both sums serve all three gradients: dw and db are these sums.
    along = (g * xhat).sum(dims, dtype=moments_dtype(g)).to(g.dtype)
    total = g.sum(dims, dtype=moments_dtype(g)).to(g.dtype)
    dx = dw = db = None
    if mask[0]:
        count = math.prod(x.shape) // max(c, 1)
        dx = g
        if train:
            drift = _per_channel(total / count, rank) + xhat * _per_channel(along / count, rank)
            dx = g - drift
        dx = dx * (scale if weight is None else _per_channel(invstd * up(weight), rank))
        dx = dx.to(x.dtype)
    kept = x.dtype if weight is None else weight.dtype
    if mask[1]:
        dw = along.to(kept)
    if mask[2]:
        db = total.to(kept)
    return [dx, dw, db]


@rule(aten.cudnn_batch_norm_backward.default)
def _cudnn_batch_norm_backward(
    r: Recorder,
    x: Sym,
    grad: Sym,
    weight: Sym,
    running_mean: Sym | None,
    running_var: Sym | None,
    save_mean: Sym | None,
    save_var: Sym | None,
    eps: float,
    reserve: Sym,
) -> list[Sym | None] | None:
    """Pass cuDNN's save_var, which is the inverse standard deviation."""
    return _batch_norm_backward(
        r, grad, x, weight, running_mean, running_var, save_mean, save_var, True, eps, [True] * 3
    )
