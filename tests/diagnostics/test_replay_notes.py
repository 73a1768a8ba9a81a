"""What explain says about CUDA graphs, by the stand-in of tests/runtime for them."""

from __future__ import annotations

import pytest
import torch

import jitmagic
from jitmagic.runtime.cuda_graphs import refusals
from tests.runtime.fake_graphs import graphs_on_the_cpu, no_gpu
from tests.runtime.test_replayed_parts import scaled
from tests.runtime.test_replayed_programs import batches, loss_of, network, replayed, trained

__all__ = ["graphs_on_the_cpu", "no_gpu"]

pytestmark = pytest.mark.usefixtures("graphs_on_the_cpu")


def test_explain_says_what_is_replayed_and_copied():
    call = replayed(loss_of)
    trained(call, network(), batches(12))
    net = network()
    text = jitmagic.explain(call)(net, batches(1)[0]).full()
    assert "calls replayed a CUDA graph, which copies" in str(text)
    # the inputs of the graph are the parameters, which stay where they are, and the batch
    assert "result 0" in str(text)
    assert "result 1" not in str(text)


def test_explain_says_why_nothing_is_replayed(monkeypatch):
    monkeypatch.setattr(refusals, "REPLAY_TIME", 1000)
    call = replayed(lambda x: x.sin() * 2)
    for _ in range(3):
        call(torch.ones(4))
    text = str(jitmagic.explain(call)(torch.ones(4)).full())
    assert "not replayed as a CUDA graph: launching its few kernels takes less time" in text


def test_explain_says_which_parts_are_replayed():
    def program(x: torch.Tensor) -> torch.Tensor:
        return scaled(x.sin() + 1, 2.0).exp().sum()

    call = replayed(program)
    for _ in range(4):
        call(torch.ones(4))
    text = str(jitmagic.explain(call)(torch.ones(4)).full())
    assert "2 of 3 parts, 2 of 3 launches, are replayed as CUDA graphs" in text
    assert "replayed_parts.scaled.default is a custom operator" in text
