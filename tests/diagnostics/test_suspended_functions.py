"""Reports on tagged generators and coroutines, which have run none of their code when called."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

import jitmagic
from jitmagic.errors import UsageError


def counting(x: Tensor, n: int) -> Iterator[Tensor]:
    y = x
    for i in range(n):
        y = (y * 2 + i).sin()
        yield y


def test_reports_run_a_generator_and_a_coroutine() -> None:
    async def waits(x: Tensor) -> Tensor:
        return (x * 2).sin()

    explained = jitmagic.explain(counting)(torch.ones(4), 3)
    assert "2 graphs, no breaks" in str(explained)  # the body, for a constant and any index
    assert "1 graph" in str(jitmagic.explain(waits)(torch.ones(4)))
    tagged = jitmagic.jit(counting)
    assert "not called yet" in str(jitmagic.status(tagged))
    list(tagged(torch.ones(4), 3))
    assert "compiled between its suspension points" in str(jitmagic.status(tagged))
    assert "compiled code" in str(jitmagic.why(tagged)(torch.ones(4), 3))


def test_items_are_tested_and_their_graphs_returned() -> None:
    def steps(x: Tensor) -> Iterator[Tensor]:
        for _ in range(20):
            x = x * 1.5
            yield x

    assert "agrees with eager" in str(jitmagic.test(jitmagic.jit(steps))(torch.ones(3)))
    assert len(jitmagic.graphs(steps)(torch.ones(3))) == 1


def test_a_coroutine_is_not_run_inside_of_a_loop() -> None:
    import asyncio

    async def waits(x: Tensor) -> Tensor:
        return x.sin()

    async def within() -> None:
        with pytest.raises(UsageError, match="event loop"):
            jitmagic.explain(waits)(torch.ones(1))

    asyncio.run(within())
