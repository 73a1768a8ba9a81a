"""Triton kernels of products with quantised weights: by its interpreter, and for sm_90."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch

from jitmagic.codegen.plan import Call, KernelSource, Plan
from jitmagic.loops.lower import lower
from jitmagic.runtime.alignment import aligned_arguments
from jitmagic.runtime.store import Store as Cache
from jitmagic.runtime.triton_kernels import build_cubins
from tests.loops.recording import record
from tests.programs.quantised_weights import PROGRAMS, exact_run, made_inputs

from .accuracy import compare, steps
from .interpreted import run_interpreted
from .test_triton import H200, rendered

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")


def made(name: str, *inputs: torch.Tensor) -> tuple[Plan, KernelSource]:
    graph, _ = record(PROGRAMS[name].run, *inputs)
    plan, source = rendered(lower(graph, "test"))
    assert source is not None
    return plan, source


def check(name: str, *inputs: torch.Tensor) -> str:
    plan, source = made(name, *inputs)
    assert not any(isinstance(step, Call) for step in plan.steps), "no library call"
    (got, *_), _ = run_interpreted(source, plan, inputs)
    wide = (x.double() if x.is_floating_point() else x for x in inputs)
    compare(got, PROGRAMS[name].run(*inputs), exact_run(name)(*wide), name, strides=steps)
    return source.text


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tensor_cores_multiply_several_rows(name, dtype):
    text = check(name, *made_inputs(PROGRAMS[name], (5,), 48, 256, dtype))
    assert "tl.dot" in text
    assert ("ieee" in text) is (dtype is torch.float32), "TF32 would drop bits"


@pytest.mark.parametrize("name", ["scaled weight", "groups of 32"])
def test_one_row_is_a_reduction(name):
    text = check(name, *made_inputs(PROGRAMS[name], (1,), 48, 256, torch.bfloat16))
    assert "tl.dot" not in text


@pytest.mark.parametrize(("rows", "n", "k"), [(2, 17, 100), (33, 130, 333), (64, 16, 16)])
def test_sizes_that_fill_no_tile(rows, n, k):
    check("scaled weight", *made_inputs(PROGRAMS["scaled weight"], (rows,), n, k, torch.float32))


def test_scales_that_are_not_finite():
    name = "scaled weight"
    x, q, scale = made_inputs(PROGRAMS[name], (4,), 48, 100, torch.float32)
    x[0, 3], scale[7], scale[9] = torch.nan, torch.inf, torch.nan
    q[7] = q[7].abs() + 1
    plan, source = made(name, x, q, scale)
    (got, *_), _ = run_interpreted(source, plan, (x, q, scale))
    torch.testing.assert_close(got, PROGRAMS[name].run(x, q, scale), equal_nan=True)


def test_many_rows_stay_with_the_library():
    name = "scaled result"
    plan, _ = made(name, *made_inputs(PROGRAMS[name], (65,), 48, 256, torch.bfloat16))
    assert any(isinstance(step, Call) for step in plan.steps)


@pytest.mark.parametrize("name", ["scaled result", "groups of 32"])
def test_kernels_compile_without_a_gpu(name, tmp_path):
    plan, source = made(name, *made_inputs(PROGRAMS[name], (8,), 256, 512, torch.bfloat16))
    build_cubins(source, aligned_arguments(plan, True), H200, Cache(tmp_path))


@pytest.mark.parametrize("rows", [1, 8])
@pytest.mark.parametrize(("n", "k"), [(256, 512), (32, 96)])
def test_float8_weights_compile_without_a_gpu(n, k, rows, tmp_path):
    name = "groups of 32"
    inputs = made_inputs(PROGRAMS[name], (rows,), n, k, torch.bfloat16, torch.float8_e4m3fn)
    plan, source = made(name, *inputs)
    assert not any(isinstance(step, Call) for step in plan.steps), "no conversion by ATen"
    build_cubins(source, aligned_arguments(plan, True), H200, Cache(tmp_path))
