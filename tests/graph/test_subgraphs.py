"""Graphs are split where gradients between their results may be asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from jitmagic.errors import CompileFailed
from jitmagic.graph.builder import GraphBuilder
from jitmagic.graph.subgraphs import Split, split_into_subgraphs
from jitmagic.spec import TensorSpec

Build = Callable[[GraphBuilder, Any], list[Any]]


def split_of(build: Build, requires_grad: bool = True) -> tuple[Split | None, Any]:
    builder = GraphBuilder(grad_enabled=True)
    spec = TensorSpec((4, 4), (4, 1), torch.float32, torch.device("cpu"), requires_grad)
    for node in build(builder, builder.placeholder("x", spec)):
        builder.output(node)
    module, _ = builder.finish("f")
    return split_into_subgraphs(module), module


def run(split: Split, *inputs: torch.Tensor) -> list[torch.Tensor]:
    held: list[Any] = list(inputs)
    for subgraph in split.subgraphs:
        outputs = subgraph.graph(*(held[slot] for slot in subgraph.inputs))
        assert len(outputs) == subgraph.outputs
        held.extend(outputs)
        for slot in subgraph.dead:
            held[slot] = None
    return [held[slot] for slot in split.outputs]


def dependent(b: GraphBuilder, x: Any) -> list[Any]:
    beside = b.call(torch.exp, (x,))
    hidden = b.call(torch.tanh, (x,))
    return [hidden, b.call(torch.mul, (b.call(torch.sin, (hidden,)), beside))]


def chunks(b: GraphBuilder, x: Any) -> list[Any]:
    first, second = b.call("chunk", (b.call(torch.sin, (x,)), 2))
    return [first, b.call(torch.cos, (first,)), b.call(torch.mul, (first, second))]


def written(b: GraphBuilder, x: Any) -> list[Any]:
    hidden = b.call(torch.tanh, (x,))
    b.call("mul_", (hidden, 2.0))
    return [hidden, b.call(torch.sin, (hidden,))]


def two_beside(b: GraphBuilder, x: Any) -> list[Any]:
    mean, spread = b.call(torch.sin, (x,)), b.call(torch.cos, (x,))
    return [b.call(torch.mul, (mean, b.call(torch.exp, (spread,)))), mean, spread]


@pytest.mark.parametrize("build", [dependent, chunks, written, two_beside])
def test_a_result_that_another_is_computed_from_ends_a_subgraph(build: Build) -> None:
    split, module = split_of(build)
    assert split is not None and len(split.subgraphs) == 2
    x = torch.randn(4, 4)
    for got, want in zip(run(split, x), module(x), strict=True):
        assert torch.equal(got, want)


def test_values_are_released_after_their_last_subgraph() -> None:
    split, _ = split_of(dependent)
    assert split is not None
    second = split.subgraphs[1]
    assert second.inputs == (1, 2) and second.dead == (1,)  # exp(x); tanh(x) is a result


def apart(b: GraphBuilder, x: Any) -> list[Any]:
    return [b.call(torch.sin, (x,)), b.call(torch.cos, (x,))]


def detached(b: GraphBuilder, x: Any) -> list[Any]:
    hidden = b.call(torch.sin, (x,))
    return [hidden, b.call(torch.cos, (b.call("detach", (hidden,)),))]


def written_later(b: GraphBuilder, x: Any) -> list[Any]:
    hidden = b.call(torch.exp, (x,))
    view = b.call("view", (hidden, 16))
    seen = b.call(torch.sin, (hidden,))
    later = b.call(torch.cos, (seen,))
    b.call("mul_", (view, 2.0))
    return [seen, later, view]


def states(b: GraphBuilder, x: Any) -> list[Any]:
    made = [x]
    for _ in range(40):
        made.append(b.call(torch.sin, (made[-1],)))
    return made[1:]


@pytest.mark.parametrize("build", [apart, detached])
def test_graph_without_dependent_results_is_not_split(build: Build) -> None:
    assert split_of(build)[0] is None


@pytest.mark.parametrize(
    ("build", "why"),
    [
        (written_later, "mul_ writes to memory that both sides read"),
        (states, "there are 39 of them in a row, more than 16"),
    ],
)
def test_unsplittable_graph_raises_with_reason(build: Build, why: str) -> None:
    with pytest.raises(CompileFailed, match=why):
        split_of(build)


def test_without_gradients_nothing_is_split() -> None:
    assert split_of(dependent, requires_grad=False)[0] is None
