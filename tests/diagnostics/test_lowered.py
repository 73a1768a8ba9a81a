"""lower(): every stage as text, costs that can be counted by hand, and no call of the user's."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import jitmagic
from jitmagic import extend
from jitmagic.diagnostics.lowered import Cost


def product(x: Tensor, y: Tensor) -> Tensor:
    return (x @ y).relu()


X, Y = torch.randn(8, 16), torch.randn(16, 4)


def test_every_stage_is_text() -> None:
    low = jitmagic.lower(product)(X, Y)
    assert "relu" in low.as_text("torch")
    assert "torch.ops.aten.mm" in low.as_text("aten")
    assert "for" in low.as_text("loops")
    assert 'extern "C"' in low.as_text("cpp")
    assert low.as_text("triton") == ""
    with pytest.raises(ValueError, match="known: torch"):
        low.as_text("ptx")
    assert "flops" in str(low)
    assert "<script" not in low._repr_html_()


def test_costs_are_those_counted_by_hand() -> None:
    low = jitmagic.lower(lambda x, y: x * y + 1)(torch.ones(10), torch.ones(10))
    assert low.cost() == Cost(20, 3 * 40)
    assert repr(low.cost()) == "20 flops, 120 B read and written"
    memory = low.compile().memory()
    assert (memory.inputs, memory.outputs, memory.workspace) == (80, 40, 0)
    told = "inputs 80 B, results and saved tensors 40 B, workspace 0 B"
    assert repr(memory) == told
    assert repr(low.compile()).startswith("<compiled <lambda>: call it")
    mm = jitmagic.lower(lambda x, y: x @ y)(X, Y)
    assert mm.cost().flops == 2 * 8 * 16 * 4


def test_nothing_runs_and_what_is_compiled_is_called() -> None:
    calls: list[int] = []

    def writes(x: Tensor) -> Tensor:
        calls.append(1)
        x.add_(1)
        return x * 2

    x = torch.zeros(3)
    low = jitmagic.lower(writes)(x)
    assert not calls
    assert torch.equal(x, torch.zeros(3))
    assert torch.equal(low.compile()(x), torch.full((3,), 2.0))
    assert calls == [1]


def test_modules_and_the_backward() -> None:
    low = jitmagic.lower(nn.Linear(4, 2))(torch.ones(3, 4))
    assert low.as_text("aten").count("def forward") == 2
    wanted = nn.Linear(4, 2)
    torch.testing.assert_close(
        jitmagic.lower(wanted)(X[:, :4]).compile()(X[:, :4]), wanted(X[:, :4])
    )


def test_what_is_not_compiled_says_why() -> None:
    def looks(x: Tensor) -> object:
        return locals()

    low = jitmagic.lower(looks)(torch.ones(2))
    assert "runs as eager" in str(low)
    assert low.as_text("cpp") == ""


def test_cost_of_an_operator_is_the_registered_one() -> None:
    library = torch.library.Library("jitmagic_cost", "FRAGMENT")
    library.define("same(Tensor x) -> Tensor")
    same = torch.ops.jitmagic_cost.same.default

    def cost(x: Tensor) -> int:
        return 100 * x.numel()

    with extend.register_operator(same, shape=torch.empty_like, cost=cost):
        library.impl("same", torch.clone, "CompositeExplicitAutograd")
        assert jitmagic.lower(lambda x: same(x))(torch.ones(4, 6)).cost().flops == 2400
