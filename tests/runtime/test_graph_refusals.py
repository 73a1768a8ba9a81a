"""Why a plan is not recorded as a CUDA graph."""

from __future__ import annotations

import pytest
import torch

from jitmagic.codegen.plan import Alloc, Call, Launch, Slot, View
from jitmagic.runtime.cuda_graphs.replayer import can_replay

from .fake_graphs import CPU, LAUNCHES, MADE, Called, no_gpu, plan_of, why_not

__all__ = ["no_gpu"]


def test_reasons_not_to_record():
    x = torch.randn(4)
    gpu = torch.device("cuda", 0)
    assert "lives on cpu" in why_not(plan_of(device=gpu), [x, x])
    sizes = Call(torch.ops.aten.nonzero.default, (Slot(0),), {}, (2,))
    assert "size of its result" in why_not(plan_of(steps=(sizes,)), [x, x])
    random = Call(torch.ops.aten.rand.default, ([4],), {}, (2,))
    assert why_not(plan_of(steps=(random, *LAUNCHES)), [x, x]) == ""
    own = Call(torch.ops.aten.rand.generator, ([4],), {"generator": torch.Generator()}, (2,))
    assert "generator of its own" in why_not(plan_of(steps=(own,)), [x, x])


def test_host_reads_sizes_that_only_kernels_take():
    """A size is a constant of the CPU, whose number a kernel is launched with."""
    facts = {"constants": (torch.tensor(7, device="meta"),), "outputs": (3,)}
    made = Alloc(3, (4,), (1,), torch.float32, CPU)
    steps = (made, *[Launch("k", (0, 2, 3))] * 4)
    assert why_not(plan_of(steps=steps, **facts), [torch.randn(4)] * 2) == ""
    call = Call(torch.ops.aten.add.Tensor, (Slot(0), Slot(2)), {}, (3,))
    assert "a constant" in why_not(plan_of(steps=(call,), **facts), [torch.randn(4)] * 2)
    view = (View(4, 2, (), (), 0, torch.int64), *steps)  # results that are constants pass through
    assert why_not(plan_of(steps=view, **{**facts, "outputs": (4,)}), [torch.randn(4)] * 2) == ""


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.bool, torch.uint8])
@pytest.mark.parametrize("made", [True, False])
def test_indexing_syncs_with_the_host_only_for_masks(dtype, made):
    x, index = torch.randn(4), torch.zeros(4, dtype=dtype)
    alloc = Alloc(2, (4,), (1,), dtype, torch.device("cpu"))
    call = Call(torch.ops.aten.index.Tensor, (Slot(0), [None, Slot(2 if made else 1)]), {}, (3,))
    why = why_not(plan_of(steps=(alloc, call, *LAUNCHES)), [x, index])
    assert bool(why) == (dtype in (torch.bool, torch.uint8))


def test_plans_of_the_cpu_are_not_replayed():
    assert not can_replay(plan_of())


@pytest.mark.usefixtures("no_gpu")
def test_a_few_launches_are_not_recorded():
    x = torch.randn(4)
    for launches, is_recorded in ((1, False), (2, True), (4, True)):
        replayer = Called(lambda x, w: (x + w,), plan_of(steps=(MADE, *LAUNCHES[:launches])))
        for _ in range(4):
            replayer(x, x)
        assert bool(replayer.made) == is_recorded
        assert ("takes less time" in replayer.refused) == (not is_recorded)
