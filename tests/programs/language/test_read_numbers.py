"""Python numbers read from tensors are values of the graph if nothing is decided by them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

import jitmagic

from ..counts import counts_of


def returned(x: Tensor) -> tuple[Tensor, float, float, int]:
    return x * 2, x.mean().item(), float(x.max()), int((x > 0).sum())


def in_arithmetic(x: Tensor) -> tuple[Tensor, float]:
    total = x.sum().item()
    return x * total - total / 4, total * 0.5 + 1


def gathered(x: Tensor) -> tuple[list[float], float]:
    seen, running = [], 0.0
    for row in x:
        seen.append(row[:1].abs().sum().item())
        running += seen[-1] / len(x)
    return seen, running


def read_before_a_write(x: Tensor) -> tuple[float, float, Tensor]:
    kept = x.clone()
    first = kept[0, 0].item()
    kept.mul_(3)
    return first, kept[0, 0].item(), kept


def of_a_loss(x: Tensor) -> tuple[Tensor, float]:
    loss = (x.tanh() ** 2).mean()
    return loss, loss.item()


def sliced_by_constants(x: Tensor) -> Tensor:
    span = torch.tensor(min(x.size(0), 2))
    return x[2 - span : 2 + span].sum(0)


def truths(x: Tensor) -> tuple[Tensor, bool, list[bool]]:
    kept = x.clone()
    positive = (kept > 0).all().item()
    rows = [row.isnan().any().item() for row in kept]
    kept.fill_(1)  # what was read is as it was
    return kept, positive, rows


def asserted(x: Tensor) -> Tensor:
    if torch.any(x * 0 == 1).item():  # pytest makes more of an assert than a branch that raises
        raise AssertionError("never")
    if not (x.isnan() | (x < 1e30)).any().item():
        raise ValueError("nor this")
    return x * 2


def tensors_for_factors(x: Tensor) -> tuple[Tensor, ...]:
    rate = x.abs().mean()
    more = torch.addcdiv(x, x, x.abs() + 1, value=-rate)
    return x.add(x, alpha=rate), more, x.clone().addcmul_(x, x, value=rate * 2)


def tensors_of_numbers(x: Tensor) -> tuple[Tensor, ...]:
    """Compute the returns of an episode, the losses of an epoch."""
    returns: list[float] = []
    for reward in x[0].tolist()[::-1]:
        returns.insert(0, reward + 0.9 * (returns[0] if returns else 0.0))
    made = torch.tensor(returns)
    count, mean = int((x > 0).sum()), x.mean().item()
    kinds = torch.tensor([count, 2]), torch.tensor((mean, count, 1.5)), torch.tensor([count + 1])
    return (made - made.mean(), *kinds, torch.tensor([count, 1], dtype=torch.float64))


def tensors_of_tensors(x: Tensor) -> tuple[Tensor, ...]:
    """Stack in the promoted dtype of the tensors, torch's default dtype and int64."""
    total, count, some = x.sum(), (x > 0).sum(), (x > 0).any()
    floats = torch.tensor([total, x[0, 0]]), torch.tensor([[total, 2], [1.5, count]])
    exact = torch.tensor([count, count.int() - 1, True]), torch.tensor([some, False])
    wide = torch.tensor((total, 1), dtype=torch.float64), torch.tensor([total.double(), 1.0])
    kept = torch.tensor([row.max() for row in x])
    kept[0] = -1
    return (*floats, *exact, *wide, kept, torch.tensor([total, count.item(), some]))


WHOLE = [
    tensors_of_numbers, tensors_of_tensors,
    tensors_for_factors, returned, in_arithmetic, gathered, read_before_a_write, of_a_loss,
    sliced_by_constants, truths, asserted,
]  # fmt: skip


def calls(dtype: torch.dtype) -> tuple[Any, ...]:
    values = torch.randn(4, 3, dtype=torch.float64).to(dtype)
    special = torch.tensor([[-0.0, math.inf, 1.0], [math.nan, 2.0, -3.0]] * 2).to(dtype)
    return ((values,), (special,), (values.t().contiguous().t(),), (values[:1].repeat(4, 1),))


@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("function", WHOLE)
def test_storing_and_returning_read_numbers_is_one_graph(
    function: Callable[..., Any], backend: str
) -> None:
    compiled = jitmagic.jit(function, backend=backend, fullgraph=True)
    for dtype in (torch.float32, torch.bfloat16):
        for (x,) in calls(dtype):
            agree(compiled(x), function(x))


def agree(got: Any, wanted: Any) -> None:
    for ours, theirs in zip(tree_leaves(got), tree_leaves(wanted), strict=True):
        assert type(ours) is type(theirs)
        torch.testing.assert_close(ours, theirs, rtol=2e-2, atol=2e-2, equal_nan=True)


def branched(x: Tensor) -> Tensor:
    return x + 1 if x.sum().item() > 0 else x - 1


def a_text_as_key(x: Tensor) -> tuple[dict[str, int], Tensor]:
    return {f"{x.sum().item():.3f}": 1}, x * 2


def branched_on_a_bool(x: Tensor) -> Tensor:
    return x + 1 if (x > 0).any().item() else x - 1


def computed_with_a_bool(x: Tensor) -> tuple[Tensor, object]:
    some = (x > 0).any().item()
    return x * some, [not some, some + 1, f"{some}", some is True, {some: 1}, "ab"[some]]


@pytest.mark.parametrize(
    "function", [branched, a_text_as_key, branched_on_a_bool, computed_with_a_bool]
)
def test_use_of_the_value_breaks_at_the_read(function: Callable[..., Any]) -> None:
    compiled = jitmagic.jit(function)
    for x in (torch.ones(4, 3), -torch.ones(4, 3), torch.randn(4, 3)):
        for ours, theirs in zip(tree_leaves(compiled(x)), tree_leaves(function(x)), strict=True):
            assert str(ours) == str(theirs)
    with pytest.raises(jitmagic.Unsupported, match="turns tensor data"):
        jitmagic.jit(function, fullgraph=True)(torch.ones(4, 3))


def test_several_elements_raise_as_in_eager() -> None:
    compiled = jitmagic.jit(lambda x: (x * 2).item())
    with pytest.raises(RuntimeError, match="cannot be converted to Scalar"):
        compiled(torch.ones(2))
    assert counts_of(compiled).breaks


# -- what only the graph can tell to raise nothing -------------------------------------------------


def divided_by_one(x: Tensor) -> tuple[Tensor, float]:
    total = x.sum().item()
    return x * 2, 1.0 / total


def a_power_of_one(x: Tensor) -> tuple[Tensor, float]:
    return x + 1, 2.5 ** x.max().item()


def a_root_of_one(x: Tensor) -> Tensor:
    return x * math.sqrt(x.sum().item() + 4)


def a_factor_in_place(x: Tensor) -> Tensor:
    return x.clone().add_(x, alpha=1 / max(1.0, x.norm().item()))


def ints_of_any_size(x: Tensor) -> tuple[int, float]:
    count = int((x > 0).sum()) + int(x.sum())
    return count * 3, count / 2


def checked_numbers(x: Tensor) -> tuple[Tensor, bool]:
    count = int((x > 0).sum())
    torch._check(count > 0, lambda: "nothing is positive")
    torch._check(count <= 3)
    return x[:count] * 2, count > 1


RAISING = [
    divided_by_one, a_power_of_one, a_root_of_one, a_factor_in_place, ints_of_any_size,
    checked_numbers,
]  # fmt: skip


def outcome(function: Callable[..., Any], x: Tensor) -> Any:
    try:
        return function(x)
    except Exception as error:
        return type(error), str(error)


@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("function", RAISING, ids=lambda function: function.__name__)
def test_operations_that_may_raise_are_one_graph_and_raise(
    function: Callable[..., Any], backend: str
) -> None:
    """Divide by zero, overflow, take complex powers, exceed a dtype."""
    run = jitmagic.jit(function, backend=backend)
    for x in (
        torch.ones(3),
        torch.arange(4.0),
        torch.zeros(3),
        -torch.ones(8),
        1e35 * torch.ones(2),
    ):
        ours, theirs = outcome(run, x), outcome(function, x)
        if isinstance(theirs, tuple) and isinstance(theirs[0], type):
            assert ours == theirs
        else:
            agree(ours, theirs)
    run = jitmagic.jit(function, backend=backend)
    run(torch.ones(3))
    assert counts_of(run).breaks == 0


def test_error_that_the_program_handles() -> None:
    def guarded(x: Tensor) -> Any:
        try:
            return 1 / x.sum().item()
        except ZeroDivisionError:
            return x + 1

    run = jitmagic.jit(guarded)
    for x in (torch.zeros(2), torch.ones(2), torch.zeros(2)):
        agree(run(x), guarded(x))
