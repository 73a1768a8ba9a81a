"""Dual tensors: a graph knows no tangents, so what carries one is computed as eager does."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd import forward_ad

import jitmagic
from jitmagic.guards.check import check
from jitmagic.records import COMPILED
from jitmagic.trace.result import Trace


def square(x: Tensor, y: Tensor) -> Tensor:
    return x * x + y


def pushed_forward(function: object, x: Tensor, tangent: Tensor) -> Tensor | None:
    with forward_ad.dual_level():
        made = function(forward_ad.make_dual(x, tangent), x)  # type: ignore[operator]
        found: Tensor | None = forward_ad.unpack_dual(made).tangent
        return found


def test_tangents_of_inputs_reach_the_results() -> None:
    compiled, x, tangent = jitmagic.jit(square), torch.randn(3), torch.randn(3)
    for _ in range(2):
        assert torch.equal(pushed_forward(compiled, x, tangent), 2 * x * tangent)


def test_what_was_compiled_for_plain_tensors_is_not_used_for_dual_ones() -> None:
    compiled, x, tangent = jitmagic.jit(square), torch.randn(3), torch.randn(3)
    for _ in range(2):
        compiled(x, x)
        assert torch.equal(pushed_forward(compiled, x, tangent), 2 * x * tangent)
        assert pushed_forward(compiled, x.requires_grad_(), tangent) is not None
        x = x.detach()


def test_a_call_within_a_level_is_compiled_where_no_tensor_is_dual() -> None:
    compiled, x = jitmagic.jit(square), torch.randn(3)
    with forward_ad.dual_level():
        assert torch.equal(compiled(x, x), square(x, x))
    handle = jitmagic.api.handle_of(compiled)
    assert handle.outcome == COMPILED
    traced = handle.journal.records[0].result("trace")
    assert isinstance(traced, Trace)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, x)
        snapshot = handle.original.snapshot((dual, x))
        assert check(traced.guards, snapshot) is not None
        assert not any(entry.check((dual, x)) for entry in handle.dispatcher.entries)
        assert any(entry.check((x, x)) for entry in handle.dispatcher.entries)
