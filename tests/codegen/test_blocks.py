"""Programs of the block interpreter against eager and against the program in float64."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from jitmagic.codegen import render
from jitmagic.codegen.plan import KernelSource
from jitmagic.devices import Target, find_target
from jitmagic.extension import runtime_module
from jitmagic.loops.expr import Axis, AxisVar, Integer, ValueIndex
from jitmagic.loops.interp import run
from jitmagic.loops.ir import Buffer, Load, LoopProgram, Nest, Store
from jitmagic.loops.lower import lower
from jitmagic.loops.values import cast
from jitmagic.operators import SCALARS
from jitmagic.operators.scalar import ScalarOperation
from jitmagic.options import Options
from jitmagic.runtime.plan_interpreter import PlanRunner
from jitmagic.schedule import schedule
from tests.loops.recording import clone, record
from tests.processes import run_forked
from tests.schedule.programs import PROGRAMS, made_inputs

from .accuracy import compare, operations_on_integers, operations_on_reals
from .built import compiled as compiled_by_cpp
from .test_triton import op_program

OPTIONS = Options(cpu_tier="blocks")
TARGET = find_target(torch.device("cpu"), OPTIONS)
Kernels = dict[str, Callable[[list[torch.Tensor]], int]]


def kernels(source: KernelSource | None, target: Target = TARGET) -> Kernels:
    """Return kernel name -> callable over tensors."""
    if source is None:
        return {}
    programs = runtime_module().BlockKernels(source.text, target.isa)

    def caller(address: int, context: int, count: int) -> Callable[[list[torch.Tensor]], int]:
        entry = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(address)

        def call(tensors: list[torch.Tensor]) -> int:
            pointers = (ctypes.c_void_p * (len(tensors) + 1))(
                context, *[t.data_ptr() for t in tensors]
            )
            first = ctypes.addressof(pointers) + ctypes.sizeof(ctypes.c_void_p)
            return int(programs and entry(first))

        return call

    return {name: caller(*entry) for name, entry in programs.entries().items()}


def compiled(program: LoopProgram, target: Target = TARGET) -> PlanRunner:
    plan, source = render(schedule(program, target, OPTIONS), target)
    assert source is None or source.language == "blocks"
    return PlanRunner(plan, kernels(source, target))


def check(fn: Callable[..., Any], *inputs: torch.Tensor, target: Target = TARGET) -> None:
    """Require errors of at most twice eager's plus a few roundings; the rest is exact."""
    graph, expected = record(fn, *[clone(x) for x in inputs])
    program = lower(graph, "test")
    ours, mutated = [clone(x) for x in inputs], [clone(x) for x in inputs]
    got = compiled(program, target)(*ours)
    exact = run(program, [clone(x) for x in inputs], "float64")
    with torch.no_grad():
        fn(*mutated)
    for a, b, c in zip(got, expected, exact):
        compare(a, b, c)
    for a, b in zip(ours, mutated):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str) -> None:
    program = PROGRAMS[name]
    check(program.fn, *made_inputs(program))


@pytest.mark.skipif(TARGET.isa != "avx512", reason="one instruction set here")
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_with_fewer_instructions(name: str) -> None:
    program = PROGRAMS[name]
    target = replace(TARGET, isa="avx2", lanes=8)
    check(program.fn, *made_inputs(program), target=target)


# -- values --------------------------------------------------------------------------------------

REALS = [
    *(0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3.0, 1e-3, 7.25, 88.8, -104.0, 1e5, -1e8, 3e38, -3e38),
    *(1e-38, 1e-45, -1e-40, math.inf, -math.inf, math.nan),
]
WHOLE = [0, 1, 2, 3, 5, 7, 31, 63, 64, 100, 127]


def operands(dtype: torch.dtype, arity: int) -> list[torch.Tensor]:
    """Return all tuples of edge values."""
    if dtype == torch.bool:
        values = torch.tensor([False, True])
    elif dtype.is_floating_point:
        values = torch.tensor(REALS, dtype=torch.float64).to(dtype)
    else:
        facts = torch.iinfo(dtype)
        ends = [facts.min, facts.max, *([] if facts.min == 0 else [-1, -2, -7, -100])]
        values = torch.tensor([*WHOLE, *(ends if dtype != torch.uint64 else [])]).to(dtype)
    some = values if arity < 3 else values[:7]
    return [
        part.reshape(-1).contiguous() for part in torch.meshgrid(*[some] * arity, indexing="ij")
    ]


DTYPES = [
    *(torch.float32, torch.float64, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.uint8, torch.bool),
]


HERE = [row for row in SCALARS.values() if "cpp" in row.languages]


@pytest.mark.parametrize("isa", ["avx2", "avx512", "neon"])
@pytest.mark.parametrize("row", HERE, ids=lambda row: row.name)
def test_every_operation_for_every_dtype(row: ScalarOperation, isa: str) -> None:
    if not is_here(isa):
        pytest.skip(f"no {isa} here")
    for dtype in filter(row.takes, DTYPES):
        given = operands(dtype, row.arity)
        if row.conditional:
            given[0] = given[0] != 0
        given = without_refused(row.name, given)
        program = op_program([row.name], dtype, len(given[0]), row.arity)
        if row.conditional:
            buffers = {**program.buffers}
            buffers["x0"] = replace(buffers["x0"], dtype=torch.bool)
            program = replace(program, buffers=buffers, steps=(chosen_by_bools(program),))
        (got,) = compiled(program, replace(TARGET, isa=isa))(*given)
        (expected,) = run(program, given)
        wide = [x.double() if x.is_floating_point() else x for x in given]
        exact = row.reference(*wide).to(expected.dtype)
        if row.ulp == 0:
            # Eager's float32 sqrt is not always the nearest, and its remainders of huge quotients
            # are NaN.
            nearest = torch.where(got == exact, exact, expected)
            torch.testing.assert_close(got, nearest, rtol=0, atol=0, equal_nan=True)
            continue
        limit = 2 * row.ulp * torch.finfo(dtype).eps + 1e-12
        tolerance = {"rtol": limit, "atol": float(torch.finfo(dtype).tiny), "equal_nan": True}
        torch.testing.assert_close(got, exact, **tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("arity", [1, 2])
def test_values_have_the_bits_of_compiled_kernels(arity: int, dtype: torch.dtype) -> None:
    if not TARGET.cxx:
        pytest.skip("no C++ compiler")
    names = [row.name for row in SCALARS.values() if row.arity == arity and row.takes(dtype)]
    program, given = op_program(names, dtype, 1003, arity), []
    for _ in range(arity):
        given.append(torch.randn(1003, dtype=dtype) * torch.logspace(-9, 9, 1003, dtype=dtype))
    for name, ours, theirs in zip(
        names, compiled(program)(*given), compiled_by_cpp(program)(*given)
    ):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True, msg=name)


def is_here(isa: str) -> bool:
    try:
        runtime_module().BlockKernels("", isa)
    except ValueError:
        return False
    return True


def without_refused(name: str, given: list[torch.Tensor]) -> list[torch.Tensor]:
    """Leave out integer divisions that eager refuses, or that overflow."""
    if name not in ("floordiv", "remainder", "fmod") or given[1].is_floating_point():
        return given
    kept = given[1] != 0
    if given[0].dtype.is_signed:
        kept &= (given[0] != torch.iinfo(given[0].dtype).min) | (given[1] != -1)
    return [x[kept] for x in given]


def chosen_by_bools(program: LoopProgram) -> Nest:
    """Return the nest of an operation whose first operand is a bool."""
    (nest,) = program.steps
    (store,) = nest.stores
    condition, *others = store.value.args
    condition = replace(condition, dtype=torch.bool)
    value = replace(store.value, args=(condition, *others))
    return replace(nest, stores=(replace(store, value=value),))


CASTS = [*DTYPES, torch.float16, torch.bfloat16]


@pytest.mark.parametrize("to", CASTS, ids=str)
def test_every_conversion(to: torch.dtype) -> None:
    for dtype in CASTS:
        (x,) = operands(dtype if dtype not in (torch.float16, torch.bfloat16) else torch.float32, 1)
        x = x.to(dtype)
        if dtype.is_floating_point and not to.is_floating_point and to != torch.bool:
            x = x[x.abs() < (100 if to.itemsize < 4 else 1e8)]
            x = x[x >= 0] if to == torch.uint8 else x
        program = op_program(["neg"], dtype, len(x), 1)
        store = program.steps[0].stores[0]
        buffers = {**program.buffers}
        buffers[store.buffer] = replace(buffers[store.buffer], dtype=to)
        load = Load("x0", store.index, dtype)
        nest = replace(program.steps[0], stores=(replace(store, value=cast(load, to)),))
        program = replace(program, buffers=buffers, steps=(nest,))
        (got,) = compiled(program)(x)
        torch.testing.assert_close(got, x.to(to), rtol=0, atol=0, equal_nan=True, msg=str(dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32, torch.bool])
def test_duplicate_indexes_accumulate(dtype: torch.dtype) -> None:
    index = torch.tensor([3, 1, -1, 3])
    i, j = Axis("i", 4), Axis("j", 70)
    at = ValueIndex(Load("index", (AxisVar(i),), torch.int64), 5)
    for inner in ((), (AxisVar(j),)):
        axes = (i, j) if inner else (i,)
        x = (torch.arange(280) % 9).reshape(4, 70)[:, : 70 if inner else 1].to(dtype)
        load = Load("x", (AxisVar(i), *(inner or (Integer(0),))), dtype)
        store = Store("out", (), (at, *(inner or (Integer(0),))), load, "add")
        shape = (5, 70 if inner else 1)
        program = written({"x": x, "index": index}, shape, dtype, Nest("k", axes, (store,)))
        ours, theirs = torch.ones(shape, dtype=dtype), torch.ones(shape, dtype=dtype)
        compiled(program)(x, index, ours)
        run(program, [x, index, theirs])
        assert torch.equal(ours, theirs)


SIZES = [0, 1, 15, 16, 17, 127, 128, 129, 1023, 1024, 1025, 2500]


@pytest.mark.parametrize("size", SIZES)
def test_sizes_around_those_of_blocks(size: int) -> None:
    def fn(x, y, mask):
        row = (x * y + x.exp()).sum(1), x.double().sum(1), x.sum(), (x * 2).argmax(0)
        if x.shape[1]:
            row += x.amax(1), x.argmin(1), mask.any(1), (x - x.amax(1, True)).softmax(1), x.prod(1)
        return (*row, y.sum(0), torch.where(mask, x, y), y.half() * 2, mask.sum(0), mask.all(0))

    check(fn, torch.randn(3, size), torch.randn(3, size), torch.rand(3, size) < 0.5)


@pytest.mark.parametrize("shape", [(2, 70000), (70000, 2), (300, 300), (200000,), (5, 40, 50, 30)])
def test_parts_of_parallel_loops_are_added(shape: tuple[int, ...]) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        x = torch.randn(shape)

        def fn(x):
            found = x.argmax(), x.sum(), x.double().mean(), x.amax(), (x > 3).any(), x.argmin(0)
            return *found, x.sum(0), x.cos() + x, x.abs().sum(-1)

        check(fn, x)
        check(fn, torch.zeros(shape))
    finally:
        torch.set_num_threads(before)


def test_views_and_layouts() -> None:
    def fn(x, y):
        moved = x.transpose(1, 2) + y[:, ::2]
        flat = moved.reshape(-1, 8) * 2
        shifted = torch.cat([flat, flat[1:] + 1]).flip(0).roll(3, 0)
        return (
            moved,
            flat,
            shifted,
            shifted.repeat(2, 3),
            x.unfold(2, 3, 2).sum(-1),
            x.diagonal(0, 1, 2) + 1,
        )

    check(fn, torch.randn(4, 8, 9), torch.randn(4, 18, 8))


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


def test_every_op_on_reals():
    check(operations_on_reals, torch.randn(5, 7), torch.randn(5, 7))


def test_every_op_on_integers():
    x = torch.randint(-40, 40, (6, 7))
    y, shifts = torch.tensor([1, -3, 7, 2, -1, 9, 4]), torch.tensor([0, 1, 5, 2, 3, 4, 1])
    check(operations_on_integers, x, y, shifts)


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


SCRIPT = """
import warnings
import torch, jitmagic
from torch import nn

warnings.filterwarnings("error", ".*(failed|could not be compiled)")

def chain(x, y):
    return torch.softmax(x * y + 1, -1).sum(0), x.argmax(-1)

x, y = torch.randn(8, 9), torch.randn(8, 9)
fast = jitmagic.jit(chain)
for a, b in zip(fast(x, y), chain(x, y)):
    torch.testing.assert_close(a, b)
[record] = jitmagic.api.handle_of(fast).journal
print(record.result("forward: render")[1].language)

def step(model, x, y, optimizer):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    return loss.detach()

def trained(compile):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 5))
    x, y = torch.randn(12, 16), torch.randint(0, 5, (12,))
    called = jitmagic.jit(model) if compile else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = [step(called, x, y, optimizer) for _ in range(4)]
    return [*losses, *model.parameters()]

for a, b in zip(trained(True), trained(False)):
    torch.testing.assert_close(a, b)
print("agree")
"""


def test_without_a_compiler_functions_and_training_run_on_blocks():
    done = run_forked(SCRIPT, JITMAGIC_CXX="")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["blocks", "agree"]
