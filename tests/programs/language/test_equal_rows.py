"""Statistics of rows of equal or nearly equal numbers, with an offset or an outlier, are as near to
float64 as eager's. `rsqrt(eps)` turns half an ulp of the mean of 1000.1 into a hundredth.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.covering import covered, covering
from tests.programs.joined import Joined, gradients, joined

Program = Callable[[Tensor], Tensor]


def _affine(x: Tensor) -> Tensor:
    n = x.shape[-1]
    scale = torch.linspace(-1, 1, n, dtype=x.dtype)
    return F.layer_norm(x, (n,), scale, scale * 3)


def _stored_too(x: Tensor) -> Tensor:
    doubled = x + x
    return torch.cat([doubled, F.layer_norm(doubled, x.shape[-1:])])


PROGRAMS: dict[str, Program] = {
    "layer norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "layer norm with parameters": _affine,
    "layer norm of two dimensions": lambda x: F.layer_norm(x.unflatten(0, (2, -1)), x.shape[-1:]),
    "layer norm of what is stored too": _stored_too,
    "layer norm behind a softmax": lambda x: F.layer_norm(x.softmax(-1) + x, x.shape[-1:]),
    "layer norm of columns": lambda x: F.layer_norm(x.t().contiguous().t(), x.shape[-1:]),
    "group norm": lambda x: F.group_norm(x.unflatten(0, (2, -1)), 2),
    "instance norm": lambda x: F.instance_norm(x.unflatten(0, (2, -1))),
    "batch norm": lambda x: F.batch_norm(x.t(), None, None, training=True),
    "batch norm of columns": lambda x: F.batch_norm(x, None, None, training=True),
    "var": lambda x: x.var(-1),
    "var of columns": lambda x: x.t().contiguous().var(0),
    "std": lambda x: x.std(-1),
    "mean beside var": lambda x: torch.var_mean(x, -1)[1],
}


def kinds(length: int, dtype: torch.dtype) -> dict[str, Tensor]:
    """Return four rows of each kind."""
    torch.manual_seed(length)
    step = torch.finfo(dtype).eps
    random = torch.randn(4, length)
    edge = random.clone()
    edge[:2, 0] = edge[2:, -1] = 3e4
    made = {
        "equal": torch.tensor([[1000.1], [-0.3], [3e4], [1e-3]]).expand(4, length),
        "nearly equal": 1000.1 * (1 + torch.randint(0, 3, (4, length)) * step),
        "far from 0": random + torch.tensor([[100.0], [-1000.0], [10.0], [5000.0]]),
        "an outlier at an end": edge,
    }
    return {kind: x.to(dtype).contiguous() for kind, x in made.items()}


def assert_near(
    ours: Tensor, eager: Tensor, exact: Tensor, where: object, slack: float = 0.0
) -> None:
    """Return the tolerance: four times eager's error, and a few roundings."""
    error, of_eager = ((part.double() - exact).abs().max() for part in (ours, eager))
    allowed = 4 * of_eager + 20 * torch.finfo(eager.dtype).eps * exact.abs().max() + slack
    assert error <= allowed, (where, error, of_eager)


def assert_rows_near(compiled: Program, program: Program, length: int, dtype: torch.dtype) -> None:
    for kind, x in kinds(length, dtype).items():
        # In float64 eager is its own judge, and may round a mean otherwise: rows deviate by 1.
        own_judge = dtype is torch.float64 and kind == "far from 0"
        slack = 4 * torch.finfo(dtype).eps * x.abs().max().item() if own_judge else 0.0
        assert_near(compiled(x), program(x), program(x.double()), (kind, length), slack)


AXES = {
    "name": PROGRAMS,
    "tier": ["cpp", "blocks", "numba"],
    "dtype": [torch.float32, torch.float64, torch.bfloat16, torch.float16],
}
ROWS = covering(*AXES.values())


@cache
def together(names: tuple[str, ...], tier: str, dynamic: bool, *_: object) -> Joined:
    """Compile once for each dtype and length."""
    programs = [PROGRAMS[name] for name in names]
    return joined(programs, dynamic=dynamic, options={"cpu_tier": tier})


def part_of(name: str, names: tuple[str, ...], *how: Any) -> Program:
    return lambda x: together(names, *how)(x)[1][names.index(name)]


@covered(**AXES)
def test_each_row_is_as_exact_as_in_eager(name: str, tier: str, dtype: torch.dtype) -> None:
    names = tuple(other for other, *how in ROWS if how == [tier, dtype])
    compiled = part_of(name, names, tier, False, dtype)
    assert_rows_near(compiled, PROGRAMS[name], 33, dtype)


@pytest.mark.parametrize("name", PROGRAMS)
def test_rows_of_any_length(name: str) -> None:
    for length in (2, 768, 9001):
        compiled = part_of(name, tuple(PROGRAMS), "cpp", False, length)
        assert_rows_near(compiled, PROGRAMS[name], length, torch.float32)


NORMS = [name for name in PROGRAMS if "norm" in name]


@cache
def gradients_together() -> tuple[Tensor, ...]:
    x = kinds(96, torch.float32)["equal"].requires_grad_()
    inputs, results = joined(PROGRAMS[name] for name in NORMS)(x)
    return gradients(results, inputs)


@pytest.mark.parametrize("name", NORMS)
def test_gradients_of_equal_rows(name: str) -> None:
    """Compare with eager's gradient of a constant row, where xhat is 0."""

    def of_eager(given: Tensor) -> Tensor:
        x = given.requires_grad_()
        return gradients([PROGRAMS[name](x)], [x])[0]

    x, ours = kinds(96, torch.float32)["equal"], gradients_together()[NORMS.index(name)]
    assert_near(ours, of_eager(x.clone()), of_eager(x.double()), name)


@pytest.mark.parametrize("name", PROGRAMS)
def test_one_kernel_for_all_sizes(name: str) -> None:
    compiled = part_of(name, tuple(PROGRAMS), "cpp", True)
    for length in (5, 40, 300):
        assert_rows_near(compiled, PROGRAMS[name], length, torch.float32)
