"""A stand-in for CUDA graphs that needs no GPU: it computes again into the memory that its results
were first given. What real graphs do is in tests/device.
"""

from __future__ import annotations

import pytest
import torch

from jitmagic.codegen.plan import Alloc, Launch, Plan
from jitmagic.extension import runtime_module
from jitmagic.runtime import load
from jitmagic.runtime.cuda_graphs import partitions, refusals
from jitmagic.runtime.cuda_graphs import replayer as policy
from jitmagic.runtime.cuda_graphs.capture import Captured
from jitmagic.runtime.cuda_graphs.replayer import Replayer, replaying

CPU = torch.device("cpu")
MADE = Alloc(2, (4,), (1,), torch.float32, CPU)
LAUNCHES = (Launch("k", (0, 1)),) * 4  # enough to be recorded


class FakeGraph:
    def __init__(self, run, inputs, outputs):
        self.run, self.inputs, self.outputs = run, inputs, outputs

    def replay(self):
        for old, new in zip(self.outputs, self.run(*self.inputs)):
            if old is not None:
                old.copy_(new)


def fake_capture(run, inputs, temporaries, head_sizes, tail_sizes):
    memory = [memory_of(x) for x in inputs]
    before = [each.clone() for each in memory]
    with torch.random.fork_rng(devices=()):
        outputs = run(*inputs)
    for each, value in zip(memory, before):
        each.copy_(value)  # a capture runs nothing
    tail_sizes(outputs)
    places = [out if out is None else at_address(out) for out in outputs]
    graph = FakeGraph(run, [at_address(x) for x in inputs], places)
    return Captured(graph, 0, None, outputs, (), ())


def at_address(x):
    """The same memory, which this tensor does not keep: a graph knows addresses alone."""
    same = storage_at_address(x)
    return torch.empty(0, dtype=x.dtype).set_(same, x.storage_offset(), x.shape, x.stride())


def memory_of(x):
    """All of the tensor's memory, without a reference to it, as bytes."""
    same = storage_at_address(x)
    return torch.empty(0, dtype=torch.uint8).set_(same, 0, (same.nbytes(),), (1,))


def storage_at_address(x):
    _, address, size = runtime_module().storage_of(x)
    return torch._C._construct_storage_from_data_pointer(address, x.device, size)


empty_like = policy._empty_like


def zeros_like(tensor, device):
    """Memory for an input whose values are valid indices, as this capture runs kernels on them."""
    made = empty_like(tensor, device)
    memory_of(made).zero_()
    return made


@pytest.fixture
def no_gpu(monkeypatch):
    monkeypatch.setattr(policy, "capture", fake_capture)
    monkeypatch.setattr(policy, "_empty_like", zeros_like)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)


@pytest.fixture
def graphs_on_the_cpu(monkeypatch, no_gpu):
    """Programs of the CPU are replayed too, however few their kernels are."""
    monkeypatch.setattr(load, "can_replay", lambda plan: True)
    monkeypatch.setattr(refusals, "REPLAY_TIME", 0)
    monkeypatch.setattr(partitions, "PART_TIME", 0)


def plan_of(**facts) -> Plan:
    given = {"inputs": 2, "steps": (MADE, *LAUNCHES), "outputs": (2,), **facts}
    return Plan("p", **{"constants": (), **given})


def why_not(plan, inputs) -> str:
    """The reasons why parts of a plan, or all of it, are not recorded."""
    return "; ".join(why for part in partitions.partitions_of(plan, inputs) for why in part.refused)


class Counted:
    def __init__(self, fn):
        self.fn, self.calls = fn, 0

    def __call__(self, *inputs):
        self.calls += 1
        return self.fn(*inputs)


class Called:
    """A Replay, with the attributes of its replayer."""

    def __init__(self, run, plan, graph_pool=None, bind=None):
        self.policy = Replayer(run, plan, graph_pool, bind)
        self.call = replaying(self.policy)

    def __call__(self, *inputs):
        return self.call(*inputs)

    def __getattr__(self, name):
        return getattr(self.policy, name)


def adding() -> tuple[Counted, Called]:
    run = Counted(lambda x, w: (x + w,))
    return run, Called(run, plan_of())
