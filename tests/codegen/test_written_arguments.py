"""A plan says which arguments its kernels write: what they only read has a value before."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from jitmagic.codegen import render
from jitmagic.codegen.plan import Alloc, Call, Launch, Plan, Pool, Reuse, View
from jitmagic.devices import Target
from jitmagic.loops.lower import lower
from jitmagic.options import Options
from jitmagic.schedule import schedule
from tests.loops.recording import record

TARGET = Target("cpu", "cpp", "a test", "avx512", 16, 2, 1 << 20, "g++")


def updated(x, w):
    return x.copy_(x * 0.5 + w.sum(0)), w.exp() @ x


PROGRAMS = {
    "product": lambda x, w: F.gelu(x @ w).softmax(-1) @ w,
    "reductions": lambda x, w: (x.sum(), x.var(0), (x @ w).argmax(1), x.cumsum(0)),
    "in place": updated,
    "scattered": lambda x, w: x.scatter_add(0, (w > 0).long(), w).exp(),
    "norm": lambda x, w: F.layer_norm(x @ w, (8,), w[0], w[1]),
    "attention": lambda x, w: F.scaled_dot_product_attention(x[None], w[None], w[None]),
}


def plan_of(fn) -> Plan:
    torch.manual_seed(0)
    graph, _ = record(fn, torch.randn(8, 8), torch.randn(8, 8))
    plan, _ = render(schedule(lower(graph, "test"), TARGET, Options()), TARGET)
    return plan


@pytest.mark.parametrize("name", PROGRAMS)
def test_arguments_that_are_only_read_have_values(name):
    plan = plan_of(PROGRAMS[name])
    base = {slot: slot for slot in range(plan.inputs + len(plan.constants))}
    defined, mutated, launches = set(base), set(), 0
    for step in plan.steps:
        match step:
            case View():
                base[step.slot] = base[step.base]
            case Alloc() | Pool() | Reuse():
                base[step.slot] = step.slot
            case Call():
                made = [slot for slot in step.results if slot is not None]
                base |= {slot: slot for slot in made if not step.out}
                defined.update(made)
            case Launch():
                launches += 1
                assert step.written
                assert set(step.written) <= set(step.args)
                read = {base[slot] for slot in step.args} - {base[slot] for slot in step.written}
                assert read <= defined
                defined.update(base[slot] for slot in step.written)
                mutated.update(base[slot] for slot in step.written)
    assert launches
    assert {slot for slot in mutated if slot < plan.inputs} == set(plan.mutated)
    assert not {slot for slot in mutated if plan.inputs <= slot < plan.inputs + len(plan.constants)}
