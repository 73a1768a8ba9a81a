"""A check like `if not torch.isfinite(h).all()` of computed values is asserted, in one graph. Where
it fails, eager runs the call from its start. Nothing is assumed of inputs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import jitmagic
from jitmagic.api import handle_of

from ..counts import counts_of, eager_of

CALLS = 0


def clamped_layer(x: Tensor) -> Tensor:
    """Check values as DETR's encoder layers do in training."""
    h = F.dropout(x * 2, 0.5)
    for _ in range(2):
        h = torch.tanh(h) + h / x
        if not torch.isfinite(h).all():
            most = torch.finfo(h.dtype).max - 1000
            h = torch.clamp(h, min=-most, max=most)
    return h + 1


def step_is_skipped(x: Tensor) -> Tensor | None:
    global CALLS
    CALLS += 1
    loss = (x / x).sum()
    if torch.isnan(loss) or torch.isinf(loss).any():
        return None
    return loss * 2


def negated(x: Tensor) -> Tensor:
    h = x.log()
    if (~torch.isfinite(h)).any() | h.isnan().any():
        h = torch.nan_to_num(h)
    return h


def written_before(x: Tensor) -> Tensor:
    x.mul_(2)
    y = x.sqrt()
    if y.isnan().any():
        x.sub_(1)
    return y + 1


def of_an_input(x: Tensor) -> Tensor:
    return torch.nan_to_num(x) if torch.isnan(x).any() else x + 1


def of_a_part_of_an_input(x: Tensor) -> Tensor:
    part = x.view(-1)[1:]
    return torch.nan_to_num(x) if not part.isfinite().all() else x + 1


def large_write(x: Tensor, state: Tensor) -> Tensor:
    y = x.sqrt()
    if y.isnan().any():
        y = torch.nan_to_num(y)
    state.add_(1)
    return y


GIVEN = [
    torch.ones(3),
    torch.tensor([1.0, 0.0, 2.0]),
    torch.tensor([-1.0, 3.0, 4.0]),
    torch.ones(3),
]


def seen(fn: Callable[..., Any], x: Tensor, differentiated: bool) -> Any:
    torch.manual_seed(3)
    x = x.clone()
    leaf = x.clone().requires_grad_() if differentiated else x
    result = fn(leaf)
    gradient = torch.autograd.grad(result.sum(), leaf)[0] if differentiated else None
    shown = result if result is None else result.detach()
    return str(shown), str(gradient), str(x), torch.rand(1).item(), CALLS


@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("fn", [clamped_layer, step_is_skipped, negated, written_before])
def test_one_graph_and_eager_where_it_is_not(fn: Callable[..., Any], backend: str) -> None:
    global CALLS
    answers = []
    tagged = jitmagic.jit(fn, backend=backend)
    for run in (fn, tagged):
        CALLS = 0
        answers.append([seen(run, x, fn is clamped_layer) for x in GIVEN])
    assert answers[1] == answers[0]
    assert counts_of(tagged).breaks == 0
    assert not eager_of(tagged)


@pytest.mark.parametrize("fn", [of_an_input, of_a_part_of_an_input])
def test_inputs_may_be_nonfinite(fn: Callable[..., Any]) -> None:
    tagged = jitmagic.jit(fn, backend="eager")
    for x in (*GIVEN, torch.full((3,), torch.nan)):
        assert str(tagged(x)) == str(fn(x))
    assert counts_of(tagged).breaks == 1


def test_large_write_is_undone_when_the_assertion_fails() -> None:
    tagged = jitmagic.jit(large_write, backend="eager")
    state, twin = torch.zeros(1 << 19), torch.zeros(1 << 19)
    for x in GIVEN:
        assert str(tagged(x, state)) == str(large_write(x, twin))
        assert torch.equal(state, twin)
    assert counts_of(tagged).breaks == 0


def test_variant_whose_assertion_fails_often_runs_in_eager() -> None:
    tagged = jitmagic.jit(negated, backend="eager")
    for _ in range(4):
        assert str(tagged(GIVEN[2])) == str(negated(GIVEN[2]))
    with pytest.warns(jitmagic.FallbackWarning, match="keeps going the way"):
        tagged(GIVEN[2])
    assert not any(entry.hits for entry in handle_of(tagged).dispatcher.entries)
    tagged(GIVEN[2])
    assert str(tagged(GIVEN[0])) == str(negated(GIVEN[0]))
