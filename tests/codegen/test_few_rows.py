"""Products of few rows in Triton: one row is a reduction, tensor cores multiply several."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch
import torch.nn.functional as F

from jitmagic.codegen.plan import Call, KernelSource, Launch, Plan
from jitmagic.loops.lower import lower
from jitmagic.options import Options
from jitmagic.runtime.alignment import aligned_arguments
from jitmagic.runtime.store import Store as Cache
from jitmagic.runtime.triton_kernels import build_cubins
from jitmagic.schedule import product_choices
from tests.loops.recording import record

from .accuracy import compare, steps
from .interpreted import run_interpreted
from .test_triton import H200, rendered

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def linear(x, w, b, r):
    return F.linear(x, w)


def with_epilogue(x, w, b, r):
    return F.silu(F.linear(x, w, b)) * r + 1


def with_prologue(x, w, b, r):
    return F.linear(F.gelu(x) * 0.5, w, b), x + 1


def gated(x, w, b, r):
    return F.silu(F.linear(x, w)) * F.linear(x, w.flip(0))


def normed(x, w, b, r):
    y = F.linear(F.layer_norm(x, x.shape[-1:]), w) + r
    return F.layer_norm(y, y.shape[-1:])


PROGRAMS = [linear, with_epilogue, with_prologue, gated, normed]


def inputs(m: int, n: int, k: int, dtype: torch.dtype) -> list[torch.Tensor]:
    shapes = (m, k), (n, k), (n,), (m, n)
    x, w, b, r = (torch.randn(shape, dtype=torch.float32) for shape in shapes)
    return [t.to(dtype) for t in (x, w / k**0.5, b, r)]


def made(fn, *given: torch.Tensor, **options: object) -> tuple[Plan, KernelSource]:
    graph, _ = record(fn, *given)
    plan, source = rendered(lower(graph, "test"), **options)
    assert source is not None
    return plan, source


def calls(plan: Plan) -> list[str]:
    return [str(step.op) for step in plan.steps if isinstance(step, Call)]


def check(fn, *given: torch.Tensor) -> tuple[Plan, str]:
    plan, source = made(fn, *given)
    got, _ = run_interpreted(source, plan, given)
    eager, exact = fn(*given), fn(*(t.double() for t in given))
    results = [part if isinstance(part, tuple) else (part,) for part in (eager, exact)]
    for ours, theirs, wide in zip(got, *results, strict=True):
        assert ours is not None
        compare(ours, theirs, wide, fn.__name__, strides=steps)
    return plan, source.text


@pytest.mark.parametrize("fn", PROGRAMS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_one_row_is_a_reduction(fn, dtype):
    plan, text = check(fn, *inputs(1, 48, 256, dtype))
    assert not [call for call in calls(plan) if "mm" in call]
    assert "tl.dot" not in text


@pytest.mark.parametrize(("n", "k"), [(17, 100), (33, 4097), (16, 9000), (300, 16), (64, 1024)])
def test_sizes_of_one_row_that_fill_no_tile(n, k):
    plan, _ = check(with_epilogue, *inputs(1, n, k, torch.bfloat16))
    assert not calls(plan)


@pytest.mark.parametrize("dtype", DTYPES)
def test_vectors_without_rows(dtype):
    def program(x, w, b, r):
        return torch.mv(w, x[0]).relu() + r[0], torch.mv(w.t(), b)

    plan, _ = check(program, *inputs(1, 48, 256, dtype))
    assert [call for call in calls(plan) if "mv" in call] == ["aten.mv.default"], "w.t() b"


def test_a_gated_layer_reads_its_input_once():
    plan, _ = made(
        lambda x, a, b: F.silu(F.linear(x, a)) * F.linear(x, b),
        *(torch.randn(n, 512).bfloat16() for n in (1, 640, 640)),
    )
    assert len([step for step in plan.steps if isinstance(step, Launch)]) == 1


@pytest.mark.parametrize(("fn", "rows"), [*((fn, 4) for fn in PROGRAMS), (linear, 2), (linear, 16)])
def test_several_rows_are_multiplied_by_tensor_cores(fn, rows):
    plan, text = check(fn, *inputs(rows, 6400, 80, torch.bfloat16))
    assert not [call for call in calls(plan) if "mm" in call]
    assert "tl.dot" in text


@pytest.mark.parametrize(("m", "n", "k"), [(5, 6401, 33), (3, 6344, 130)])
def test_sizes_of_several_rows_that_fill_no_tile(m, n, k):
    _, text = check(with_epilogue, *inputs(m, n, k, torch.float16))
    assert "tl.dot" in text


@pytest.mark.parametrize(
    ("m", "n", "dtype"),
    [
        (17, 6400, torch.bfloat16),  # more than a tile
        (2, 4096, torch.bfloat16),  # tiles for too few multiprocessors
        (2, 6400, torch.float32),
        (1, 8, torch.bfloat16),
        (0, 64, torch.bfloat16),
    ],
)
def test_others_are_calls_of_the_library(m, n, dtype):
    graph, _ = record(linear, *inputs(m, n, 32, dtype))
    plan, _ = rendered(lower(graph, "test"))
    assert calls(plan) == ["aten.mm.out"] if m else True


def test_a_weight_that_is_contiguous_along_its_columns_is_multiplied_by_the_library():
    plan, source = rendered(
        lower(record(torch.mm, torch.randn(1, 64), torch.randn(64, 64))[0], "t")
    )
    assert calls(plan) == ["aten.mm.out"]
    assert source is None


@pytest.mark.parametrize("rows", [1, 4])
def test_operands_of_any_strides(rows):
    def strided(x, w, b, r):
        return F.linear(x[:, ::2], w[::2, : x.shape[1] // 2], b[::2]) * r[:, 1::2]

    check(strided, *inputs(rows, 12800, 64, torch.bfloat16))

    def turned(x, w, b, r):
        return F.linear(x.t().reshape(x.shape), w) + r

    check(turned, *inputs(rows, 6400, 24, torch.bfloat16))


@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("k", [64, 100])
def test_values_that_are_not_finite(rows, k):
    x, w, b, r = inputs(rows, 6400, k, torch.bfloat16)
    x[0, 3], w[7, 5], w[9, 2], b[11] = torch.inf, torch.nan, -torch.inf, torch.nan
    w[20:30, 3] = 0.0
    check(with_epilogue, x, w, b, r)


def test_rows_of_64_bit_offsets(monkeypatch):
    from jitmagic.codegen.triton import tile as triton_tile

    monkeypatch.setattr(triton_tile, "FAR", 100)
    for rows in (1, 3):
        _, text = check(with_epilogue, *inputs(rows, 6400, 48, torch.bfloat16))
        assert "tl.int64" in text


def test_tuning_may_choose_the_other_kernel():
    given = [torch.randn(2, 64).bfloat16(), torch.randn(1024, 64).bfloat16()]
    found = product_choices(lower(record(F.linear, *given)[0], "test"), H200, Options())
    assert [chosen for _, chosen in found.values()] == [False]
    given = [torch.randn(1, 64).bfloat16(), torch.randn(1024, 64).bfloat16()]
    found = product_choices(lower(record(F.linear, *given)[0], "test"), H200, Options())
    assert [chosen for _, chosen in found.values()] == [True]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "n", "k"), [(1, 512, 4096), (1, 512, 11008), (8, 6400, 512)])
def test_kernels_compile_without_a_gpu(rows, n, k, dtype, tmp_path):
    if rows > 1 and dtype == torch.float32:
        pytest.skip("tensor cores would round float32 to TF32")
    plan, source = made(with_epilogue, *inputs(rows, n, k, dtype))
    assert not calls(plan)
    build_cubins(source, aligned_arguments(plan, True), H200, Cache(tmp_path))


def test_a_result_added_to_every_row_is_not_read_across_memory():
    def modulated(x, w, y):
        return F.linear(x, w) + y, F.linear(x, w).view(1, -1, 1) * y[:64, None, :8]

    given = [torch.randn(shape).bfloat16() for shape in ((1, 512), (64, 512), (64, 64))]
    plan, _ = made(modulated, *given)
    assert not calls(plan)
    launched = [step.kernel for step in plan.steps if isinstance(step, Launch)]
    assert launched == ["mm_mul_0", "add_0"], "along the rows of an image it is one kernel"
