"""timing: medians and verdicts of a clock that the test holds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from jitmagic.diagnostics.timing import Way, measure


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
        ((0.001,), "2.0x faster than eager (half of the rounds: 2.00x to 2.00x)"),
        ((0.003,), "1.5x slower than eager (half of the rounds: 1.50x to 1.50x)"),
        ((0.002,), "as fast as eager, or the machine is too noisy to tell"),
    ],
)
def test_the_verdict(times: tuple[float, ...], verdict: str) -> None:
    machine = Machine()
    found = measure(
        {"compiled": machine.way("c", *times), "eager": machine.way("e", 0.002)},
        clock=machine.clock,
    )
    assert found.verdicts == (verdict,)
    assert found.sides[0].median == pytest.approx(times[0])
    assert found.sides[1].median == pytest.approx(0.002)


def test_load_on_whole_rounds_does_not_hide_a_difference() -> None:
    """Other processes: half of the rounds take four times as long, on both sides."""
    machine = Machine()
    busy = (1.0, 1.0, 4.0, 4.0)
    ours = machine.way("c", *(0.05 * times for times in busy))
    eager = machine.way("e", *(0.075 * times for times in busy))
    found = measure({"compiled": ours, "eager": eager}, 20.0, clock=machine.clock)
    assert found.sides[0].high > found.sides[1].low
    assert found.verdicts[0].startswith("1.5x faster than eager")


def test_noise_on_either_side_gives_no_verdict() -> None:
    machine = Machine()
    noisy = machine.way("c", *(0.04, 0.12) * 50)
    eager = machine.way("e", 0.05)
    found = measure({"compiled": noisy, "eager": eager}, 10.0, clock=machine.clock)
    assert found.verdicts == ("as fast as eager, or the machine is too noisy to tell",)


def test_callables_alternate_in_blocks_of_equal_duration() -> None:
    machine = Machine()
    ways = {"a": machine.way("a", 1e-5), "b": machine.way("b", 1e-3), "c": machine.way("c", 0.05)}
    found = measure(ways, 1.0, clock=machine.clock)
    assert found.calls == (5000, 50, 1)
    timed = machine.calls[-found.blocks * sum(found.calls) :]
    turns = [name for i, name in enumerate(timed) if i == 0 or timed[i - 1] != name]
    assert turns == ["a", "b", "c"] * found.blocks


def test_context_managers_around_blocks_are_not_timed() -> None:
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
