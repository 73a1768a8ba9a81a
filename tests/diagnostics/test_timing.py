"""timing: medians and verdicts of a clock that the test holds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from jitmagic.diagnostics.timing import Side, Way, measure


class Machine:
    """A clock, and calls that take what they are said to take."""

    def __init__(self) -> None:
        self.now = 0.0
        self.calls: list[str] = []

    def clock(self) -> float:
        return self.now

    def way(self, name: str, *times: float) -> Way:
        def call() -> None:
            self.now += times[self.calls.count(name) % len(times)]
            self.calls.append(name)

        return Way(call)


@pytest.mark.parametrize(
    ("times", "verdict"),
    [
        ((0.001,), "faster than eager: 2.00x"),
        ((0.003,), "slower than eager: it takes 1.50x as long"),
        ((0.002,), "as fast as eager, or the machine is too noisy to tell"),
        ((0.0001, 0.0201) * 50, "faster than eager: 1"),
    ],
)
def test_the_verdict(times: tuple[float, ...], verdict: str) -> None:
    machine = Machine()
    found = measure(
        {"compiled": machine.way("c", *times), "eager": machine.way("e", 0.002)},
        clock=machine.clock,
    )
    if len(times) == 1:
        assert found.verdicts == (verdict,)
        assert found.sides[0].median == pytest.approx(times[0])
    assert found.sides[1].median == pytest.approx(0.002)


def test_noise_that_overlaps_is_no_verdict() -> None:
    ours, eager = Side("compiled", 1.0, 2.0, 4.0), Side("eager", 3.0, 5.0, 6.0)
    assert "too noisy" in ours.against(eager)


def test_ways_take_turns_and_blocks_are_long_enough() -> None:
    machine = Machine()
    ways = {"a": machine.way("a", 1e-5), "b": machine.way("b", 1e-3)}
    found = measure(ways, 0.2, clock=machine.clock)
    assert found.calls[0] >= 400 and found.calls[1] >= 4
    timed = machine.calls[-found.blocks * sum(found.calls) :]
    turns = [name for i, name in enumerate(timed) if i == 0 or timed[i - 1] != name]
    assert turns == ["a", "b"] * found.blocks


def test_what_is_in_force_around_a_block_is_not_timed() -> None:
    machine = Machine()

    @contextmanager
    def slow() -> Iterator[None]:
        machine.now += 1.0
        yield
        machine.now += 1.0

    way = machine.way("a", 0.01)._replace(around=slow)
    found = measure({"a": way}, 0.1, clock=machine.clock)
    assert found.sides[0].median == pytest.approx(0.01)
    assert "10 ms per call" in str(found)
