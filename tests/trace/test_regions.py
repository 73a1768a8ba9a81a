"""Graphs of functions under a transform, as they are recorded."""

from __future__ import annotations

import torch

from jitmagic.graph.builder import GraphBuilder
from jitmagic.graph.number_ranges import add_number
from jitmagic.spec import spec_of
from jitmagic.symbols.interval import ANY_FLOAT
from jitmagic.trace.region import TransformBuilder

FUNCTIONS = (torch.sin, torch.exp, torch.neg, torch.abs, torch.tanh)


def test_no_result_passes_for_a_number_that_was_captured() -> None:
    """The number takes the place of a meta tensor, whose address is free for the next result."""
    outer = GraphBuilder()
    number = outer.placeholder("number", spec_of(torch.ones(())))
    region = TransformBuilder(outer, "f", False)
    row = region.feed("given", 0, spec_of(torch.ones(3)))
    nodes = [add_number(outer.graph, number, float(n), ANY_FLOAT, (), 0) for n in range(500)]
    assert len({region.local(node) for node in nodes}) == len(nodes)
    for _ in range(500):
        for function in FUNCTIONS:
            result = region.call(function, (row,))
            assert result.target is function
            assert result.meta["val"].shape == (3,)
