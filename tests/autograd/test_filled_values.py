"""index_fill, and writes where a mask is true, with a tensor that has a gradient: the size of what
torch computes it from is data.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import jitmagic

# What the graph refuses runs as eager, and says so: that it does is not what is looked for here.
pytestmark = pytest.mark.filterwarnings("ignore::jitmagic.errors.FallbackWarning")

Fill = Callable[[Tensor, Tensor, Tensor], Tensor]
FILLS: dict[str, Fill] = {
    "method": lambda x, i, v: x.index_fill(0, i, v),
    "function, last": lambda x, i, v: torch.index_fill(x, dim=-1, index=i, value=v),
    "in place": lambda x, i, v: (x * 1).index_fill_(0, i, v),
    "argument": lambda x, i, v: x.detach().index_fill_(0, i, v),
    "view": lambda x, i, v: (lambda y: (y.view(-1).index_fill_(0, i, v), y)[1])(x * 1),
}
TARGETS: dict[str, Callable[[], Tensor]] = {
    "rows": lambda: torch.arange(12.0).view(4, 3).requires_grad_(),
    "turned": lambda: torch.arange(12.0).view(3, 4).t().requires_grad_(),
    "expanded": lambda: torch.arange(3.0).expand(4, 3),
    "edges": lambda: torch.tensor([[float("nan"), -0.0, float("inf")]] * 4, requires_grad=True),
    "half": lambda: torch.arange(12.0).view(4, 3).bfloat16().requires_grad_(),
    "empty": lambda: torch.ones(0, 3, requires_grad=True),
    "number": lambda: torch.tensor(2.0, requires_grad=True),
}
INDICES = {"one": [2], "twice": [0, 0, 2], "none": [], "negative": [-1, 0], "beyond": [9], "0-d": 0}
VALUES = (3.0, -0.0, float("nan"))


def observed(fill: Fill, target: str, index: list[int] | int, number: float) -> Any:
    x = TARGETS[target]()
    value = torch.tensor(number, dtype=x.dtype, requires_grad=True)
    return _seen(fill, x, torch.tensor(index, dtype=torch.long), value)


def _seen(write: Fill, x: Tensor, place: Tensor, value: Tensor) -> Any:
    try:
        made = write(x, place, value)
        weights = torch.arange(made.numel()).view(made.shape).to(made.dtype)
        leaves = [t for t in (x, value) if t.requires_grad]
        grads = torch.autograd.grad((made * weights).sum(), leaves, allow_unused=True)
    except (RuntimeError, IndexError) as error:
        return type(error), str(error)
    # Text tells -0.0 from 0.0, and nan is like nan.
    return repr((made.detach(), made.stride(), grads, x.detach(), x._version, made._version))


@pytest.mark.parametrize("fill", FILLS)
@pytest.mark.parametrize("target", TARGETS)
def test_filled_values_have_eagers_gradients(fill: str, target: str) -> None:
    for index in INDICES:
        jitmagic.reset()
        compiled = jitmagic.jit(FILLS[fill], backend="aot_eager")
        for number in VALUES:  # it is data
            expected = observed(FILLS[fill], target, INDICES[index], number)
            assert observed(compiled, target, INDICES[index], number) == expected, (index, number)


# A detached view of a leaf that gets a history of its own is a graph break.
@pytest.mark.parametrize("fill", [name for name in FILLS if name != "argument"])
@pytest.mark.filterwarnings("error::jitmagic.errors.FallbackWarning")
def test_filling_and_its_gradient_are_one_graph(fill: str) -> None:
    compiled = jitmagic.jit(FILLS[fill], fullgraph=True)
    for index in ("one", "twice", "none"):
        expected = observed(FILLS[fill], "rows", INDICES[index], 3.0)
        assert observed(compiled, "rows", INDICES[index], 3.0) == expected, index


WRITES: dict[str, Fill] = {
    "method": lambda x, m, v: x.index_put((m,), v),
    "function, accumulating": lambda x, m, v: torch.index_put(x, [m], v, accumulate=True),
    "in place": lambda x, m, v: (x * 1).index_put_((m,), v),
    "argument": lambda x, m, v: x.detach().index_put_((m,), v),
    "statement": lambda x, m, v: (lambda y: (operator.setitem(y, m, v), y)[1])(x * 1),
    "view": lambda x, m, v: (lambda y: (operator.setitem(y.t()[:, :2], m[:, :2], v), y)[1])(x * 1),
}
MASKS = {
    "rows": torch.tensor([True, False, True, True]),
    "no row": torch.zeros(4, dtype=torch.bool),
    "elements": torch.arange(12).view(4, 3) % 2 == 0,
}
PARTS = {"number": (), "one": (1,), "row": (3,), "rows": (1, 3), "each": (2, 3)}


def _written(write: Fill, target: str, mask: Tensor, shape: tuple[int, ...]) -> Any:
    x = TARGETS[target]()
    return _seen(write, x, mask, torch.full(shape, 1.5, dtype=x.dtype, requires_grad=True))


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("target", ["rows", "turned", "expanded", "half"])
def test_values_written_where_a_mask_is_true_have_eagers_gradients(write: str, target: str) -> None:
    for mask, part in itertools.product(MASKS, PARTS):
        jitmagic.reset()
        compiled = jitmagic.jit(WRITES[write], backend="aot_eager")
        expected = _written(WRITES[write], target, MASKS[mask], PARTS[part])
        assert _written(compiled, target, MASKS[mask], PARTS[part]) == expected, (mask, part)


@pytest.mark.parametrize("write", [name for name in WRITES if name not in ("view", "argument")])
@pytest.mark.filterwarnings("error::jitmagic.errors.FallbackWarning")
def test_writing_where_a_mask_is_true_is_one_graph(write: str) -> None:
    compiled = jitmagic.jit(WRITES[write], fullgraph=True)
    for mask, part in (("rows", "row"), ("no row", "rows"), ("elements", "number")):
        expected = _written(WRITES[write], "rows", MASKS[mask], PARTS[part])
        assert _written(compiled, "rows", MASKS[mask], PARTS[part]) == expected, (mask, part)
