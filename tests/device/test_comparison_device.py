"""A compiled variant beside eager on a GPU: turns, times of the GPU, and what is never timed."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import jitmagic
from jitmagic.api import handle_of
from jitmagic.frame.timing import comparison
from jitmagic.frame.timing.comparison import PLAN_ON_GPU, judge
from jitmagic.frame.timing.gpu_timing import GpuInterval, has_room

pytestmark = [pytest.mark.device, pytest.mark.usefixtures("calls_are_compared")]

GPU = torch.device("cuda", 0)


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "judge", judge)


def step(x: Tensor, w: Tensor) -> Tensor:
    y = torch.tanh(x @ w) * x
    return (y.exp() - y).sum(-1)


def test_a_span_holds_what_the_gpu_does_and_does_not_wait_for_it() -> None:
    torch.cuda._sleep(2_000_000_000)  # a second or so of the GPU's clock
    span = GpuInterval(GPU)
    torch.cuda._sleep(200_000_000)
    span.end(1000)
    assert not span.is_over
    torch.cuda.synchronize()
    assert span.is_over and span.excess > 1_000_000


def test_calls_take_turns_and_agree(measured: None) -> None:
    tagged = jitmagic.jit(step)
    x, w = torch.randn(64, 512, device=GPU), torch.randn(512, 512, device=GPU, requires_grad=True)
    for _ in range(len(PLAN_ON_GPU) + 4):
        w.grad = None
        loss = tagged(x, w)
        loss.sum().backward()
        got = w.grad
        (want,) = torch.autograd.grad(step(x, w).sum(), w)
        torch.testing.assert_close(got, want, rtol=2e-3, atol=2e-3)
        torch.cuda.synchronize()
    handle = handle_of(tagged)
    assert handle is not None
    record = next(r for r in handle.journal.records if r.measured is not None)
    assert (
        min(record.measured.compiled, record.measured.eager) > 0
        and record.measured.calls >= comparison._TO_KEEP_CLEARLY
    )


def test_a_recording_of_the_users_holds_compiled_code_alone(measured: None) -> None:
    tagged = jitmagic.jit(step)
    x, w = torch.randn(64, 512, device=GPU), torch.randn(512, 512, device=GPU)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        tagged(x, w)
    torch.cuda.current_stream().wait_stream(stream)
    handle = handle_of(tagged)
    assert handle is not None
    before = len(handle.dispatcher.entries[0].comparison._samples)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = tagged(x, w)
    assert len(handle.dispatcher.entries[0].comparison._samples) == before
    x.copy_(torch.randn_like(x))
    graph.replay()
    torch.testing.assert_close(result, step(x, w), rtol=2e-3, atol=2e-3)


def test_room_is_what_is_free_and_what_the_allocator_keeps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    free, total = torch.cuda.mem_get_info(GPU)
    assert has_room(GPU, free // 2) and not has_room(GPU, 2 * total)
    held = torch.empty(1 << 30, dtype=torch.uint8, device=GPU)
    del held
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (0, total))
    assert has_room(GPU, 1 << 29)


def test_cuda_graphs_are_not_compared(measured: None) -> None:
    tagged = jitmagic.jit(step, mode="reduce-overhead")
    tagged(torch.randn(8, 64, device=GPU), torch.randn(64, 64, device=GPU))
    handle = handle_of(tagged)
    assert handle is not None and handle.dispatcher.entries[0].comparison is None
