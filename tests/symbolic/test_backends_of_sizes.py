"""A user's backend gets one graph for all sizes, with SymInts among its inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch.fx import GraphModule
from torch.nn import functional as F

import jitmagic
from tests.covering import covered

SIZES = (9, 5, 16, 34, 12, 7, 20)


class Backend:
    """Runs the graph as it is, and notes what it was called with."""

    def __init__(self, look: Callable[[torch.SymInt], Any] = lambda size: None) -> None:
        self.look, self.examples, self.graphs = look, list[Sequence[Any]](), list[GraphModule]()

    def __call__(self, gm: GraphModule, examples: Sequence[Any]) -> Callable[..., Any]:
        self.examples.append(examples)
        self.graphs.append(gm)
        for example in examples:
            if isinstance(example, torch.SymInt):
                self.look(example)
        return gm.forward


def normalised(x: torch.Tensor, w: torch.Tensor, n: int) -> Any:
    return F.layer_norm(x @ w, (4,)).relu() / x.shape[0] + n


def reshaped(x: torch.Tensor, w: torch.Tensor, n: int) -> Any:
    return x.view(x.shape[0] * 2, -1).sum(1), x[: n // 2], x.shape[0] * 3


def made(x: torch.Tensor, w: torch.Tensor, n: int) -> Any:
    rows = torch.arange(x.shape[0])[:, None] * torch.ones(n, 1).sum()
    return torch.cat([x, rows.expand(-1, 2).to(x)], 1) @ torch.cat([w, w[:2]])


def written(x: torch.Tensor, w: torch.Tensor, n: int) -> Any:
    x = x * 1
    x[n // 3 :] = 0.5
    with torch.no_grad():
        scale = x.square().mean()
    return (x @ w) * scale


PROGRAMS = (normalised, reshaped, made, written)


def check(fn: Callable[..., Any], jitted: Callable[..., Any], size: int, grad: bool) -> None:
    torch.manual_seed(size)
    x, w = torch.randn(size, 6, dtype=torch.float64), torch.randn(6, 4, dtype=torch.float64)
    answers = []
    for one in (jitted, fn):
        weight, rows = w.clone().requires_grad_(grad), x.clone().requires_grad_(grad)
        result = one(rows, weight, size)
        parts = result if isinstance(result, tuple) else (result,)
        tensors = [part for part in parts if isinstance(part, torch.Tensor)]
        given = (rows, weight) if grad else ()
        loss = sum(part.square().sum() for part in tensors)
        grads = torch.autograd.grad(loss, given, allow_unused=True) if grad else ()
        answers.append((*parts, *grads))
    torch.testing.assert_close(*answers)


@covered(program=PROGRAMS, dynamic=(True, None), grad=(True, False))
def test_one_graph_serves_all_sizes(
    program: Callable[..., Any], dynamic: bool | None, grad: bool
) -> None:
    backend = Backend()
    jitted = jitmagic.jit(program, backend=backend, dynamic=dynamic)
    for size in SIZES:
        check(program, jitted, size, grad)
    assert len(backend.examples) == (1 if dynamic else 2)
    examples = backend.examples[-1]
    assert {torch.SymInt, torch.Tensor} == {type(example) for example in examples}
    nodes = list(backend.graphs[-1].graph.find_nodes(op="placeholder"))
    kinds = [torch.SymInt if node.type is torch.SymInt else torch.Tensor for node in nodes]
    assert kinds == [type(example) for example in examples]


def test_decisions_of_the_backend_are_guards() -> None:
    backend = Backend(lambda size: bool(size > 10))
    jitted = jitmagic.jit(lambda x: x.relu() * x.shape[0], backend=backend, dynamic=True)
    for size in SIZES:
        x = torch.randn(size, 6)
        assert torch.equal(jitted(x), x.relu() * size)
    assert len(backend.examples) == 2


def test_sizes_read_as_ints_are_constants_of_a_graph_for_each_value() -> None:
    backend = Backend(int)
    jitted = jitmagic.jit(lambda x: x.relu() * x.shape[0], backend=backend, dynamic=True)
    for size in (9, 5, 9, 16):
        x = torch.randn(size, 6)
        assert torch.equal(jitted(x), x.relu() * size)
    # The backend is called again after each of the two reads, then once for each number of rows.
    assert [len(examples) for examples in backend.examples] == [3, 2, 1, 1, 1]


def test_a_backend_that_raises_raises() -> None:
    def refuse(gm: GraphModule, examples: Sequence[Any]) -> Any:
        raise LookupError("no such kernel")

    jitted = jitmagic.jit(lambda x: x.relu(), backend=refuse, dynamic=True)
    with pytest.raises(LookupError, match="no such kernel"):
        jitted(torch.randn(5, 6))


def test_ints_are_symbols_from_the_first_call() -> None:
    backend = Backend()
    jitted = jitmagic.jit(lambda x, n: x[:n] * n, backend=backend, dynamic=True)
    for size in (4, 7, 2, 9):
        x = torch.randn(12, 6)
        assert torch.equal(jitted(x, size), x[:size] * size)
    assert len(backend.examples) == 1
