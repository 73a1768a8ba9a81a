"""Generated Triton, run by Triton's interpreter, against eager and the program in float64."""

from __future__ import annotations

import math
from importlib.util import find_spec

import pytest
import torch

from jitmagic.codegen import render
from jitmagic.codegen.plan import KernelSource, Plan
from jitmagic.loops.interp import run
from jitmagic.loops.ir import LoopProgram
from jitmagic.loops.lower import lower
from jitmagic.options import Options
from jitmagic.schedule import schedule
from jitmagic.target import Target
from tests.loops.recording import clone, record
from tests.schedule.programs import PROGRAMS, made_inputs

from .interpreted import run_interpreted

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")

H200 = Target("cuda", "triton", "for tests", "sm_90", 1, 0, 128 << 10, 50 << 20, "", 132)


def rendered(program: LoopProgram, **options: object) -> tuple[Plan, KernelSource | None]:
    """As for a CUDA device, whatever device the buffers are on."""
    return render(schedule(program, H200, Options(**options)), H200)


def check(fn, *inputs, **options) -> str:
    """Errors against float64 are at most twice eager's plus a few roundings; the rest is exact."""
    graph, expected = record(fn, *[clone(x) for x in inputs])
    program = lower(graph, "test")
    plan, source = rendered(program, **options)
    wide, mutated = [clone(x) for x in inputs], [clone(x) for x in inputs]
    got, ours = run_interpreted(source, plan, [clone(x) for x in inputs])
    exact = run(program, wide, "float64")
    with torch.no_grad():
        fn(*mutated)
    for a, b, c in zip([*got, *ours], [*expected, *mutated], [*exact, *wide]):
        compare(a, b, c)
    return source.text if source else ""


def compare(got, eager, exact) -> None:
    assert (got.dtype, got.shape, got.stride()) == (eager.dtype, eager.shape, eager.stride())
    if not eager.dtype.is_floating_point:
        assert torch.equal(got, eager)
        return
    finite = torch.isfinite(eager)
    special = [t.masked_fill(finite, 0) for t in (got, eager)]
    torch.testing.assert_close(*special, rtol=0, atol=0, equal_nan=True)
    a, b, c = (t[finite].double() for t in (got, eager, exact))
    if a.numel():
        scale = c.abs().max()
        assert (a - c).abs().max() <= 2 * (b - c).abs().max() + 1e-6 * scale


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name):
    program = PROGRAMS[name]
    check(program.fn, *made_inputs(program))
