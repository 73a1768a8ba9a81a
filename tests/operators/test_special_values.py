"""Elementwise operators on nan, infinities, -0.0, denormals and the largest numbers, in two dtypes.

All of them: `python -m tests.operators.special_values`.
"""

from __future__ import annotations

import pytest
import torch

from . import special_values


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32], ids=["float32", "int32"])
@pytest.mark.parametrize("arity", [1, 2], ids=["unary", "binary"])
def test_the_numbers_are_eagers(arity: int, dtype: torch.dtype) -> None:
    found = special_values.chunks(arity, dtype, "cpu")
    wrong = [special_values.difference(ops, arity, dtype, "cpu") for ops in found]
    assert not sum(wrong, []), "\n".join(sum(wrong, []))
