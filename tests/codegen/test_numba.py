"""Generated numba against eager and against the program interpreted in float64."""

from __future__ import annotations

import ctypes
import math

import pytest
import torch

from jitmagic.codegen import render
from jitmagic.codegen.plan import KernelSource
from jitmagic.devices import find_target
from jitmagic.loops.expr import Axis, AxisVar, ValueIndex
from jitmagic.loops.interp import run
from jitmagic.loops.ir import Buffer, Compute, Load, LoopProgram, Nest, Store
from jitmagic.loops.lower import lower
from jitmagic.options import Options
from jitmagic.runtime.numba_kernels import build_functions
from jitmagic.runtime.plan_interpreter import PlanRunner
from jitmagic.schedule import schedule
from tests.loops.recording import clone, record
from tests.schedule.programs import PROGRAMS, made_inputs

from .accuracy import compare, operations_on_integers, operations_on_reals

pytest.importorskip("numba")

CANONICAL = [
    *("chain", "softmax_parts", "layer_norm_saved", "batch_norm", "everything_sum"),
    *("cross_entropy", "half_chain", "embedding", "arg_reductions", "masked", "concatenated"),
    *("padded", "row_then_pieces", "momentum", "running_stats", "integers", "doubles"),
    *("mixed_types", "diamond", "windows", "padded_rows"),
]


def kernels(source: KernelSource | None) -> dict:
    """Return kernel name -> callable over tensors."""

    def caller(function):
        entry = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(function.address)

        def call(tensors):
            pointers = (ctypes.c_void_p * len(tensors))(*[t.data_ptr() for t in tensors])
            return function and entry(ctypes.addressof(pointers))

        return call

    built = {} if source is None else build_functions(source)
    return {name: caller(function) for name, function in built.items()}


def compiled(program: LoopProgram) -> PlanRunner:
    chosen = Options(cpu_tier="numba")
    target = find_target(torch.device("cpu"), chosen)
    plan, source = render(schedule(program, target, chosen), target)
    assert source is None or source.language == "numba"
    return PlanRunner(plan, kernels(source))


def check(fn, *inputs) -> None:
    """Require errors of at most twice eager's plus a few roundings; the rest is exact."""
    graph, expected = record(fn, *[clone(x) for x in inputs])
    program = lower(graph, "test")
    ours, mutated = [clone(x) for x in inputs], [clone(x) for x in inputs]
    got = compiled(program)(*ours)
    exact = run(program, [clone(x) for x in inputs], "float64")
    with torch.no_grad():
        fn(*mutated)
    for a, b, c in zip(got, expected, exact):
        compare(a, b, c)
    for a, b in zip(ours, mutated):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("name", CANONICAL)
def test_programs(name):
    program = PROGRAMS[name]
    check(program.fn, *made_inputs(program))


def test_reductions_propagate_nan_and_infinity():
    x = torch.randn(6, 70)
    x[0, 3], x[1, 69], x[2, 0] = math.nan, math.inf, -math.inf
    x[3] = -math.inf

    def fn(x):
        return x.amax(-1), x.amin(-1), x.sum(-1), x.argmax(-1), x.argmin(-1), x.relu(), x.sign()

    check(fn, x)


@pytest.mark.parametrize("bad", [9, -10, 2**40])
def test_an_index_out_of_range_raises(bad):
    table, index = torch.randn(9, 20), torch.tensor([0, 1, -1, 8])
    graph, _ = record(lambda t, i: t[i] * 2, table, index)
    call = compiled(lower(graph, "test"))
    assert torch.equal(call(table, index)[0], table[index] * 2)
    with pytest.raises(IndexError):
        call(table, torch.tensor([0, bad, 5, 8]))


def written(inputs, shape, dtype, nest) -> LoopProgram:
    """Build one hand-written nest that writes the last buffer, `out`, an input too."""
    cpu = torch.device("cpu")
    out = Buffer("out", shape, torch.empty(shape).stride(), dtype, cpu, "input")
    named = {
        name: Buffer(name, tuple(x.shape), x.stride(), x.dtype, cpu, "input")
        for name, x in inputs.items()
    }
    return LoopProgram("t", {**named, "out": out}, (*named, "out"), ("out",), (nest,))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32])
def test_duplicate_indexes_accumulate(dtype):
    x, index = torch.arange(4).to(dtype), torch.tensor([3, 1, -1, 3])
    i = Axis("i", 4)
    at = ValueIndex(Load("index", (AxisVar(i),), torch.int64), 5)
    store = Store("out", (), (at,), Load("x", (AxisVar(i),), dtype), "add")
    program = written({"x": x, "index": index}, (5,), dtype, Nest("k", (i,), (store,)))
    ours, theirs = torch.ones(5, dtype=dtype), torch.ones(5, dtype=dtype)
    compiled(program)(x, index, ours)
    run(program, [x, index, theirs])
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int8])
@pytest.mark.parametrize("op", ["floordiv", "remainder", "fmod", "lshift", "rshift"])
def test_integer_ops_follow_the_rules_of_signs(op, dtype):
    low = 0 if "shift" in op else -7
    b = torch.tensor([n for n in range(low, 8) if n or low == 0]).to(dtype)
    a = torch.tensor([-128, -100, -7, -1, 0, 1, 5, 7, 127]).to(dtype)
    i, j = Axis("i", len(a)), Axis("j", len(b))
    pair = (Load("a", (AxisVar(i),), dtype), Load("b", (AxisVar(j),), dtype))
    store = Store("out", (), (AxisVar(i), AxisVar(j)), Compute(op, pair, dtype))
    nest = Nest("k", (i, j), (store,))
    program = written({"a": a, "b": b}, (len(a), len(b)), dtype, nest)
    ours, theirs = (torch.zeros(len(a), len(b), dtype=dtype) for _ in range(2))
    compiled(program)(a, b, ours)
    run(program, [a, b, theirs])
    assert torch.equal(ours, theirs)


def test_every_op_on_reals():
    check(operations_on_reals, torch.randn(5, 7), torch.randn(5, 7))


def test_every_op_on_integers():
    x = torch.randint(-40, 40, (6, 7))
    y, shifts = torch.tensor([1, -3, 7, 2, -1, 9, 4]), torch.tensor([0, 1, 5, 2, 3, 4, 1])
    check(operations_on_integers, x, y, shifts)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_helpers_are_compiled_once_for_all_kernels(dtype):
    from numba.core.event import install_recorder  # noqa: PLC0415 - skipped where there is none

    x = torch.randn(3, 5).to(dtype)
    check(lambda x: x + 1, x)
    with install_recorder("numba:compile") as seen:
        check(lambda x: torch.relu(x * 3) - 5, x)
    names = {event.data["dispatcher"].py_func.__name__ for _, event in seen.buffer}
    assert not {name for name in names if "16" in name}, names


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_16_bit_floats_are_rounded_as_eager_rounds_them(dtype):
    given = torch.arange(-(2**15), 2**15).to(torch.int16).view(dtype)
    wide = torch.cat([torch.randn(4000) * 10.0**e for e in range(-9, 7)])

    def fn(x, w):
        return x.float(), x * 1.5, w.to(dtype), x.to(torch.float32).to(dtype)

    graph, expected = record(fn, given, wide)
    got = compiled(lower(graph, "test"))(given, wide)
    for a, b in zip(got, expected):
        torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)
