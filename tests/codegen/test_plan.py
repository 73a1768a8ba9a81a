"""The plan: the steps of a schedule, and kernels shared by equal layers."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from jitmagic.codegen import render
from jitmagic.codegen.equal_kernels import distinct_kernels
from jitmagic.codegen.plan import Alloc, Call, Free, Launch, Plan, Pool, View
from jitmagic.loops.ir import Nest
from jitmagic.loops.lower import lower
from jitmagic.options import Options
from jitmagic.schedule import schedule
from tests.loops.recording import record
from tests.schedule.test_fusion import TARGET

from .built import compiled


def plan_of(fn, *inputs):
    graph, _ = record(fn, *inputs)
    return render(schedule(lower(graph, "test"), TARGET, Options()), TARGET)


def kinds(plan: Plan) -> list[type]:
    return [type(step) for step in plan.steps]


def test_one_kernel_is_an_allocation_and_a_launch():
    plan, source = plan_of(lambda x: x.sin() + 1, torch.randn(8, 8))
    assert kinds(plan) == [Alloc, Launch]
    assert plan.steps[1].args == (0, 1)
    assert list(source.symbols) == [plan.steps[1].kernel]
    assert source.symbols[plan.steps[1].kernel] == (torch.float32, torch.float32)


def test_a_product_writes_into_the_pool():
    plan, _ = plan_of(lambda x: torch.bmm(x, x).relu(), torch.randn(2, 16, 16))
    assert kinds(plan) == [Pool, Call, Free, Alloc, Launch, Free]
    assert plan.steps[2] == Free(0), "the input, if the caller has given it away"
    assert plan.steps[1].op is torch.ops.aten.bmm.out
    assert plan.steps[1].out


def test_a_transposed_operand_is_a_view():
    plan, _ = plan_of(lambda x, w: torch.mm(x, w.t()), torch.randn(600, 600), torch.randn(600, 600))
    assert View in kinds(plan)


def test_a_graph_without_kernels_has_no_source():
    plan, source = plan_of(lambda x: torch.mm(x, x), torch.randn(600, 600))
    assert source is None
    assert kinds(plan) == [Alloc, Call]


def test_an_output_may_be_an_input_or_come_twice():
    def fn(x):
        y = x + 1
        return y, x, y

    plan, _ = plan_of(fn, torch.randn(4))
    assert plan.outputs[0] == plan.outputs[2]
    assert plan.outputs[1] == 0


def layer(x, w):
    x = x - x.mean(-1, keepdim=True)
    return torch.bmm(x, w).relu() + x


def test_equal_layers_share_their_kernels():
    def fn(x, *weights):
        for w in weights:
            x = layer(x, w)
        return x

    inputs = [torch.randn(2, 16, 16) for _ in range(7)]
    plan, source = plan_of(fn, *inputs)
    launches = [step for step in plan.steps if isinstance(step, Launch)]
    assert len(launches) > 6 > len(source.symbols)
    graph, expected = record(fn, *inputs)
    (got,) = compiled(lower(graph, "test"))(*inputs)
    torch.testing.assert_close(got, expected[0], rtol=1e-4, atol=1e-3)


def over_time(x, h, w):
    """A recurrence: each step reads a value of the step before."""
    for t in range(x.shape[0]):
        h = torch.tanh(torch.mm(h, w) + x[t])
    return h


def test_time_steps_share_a_kernel_at_any_offset():
    h, w = torch.randn(3, 70), torch.randn(70, 70)
    counts = set()
    for steps in (4, 9):
        plan, source = plan_of(over_time, torch.randn(steps, 3, 70), h, w)
        counts.add(len(source.symbols))
        starts = [step.offset for step in plan.steps if isinstance(step, View)]
        assert starts == [210 * step for step in range(1, steps)]
    assert len(counts) == 1


def test_a_unique_nest_keeps_its_offsets():
    plan, source = plan_of(lambda x: x[3:].sin(), torch.randn(9, 8))
    assert View not in kinds(plan)
    assert "+ 24" in source.text


@pytest.mark.parametrize(("width", "shared"), [(32, True), (33, False)])
def test_gpu_kernels_are_shared_at_aligned_offsets(width: int, shared: bool):
    """Triton specialises on the alignment of arguments."""
    graph, _ = record(over_time, torch.randn(4, 1, width), torch.randn(1, width), torch.eye(width))
    program = schedule(lower(graph, "test"), TARGET, Options()).program
    nests = [step for step in program.steps if isinstance(step, Nest)]
    gpu = torch.device("cuda", 0)
    buffers = {name: replace(one, device=gpu) for name, one in program.buffers.items()}
    few, many = distinct_kernels(nests, program.buffers), distinct_kernels(nests, buffers)
    assert len(few.nests) < len(nests)
    assert (len(many.nests) == len(few.nests)) is shared
    assert bool(many.starts) is shared
