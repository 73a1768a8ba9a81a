"""Generated Triton, run by Triton's interpreter, against eager and the program in float64."""

from __future__ import annotations

import math
from collections.abc import Iterable
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec

import pytest
import torch

from jitmagic.codegen import render
from jitmagic.codegen.plan import KernelSource, Plan
from jitmagic.codegen.text import argument_names
from jitmagic.codegen.triton import tile as triton_tile
from jitmagic.codegen.triton.ops import TL_DTYPES
from jitmagic.codegen.triton.renderer import is_reserved
from jitmagic.devices import Target
from jitmagic.loops.expr import Axis, AxisVar, ValueIndex
from jitmagic.loops.interp import run
from jitmagic.loops.ir import Buffer, Load, LoopProgram, Nest, Store
from jitmagic.loops.lower import lower
from jitmagic.loops.values import compute
from jitmagic.operators import SCALARS
from jitmagic.options import Options
from jitmagic.runtime.alignment import aligned_arguments
from jitmagic.runtime.store import Store as Cache
from jitmagic.runtime.triton_kernels import build_cubins
from jitmagic.schedule import schedule
from tests.loops.recording import clone, record
from tests.schedule.programs import PROGRAMS, made_inputs

from .accuracy import compare, steps
from .interpreted import run_interpreted

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")

H200 = Target("cuda", "triton", "for tests", "sm_90", 1, 0, 50 << 20, "", 132)


def rendered(program: LoopProgram, **options: object) -> tuple[Plan, KernelSource | None]:
    """Render for a CUDA device, whatever device the buffers are on."""
    return render(schedule(program, H200, Options(**options)), H200)


def check(fn, *inputs, **options) -> str:
    """Require errors of at most twice eager's plus a few roundings; the rest is exact."""
    graph, expected = record(fn, *[clone(x) for x in inputs])
    program = lower(graph, "test")
    plan, source = rendered(program, **options)
    wide, mutated = [clone(x) for x in inputs], [clone(x) for x in inputs]
    got, ours = run_interpreted(source, plan, [clone(x) for x in inputs])
    exact = run(program, wide, "float64")
    with torch.no_grad():
        fn(*mutated)
    for a, b, c in zip([*got, *ours], [*expected, *mutated], [*exact, *wide]):
        compare(a, b, c, strides=steps)
    return source.text if source else ""


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name):
    program = PROGRAMS[name]
    check(program.fn, *made_inputs(program))


@pytest.mark.parametrize("name", ["layer_norm_backward", "softmax_columns", "diamond", "masked"])
def test_unfused_programs(name):
    program = PROGRAMS[name]
    check(program.fn, *made_inputs(program), fuse=False)


LOOPED = (
    "softmax_parts layer_norm_saved layer_norm_backward batch_norm softmax_columns arg_reductions "
    "masked diamond cross_entropy row_then_pieces integers running_stats"
).split()


@pytest.mark.parametrize("name", LOOPED)
def test_extents_taken_in_steps(name, monkeypatch):
    monkeypatch.setattr(triton_tile, "ROW", 32)
    monkeypatch.setattr(triton_tile, "STEP", 16)
    monkeypatch.setattr(triton_tile, "STEP_STRIDED", 16)
    program = PROGRAMS[name]
    assert "for r" in check(program.fn, *made_inputs(program))


@pytest.mark.parametrize(
    "name", ["chain", "transposed_add", "embedding", "strided_slices", "padded", "padded_rows"]
)
def test_offsets_of_64_bits(name, monkeypatch):
    monkeypatch.setattr(triton_tile, "FAR", 100)
    program = PROGRAMS[name]
    assert "tl.int64" in check(program.fn, *made_inputs(program))


@pytest.mark.parametrize("name", ["everything_sum", "column_sum", "softmax_parts", "layer_norm"])
def test_split_reductions(name, monkeypatch):
    split_reductions = import_module("jitmagic.schedule.split_reductions")  # not the function
    monkeypatch.setattr(split_reductions, "ROW", 40)
    monkeypatch.setattr(split_reductions, "STRIDED_ROW", 20)
    monkeypatch.setattr(split_reductions, "PIECE", 8)
    monkeypatch.setattr(split_reductions, "STRIDED_PIECE", 8)
    program = PROGRAMS[name]
    assert check(program.fn, *made_inputs(program)).count("def ") > program.nests


@pytest.mark.parametrize("n", [1, 2, 3, 16, 17, 33, 129])
def test_tails(n):
    def fn(x):
        e = (x - x.amax(-1, keepdim=True)).exp()
        return e / e.sum(-1, keepdim=True), x.sum(0), (x * 2 + 1).to(torch.float64)

    check(fn, torch.randn(3, n))


def test_reductions_propagate_nan_and_infinity():
    x = torch.randn(6, 70)
    x[0, 3], x[1, 69], x[2, 0] = math.nan, math.inf, -math.inf
    x[3] = -math.inf
    x[4, 5] = x[4, 60] = 9.0

    def fn(x):
        return x.amax(-1), x.amin(-1), x.sum(-1), x.argmax(-1), x.argmin(-1), x.relu(), x.prod(-1)

    check(fn, x)
    check(lambda x: torch.softmax(x, -1), x)


def test_reductions_of_every_dtype():
    g = torch.Generator().manual_seed(0)
    for dtype in (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64):
        x = torch.randint(0, 100, (5, 19), generator=g).to(dtype)
        check(lambda x: (x.amax(-1), x.amin(0), x.sum(-1), x.argmax(-1), x.prod(-1)), x)
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        x = torch.randn(5, 19, generator=g).to(dtype)
        check(lambda x: (x.amax(-1), x.amin(0), x.sum(-1), x.argmax(-1), x.mean(0)), x)


def test_a_negative_index_counts_from_the_end():
    check(lambda t, i: t[i] + 1, torch.randn(9, 20), torch.tensor([0, -1, 5, -9]))


@pytest.mark.parametrize("bad", [9, -10, 2**40])
def test_an_index_out_of_range_fails_an_assertion(bad):
    table, index = torch.randn(9, 20), torch.tensor([0, 1, 5, 8])
    graph, _ = record(lambda t, i: t[i] * 2, table, index)
    plan, source = rendered(lower(graph, "test"))
    run_interpreted(source, plan, [table, index])
    with pytest.raises(RuntimeError, match="index out of range"):
        run_interpreted(source, plan, [table, torch.tensor([0, bad, 5, 8])])


def _names(arity: int, dtype: torch.dtype) -> list[str]:
    return [row.name for row in SCALARS.values() if row.arity == arity and row.takes(dtype)]


UNARY, BINARY = _names(1, torch.float32), _names(2, torch.float32)
INTEGER = _names(2, torch.int64)
SPECIAL = [0.0, -0.0, math.inf, -math.inf, math.nan, 0.5, -0.5, 1.5, 2.5, -1.0, 1e-40, 1e30, 3.0]


CPU = torch.device("cpu")


def op_program(
    ops: list[str], dtype: torch.dtype, size: int, arity: int, device: torch.device = CPU
) -> LoopProgram:
    """Build one pointwise nest that stores op(x, y) for every op."""
    axis = Axis("i0", size)
    point = (AxisVar(axis),)
    inputs = [f"x{n}" for n in range(arity)]
    loads = [Load(name, point, dtype) for name in inputs]
    stores = [Store(f"{op}_out", (), point, compute(op, *loads)) for op in ops]
    buffers = {name: Buffer(name, (size,), (1,), dtype, device, "input") for name in inputs}
    for store in stores:
        made = Buffer(store.buffer, (size,), (1,), store.value.dtype, device, "output")
        buffers[store.buffer] = made
    outputs = tuple(store.buffer for store in stores)
    nest = Nest("ops", (axis,), tuple(stores))
    return LoopProgram("ops", buffers, tuple(inputs), outputs, (nest,))


def against_interpreter(program: LoopProgram, inputs: list[torch.Tensor]) -> None:
    plan, source = rendered(program, fuse=False)
    got, _ = run_interpreted(source, plan, inputs)
    for name, a, b in zip(program.outputs, got, run(program, inputs)):
        tolerance = {"rtol": 1e-6, "atol": 1e-7} if a.dtype == torch.float32 else {}
        torch.testing.assert_close(a, b, equal_nan=True, **tolerance, msg=lambda m: f"{name}: {m}")


def interpretable(ops: Iterable[str], dtype: torch.dtype) -> list[str]:
    """Drop the ops that the interpreter of Triton 3.6 gets wrong: tests/device runs them."""
    is_old = tuple(map(int, version("triton").split(".")[:2])) < (3, 7)
    wrong = {"fmin", "fmax"} if dtype.is_floating_point else {"bitwise_not"}
    return [op for op in ops if not (is_old and op in wrong)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_op_on_floats(dtype):
    special = torch.tensor(SPECIAL, dtype=dtype)
    against_interpreter(op_program(UNARY, dtype, len(special), 1), [special])
    normal = special[
        special.abs() != special[10]
    ]  # torch's vectorised fmod gives up on overflowing quotients
    pairs = torch.cartesian_prod(normal, normal)
    x, y = pairs[:, 0].contiguous(), pairs[:, 1].contiguous()
    against_interpreter(op_program(interpretable(BINARY, dtype), dtype, len(x), 2), [x, y])


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int8, torch.uint8])
def test_every_op_on_integers(dtype):
    x = torch.arange(-40, 40).to(dtype)
    y = torch.tensor([1, 2, 3, 5, 7]).repeat(16).to(dtype)
    y = y if dtype == torch.uint8 else y * torch.tensor([1, -1]).repeat(40).to(dtype)
    ops = [op for op in INTEGER if "shift" not in op]
    against_interpreter(op_program(ops, dtype, 80, 2), [x, y])
    shifts = [op for op in INTEGER if "shift" in op]
    against_interpreter(op_program(shifts, dtype, 80, 2), [x, y.abs()])
    unary = interpretable(["bitwise_not", "abs", "sign", "relu"], dtype)
    against_interpreter(op_program(unary, dtype, 80, 1), [x])


def test_every_cast():
    # Weights alone have float8, which no pickle of torch carries to the interpreter's process.
    kinds = [kind for kind in TL_DTYPES if kind is not torch.float8_e4m3fn]
    for source in kinds:
        x = torch.tensor([0.0, 1.0, 2.75, 100.3, -3.6 if source.is_signed else 7.0]).to(source)
        safe = [kind for kind in kinds if kind is not source]
        check(lambda x: tuple(x.to(kind) for kind in safe), x)


def test_scatter_adds():
    axis = Axis("i0", 200)
    point, cpu = (AxisVar(axis),), torch.device("cpu")
    place = ValueIndex(Load("index", point, torch.int64), 7)
    store = Store("out", (), (place,), Load("x", point, torch.float32), "add")
    buffers = {
        "x": Buffer("x", (200,), (1,), torch.float32, cpu, "input"),
        "index": Buffer("index", (200,), (1,), torch.int64, cpu, "input"),
        "out": Buffer("out", (7,), (1,), torch.float32, cpu, "input"),
    }
    nest = Nest("scatter", (axis,), (store,))
    program = LoopProgram("scatter", buffers, ("x", "index", "out"), ("out",), (nest,))
    plan, source = rendered(program)
    x, index = torch.randn(200), torch.randint(0, 7, (200,))
    (got,), _ = run_interpreted(source, plan, [x, index, torch.ones(7)])
    torch.testing.assert_close(got, torch.ones(7).index_add(0, index, x))


def test_a_reduction_inside_another():
    def fn(x, w):
        return ((x.unsqueeze(2) * w).sum(1) + 1).exp().sum(-1), (x.unsqueeze(2) * w).amax(1)

    check(fn, torch.randn(9, 6), torch.randn(6, 10))


def test_names_that_kernels_use_themselves_are_not_parameters():
    source = check(lambda x: x + 1, torch.randn(40))
    names = ["i0", "r0", "v1", "tl", "pid", "sum0", "class", "_x", "0a", "libdevice", "x0"]
    taken = argument_names([n for n in [*names, "s0"] if n != "class"], ["s0"], is_reserved)
    assert len(set(taken.values())) == len(taken)
    assert taken["x0"] == "x0"
    assert taken["s0"] == "s0_", "a size has the name"
    for name in ("i0", "r0", "v1", "tl", "pid", "sum0"):
        assert taken[name] == f"p_{name}"
    assert "import triton" in source


def bools(a, b):
    below = a < b, a <= b, a > b, a >= b, a == b, a != b
    return (*below, a ^ b, a & b, a | b, ~a, a.to(torch.float32), a.sum(0), a.any(1), b.all(0))


def filled(a, x, k):
    pad = torch.ops.aten.constant_pad_nd
    low, high = float("-inf"), float("nan")
    return pad(a, [1, 2], True), pad(x, [2, 1], low), pad(x, [1, 0], high), pad(k, [3, 1], -7)


def test_bools():
    g = torch.Generator().manual_seed(0)
    a, b = torch.rand(7, 30, generator=g) < 0.5, torch.rand(7, 30, generator=g) < 0.5
    check(bools, a, b)


def test_fills():
    check(filled, torch.rand(7, 30) < 0.5, torch.randn(7, 30), torch.arange(210).reshape(7, 30))


def test_compiled_bools_and_fills(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    a, x, k = torch.rand(7, 30) < 0.5, torch.randn(7, 30), torch.arange(210).reshape(7, 30)
    for fn, inputs in ((bools, (a, a)), (filled, (a, x, k))):
        graph, _ = record(fn, *inputs)
        plan, source = rendered(lower(graph, "test"))
        build_cubins(source, aligned_arguments(plan, True), H200, Cache(tmp_path))


def test_gelu_of_halves_takes_fewer_instructions():
    """Their results are eager's to a rounding; those of float32 call libdevice as eager does."""
    for dtype in (torch.bfloat16, torch.float16):
        x = torch.cat([torch.linspace(-9, 9, 4001), torch.tensor([0.0, -0.0, 1e-30, 60000.0])])
        text = check(torch.nn.functional.gelu, x.to(dtype))
        assert "erf_plus_one(" in text
        grads = torch.ones(4005, dtype=dtype)
        text = check(torch.ops.aten.gelu_backward.default, grads, x.to(dtype))
    assert "erf_plus_one(" not in check(torch.nn.functional.gelu, torch.linspace(-9, 9, 4001))


def test_one_more_than_erf_of_any_number():
    x = torch.tensor([math.inf, -math.inf, math.nan, 0.0, -0.0, 5.0, -5.0, 3e38, -3e38])
    check(lambda x: torch.erf(x) + 1, x.bfloat16())


def test_softmax_of_halves_divides_by_the_sum_once():
    x = torch.randn(7, 300)
    x[0, :5] = torch.tensor([math.inf, 1, 2, 3, 4])
    x[1] = -math.inf
    x[2, 7], x[3] = math.nan, 1e-39
    text = check(lambda x: torch.softmax(x, -1), x.bfloat16())
    assert "tl.exp(" in text
    assert "div_rn" not in text
    assert "div_rn" in check(lambda x: torch.softmax(x, -1), x)
    rows = torch.rand(4, 64).bfloat16() * torch.tensor([1e-30, 1, 1e30, 1e36])[:, None]
    check(lambda x: x / x.sum(-1, keepdim=True), rows.bfloat16())
