"""Zeros have eager's signs: the choice among equal operands of a maximum, sums of one element,
softshrink.

ATen's vector code and its scalar code differ, so sizes are below, at and beyond one register.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import jitmagic
from jitmagic.api import handle_of

SIZES = (3, 37)
OPERATIONS = {
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "fmax": torch.fmax,
    "fmin": torch.fmin,
    "clamp by a lower tensor": lambda a, b: torch.clamp(a, min=b),
    "clamp by an upper tensor": lambda a, b: torch.clamp(a, max=b),
    "clamp by two tensors": lambda a, b: torch.clamp(a, b, b),
    "clamp by a 0-dim tensor": lambda a, b: torch.clamp(a, min=b[0]),
    "clamp by two 0-dim tensors": lambda a, b: torch.clamp(a, b[0], b[0]),
    "clamp by numbers": lambda a, b: a.clamp(0.0, 0.0),
    "repeated rows": lambda a, b: torch.maximum(a.expand(3, -1).contiguous(), b),
    "rows with gaps": lambda a, b: torch.minimum(a.expand(3, -1).contiguous()[:, 1:], b[1:]),
    "steps of two": lambda a, b: torch.maximum(a[::2], b[::2]),
    "transposed": lambda a, b: torch.maximum(a.expand(3, -1).t(), b.expand(3, -1).t()),
    "softshrink": lambda a, b: F.softshrink(a - 0.1),
    "hardshrink": lambda a, b: F.hardshrink(a),
    "sum of one": lambda a, b: a[:, None].sum(1),
    "mean of one": lambda a, b: a[None].mean(0),
    "mean": lambda a, b: (a * 0 - 0.0).mean(),
    "relu": lambda a, b: F.relu(a),
}


def _pairs(size: int, dtype: torch.dtype) -> list[tuple[torch.Tensor, torch.Tensor]]:
    positive, mixed = torch.zeros(size, dtype=dtype), torch.zeros(size, dtype=dtype)
    mixed[::3] = -0.0
    return [(positive, -positive), (-positive, positive), (mixed, mixed.flip(0))]


def _all(*tensors: torch.Tensor) -> list[torch.Tensor]:
    pairs = zip(tensors[::2], tensors[1::2], strict=True)
    return [operation(a, b) for a, b in pairs for operation in OPERATIONS.values()]


def _differing(made: list[torch.Tensor], wanted: list[torch.Tensor]) -> list[str]:
    names = list(OPERATIONS) * (len(made) // len(OPERATIONS))
    return [
        name
        for name, one, other in zip(names, made, wanted, strict=True)
        if not (torch.equal(one.signbit(), other.signbit()) and torch.equal(one, other))
    ]


@pytest.mark.parametrize(
    ("tier", "dtype"),
    [
        ("cpp", torch.float32),
        ("cpp", torch.float64),
        ("cpp", torch.bfloat16),
        ("numba", torch.float32),
    ],
)
def test_zeros_of_each_operation_have_eager_signs(tier: str, dtype: torch.dtype) -> None:
    calls = [_pairs(size, dtype) for size in SIZES]
    compiled = jitmagic.jit(_all, options={"cpu_tier": tier, "dynamic": False})
    for pairs in zip(*calls, strict=True):
        given = [tensor for pair in pairs for tensor in pair]
        assert _differing(compiled(*given), _all(*given)) == []
    (record,) = handle_of(compiled).journal.records
    _, source = record.result("forward: render")
    assert source.language == tier


def test_zeros_have_eager_signs_at_sizes_that_vary() -> None:
    compiled = jitmagic.jit(_all, options={"dynamic": True})
    for size in (37, 70, 5, 16, 48, 9):
        for given in _pairs(size, torch.float32):
            assert _differing(compiled(*given), _all(*given)) == [], size


BOUNDS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "lower": lambda x: x.clamp(min=math.nan),
    "upper": lambda x: x.clamp(max=math.nan),
    "both": lambda x: x.clamp(math.nan, math.nan),
    "one of two": lambda x: x.clamp(math.nan, 1.0),
    "clamp_min": lambda x: torch.clamp_min(x, math.nan),
}


def test_a_nan_bound_follows_the_torch_version() -> None:
    """Until torch 2.11 a single nan bound left x unchanged."""
    compiled = jitmagic.jit(lambda x: [bound(x) for bound in BOUNDS.values()])
    for dtype in (torch.float32, torch.bfloat16, torch.int32):
        x = torch.arange(70).to(dtype)
        for made, bound in zip(compiled(x), BOUNDS.values(), strict=True):
            torch.testing.assert_close(made, bound(x), rtol=0, atol=0, equal_nan=True)
