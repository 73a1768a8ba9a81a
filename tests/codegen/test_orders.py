"""Rows in order, in Triton's interpreter and that of kernels, against eager."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from jitmagic.codegen import render
from jitmagic.codegen.kernel_interpreter import interpret
from jitmagic.codegen.kernel_verifier import verify_kernel
from jitmagic.codegen.triton.renderer import TritonRenderer
from jitmagic.loops.interp import run
from jitmagic.loops.ir import Extern, LoopProgram, Nest
from jitmagic.loops.lower import lower
from jitmagic.options import Options
from jitmagic.runtime.alignment import aligned_arguments
from jitmagic.runtime.store import Store
from jitmagic.runtime.triton_kernels import build_cubins
from jitmagic.schedule import schedule
from tests.loops.recording import record

from .for_gpu import H200, compiled, on_cpu
from .interpreted import run_interpreted
from .test_scans import WITHOUT_TRITON

Function = Callable[[Tensor], tuple[Tensor, ...]]


def sort(x: Tensor, dim: int = -1, descending: bool = False) -> tuple[Tensor, ...]:
    return tuple(torch.sort(x, stable=True, dim=dim, descending=descending))


def experts(x: Tensor) -> tuple[Tensor, ...]:
    """Routing: the shares of the likeliest."""
    shares, chosen = torch.topk(torch.softmax(x, -1), 4, -1)
    return shares / shares.sum(-1, keepdim=True), chosen


FUNCTIONS: dict[str, Function] = {
    "topk_of_softmax": lambda x: tuple(torch.topk(torch.softmax(x, -1), 8, -1)),
    "experts": experts,
    "least": lambda x: tuple(torch.topk(x, 5, -1, largest=False)),
    "first": lambda x: tuple(torch.topk(x, 1, -1)),
    "columns": lambda x: tuple(torch.topk(x, 3, 0)),
    "two_counts": lambda x: (torch.topk(x, 4)[0], torch.topk(x, 8)[1]),
    "turned": lambda x: (torch.topk(x, 4)[0].flip(-1) * 2,),
    "sorted": sort,
    "sorted_columns": lambda x: sort(x * 2, 0, True),
    "positions_alone": lambda x: (x.argsort(-1),),
    "share_of_the_likeliest": lambda x: (torch.softmax(x, -1).sort(-1, True)[0].cumsum(-1),),
    "all_in_order": lambda x: tuple(torch.topk(x, x.shape[-1])),
}


def on_gpu(fn: Function, x: Tensor) -> LoopProgram:
    with FakeTensorMode():
        graph, _ = record(fn, torch.empty(x.shape, dtype=x.dtype, device="cuda"))
    return lower(graph, "test")


def check(fn: Function, x: Tensor) -> None:
    """Require one kernel, in which equal elements keep their order, as in eager on a CPU."""
    plan, source = compiled(_named(fn), x)
    assert len(source.symbols) == 1
    got, _ = run_interpreted(source, on_cpu(plan), [x])
    for a, b in zip(got, fn(x), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6, equal_nan=True)
        if not a.is_floating_point():
            continue
        assert torch.equal(a.signbit(), b.signbit()) or bool(b.isnan().any())


def _named(fn: Function) -> Function:
    fn.__name__ = "fn"
    return fn


@WITHOUT_TRITON
@pytest.mark.parametrize("shape", [(20, 50), (3, 256), (40, 16)])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_tiles(name, shape):
    check(FUNCTIONS[name], torch.randn(shape, generator=torch.Generator().manual_seed(0)))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_kernels_compute_what_the_nests_do(name):
    fn, x = FUNCTIONS[name], torch.randn(6, 20, generator=torch.Generator().manual_seed(0))
    program = schedule(on_gpu(fn, x), H200, Options()).program
    (nest,) = program.steps
    assert isinstance(nest, Nest)
    kernel = verify_kernel(TritonRenderer().kernel(nest, program.buffers, H200, None))
    memory = {
        p.name: torch.empty(program.buffers[p.name].shape, dtype=p.dtype).reshape(-1)
        for p in kernel.params
    }
    memory[program.inputs[0]].copy_(x.reshape(-1))
    assert not interpret(kernel, memory)
    for name, want in zip(program.outputs, fn(x), strict=True):
        torch.testing.assert_close(memory[name], want.reshape(-1))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_reference_interpreter(name):
    fn, x = FUNCTIONS[name], torch.randn(6, 20, generator=torch.Generator().manual_seed(0))
    made = run(_on_cpu(on_gpu(fn, x)), [x])
    for a, b in zip(made, fn(x), strict=True):
        torch.testing.assert_close(a, b)


def _on_cpu(program: LoopProgram) -> LoopProgram:
    cpu = torch.device("cpu")
    buffers = {name: replace(b, device=cpu) for name, b in program.buffers.items()}
    return replace(program, buffers=buffers)


@WITHOUT_TRITON
@pytest.mark.parametrize("descending", [False, True])
def test_equal_elements_zeros_infinity_and_nan(descending):
    nan, inf = math.nan, math.inf
    rows = [
        *([1.0, nan, 2.0, inf, -inf, 1.0], [inf, inf, -inf, 1.0, nan, -nan]),
        *([0.0, -0.0, 0.0, -1.0, -0.0, 1e-45], [3.0, 3.0, 1.0, 3.0, 4.0, 1.0]),
    ]
    check(lambda x: sort(x, -1, descending), torch.tensor(rows))


@WITHOUT_TRITON
@pytest.mark.parametrize(
    "dtype",
    [
        *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32),
        *(torch.float16, torch.bfloat16),
    ],
)
def test_every_dtype_of_32_bits(dtype):
    x = torch.randn(6, 33, generator=torch.Generator().manual_seed(0)) * 50
    x = (x > 0) if dtype == torch.bool else x.to(dtype)
    if not dtype.is_floating_point and dtype != torch.bool:
        x[0, :2] = torch.tensor([torch.iinfo(dtype).min, torch.iinfo(dtype).max])
    check(sort, x)
    check(lambda x: sort(x, 0, True), x)


@pytest.mark.parametrize(
    ("fn", "shape", "dtype"),
    [
        (sort, (4, 300), torch.float32),
        (sort, (4, 30), torch.float64),
        (sort, (4, 30), torch.int64),
        (lambda x: tuple(torch.topk(x, 20)), (4, 100), torch.float32),
    ],
)
def test_others_stay_with_aten(fn, shape, dtype):
    steps = on_gpu(fn, torch.zeros(shape, dtype=dtype)).steps
    assert [type(step) for step in steps] == [Extern]


@WITHOUT_TRITON
@pytest.mark.parametrize("shape", [(5,), (1,), (), (3, 1), (0, 4), (2, 0), (3, 17, 5)])
def test_shapes(shape):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    plan, source = render(schedule(on_gpu(sort, x), H200, Options()), H200)
    got, _ = run_interpreted(source, on_cpu(plan), [x])
    for a, b in zip(got, sort(x), strict=True):
        assert torch.equal(a, b)


@WITHOUT_TRITON
@pytest.mark.parametrize("name", ["topk_of_softmax", "sorted", "share_of_the_likeliest"])
def test_an_h200_has_a_kernel(name, tmp_path):
    plan, source = compiled(_named(FUNCTIONS[name]), torch.randn(4096, 128))
    built, _ = build_cubins(source, aligned_arguments(plan, True), H200, Store(tmp_path))
    assert built
