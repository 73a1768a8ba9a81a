"""Clocks read in a frame: what is measured is measured, and costs no graph break at its ends."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import jitmagic

from ..counts import counts_of, eager_of

Times = list[Any]  # of one call, in the order in which they were read


class Stopwatch:
    def __enter__(self) -> Stopwatch:
        self.start = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop = time.perf_counter()


def around(x: Tensor, times: Times) -> Tensor:
    start = time.perf_counter()
    result = (x.sin() @ x).sum()
    times += [start, time.perf_counter()]
    return result


def by_name(x: Tensor, times: Times) -> Tensor:
    start = time.time()
    result = x.cos().sum()
    seconds = time.time() - start
    times += [start, start + seconds, f"{seconds:.4f}s"]
    return result


def per_round(x: Tensor, times: Times) -> Tensor:
    start = time.monotonic()
    for _ in range(3):
        x = torch.tanh(x * 2)
    each = (time.monotonic() - start) / 3
    times += [start, start + each * 3]
    return x


def in_a_block(x: Tensor, times: Times) -> Tensor:
    with Stopwatch() as watch:
        x = x.exp()
    times += [watch.start, watch.stop]
    return x


def twice_at_both_ends(x: Tensor, times: Times) -> Tensor:
    times += [time.perf_counter(), time.perf_counter()]
    x = x * 2
    times += [time.perf_counter(), time.perf_counter()]
    return x


def in_nanoseconds(x: Tensor, times: Times) -> Tensor:
    times.append(time.perf_counter_ns())
    x = x + 1
    times.append(time.perf_counter_ns())
    return x


def before_all(x: Tensor, times: Times) -> Tensor:
    start = time.process_time()
    times += [start, start + 1.0]
    return x * 2


WHOLE = (
    *(around, by_name, per_round, in_a_block, twice_at_both_ends, in_nanoseconds),
    before_all,
)


def between(x: Tensor, times: Times) -> Tensor:
    times.append(time.perf_counter())
    x = x.sin()
    times.append(time.perf_counter())
    x = x.cos()
    times.append(time.perf_counter())
    return x


def decides(x: Tensor, times: Times) -> Tensor:
    times.append(start := time.perf_counter())
    x = x.sin()
    if time.perf_counter() - start < 0:
        return x
    times.append(1 / (time.perf_counter() - start + 1.0) + start + 1.0)
    return x.cos()


def check(program: Callable[..., Tensor]) -> Any:
    tagged = jitmagic.jit(program)
    x = torch.arange(9.0).reshape(3, 3) / 9
    earlier = -1
    for _ in range(3):
        times: Times = []
        torch.testing.assert_close(tagged(x, times), program(x, []))
        numbers = [read for read in times if not isinstance(read, str)]
        kinds = [type(read) for read in times]
        expected: Times = []
        program(x, expected)
        assert kinds == [type(read) for read in expected]
        assert numbers == sorted(numbers)
        assert numbers[0] > earlier  # no reading is of a call before
        earlier = numbers[0]
    assert not eager_of(tagged)
    return counts_of(tagged)


@pytest.mark.parametrize("program", WHOLE, ids=lambda program: program.__name__)
def test_at_the_ends(program: Callable[..., Tensor]) -> None:
    made = check(program)
    assert made.breaks == 0
    assert made.graphs == 1


def test_between_two_parts_each_is_measured_by_itself() -> None:
    made = check(between)
    assert made.breaks == 1
    assert made.graphs == 2


def test_a_branch_knows_the_time() -> None:
    assert check(decides).breaks >= 1


def test_what_a_late_reading_is_compared_with_may_vary() -> None:
    def limited(x: Tensor, start: float) -> Tensor:
        y = x.sin()
        return y * 2 if time.time() - start > 1e9 else y + 1

    tagged = jitmagic.jit(limited, backend="eager")
    x = torch.randn(3)
    for _ in range(6):
        torch.testing.assert_close(tagged(x, time.time()), x.sin() + 1)
    assert counts_of(tagged).graphs == 3  # y of a number, of any; what is behind the branch


def test_a_step_of_training() -> None:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x: Tensor) -> tuple[Tensor, float]:
        start = time.perf_counter()
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach(), time.perf_counter() - start

    tagged = jitmagic.jit(step, fullgraph=True)
    losses = [tagged(torch.ones(4, 3)) for _ in range(4)]
    assert all(seconds > 0 for _, seconds in losses)
    assert losses[-1][0] < losses[0][0]
    assert counts_of(tagged).breaks == 0
