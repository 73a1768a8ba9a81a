"""cov and corrcoef: composite C++ operators that read tensor data only to check them.

Their operations are recorded in the order of ATen/native/Correlation.cpp, so that they round alike.
Assertions in the graph replace the checks; if one fails, eager runs the call and raises or warns.
Calls with shapes that torch refuses or warns about stay one node, which calls it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ....graph.symbolic.sym_node import as_dimension, as_dimensions
from ...values.base import Args, Kwargs, Machine, Value
from ...values.numpy.library_code import Recorder
from ...values.tensors.tensor import TensorValue, record
from ..registry import handles

__all__: list[str] = []

_cov, _corrcoef = torch.cov, torch.corrcoef  # these objects, even if they are replaced later
_COV = ("input", "correction", "fweights", "aweights")


@handles(_cov, Tensor.cov)
def _follow_cov(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    given: dict[str, Value] = {**dict(zip(_COV, args, strict=False)), **kwargs}
    x, *weights = (given.get(name) for name in ("input", "fweights", "aweights"))
    correction = given.get("correction", machine.constant(1))
    if not isinstance(x, TensorValue) or not correction.is_constant(machine):
        return record(machine, _cov, args, kwargs)
    degrees = correction.as_constant(machine)
    recorder = Recorder(machine, "cov")
    tensors = [recorder.stand_in(w) if isinstance(w, TensorValue) else None for w in weights]
    if not _takes(recorder.stand_in(x), degrees, *tensors):
        return record(machine, _cov, args, kwargs)
    with recorder:
        return recorder.value_of(_covariance(recorder.stand_in(x), degrees, *tensors))


@handles(_corrcoef, Tensor.corrcoef)
def _follow_corrcoef(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    (x,) = (*args, *kwargs.values())
    recorder = Recorder(machine, "corrcoef")
    if not isinstance(x, TensorValue) or not _takes(recorder.stand_in(x), 1, None, None):
        return record(machine, _corrcoef, args, kwargs)
    with recorder:
        return recorder.value_of(_correlation(recorder.stand_in(x)))


def _takes(x: Tensor, correction: Any, counts: Tensor | None, weights: Tensor | None) -> bool:
    """Return whether eager accepts shapes and dtypes without a warning."""
    if x.dim() > 2 or x.dtype is torch.bool or type(correction) is not int:
        return False
    observations = as_dimension(x.shape[-1]) if x.dim() else 1
    if not observations:
        return False
    fit = all(w is None or as_dimensions(w.shape) == (observations,) for w in (counts, weights))
    whole = counts is None or not (counts.is_floating_point() or counts.is_complex())
    whole &= counts is None or counts.dtype is not torch.bool
    real = weights is None or weights.is_floating_point()
    # Eager warns where no degrees of freedom are left.
    unweighted = counts is None and weights is None
    return fit and whole and real and (not unweighted or observations > correction)


def _covariance(
    x: Tensor, correction: int, counts: Tensor | None, weights: Tensor | None
) -> Tensor:
    rows = x.view((1, -1)) if x.dim() < 2 else x
    for each in (counts, weights):
        if each is not None:
            torch._assert_async(each.min().ge(0))
    both = [each for each in (counts, weights) if each is not None]
    w = both[0] * both[1] if len(both) == 2 else next(iter(both), None)
    if w is None:
        total = torch.full((), rows.shape[1], dtype=torch.long, device=x.device)
        norm = total - correction
    else:
        total = w.sum()
        torch._assert_async(total.ne(0))
        norm = _normalisation(w, total, correction, counts, weights)
        torch._assert_async(norm.gt(0))  # else eager warns
    mean = (rows if w is None else rows * w).sum(1) / total
    rows = rows - mean.unsqueeze(1)
    product = torch.mm(rows, (rows if w is None else rows * w).t().conj())
    return torch.true_divide(product, norm).squeeze()


def _normalisation(
    w: Tensor, total: Tensor, correction: int, counts: Tensor | None, weights: Tensor | None
) -> Tensor:
    if weights is None or correction == 0:
        return total - correction
    squares = w * (w if counts is None else weights)
    return total - correction * squares.sum() / total


def _correlation(x: Tensor) -> Tensor:
    c = _covariance(x, 1, None, None)
    if not c.dim():
        return c / c
    variances = c.diag()
    deviations = torch.sqrt(variances.real if variances.is_complex() else variances)
    c = c.div(deviations.view((-1, 1))).div(deviations.view((1, -1)))
    if not c.is_complex():
        return c.clip(-1, 1)
    return torch.complex(c.real.clip(-1, 1), c.imag.clip(-1, 1))
