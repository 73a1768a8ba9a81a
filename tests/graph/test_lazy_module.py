"""LazyModule generates the Python of a graph when it is first run or read, and not before."""

from __future__ import annotations

import copy
import inspect
import pickle

import pytest
import torch
from torch import Tensor
from torch.fx import GraphModule, symbolic_trace

import jitmagic
from jitmagic.graph.lazy_module import LazyModule


def lazy() -> LazyModule:
    traced = symbolic_trace(lambda x: torch.relu(x * 2 + 1))
    return LazyModule(torch.nn.Module(), traced.graph, "Lazy")


X = torch.tensor([-2.0, 0.5, 3.0])
WANTED = torch.relu(X * 2 + 1)


@pytest.mark.parametrize(
    "ask",
    [
        lambda gm: gm(X),
        lambda gm: gm.forward(X),
        lambda gm: pickle.loads(pickle.dumps(gm))(X),
        lambda gm: copy.copy(gm)(X),
        lambda gm: copy.deepcopy(gm)(X),
        lambda gm: torch.fx.Interpreter(gm).run(X),
        lambda gm: torch.jit.trace(gm, (X,))(X),
        lambda gm: WANTED if "relu" in gm.code and "relu" in str(gm) else None,
    ],
)
def test_code_is_generated_on_demand(ask) -> None:
    module = lazy()
    assert not module._written
    assert torch.equal(ask(module), WANTED)


def test_edits_take_effect_after_recompile() -> None:
    module = lazy()
    forward = module.forward
    assert torch.equal(module(X), WANTED)
    (relu,) = (node for node in module.graph.nodes if node.target is torch.relu)
    relu.target = torch.neg
    module.recompile()
    wanted = torch.neg(X * 2 + 1)
    assert torch.equal(module(X), wanted) and torch.equal(forward(X), wanted)
    assert "neg" in module.code


def test_user_backend_receives_generated_code() -> None:
    given: list[GraphModule] = []

    def backend(gm: GraphModule, inputs: list[Tensor]):
        given.append(gm)
        return gm.forward

    compiled = jitmagic.jit(lambda x: torch.relu(x * 2 + 1), backend=backend)
    assert torch.equal(compiled(X), WANTED)
    assert list(inspect.signature(given[0].forward).parameters) == ["x"]


@pytest.mark.parametrize(("backend", "times"), [("native", 0), ("eager", 1)])
def test_code_is_generated_only_where_it_runs(monkeypatch, backend: str, times: int) -> None:
    written: list[GraphModule] = []
    recompile = GraphModule.recompile
    monkeypatch.setattr(GraphModule, "recompile", lambda gm: (written.append(gm), recompile(gm))[1])
    compiled = jitmagic.jit(lambda x: torch.relu(x * 2 + 1).sum(), backend=backend)
    x = X.clone().requires_grad_()
    compiled(x).backward()
    assert len(written) == times
