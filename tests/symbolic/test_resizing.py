"""interpolate for all sizes: torch's own kernels, to the last bit, with its gradients. Torch's
Python, which computes with symbolic sizes as well, has other roundings and makes nan of -inf.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import jitmagic
from jitmagic.api import handle_of

_SIZES: list[dict[str, Any]] = [
    {"size": 7},
    {"scale_factor": 2},
    {"scale_factor": 0.6},
    {"scale_factor": 1.7, "recompute_scale_factor": True},
]
_SMOOTH = (("linear", 1), ("bilinear", 2), ("bicubic", 2), ("trilinear", 3))
_WAYS: list[tuple[int, dict[str, Any]]] = [
    *((rank, {"mode": "nearest", **how}) for rank in (1, 2, 3) for how in _SIZES),
    *((rank, {"mode": "nearest-exact", "scale_factor": 1.7}) for rank in (1, 2, 3)),
    *((2, {"mode": "bilinear", "antialias": True, **how}) for how in _SIZES),
    *((2, {"mode": "bicubic", "antialias": True, **how}) for how in _SIZES[:2]),
    *((rank, {"mode": mode, **how}) for mode, rank in _SMOOTH for how in _SIZES),
    *((rank, {"mode": mode, "align_corners": True, "scale_factor": 1.7}) for mode, rank in _SMOOTH),
]
_SHAPES = ((2, 3, 5), (3, 6, 8), (4, 5, 9), (2, 8, 11))


def _images(rank: int) -> Iterator[torch.Tensor]:
    torch.manual_seed(0)
    for *batch, extent in _SHAPES:
        x = torch.randn(*batch, *(extent + n for n in range(rank)))
        x[0, 0, 1], x[0, 1, 2] = -torch.inf, torch.nan
        yield x


def _alike(have: torch.Tensor, wanted: torch.Tensor) -> None:
    torch.testing.assert_close(have, wanted, rtol=0, atol=0, equal_nan=True)
    assert have.stride() == wanted.stride()


@pytest.mark.parametrize(("rank", "how"), _WAYS, ids=str)
@pytest.mark.parametrize("wants_gradient", [False, True], ids=["forward", "gradient"])
def test_sizes_that_change(rank: int, how: dict[str, Any], wants_gradient: bool) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return F.interpolate(x, **how)

    compiled: Callable[..., torch.Tensor] = jitmagic.jit(program)
    for x in _images(rank):
        ours, eagers = (x.clone().requires_grad_(wants_gradient) for _ in range(2))
        have, wanted = compiled(ours), program(eagers)
        _alike(have, wanted)
        if wants_gradient:
            have.nan_to_num().sum().backward()
            wanted.nan_to_num().sum().backward()
            torch.testing.assert_close(ours.grad, eagers.grad, equal_nan=True)
    by_ints = all(isinstance(value, int) for key, value in how.items() if key != "mode")
    variants = {record.number for record in handle_of(compiled).journal}  # one may have two kernels
    assert wants_gradient or not by_ints or len(variants) == 2


@pytest.mark.parametrize("factor", [0.7, 1.3, 1.4, 1 / 3, 2.3, 0.123, 2**0.5])
def test_factors_that_are_no_binary_fraction(factor: float) -> None:
    """float64 gives 62 for 45 * 1.4, 63 for any calculation with 7 / 5."""
    compiled = jitmagic.jit(lambda x: F.interpolate(x, scale_factor=factor), backend="eager")
    sizes = (91, 83, 45, 90, 100, 46, 101, 97, 180, 103, 270, 171, 95, 89)
    for n in sizes:
        x = torch.randn(1, 2, n)
        _alike(compiled(x), F.interpolate(x, scale_factor=factor))
    odd = [n for n in sizes if int(n * factor) != int(Fraction(factor).limit_denominator(9999) * n)]
    assert bool(odd) == (factor in (0.7, 1.4, 2.3))
    assert odd or len(handle_of(compiled).journal) == 2
