"""The sweep of samples with other sizes: what it changes, and operators that need one compile."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

pytest.importorskip("expecttest", reason="torch's database of samples imports it")

from .resized import resized, tried  # noqa: E402
from .trials import OPERATORS, Trial, name_of, trials  # noqa: E402

_ONCE = (
    *("add", "log2", "cumsum", "softmax", "sum", "amax", "where", "cat", "stack", "mm"),
    *("nn.functional.linear", "nn.functional.gelu", "gather", "index_select", "tril"),
)


def _samples(name: str) -> list[Trial]:
    named = [op for op in OPERATORS if name_of(op) == name]
    return [trial for op in named for trial in trials(op, "call", torch.float32, 4)]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", _ONCE)
def test_one_compile_serves_another_size(name: str) -> None:
    pairs = [(one, other) for one in _samples(name) if (other := resized(one)) is not None]
    assert pairs
    for trial, other in pairs:
        assert tried(trial, other, "aot_eager") == (None, None), other.label


def test_sizes_that_are_equal_change_alike() -> None:
    trial = Trial(torch.mm, (torch.rand(3, 5), torch.rand(5, 2)))
    other = resized(trial)
    assert other is not None
    assert [tuple(t.shape) for t in other.arguments] == [(3, 6), (6, 2)]


@pytest.mark.skipif(
    torch.__version__.startswith("2.11"), reason="its linalg.ldl_solve writes beyond its memory"
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64], ids=str)
def test_pivots_are_those_of_the_sample(dtype: torch.dtype) -> None:
    """A pair of them may not lose its half, and none may be beyond the matrix."""
    matrix, pivots = torch.eye(4, dtype=dtype), torch.tensor([1, 2, -3, -3], dtype=torch.int32)
    assert resized(Trial(torch.linalg.ldl_solve, (matrix, pivots, matrix))) is None
    other = resized(Trial(torch.linalg.ldl_solve, (matrix, pivots, matrix[:, :3])))
    assert other is not None
    assert other.arguments[1].tolist() == pivots.tolist()


def test_what_differs_is_told() -> None:
    trial = Trial(lambda x: x * 2, (torch.rand(3),))
    other = replace(trial, arguments=(torch.rand(4),))
    assert tried(trial, other, "eager") == (None, None)
    by_size = Trial(lambda x: x * hash(x.shape[0]), (torch.rand(3),))
    again = tried(by_size, replace(by_size, arguments=(torch.rand(4),)), "eager")[1]
    assert again is not None
    assert "arguments[0].shape[0] is a constant" in again
