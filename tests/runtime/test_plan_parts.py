"""The parts of a plan, one after the other, do what the plan does."""

from __future__ import annotations

import random
import warnings

import pytest
import torch

from jitmagic.errors import FallbackWarning
from jitmagic.extension import runtime_module
from jitmagic.runtime.cuda_graphs import partitions, refusals
from jitmagic.runtime.cuda_graphs.plan_parts import split_plan
from jitmagic.runtime.cuda_graphs.replayed_parts import chained

from .fake_graphs import Called, no_gpu
from .random_plans import SIZE, RandomPlan, bind

__all__ = ["no_gpu"]


def memory_of(tensor) -> int:
    address: int = runtime_module().storage_of(tensor)[1]
    return address


def state(inputs, outputs):
    """Values, and which results share memory with which results and inputs."""
    tensors = [*inputs, *(out for out in outputs if out is not None)]
    memory = [memory_of(tensor) for tensor in tensors]
    shared = [memory.index(one) for one in memory]
    places = [(tensor.shape, tensor.stride(), tensor.storage_offset()) for tensor in tensors]
    return [tensor.clone() for tensor in tensors], shared, places


def same(got, want) -> None:
    assert got[1:] == want[1:]
    for a, b in zip(got[0], want[0], strict=True):
        assert torch.equal(a, b)


def ranges_of(length: int, cuts: list[int]) -> list[range]:
    ends = [0, *sorted(cuts), length]
    return [range(a, b) for a, b in zip(ends, ends[1:])]


@pytest.mark.parametrize("seed", range(60))
def test_parts_of_random_plans(seed):
    chosen = random.Random(seed)
    plan = RandomPlan(seed, 4 + seed % 20).plan
    cuts = [chosen.randint(0, len(plan.steps)) for _ in range(chosen.randint(1, 6))]
    parts = split_plan(plan, ranges_of(len(plan.steps), cuts))
    run, whole = chained(plan, parts, [bind(part.plan) for part in parts]), bind(plan)
    for _ in range(2):
        inputs = [torch.randn(SIZE) for _ in range(plan.inputs)]
        copies = [x.clone() for x in inputs]
        want = state(inputs, whole(*inputs))
        same(state(copies, run(*copies)), want)


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize("seed", range(60))
def test_random_plans_replayed_in_parts(seed, monkeypatch):
    """Inputs move or stay, results are held or dropped; other work uses the freed memory."""
    monkeypatch.setattr(refusals, "REPLAY_TIME", seed % 3 * 4)
    monkeypatch.setattr(partitions, "PART_TIME", 0)
    chosen, held = random.Random(seed), []
    plan = RandomPlan(1000 + seed, 4 + seed % 20).plan
    call, whole = Called(bind(plan), plan, bind=bind), bind(plan)
    inputs = [torch.randn(SIZE) for _ in range(plan.inputs)]
    for _ in range(12):
        inputs = [torch.randn(SIZE) if chosen.random() < 0.4 else x for x in inputs]
        copies = [x.clone() for x in inputs]
        want = state(copies, whole(*copies))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FallbackWarning)
            results = call(*inputs)
        got = state(inputs, results)
        same((got[0], got[1], [place[:2] for place in got[2]]),
             (want[0], want[1], [place[:2] for place in want[2]]))  # fmt: skip
        if chosen.random() < 0.4:
            lasting = {memory_of(x) for x in (*inputs, *plan.constants)}
            own = [x for x in results if x is not None and memory_of(x) not in lasting]
            held.append([(x, x.clone()) for x in own])
        del results
    for got, want in (pair for pairs in held for pair in pairs):
        assert torch.equal(got, want)
