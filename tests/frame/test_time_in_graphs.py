"""Time in compiled graphs and outside of them, of calls that are compared with eager."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from torch import Tensor

import jitmagic
from jitmagic.frame.native import TimedGraph
from jitmagic.frame.timing import comparison
from jitmagic.records import Measured

from .which_ran import X, handle

pytestmark = pytest.mark.usefixtures("calls_are_compared")

IN_GRAPH, AT_BREAK = 5e-4, 1e-3  # seconds at least


@torch.library.custom_op("jitmagic_tests::slept", mutates_args=())
def slept(x: Tensor) -> Tensor:
    time.sleep(IN_GRAPH)
    return x + 1


@slept.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


def unbroken(x: Tensor) -> Tensor:
    return slept(x) * 2


def broken_twice(x: Tensor) -> Tensor:
    y = slept(x)
    time.sleep(AT_BREAK)
    y = slept(y)
    time.sleep(AT_BREAK)
    return slept(y)


def broken_at_the_end(x: Tensor) -> Tensor:
    y = slept(x)
    time.sleep(AT_BREAK)
    return y


def with_effects(x: Tensor) -> Tensor:
    REGISTRY.append(y := slept(x))
    return y


REGISTRY: list[Tensor] = []
PROGRAMS = {unbroken: (1, 0), broken_twice: (3, 2), broken_at_the_end: (1, 1), with_effects: (1, 0)}


@pytest.mark.parametrize("most", [0.0, 3600.0], ids=["compared", "in streaks"])
@pytest.mark.parametrize("fn", PROGRAMS)
def test_graphs_and_breaks_share_the_time_of_a_call(
    fn: Any, most: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comparison, "judge", lambda compiled, eager: True)
    monkeypatch.setattr(comparison, "MOST_SECONDS", most)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    tagged = jitmagic.jit(fn)
    entry = None
    for _ in range(100):
        tagged(X)
        entry = handle(tagged).dispatcher.entries[0]
        if entry.comparison is None and handle(tagged).journal.records[0].measured is not None:
            break
    measured: Measured = handle(tagged).journal.records[0].measured
    graphs, breaks = PROGRAMS[fn]
    assert measured.outside is not None and measured.outside >= breaks * AT_BREAK
    assert measured.compiled - measured.outside >= graphs * IN_GRAPH


def test_a_graph_is_called_with_what_it_is_given() -> None:
    called = TimedGraph(lambda *args, **named: (args, named))
    assert called(1, 2, key=3) == ((1, 2), {"key": 3})
    with pytest.raises(ZeroDivisionError):
        TimedGraph(lambda: 1 / 0)()
