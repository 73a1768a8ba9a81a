"""`torch.compile(fn, backend="jitmagic")`: found by name, right, and compiled by jitmagic."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from importlib.metadata import entry_points
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from jitmagic.api import handles
from jitmagic.frame.handle import Handle
from jitmagic.integrations.torch_compile import jitmagic_backend


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def graphs_compiled() -> set[Handle]:
    """The graphs that Dynamo handed over and jitmagic compiled."""
    return {each for each in handles() if each.name == "forward" and each.dispatcher.entries}


@pytest.mark.skipif(
    not entry_points(group="torch_dynamo_backends", name="jitmagic"),
    reason="jitmagic is not installed: its folder is on the path",
)
def test_the_name_is_registered() -> None:
    assert "jitmagic" in torch._dynamo.list_backends()
    run = torch.compile(lambda x: x.sin() + 1, backend="jitmagic")
    assert torch.equal(run(torch.ones(3)), torch.ones(3).sin() + 1)


def pointwise(x: Tensor) -> Tensor:
    return torch.relu(x * x + 2).sum(-1)


def branches(x: Tensor) -> Tensor:
    y = x.cos()
    if y.sum() > 0:
        return y * 2
    return y - 1


def writes(x: Tensor) -> Tensor:
    x.add_(1)
    return x.view(-1) * 2


PROGRAMS: list[Callable[[Tensor], Tensor]] = [pointwise, branches, writes]


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("program", PROGRAMS)
def test_results_and_writes_are_those_of_eager(
    program: Callable[[Tensor], Tensor], dynamic: bool | None
) -> None:
    run = torch.compile(program, backend=jitmagic_backend, dynamic=dynamic)
    for rows in (3, 3, 5, 8, 1, 0):
        x = torch.randn(rows, 4)
        y = x.clone()
        torch.testing.assert_close(run(x), program(y))
        assert torch.equal(x, y)


def test_sizes_that_dynamo_made_symbols_are_one_variant() -> None:
    run = torch.compile(pointwise, backend=jitmagic_backend, dynamic=True)
    before = graphs_compiled()
    for rows in (3, 5, 8, 13):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(run(x), pointwise(x))
    (graph,) = graphs_compiled() - before
    assert len(graph.dispatcher.entries) == 1


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam])
def test_training_is_eagers(optimizer: Any) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 3)).double()
    plain = copy.deepcopy(model)
    run = torch.compile(model, backend=jitmagic_backend)
    steps = [(run, optimizer(model.parameters(), lr=0.01))]
    steps.append((plain, optimizer(plain.parameters(), lr=0.01)))
    for rows in (32, 32, 8, 32):
        x, target = torch.randn(rows, 8).double(), torch.randint(0, 3, (rows,))
        for forward, update in steps:
            update.zero_grad()
            nn.functional.cross_entropy(forward(x), target).backward()
            update.step()
    for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs)
    assert graphs_compiled()


def test_options_of_jit_are_taken_and_checked() -> None:
    known = set(handles())
    run = torch.compile(pointwise, backend=jitmagic_backend, options={"fuse": False})
    run(torch.randn(3, 4))
    assert [handle.options.fuse for handle in set(handles()) - known] == [False]
    wrong = torch.compile(pointwise, backend=jitmagic_backend, options={"fused": False})
    with pytest.raises(Exception, match="unknown option 'fused'"):
        wrong(torch.randn(3, 4))
