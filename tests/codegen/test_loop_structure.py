"""Passes, saved values and collapsed axes of fused nests."""

from __future__ import annotations

import torch

from jitmagic.codegen.loop_structure import Structure, structure
from tests.schedule.programs import PROGRAMS, made_inputs
from tests.schedule.test_fusion import nests, scheduled


def structures(name: str) -> list[Structure]:
    program = PROGRAMS[name]
    result = scheduled(program.fn, *made_inputs(program))
    return [structure(nest, result.program.buffers) for nest in nests(result)]


def test_softmax_is_three_passes_and_saves_the_exponential():
    (one,) = structures("softmax_large")
    assert [len(p.reductions) for p in one.passes] == [1, 1, 0]
    assert [getattr(value, "op", "") for p in one.passes for value in p.saved] == ["exp"]
    assert len({p.axes for p in one.passes}) == 1


def test_pointwise_axes_collapse():
    (one,) = structures("chain_large")
    assert [axis.extent for axis in one.outer] == [300 * 300]
    assert [p.axes for p in one.passes] == [()]


def test_batch_norm_collapses_the_image():
    (one,) = structures("batch_norm")
    assert [axis.extent for axis in one.outer] == [6]
    assert {tuple(axis.extent for axis in p.axes) for p in one.passes} == {(4, 90)}


def test_a_store_into_memory_that_is_read_comes_last():
    def fn(x):
        s = x.relu()
        total = (s - s.amax(-1, keepdim=True)).sum(-1)
        x.copy_(s)
        return total

    result = scheduled(fn, torch.randn(9, 40))
    for nest in nests(result):
        one = structure(nest, result.program.buffers)
        for number, single in enumerate(one.passes):
            if any(store.buffer == "x0" for store in single.stores):
                assert not any(later.reductions for later in one.passes[number + 1 :])
