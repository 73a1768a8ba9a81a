"""Loss functions with their backwards. `reduction`: 0 none, 1 mean, 2 sum (ATen's enumeration)."""

from __future__ import annotations

import torch

from ...symbols.size import Size
from ..recording.recorder import Recorder, Sym
from .registry import rule, up

__all__: list[str] = []

aten = torch.ops.aten
NONE, MEAN, SUM = 0, 1, 2


# Recorded as a call, so that it is lowered like any other sum (in blocks, for accuracy).
def _reduce(loss: Sym, reduction: int) -> Sym:
    if reduction == MEAN:
        return loss.one(aten.mean.default)
    return loss.one(aten.sum.default) if reduction == SUM else loss


def _per_element(made: Sym, x: Sym, reduction: int, factor: float = 1.0) -> Sym:
    """Return the derivative for one element of `x` times `factor`, divided by the count for a
    mean.
    """
    count = max(x.numel, 1)
    if reduction == MEAN and isinstance(count, Size):  # a Size has no reciprocal
        return (made if factor == 1.0 else made * factor) / count
    return made * (factor * (1.0 / count if reduction == MEAN else 1.0))


@rule(aten.mse_loss.default)
def _mse(r: Recorder, x: Sym, target: Sym, reduction: int = MEAN) -> Sym:
    return _reduce(_squared_gap(r, x, target), reduction)


@rule(opmath=True)
def _squared_gap(r: Recorder, x: Sym, target: Sym) -> Sym:
    gap = x - target
    return gap * gap


@rule(aten.mse_loss_backward.default, opmath=True)
def _mse_backward(r: Recorder, grad: Sym, x: Sym, target: Sym, reduction: int) -> Sym:
    return _per_element(x - target, x, reduction, 2.0) * grad


@rule(aten.smooth_l1_loss.default)
def _smooth_l1(
    r: Recorder, x: Sym, target: Sym, reduction: int = MEAN, beta: float = 1.0
) -> Sym | None:
    if not beta > 0:  # beta 0 is L1 loss; eager refuses negative numbers and NaN
        return None
    return _reduce(_smooth_l1_value(r, x, target, beta), reduction)


@rule(opmath=True)
def _smooth_l1_value(r: Recorder, x: Sym, target: Sym, beta: float) -> Sym:
    z = (x - target).abs()
    return r.where(z < beta, z * z * 0.5 / beta, z - 0.5 * beta)


@rule(aten.smooth_l1_loss_backward.default, opmath=True)
def _smooth_l1_backward(
    r: Recorder, grad: Sym, x: Sym, target: Sym, reduction: int, beta: float
) -> Sym | None:
    if not beta > 0:
        return None
    gap, scaled = x - target, _per_element(grad, x, reduction)
    outside = r.where(gap < 0, -scaled, scaled)
    return r.where(gap.abs() >= beta, outside, scaled * gap / beta)


@rule(aten.huber_loss.default)
def _huber(r: Recorder, x: Sym, target: Sym, reduction: int = MEAN, delta: float = 1.0) -> Sym:
    return _reduce(_huber_value(r, x, target, delta), reduction)


@rule(opmath=True)
def _huber_value(r: Recorder, x: Sym, target: Sym, delta: float) -> Sym:
    z = (x - target).abs()
    return r.where(z < delta, z * z * 0.5, (z - 0.5 * delta) * delta)


@rule(aten.huber_loss_backward.default, opmath=True)
def _huber_backward(
    r: Recorder, grad: Sym, x: Sym, target: Sym, reduction: int, delta: float
) -> Sym:
    gap, scaled = x - target, _per_element(grad, x, reduction)
    outside = r.where(gap < 0, scaled * -delta, scaled * delta)
    return r.where(gap.abs() >= delta, outside, scaled * gap)


@rule(aten.binary_cross_entropy_backward.default, opmath=True)
def _bce_backward(
    r: Recorder,
    grad: Sym,
    x: Sym,
    target: Sym,
    weight: Sym | None = None,
    reduction: int = MEAN,
) -> Sym:
    """Only the backward is decomposed: the forward refuses inputs outside of [0, 1] at run time."""
    # Clamped like ATen's EPSILON (Loss.cpp): at x = 0 or 1 the quotient is large but finite.
    slope = (1 - x) * x
    made = grad * (x - target) / slope.one(aten.clamp.default, 1e-12)
    if weight is not None:
        made = made * weight
    return _per_element(made, x, reduction) if reduction == MEAN else made


@rule(aten.binary_cross_entropy_with_logits.default)
def _bce_with_logits(
    r: Recorder,
    x: Sym,
    target: Sym,
    weight: Sym | None = None,
    pos_weight: Sym | None = None,
    reduction: int = MEAN,
) -> Sym | None:
    given = (one for one in (x, target, weight, pos_weight) if one is not None)
    if len({one.dtype for one in given}) > 1:
        return None  # eager writes into (1 - target), which sets the result's dtype
    # log(sigmoid(x)) would be -inf where sigmoid underflows (x < -104 in fp32).
    log_sigmoid: Sym = r.emit(aten.log_sigmoid_forward.default, x)[0]
    if pos_weight is not None:
        log_sigmoid = log_sigmoid * ((pos_weight - 1) * target + 1)
    loss = (1 - target) * x - log_sigmoid
    if weight is not None:
        loss = loss * weight
    return _reduce(loss, reduction)


# -- negative log likelihood -----------------------------------------------------------------------


def _class_dim(x: Sym) -> int:
    return 0 if len(x.shape) == 1 else 1


def _per_class(weight: Sym, x: Sym) -> Sym:
    """Weights of the classes, shaped to broadcast against x."""
    dim = _class_dim(x)
    shape = [1] * len(x.shape)
    shape[dim] = weight.shape[0]
    return weight.view(*shape)


@rule(aten.nll_loss_forward.default, aten.nll_loss2d_forward.default)
def _nll(
    r: Recorder, x: Sym, target: Sym, weight: Sym | None, reduction: int, ignore_index: int
) -> list[Sym] | None:
    if not x.numel:
        return None
    dim = _class_dim(x)
    # An ignored target may be no valid class (-100), so gather reads class 0 in its place.
    counted = target.differs(ignore_index)
    index = r.where(counted, target, 0).to(torch.int64).unsqueeze(dim)
    picked = -x.one(aten.gather.default, dim, index).squeeze(dim)
    weights: Sym | None = None
    if weight is not None:
        spread = _per_class(weight, x).expand(*x.shape)
        weights = spread.one(aten.gather.default, dim, index).squeeze(dim)
        picked = picked * weights
    loss = r.where(counted, picked, 0.0)
    if reduction == NONE:
        return [loss, r.full((), 0.0, x.dtype, x.device)]
    # The backward of a mean divides by the weights of the targets that count, not by their number.
    total = _total_weight(r, x, counted, weights)
    summed = up(loss).one(aten.sum.default)
    if reduction == MEAN:
        return [(summed / up(total)).to(x.dtype), total]
    return [summed.to(x.dtype), total]


def _total_weight(r: Recorder, x: Sym, counted: Sym, weights: Sym | None) -> Sym:
    if weights is None:
        return counted.to(up(x).dtype).one(aten.sum.default).to(x.dtype)
    return up(r.where(counted, weights, 0.0)).one(aten.sum.default).to(x.dtype)


@rule(aten.nll_loss_backward.default, aten.nll_loss2d_backward.default)
def _nll_backward(
    r: Recorder,
    grad: Sym,
    x: Sym,
    target: Sym,
    weight: Sym | None,
    reduction: int,
    ignore_index: int,
    total_weight: Sym,
) -> Sym | None:
    """Build one-hot rows by comparing with class numbers, which fuses; ignored targets match
    none.
    """
    if not x.numel:
        return None
    dim = _class_dim(x)
    classes = r.arange(x.shape[dim], target.dtype, x.device)
    hit = _per_class(classes, x).equals(target.unsqueeze(dim))
    if 0 <= ignore_index < x.shape[dim]:
        hit = hit.both(target.differs(ignore_index).unsqueeze(dim))
    scaled = -up(grad)
    if reduction == MEAN:
        scaled = scaled / up(total_weight)
    if reduction == NONE:
        scaled = scaled.unsqueeze(dim)
    if weight is not None:
        scaled = scaled * up(_per_class(weight, x))
    return r.where(hit, scaled, 0.0).to(x.dtype)
