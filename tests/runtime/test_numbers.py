"""Python floats handed to a compiled graph: 0-dim float64 tensors, everything else as it is."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

from jitmagic.runtime.native import with_numbers


def test_floats_at_the_positions_become_tensors() -> None:
    seen = []
    run = with_numbers(lambda *given: seen.extend(given) or (), (1, 3))
    tensor = torch.ones(2)
    assert run(tensor, 0.25, 0.5, -1e300) == ()
    assert seen[0] is tensor and seen[2] == 0.5
    for value, wanted in ((seen[1], 0.25), (seen[3], -1e300)):
        assert value.dtype is torch.float64 and value.shape == () and value.item() == wanted


def test_other_values_pass_unchanged() -> None:
    run = with_numbers(lambda *given: given, (0, 7))
    assert run(3) == (3,) and run() == () and run(True) == (True,)


def test_keywords_are_passed() -> None:
    run = with_numbers(lambda *given, **named: (given, named), (0, 1))
    ((first,), named) = run(0.5, scale=2.0)
    assert first.item() == 0.5 and named == {"scale": 2.0}


def test_errors_propagate_and_nothing_leaks() -> None:
    def fail(value: torch.Tensor) -> None:
        raise ValueError("no")

    run = with_numbers(fail, (0,))
    with pytest.raises(ValueError, match="no"):
        run(0.5)
    with pytest.raises(TypeError):
        with_numbers(fail, [0])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="negative"):
        with_numbers(fail, (-1,))


def test_a_cycle_through_the_graph_is_collected() -> None:
    class Graph:
        def __call__(self, *inputs: object) -> tuple[object, ...]:
            return inputs

    graph = Graph()
    graph.wrapper = with_numbers(graph, (0,))  # type: ignore[attr-defined]
    alive = weakref.ref(graph)
    del graph
    gc.collect()
    assert alive() is None
