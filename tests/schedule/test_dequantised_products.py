"""Quantised weights are dequantised where they are multiplied: no buffer holds such a weight."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import pytest
import torch
import torch.nn.functional as F

from jitmagic.loops.interp import run
from jitmagic.loops.ir import Extern, LoopProgram
from jitmagic.options import Options
from jitmagic.schedule import Schedule, schedule
from jitmagic.schedule.products import products_of
from tests.programs.quantised_weights import PROGRAMS, exact_run, made_inputs
from tests.schedule.test_fusion import TARGET, lowered, nests

N, K = 48, 256


def scheduled(program: LoopProgram) -> Schedule:
    return schedule(program, TARGET, Options())


def largest_temporary(made: Schedule) -> int:
    """Return the elements of the largest buffer that the plan allocates."""
    steps = [step for step in made.program.steps if hasattr(step, "stores")]
    written = {store.buffer for nest in steps for store in nest.stores}
    return max(prod(made.program.buffers[name].shape) for name in written)


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rows", [1, 4])
def test_the_weight_is_never_in_memory(name, dtype, rows):
    inputs = made_inputs(PROGRAMS[name], (rows,), N, K, dtype)
    program = lowered(PROGRAMS[name].run, *inputs)
    made = scheduled(program)
    assert not [step for step in made.program.steps if isinstance(step, Extern)]
    assert largest_temporary(made) < N * K
    product = [n for n in nests(made) if products_of(n.outer, [s.value for s in n.stores])]
    assert len(product) == 1, "one kernel multiplies"
    (wide,) = run(made.program, [x.clone() for x in inputs], "float64")
    exact = exact_run(name)(*(x.double() if x.is_floating_point() else x for x in inputs))
    torch.testing.assert_close(wide, exact, rtol=1e-2, atol=1e-2 * float(exact.abs().max()))


def fused(fn, *inputs) -> bool:
    made = scheduled(lowered(fn, *inputs))
    return any("dequantised" in decision.reason for decision in made.decisions)


def test_a_weight_that_is_read_otherwise_too_stays_in_memory_for_that_reader():
    def both(x, q, scale):
        weight = q.to(x.dtype) * scale[:, None]
        return F.linear(x, weight), weight

    x, q, scale = made_inputs(PROGRAMS["scaled weight"], (4,), N, K, torch.bfloat16)
    assert not fused(both, x, q, scale), "it is a result, and is computed once"


def test_weights_that_are_not_narrow_are_multiplied_by_the_library():
    def wide(x, w, scale):
        return F.linear(x, w * scale[:, None])

    x, _, scale = made_inputs(PROGRAMS["scaled weight"], (4,), N, K, torch.bfloat16)
    assert not fused(wide, x, torch.randn(N, K).bfloat16(), scale)


def test_other_targets_keep_the_library_call():
    inputs = made_inputs(PROGRAMS["scaled weight"], (4,), N, K, torch.bfloat16)
    program = lowered(PROGRAMS["scaled weight"].run, *inputs)
    made = schedule(program, replace(TARGET, tier="numba"), Options())
    assert any(isinstance(step, Extern) for step in made.program.steps)
