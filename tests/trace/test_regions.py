"""Graphs of functions under a transform, as they are recorded."""

from __future__ import annotations

import torch

from jitmagic.graph.builder import GraphBuilder
from jitmagic.graph.symbolic.number_ranges import add_number
from jitmagic.guards.source import Argument
from jitmagic.spec import spec_of
from jitmagic.symbols.interval import ANY_FLOAT
from jitmagic.trace.graph_notes import GraphNotes
from jitmagic.trace.region import TransformBuilder
from jitmagic.trace.values.tensors.tensor import TensorValue

FUNCTIONS = (torch.sin, torch.exp, torch.neg, torch.abs, torch.tanh)


def test_captured_numbers_are_not_confused_with_results() -> None:
    """The number takes the place of a meta tensor, whose address is free for the next result."""
    outer = GraphBuilder()
    number = outer.placeholder("number", spec_of(torch.ones(())))
    region = TransformBuilder(GraphNotes(outer), "f", False)
    row = region.feed("given", 0, spec_of(torch.ones(3)))
    nodes = [add_number(outer.graph, number, float(n), ANY_FLOAT, (), 0) for n in range(500)]
    assert len({region.local(node) for node in nodes}) == len(nodes)
    for _ in range(500):
        for function in FUNCTIONS:
            result = region.call(function, (row,))
            assert result.target is function
            assert result.meta["val"].shape == (3,)


def test_a_graph_within_a_graph_has_notes_of_its_own() -> None:
    """Of those around it, it knows which tensor a captured node stands for."""
    outer = GraphNotes(GraphBuilder())
    node = outer.add_input("x", Argument(0, "x"), spec_of(torch.ones(3)))
    owner = outer.owners[node] = TensorValue(node)
    outer.marks.add("of the graph around it")
    region = TransformBuilder(outer, "f", False)
    captured = region.local(node)
    assert region.notes.owners == {captured: owner}
    assert not region.notes.marks and region.notes.root is outer
    assert region.notes.of(list) is not outer.of(list) is outer.of(list)


def test_a_finished_graph_has_the_feeds_of_its_inputs() -> None:
    notes = GraphNotes(GraphBuilder())
    sources = [Argument(index, name) for index, name in enumerate("xyz")]
    nodes = [notes.add_input("n", source, spec_of(torch.ones(3))) for source in sources]
    notes.graph.output(notes.graph.call(torch.add, (nodes[2], nodes[0])))
    graph, inputs = notes.finish("f")
    assert [each.source for each in inputs] == [sources[0], sources[2]]
    left = [node.name for node in graph.graph.nodes if node.op == "placeholder"]
    assert [each.name for each in inputs] == left
