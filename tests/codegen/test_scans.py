"""Scans in every form of a kernel and every renderer, against eager and float64."""

from __future__ import annotations

import math
from importlib import import_module
from importlib.util import find_spec

import pytest
import torch

import jitmagic
from jitmagic.codegen.loop_structure import scans_of, structure
from jitmagic.codegen.triton import tile as triton_tile
from jitmagic.devices import Target
from jitmagic.errors import CannotRender
from jitmagic.loops.interp import run
from jitmagic.loops.ir import Extern, LoopProgram, Nest, Scan, walk
from jitmagic.loops.lower import lower
from jitmagic.loops.verify import verify
from jitmagic.options import Options
from jitmagic.schedule import schedule
from tests.loops.recording import clone, record
from tests.schedule.programs import made_inputs
from tests.schedule.scans import SCANS

from . import test_kernel_language as language
from . import test_triton as triton
from .for_gpu import compiled
from .test_blocks import check as check_blocks
from .test_cpp import check as check_cpp
from .test_numba import check as check_numba

WITHOUT_TRITON = pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")
TARGET = Target("cpu", "cpp", "a test", "avx512", 16, 2, 1 << 20, "g++")
REFUSED = ("of_one_row",)  # by the block interpreter; of_every_kind has logarithms of sums
SCANNED = "cumsum cumprod logcumsumexp cummax cummin".split()


def lowered(fn, *inputs) -> LoopProgram:
    graph, _ = record(fn, *[clone(x) for x in inputs])
    return lower(graph, "test")


@pytest.mark.parametrize("name", SCANS)
def test_fusing_changes_no_result(name):
    program = SCANS[name]
    inputs = made_inputs(program)
    unfused = lowered(program.fn, *inputs)
    result = schedule(unfused, TARGET, Options())
    verify(result.program)
    first, second = [clone(x) for x in inputs], [clone(x) for x in inputs]
    fused = run(result.program, first, "float64")
    for a, b in zip(fused, run(unfused, second, "float64"), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)
    nests = [step for step in result.program.steps if isinstance(step, Nest)]
    assert not any(isinstance(step, Extern) for step in result.program.steps)
    assert len(nests) == program.nests, result.decisions


def test_scans_of_a_pass_are_in_the_same_order_in_every_process():
    program = SCANS["of_every_kind"]
    fused = schedule(lowered(program.fn, *made_inputs(program)), TARGET, Options()).program
    nests = [structure(step, fused.buffers) for step in fused.steps]
    found = [[node.op for node in scans_of(pass_)] for nest in nests for pass_ in nest.passes]
    assert found == [["max", "max", "prod", "sum", "logsumexp"], ["prod", "min", "max"]]


@pytest.mark.parametrize("form", [*language.FORMS])
@pytest.mark.parametrize("name", SCANS)
def test_each_form_computes_what_the_nests_do(name, form, monkeypatch):
    monkeypatch.setitem(language.PROGRAMS, name, SCANS[name])
    if form == "blocks" and name in REFUSED:
        with pytest.raises(CannotRender):
            language.test_each_form_computes_what_the_nests_do(name, form)
    else:
        language.test_each_form_computes_what_the_nests_do(name, form)


@pytest.mark.parametrize("name", [n for n in SCANS if n not in (*REFUSED, "of_every_kind")])
def test_blocks(name):
    check_blocks(SCANS[name].fn, *made_inputs(SCANS[name]))


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.float16])
def test_blocks_of_each_kind(dtype):
    x = (torch.rand(7, 19, generator=torch.Generator().manual_seed(0)) * 9).to(dtype)
    check_blocks(lambda x: (x.cumsum(1) + 1, *x.cummax(1), *x.cummin(0), x.cumprod(0)), x)


def test_blocks_refuse_few_long_rows():
    with pytest.raises(CannotRender):
        check_blocks(lambda x: x.cumsum(1), torch.randn(3, 1 << 13))
    check_blocks(lambda x: x.cumsum(1), torch.randn(70, 1 << 13))


@pytest.mark.parametrize("check", [check_cpp, check_numba], ids=["cpp", "numba"])
@pytest.mark.parametrize("name", SCANS)
def test_processors(name, check):
    check(SCANS[name].fn, *made_inputs(SCANS[name]))


@WITHOUT_TRITON
@pytest.mark.parametrize("name", SCANS)
def test_tiles(name):
    triton.check(SCANS[name].fn, *made_inputs(SCANS[name]))


@WITHOUT_TRITON
@pytest.mark.parametrize("name", SCANS)
def test_tiles_in_steps(name, monkeypatch):
    monkeypatch.setattr(triton_tile, "ROW", 16)
    monkeypatch.setattr(triton_tile, "STEP", 16)
    monkeypatch.setattr(triton_tile, "STEP_STRIDED", 16)
    triton.check(SCANS[name].fn, *made_inputs(SCANS[name]))


def test_one_long_row_stays_with_aten_on_a_gpu():
    plan, _ = compiled(lambda x: x.cumsum(0) * 2, torch.randn(1 << 15))
    assert "aten.cumsum" in str(plan)
    plan, _ = compiled(lambda x: x.cumsum(1) * 2, torch.randn(2, 1 << 15))
    assert "aten.cumsum" not in str(plan)


@pytest.mark.parametrize("name", SCANNED)
@pytest.mark.parametrize("dtype", triton.TL_DTYPES)
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_every_dtype_has_the_results_of_eager(name, dtype, dim):
    if dtype.itemsize == 1 and dtype.is_floating_point:
        pytest.skip("eager has no scans of eight-bit floats")
    if name == "logcumsumexp" and not dtype.is_floating_point:
        pytest.skip("eager takes logarithms of floats alone")
    x = torch.randn(5, 19, generator=torch.Generator().manual_seed(0))
    x = (x > 0 if dtype == torch.bool else x * 3).to(dtype)

    def fn(x):
        made = getattr(torch, name)(x, dim)
        return made if isinstance(made, torch.Tensor) else tuple(made)

    check_cpp(fn, x)


@pytest.mark.parametrize("name", SCANNED)
@pytest.mark.parametrize("check", [check_cpp, check_numba, triton.check], ids=["cpp", "numba", "t"])
def test_nan_infinity_and_equal_elements(name, check):
    if check is triton.check and find_spec("triton") is None:
        pytest.skip("triton is not installed")
    nan, inf = math.nan, math.inf
    rows = [
        *([1.0, nan, 2.0, inf, -inf], [inf, inf, -inf, 1.0, nan], [-inf, -inf, -inf, 0.0, 1.0]),
        *([3.0, 3.0, 1.0, 3.0, 4.0], [0.0, -0.0, 0.0, -1.0, -0.0], [2.0, -3.0, 0.0, inf, 5.0]),
    ]

    def fn(x):
        made = getattr(torch, name)(x, 1)
        return made if isinstance(made, torch.Tensor) else tuple(made)

    check(fn, torch.tensor(rows))


@pytest.mark.parametrize(
    "make",
    [
        *(lambda: torch.tensor(2.5), lambda: torch.empty(0), lambda: torch.empty(3, 0)),
        *(lambda: torch.randn(4, 1), lambda: torch.randn(1, 7), lambda: torch.randn(40, 60).t()),
        *(lambda: torch.randn(20, 30)[::2, 3::4], lambda: torch.randn(6, 9)),
    ],
)
def test_shapes_and_strides(make):
    x = make()
    if x.shape == (6, 9):
        check_cpp(lambda x: x[:, :1].expand(6, 9).cumsum(1), x)
    check_cpp(lambda x: (x.cumsum(-1), x.cumprod(0), *x.cummax(0), x.logcumsumexp(-1)), x)


@pytest.mark.parametrize("name", SCANNED)
def test_gradients(name):
    def fn(x):
        made = getattr(torch, name)(x.sin(), 1)
        return (made if isinstance(made, torch.Tensor) else made.values) * x

    x = torch.randn(7, 33, dtype=torch.float64)
    mine, eager = (x.clone().requires_grad_() for _ in range(2))
    jitmagic.jit(fn)(mine).square().sum().backward()
    fn(eager).square().sum().backward()
    torch.testing.assert_close(mine.grad, eager.grad, rtol=1e-10, atol=1e-10)


def test_a_scan_of_few_rows_leaves_much_work_before_it_to_other_threads():
    many = Target("cpu", "cpp", "a test", "avx512", 16, 16, 1 << 20, "g++")
    program = lowered(lambda x: x.exp().sin().cumsum(1), torch.randn(2, 1 << 15))
    kernels = schedule(program, many, Options()).program.steps
    assert [any(map(_is_scan, nest.stores)) for nest in kernels] == [False, True]
    program = lowered(lambda x: x.exp().sin().cumsum(1), torch.randn(200, 1 << 10))
    assert len(schedule(program, many, Options()).program.steps) == 1


def _is_scan(store) -> bool:
    return any(isinstance(node, Scan) for node in walk((store.value,)))


def test_reductions_beside_a_scan_are_not_split(monkeypatch):
    split = import_module("jitmagic.schedule.split_reductions")  # not the function
    for limit in ("ROW", "STRIDED_ROW"):
        monkeypatch.setattr(split, limit, 8)
    triton.check(lambda x: x.cumsum(1) / x.exp().sum(1, keepdim=True), torch.randn(2, 40))
