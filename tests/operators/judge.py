"""unlike: whether a value is eager's, judged by eager's own distance from the float64 result.

An element may be off by twice what eager is off by at the worst element of that tensor, and by a
few ulp of its own; infinities and NaN are eager's, or those of the float64 result. How far eager is
off in float64, which has no wider dtype, is told by how far the same call is off in float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = ["unlike"]

_ULPS = 8
_SINGLE_TO_DOUBLE = torch.finfo(torch.float64).eps / torch.finfo(torch.float32).eps


def unlike(
    wanted: Any, have: Any, exact: Any, again: Sequence[Any] = (), *, single: Any = None
) -> str | None:
    """Why `have` is not what eager gave, in words. `exact`: the same of the float64 run; `again`:
    of eager where more elements, or none, are beside these, since its vectors may differ from its
    scalar code; `single`: of float64 results, the same of the float32 run.
    """
    if not isinstance(wanted, Tensor) or not isinstance(have, Tensor):
        same = type(wanted) is type(have) and (wanted == have or wanted != wanted)
        return None if same else f"{have!r}, eager {wanted!r}"
    for what in ("dtype", "shape", "device", "requires_grad", "layout"):
        if getattr(wanted, what) != getattr(have, what):
            return f"{what} {getattr(have, what)}, eager {getattr(wanted, what)}"
    if min(wanted.shape, default=0) < 0:  # as_strided makes such; nothing can be asked of them
        return None
    if wanted.layout is not torch.strided:
        if wanted.is_coalesced() != have.is_coalesced():
            return f"coalesced {have.is_coalesced()}, eager {wanted.is_coalesced()}"
    wanted, have = _numbers(wanted), _numbers(have)
    if not wanted.is_floating_point():
        return None if torch.equal(wanted, have) else _shown(wanted, have, None)
    truth = _numbers(exact) if isinstance(exact, Tensor) else wanted
    truth = wanted if truth.shape != wanted.shape else truth
    worst = _worst(wanted, truth)
    if isinstance(single, Tensor) and wanted.dtype is torch.float64:
        worst = max(worst, _worst(_numbers(single), truth) * _SINGLE_TO_DOUBLE)
    right = _as(have, wanted) | _as(have, truth.to(wanted.dtype))
    right |= _close(have, truth, wanted.dtype, worst) & wanted.isfinite()
    for other in again:
        if isinstance(other, Tensor) and _numbers(other).shape == wanted.shape:
            right |= _as(have, _numbers(other).to(wanted.dtype))
    return None if bool(right.all()) else _shown(wanted, have, exact, ~right)


def _as(have: Tensor, other: Tensor) -> Tensor:
    """Where both are NaN, the same infinity, or a few ulp apart."""
    ulps = _ULPS * torch.finfo(other.dtype).eps * other.abs()
    near = (have - other).abs() <= torch.where(other.isfinite(), ulps, 0)
    return near | (have == other) | (have.isnan() & other.isnan())


def _worst(wanted: Tensor, truth: Tensor) -> float:
    """How far eager is off where it is furthest."""
    if wanted.shape != truth.shape:
        return 0.0
    finite = wanted.isfinite() & truth.isfinite()
    off = (wanted.double() - truth.double()).abs()[finite]
    return float(off.max()) if off.numel() else 0.0


def _close(have: Tensor, truth: Tensor, dtype: torch.dtype, worst: float) -> Tensor:
    """Where have is no further from the truth than twice eager's worst and a few ulp."""
    facts = torch.finfo(dtype)
    allowed = 2 * worst + _ULPS * facts.eps * truth.double().abs() + facts.tiny
    near = (have.double() - truth.double()).abs() <= allowed
    return truth.isfinite() & have.isfinite() & near


def _numbers(t: Tensor) -> Tensor:
    t = t.detach()
    t = t if t.layout is torch.strided else t.to_dense()
    if not t.is_complex():
        return t
    # A copy: a step of 2**62 over an axis of one element is no number of reals any more.
    return torch.view_as_real(t.resolve_conj().clone(memory_format=torch.contiguous_format))


def _shown(wanted: Tensor, have: Tensor, exact: Any, differ: Tensor | None = None) -> str:
    if differ is None:
        differ = (wanted != have) & ~(wanted.isnan() & have.isnan())
    wrong = differ.flatten().nonzero().flatten()
    place = int(wrong[0]) if wrong.numel() else 0
    text = f"at {place}: {have.flatten()[place].item()}, eager {wanted.flatten()[place].item()}"
    if isinstance(exact, Tensor) and exact.numel() == wanted.numel():
        text += f", exact {_numbers(exact).flatten()[place].item()}"
    return f"{text} ({wrong.numel()} of {wanted.numel()} differ)"
