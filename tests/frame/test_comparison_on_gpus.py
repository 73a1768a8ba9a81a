"""Turns of compiled code and eager on a fake GPU clock: verdict and reports.

tests/device/test_comparison_device.py runs them on a real GPU.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

import jitmagic
from jitmagic.compile import entries
from jitmagic.compile.compared import comparable
from jitmagic.frame.ledger import Comparable
from jitmagic.frame.timing import backward_timing, comparison
from jitmagic.frame.timing.comparison import PLAN_ON_GPU, judge
from jitmagic.records import COMPILED

from .test_comparison import X, handle, loss, ran, samples_of, which

pytestmark = pytest.mark.usefixtures("calls_are_compared")


@pytest.mark.parametrize(
    ("devices", "options", "exists"),
    [
        (["cpu"], {}, True),
        (["cpu", "cuda:0"], {}, True),
        (["cuda:0", "cuda:1"], {}, False),
        (["cuda:0"], {"cuda_graphs": True}, False),
        (["mps:0"], {}, False),
    ],
)
def test_devices_whose_calls_can_be_timed(
    devices: list[str], options: dict[str, Any], exists: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {torch.device(name) for name in devices}
    monkeypatch.setattr("jitmagic.compile.compared.devices_in", lambda graph: found)
    tagged = jitmagic.jit(which, options=options)
    made = []
    monkeypatch.setattr(
        entries,
        "comparable",
        lambda *args: made.append(comparable(*args)),  # and not compared
    )
    tagged(X)
    (answer,) = made
    assert (answer is not None) == exists
    if exists and "cuda:0" in devices:
        results = 2 * X.numel() * X.element_size()  # of sin and +, x itself apart
        assert answer.device == torch.device("cuda:0") and answer.nbytes >= 2 * results


class Queue:
    """A fake GPU that takes given nanoseconds for compiled code and for eager, and its progress."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, compiled: int, eager: int) -> None:
        queue, self.is_over, self.is_captured, self.has_room = self, True, False, True
        self.asked: list[int] = []
        self.gpu_intervals = 0

        class GpuInterval:
            def __init__(self, device: torch.device) -> None:
                assert device == torch.device("cuda", 0)
                queue.gpu_intervals += 1
                self.excess = -1

            def end(self, host: int) -> None:
                self.excess = (eager if self.is_eager() else compiled) - host

            def is_over(self) -> bool:
                return queue.is_over and self.excess >= 0

            def is_eager(self) -> bool:
                return queue.last == "e"

        GpuInterval.is_over = property(GpuInterval.is_over)  # type: ignore[method-assign, assignment]
        where = Comparable(torch.device("cuda", 0), 7)
        monkeypatch.setattr(entries, "comparable", lambda handle, traced: where)
        for module in (comparison, backward_timing):
            monkeypatch.setattr(module, "GpuInterval", GpuInterval)
            monkeypatch.setattr(module, "can_be_timed", lambda: not self.is_captured)
        monkeypatch.setattr(comparison, "has_room", self._asked)
        monkeypatch.setattr(comparison, "judge", judge)
        self.last = "c"

    def _asked(self, device: torch.device, nbytes: int) -> bool:
        self.asked.append(nbytes)
        return self.has_room

    def run(self, tagged: Any, calls: int) -> str:
        return "".join(self._one(tagged) for _ in range(calls))

    def _one(self, tagged: Any) -> str:
        known = handle(tagged)
        entry = known.dispatcher.entries[0] if known.dispatcher.entries else None
        at = len(entry.comparison._samples) if entry is not None and entry.comparison else 0
        self.last = PLAN_ON_GPU[at] if at < len(PLAN_ON_GPU) else "c"
        return ran(tagged(X))


SECOND = 1_000_000_000  # more than any of these calls takes the host


@pytest.mark.parametrize(
    ("compiled", "eager", "kept"), [(1, 2, True), (2, 1, False)], ids=["faster", "slower"]
)
def test_the_gpu_time_decides_the_comparison(
    compiled: int, eager: int, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = Queue(monkeypatch, compiled * SECOND, eager * SECOND)
    tagged = jitmagic.jit(which)
    row = queue.run(tagged, 30)
    assert row[:8] == PLAN_ON_GPU[:8] and set(row[25:]) == {"c" if kept else "e"}
    measured = handle(tagged).journal.records[0].measured
    assert measured is not None
    assert (measured.compiled, measured.eager) == pytest.approx((compiled, eager))
    assert set(queue.asked) == {7}


def test_gpu_times_are_polled_at_later_calls_without_synchronising(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    queue = Queue(monkeypatch, 2 * SECOND, SECOND)
    queue.is_over = False
    tagged = jitmagic.jit(which)
    assert queue.run(tagged, 40) == PLAN_ON_GPU + "c" * (40 - len(PLAN_ON_GPU))
    assert queue.gpu_intervals == len(PLAN_ON_GPU) and handle(tagged).outcome == COMPILED
    queue.is_over = True
    assert queue.run(tagged, 2) == "ee"


def test_nothing_is_timed_during_cuda_graph_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = Queue(monkeypatch, 2 * SECOND, SECOND)
    queue.is_captured = True
    tagged = jitmagic.jit(which)
    assert queue.run(tagged, 40) == "c" * 40 and not queue.gpu_intervals
    queue.is_captured = False
    assert queue.run(tagged, 4) == PLAN_ON_GPU[:4]


def test_eager_is_not_run_without_enough_free_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    queue = Queue(monkeypatch, 2 * SECOND, SECOND)
    queue.has_room = False
    tagged = jitmagic.jit(which)
    assert queue.run(tagged, 30) == "c" * 30
    assert handle(tagged).dispatcher.entries[0].comparison is None


def test_backwards_are_timed_on_the_gpu_too(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = Queue(monkeypatch, SECOND, SECOND)
    tagged, w = jitmagic.jit(loss), torch.linspace(0.5, 2, 6, requires_grad=True)
    for _ in range(8):
        tagged(X, w)["loss"].backward()
    assert [len(sample.gpu_intervals) for sample in samples_of(tagged)] == [2] * 8
    assert all(sample.seconds == pytest.approx(2) for sample in samples_of(tagged))
    queue.is_captured = True  # from here on, between a call and its backward
    held = tagged(X, w)["loss"]
    assert len(samples_of(tagged)) == 8
    held.backward()
