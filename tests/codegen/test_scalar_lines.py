"""Every scalar operation has a line in every renderer; one that is registered at run time brings
its lines as expressions.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from importlib import import_module
from types import ModuleType

import pytest
import torch

import jitmagic
from jitmagic.codegen.cpp import ops as cpp_ops
from jitmagic.codegen.cpp.ops import call_text
from jitmagic.codegen.cpp.text import CTYPES
from jitmagic.codegen.numba import ops as numba_ops
from jitmagic.codegen.triton import ops as triton_ops
from jitmagic.errors import CannotRender, FallbackWarning, UsageError
from jitmagic.loops.interp import run
from jitmagic.loops.ir import LoopProgram
from jitmagic.loops.promotion import RULES
from jitmagic.loops.registry import lowering_of
from jitmagic.operators import SCALARS
from jitmagic.operators.scalar import ScalarOperation, register, unregister
from jitmagic.runtime import toolchain
from jitmagic.runtime.alignment import aligned_arguments
from jitmagic.runtime.plan_interpreter import PlanRunner
from jitmagic.runtime.store import Store as Cache
from jitmagic.runtime.triton_kernels import build_cubins
from tests.kernel.building import CXX, FLAGS, compile_text

from .built import compiled
from .test_triton import H200, op_program, rendered, run_interpreted

DTYPES = (torch.float32, torch.float64, torch.int16, torch.int32, torch.int64, torch.uint8)
ROWS = list(SCALARS.values())


def calls(row: ScalarOperation, dtypes: tuple[torch.dtype, ...] = (*DTYPES, torch.bool)) -> list:
    """Return (operand dtype, result dtype) of every way to apply an operation."""
    return [(dtype, torch.bool if row.boolean else dtype) for dtype in dtypes if row.takes(dtype)]


@pytest.mark.parametrize("module", [triton_ops, numba_ops], ids=["triton", "numba"])
def test_every_operation_has_a_line_for_every_dtype(module: ModuleType) -> None:
    missing = set()
    language = module.__name__.split(".")[-2]
    for row in ROWS:
        if language not in row.languages:
            continue
        for operand, result in calls(row, (*DTYPES, torch.float16, torch.bool)):
            try:
                assert module.compute_text(row.name, [*"abcde"][: row.arity], result, operand)
            except CannotRender:
                missing.add(f"{row.name} of {operand}")
    assert not missing


@pytest.mark.parametrize("module", [triton_ops, numba_ops, cpp_ops])
def test_every_line_is_of_an_operation(module: ModuleType) -> None:
    lines = {"_EITHER", "_FLOAT", "_SINGLE", "_DOUBLE", "_INTEGER", "_SHORT", "_BOOL", "INFIX"}
    named = {name for table in lines for name in getattr(module, table, {})}
    assert named
    assert named <= SCALARS.keys()


@pytest.mark.skipif(CXX is None, reason="no C++ compiler")
def test_every_operation_has_a_function_of_scalars_and_vectors(tmp_path) -> None:
    lines = ["#include <jitmagic/loop.h>", "template <class T> using V8 = jm::Vec<T, 8>;"]
    for row in (row for row in ROWS if "cpp" in row.languages):
        for operand, result in calls(row):
            for form in ("{}", "V8<{}>"):
                kind = form.format(CTYPES[operand])
                kinds = [form.format("bool") if row.conditional else kind, kind, kind][: row.arity]
                names = ["a", "b", "c"][: row.arity]
                given = ", ".join(map("{} {}".format, kinds, names))
                body = call_text(row.name, names, result, operand)
                number = len(lines)
                made = form.format(CTYPES[result])
                lines.append(f"{made} f{number}({given}) {{ return {body}; }}  // {row.name}")
    path = tmp_path / "every.cpp"
    path.write_text("\n".join([*lines, ""]))
    include = f"-I{toolchain.header_folder()}"
    compile_text([str(CXX), *FLAGS, "-O0", "-fsyntax-only", include, str(path)])


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_facts_of_a_row_agree(row: ScalarOperation) -> None:
    assert row.rule in RULES
    assert SCALARS[row.name] is row
    if row.of_bools is not None:
        assert SCALARS[row.of_bools].takes(torch.bool)
    x = torch.tensor(
        [-1e30, -30, -2, -1, -0.5, -0.0, 0, 1e-30, 0.5, 1, 3, 90, 1e30, torch.inf]
    ).double()
    if row.bounds is not None:
        low, high = row.domain
        inside = (x >= low) & (x <= high)
        result = row.reference(x)
        assert not result[inside].isnan().any()
        assert (result[inside] >= row.bounds[0]).all()
        assert (result[inside] <= row.bounds[1]).all()
        assert result[~inside].isnan().all()


# ------------------------------------------------------------------------------------- at run time


@pytest.fixture
def registered() -> Iterator[None]:
    """Register an operation of vectors, one of lanes, and one of two operands with a condition."""
    register(
        ScalarOperation("ramp", 1, torch.nn.functional.softsign, "floats", cost=5, ulp=2),
        {
            "cpp": "{0} / (1 + abs({0}))",
            "triton": "{0} / (1.0 + tl.abs({0}))",
            "numba": "{0} / ({t}(1) + abs({0}))",
        },
    )
    register(
        ScalarOperation("bessel", 1, torch.special.bessel_j0, "floats", cost=25, ulp=8),
        {"cpp": "__builtin_j0({0})"},
    )
    register(
        ScalarOperation("farther", 2, lambda a, b: a.abs() > b.abs(), "floats", boolean=True),
        {
            "cpp": "abs({0}) > abs({1}) ? true : false",
            "triton": "tl.abs({0}) > tl.abs({1})",
            "numba": "abs({0}) > abs({1})",
        },
    )
    yield
    assert all(map(unregister, ("ramp", "bessel", "farther")))
    assert not SCALARS.keys() & {"ramp", "bessel", "farther"}


def compiled_by_numba(program: LoopProgram) -> PlanRunner:
    pytest.importorskip("numba")
    made: PlanRunner = import_module("tests.codegen.test_numba").compiled(program)
    return made


def inputs(count: int, dtype: torch.dtype) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(1003, dtype=dtype) * 3 for _ in range(count)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ["ramp", "bessel", "farther"])
@pytest.mark.usefixtures("registered")
def test_registered_operations_run_in_cpp(name: str, dtype: torch.dtype) -> None:
    program = op_program([name], dtype, 1003, SCALARS[name].arity)
    given = inputs(SCALARS[name].arity, dtype)
    got, expected = compiled(program)(*given), run(program, given)
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-6)  # torch's J0 errs by 4e-7


@pytest.mark.parametrize("tier", ["numba", "triton"])
@pytest.mark.parametrize("name", ["ramp", "farther"])
@pytest.mark.usefixtures("registered")
def test_registered_operations_run_in_numba_and_triton(name: str, tier: str) -> None:
    program = op_program([name], torch.float32, 1003, SCALARS[name].arity)
    given = inputs(SCALARS[name].arity, torch.float32)
    if tier == "numba":
        got = compiled_by_numba(program)(*given)
    else:
        pytest.importorskip("triton")
        got, _ = run_interpreted(*reversed(rendered(program)), given)
    torch.testing.assert_close(got, run(program, given))


@pytest.mark.parametrize("arity", [1, 2])
@pytest.mark.usefixtures("registered")
def test_triton_compiles_every_operation_for_a_gpu(arity, tmp_path, monkeypatch) -> None:
    pytest.importorskip("triton")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    for dtype in (torch.float32, torch.int32):
        rows = [row for row in SCALARS.values() if row.arity == arity and row.takes(dtype)]
        names = [row.name for row in rows if row.texts is None or "triton" in row.texts]
        plan, source = rendered(op_program(names, dtype, 1003, arity))
        build_cubins(source, aligned_arguments(plan, True), H200, Cache(tmp_path))


@pytest.mark.usefixtures("registered")
def test_an_expression_of_known_functions_is_one_of_vectors() -> None:
    lines = "\n".join(cpp_ops.functions_of(["ramp", "bessel"]))
    assert "auto ramp(V a0) { return a0 / (V(1) + abs(a0)); }" in lines
    assert "out[i] = bessel(a0_lanes[i])" in lines
    assert not cpp_ops.functions_of([])


@pytest.mark.usefixtures("registered")
def test_a_renderer_without_the_expression_says_so() -> None:
    program = op_program(["bessel"], torch.float32, 8, 1)
    with pytest.raises(CannotRender, match="no triton for the scalar operation 'bessel'"):
        rendered(program)
    with pytest.raises(CannotRender, match="no numba for"):
        compiled_by_numba(program)


def test_what_cannot_be_registered() -> None:
    row = partial(ScalarOperation, arity=1, reference=torch.exp)
    with pytest.raises(UsageError, match="there is a scalar operation 'exp' already"):
        register(row("exp"), {"cpp": "{0}"})
    with pytest.raises(UsageError, match="an identifier"):
        register(row("a b"), {"cpp": "{0}"})
    with pytest.raises(UsageError, match="cpp of 'one'"):
        register(row("one"), {"cpp": "{0} + {1}"})
    assert not unregister("exp")
    assert "exp" in SCALARS


@pytest.mark.parametrize("tier", ["cpp", "numba"])
@pytest.mark.usefixtures("registered")
def test_an_overload_is_lowered_to_its_registered_operation(tier: str) -> None:
    overload = "aten.special_bessel_j1.default"  # without a lowering of its own
    register(
        ScalarOperation(
            "j1", 1, torch.special.bessel_j1, "floats", cost=25, rule="float", overloads=(overload,)
        ),
        {"cpp": "__builtin_j1({0})"},
    )
    x = torch.randn(64)
    fn = jitmagic.jit(lambda x: torch.special.bessel_j1(x * 2) + 1, options={"cpu_tier": tier})
    warns = pytest.warns(FallbackWarning, match="no numba for the scalar operation 'j1'")
    try:
        with warns if tier == "numba" else nullcontext():
            torch.testing.assert_close(fn(x), torch.special.bessel_j1(x * 2) + 1)
        counts = [record.kernels for record in jitmagic.api.handle_of(fn).journal]
        assert counts == [int(tier == "cpp")]
    finally:
        assert unregister("j1")
    assert lowering_of(overload) is None
