"""Attention with biases that torch's kernels do not differentiate: its Triton kernels, interpreted.

Eager computes the same in float64. Rows of -inf are NaN there, and the lowest numbers of a dtype
absorb scores, but not their gradients.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx import GraphModule

import jitmagic
from jitmagic.autograd.joint import trace_joint
from jitmagic.autograd.partition import partition
from jitmagic.devices.cpu import CPU_ROW
from jitmagic.devices.device import add
from jitmagic.graph.attention.fusing import fuse_attention
from jitmagic.lazy_dataclass import replace
from jitmagic.runtime.alignment import aligned_arguments
from jitmagic.runtime.store import Store
from jitmagic.runtime.triton_kernels import build_cubins
from jitmagic.spec import spec_of

from .for_gpu import H200
from .test_flex_attention import Run, rendered, run, run_kernels, saved_tensors

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")

ROWS, COLUMNS, WIDTH = 40, 24, 16
Program = Callable[..., Tensor]


@pytest.fixture(autouse=True)
def kernels_everywhere() -> Iterator[None]:
    """Generate kernels for CPU tensors too, which stand for those of a GPU."""
    add(replace(CPU_ROW, generates_attention=lambda facts: True))
    yield
    add(CPU_ROW)


def plain(q: Tensor, k: Tensor, v: Tensor, b: Tensor) -> Tensor:
    return (q @ k.mT * 0.3 + b).softmax(-1) @ v


def several(q: Tensor, k: Tensor, v: Tensor, b: Tensor) -> Tensor:
    return ((q @ k.mT + b) / 4 - b[..., :1]).softmax(-1) @ v


def filled(q: Tensor, k: Tensor, v: Tensor, b: Tensor) -> Tensor:
    kept = torch.arange(COLUMNS) < torch.tensor([COLUMNS, 7])[:, None, None, None]
    return (q @ k.mT * 0.3 + b).masked_fill(~kept, -math.inf).softmax(-1) @ v


SHAPES = [
    (ROWS, COLUMNS), (3, ROWS, COLUMNS), (2, 1, ROWS, COLUMNS), (2, 3, ROWS, COLUMNS),
    (2, 1, 1, COLUMNS), (3, ROWS, 1),
]  # fmt: skip


def inputs(shape: Sequence[int], dtype: torch.dtype) -> list[Tensor]:
    torch.manual_seed(0)
    sizes = [(2, 3, n, WIDTH) for n in (ROWS, COLUMNS, COLUMNS)]
    return [torch.randn(*size).to(dtype) for size in (*sizes, tuple(shape))]


def graphs_of(program: Program, given: Sequence[Tensor]) -> tuple[Any, list[int]]:
    """Return forward and backward, and the places of their inputs among the arguments."""
    held: list[Any] = []

    def backend(gm: GraphModule, tensors: Sequence[Tensor]) -> Any:
        held.append((gm, [next(n for n, x in enumerate(given) if x is y) for y in tensors]))
        return gm.forward

    jitmagic.jit(program, backend=backend, fullgraph=True)(*given)
    ((graph, places),) = held
    fused = fuse_attention(graph, True)
    assert fused.index_of, fused.notes
    specs = [spec_of(given[n]) for n in places]
    return partition(trace_joint(fused.module, specs, grad_enabled=True)), places


def check(
    program: Program, given: Sequence[Tensor], tolerance: float, learned: bool, run: Run = run
) -> None:
    leaves = [x.requires_grad_(n < 3 or learned) for n, x in enumerate(given)]
    parts, places = graphs_of(program, leaves)
    taken = [given[n].detach() for n in places]
    out, *saved = run(parts.forward, taken)
    wide = [x.detach().double().requires_grad_(x.requires_grad) for x in given]
    wanted = program(*wide)
    tangent = torch.randn_like(out)
    sources = [wide[n] for n in places if given[n].requires_grad]
    expected = torch.autograd.grad(wanted, sources, tangent.double())
    states = [*saved_tensors(parts, taken, [out], saved), tangent]
    found = run(parts.backward, states)
    dtypes = [given[0].dtype, *(given[n].dtype for n in places if given[n].requires_grad)]
    results = zip([out, *found], [wanted, *expected], dtypes, strict=True)
    for got, exact, dtype in results:
        assert got.dtype is dtype
        scale = exact.nan_to_num(0.0).abs().max().clamp(1).item()
        torch.testing.assert_close(
            got.double(), exact, atol=tolerance * scale, rtol=tolerance, equal_nan=True
        )


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("learned", [False, True])
@pytest.mark.parametrize("program", [plain, several, filled])
def test_results_and_gradients(program: Program, learned: bool, shape: Sequence[int]) -> None:
    check(program, inputs(shape, torch.float32), 1e-5, learned)


@pytest.mark.parametrize("program", [plain, filled])
@pytest.mark.parametrize("learned", [False, True])
def test_rows_of_the_lowest_numbers(program: Program, learned: bool) -> None:
    *tensors, bias = inputs((3, ROWS, COLUMNS), torch.float32)
    lowest = torch.finfo(torch.float32).min
    bias[:, 1], bias[:, 5, 3:], bias[0, 9], bias[1, 2, :4] = lowest, lowest, -2e4, -math.inf
    bias[2, 11] = -bias[2, 11] * 1e30
    check(program, [*tensors, bias], 1e-5, learned)


@pytest.mark.parametrize("value", [-math.inf, math.nan, math.inf])
@pytest.mark.parametrize("program", [plain, filled])
def test_rows_of_nan(program: Program, value: float) -> None:
    *tensors, bias = inputs((3, ROWS, COLUMNS), torch.float32)
    bias[1, 7] = value
    check(program, [*tensors, bias], 1e-5, True)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_narrow_dtypes(dtype: torch.dtype) -> None:
    check(plain, inputs((3, ROWS, COLUMNS), dtype), 8 * torch.finfo(dtype).eps, True)


@pytest.mark.parametrize("learned", [False, True])
def test_a_wider_bias(learned: bool) -> None:
    """As in T5 under autocast: bfloat16 products, and a bias of float32."""

    def fn(q: Tensor, k: Tensor, v: Tensor, b: Tensor) -> Tensor:
        return (q @ k.mT + b).softmax(-1).to(v.dtype) @ v

    *low, _ = inputs((3, ROWS, COLUMNS), torch.bfloat16)
    bias = inputs((3, ROWS, COLUMNS), torch.float32)[-1]
    check(fn, [*low, bias], 8 * torch.finfo(torch.bfloat16).eps, learned)


@pytest.mark.parametrize("shape", [(3, ROWS, COLUMNS), (2, 1, ROWS, COLUMNS)])
def test_kernels_in_the_reference_interpreter(shape: Sequence[int]) -> None:
    check(filled, inputs(shape, torch.float32), 1e-5, True, run_kernels)


def test_kernels_compile_for_the_device(tmp_path: Any) -> None:
    given = inputs((3, ROWS, COLUMNS), torch.bfloat16)
    parts, _ = graphs_of(plain, [x.requires_grad_() for x in given])
    for graph in (parts.forward, parts.backward):
        plan, source = rendered(graph)
        cubins, _ = build_cubins(
            source, aligned_arguments(plan, inputs=True), H200, Store(tmp_path)
        )
        assert {*cubins} == {*source.symbols}
