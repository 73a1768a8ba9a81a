"""The native executor and its reference implementation agree, step kind by step kind."""

from __future__ import annotations

import ctypes
import gc
import threading

import pytest
import torch

from jitmagic.codegen.plan import (
    Alloc,
    Call,
    Free,
    Launch,
    Layout,
    Plan,
    Pool,
    Reuse,
    Slot,
    View,
)
from jitmagic.devices import find_target
from jitmagic.extension import runtime_module
from jitmagic.options import make_options
from jitmagic.runtime.native import CpuEntry, lower_plan, make_executable
from jitmagic.runtime.plan_interpreter import PlanRunner
from jitmagic.runtime.store import Store
from jitmagic.runtime.toolchain import build_library

CPU = torch.device("cpu")
KERNEL = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
F32 = torch.float32
aten = torch.ops.aten

SOURCE = """
extern "C" int twice(void* const* args) {
  const float* x = (const float*)args[0];
  float* out = (float*)args[1];
  for (int i = 0; i < 6; ++i) out[i] = 2 * x[i];
  return 0;
}
extern "C" int twice_a_row(void* const* args) {
  for (int i = 0; i < 3; ++i) ((float*)args[1])[i] = 2 * ((const float*)args[0])[i];
  return 0;
}
extern "C" int refuse(void* const* args) { return 1; }
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    target = find_target(CPU, make_options())
    if not target.cxx:
        pytest.skip("no C++ compiler on this machine")
    return build_library(SOURCE, target, Store(tmp_path_factory.mktemp("kernels")))


@pytest.fixture
def both(library):
    """Run a plan natively and by the reference; results must be equal in every respect."""

    def as_python(symbol):
        function = KERNEL(library.address(symbol))

        def call(tensors):
            pointers = (ctypes.c_void_p * len(tensors))(*(t.data_ptr() for t in tensors))
            return function(pointers)

        return call

    def run(plan, *inputs):
        names = {step.kernel for step in plan.steps if isinstance(step, Launch)}
        native = make_executable(plan, {n: CpuEntry(library.address(n), library) for n in names})
        reference = PlanRunner(plan, {n: as_python(n) for n in names})
        ours = native(*[t.clone() for t in inputs])
        theirs = reference(*[t.clone() for t in inputs])
        assert len(ours) == len(theirs)
        for a, b in zip(ours, theirs, strict=True):
            assert (a is None) == (b is None)
            if a is not None:
                assert a.shape == b.shape
                assert a.stride() == b.stride()
                assert a.dtype == b.dtype
                assert torch.equal(a, b)
        return ours

    return run


def alloc(slot, shape, stride=None, dtype=F32):
    contiguous = torch.empty(shape).stride()
    return Alloc(slot, tuple(shape), tuple(stride or contiguous), dtype, CPU)


def test_launch_into_a_fresh_tensor(both):
    plan = Plan("p", 1, (), (alloc(1, (2, 3)), Launch("twice", (0, 1))), (1,))
    x = torch.randn(2, 3)
    (out,) = both(plan, x)
    assert torch.equal(out, x * 2)


def test_temporaries_live_in_the_pool(both):
    steps = (
        Pool(1, 64, (2, 3), (3, 1), F32, CPU),
        Launch("twice", (0, 1)),
        alloc(2, (2, 3)),
        Launch("twice", (1, 2)),
    )
    x = torch.randn(2, 3)
    (out,) = both(Plan("p", 1, (), steps, (2,), pool_bytes=128), x)
    assert torch.equal(out, x * 4)


def test_temporary_reuses_memory_after_its_last_reader(both):
    over = Reuse(3, 2, (2, 3), (3, 1), F32, CPU)
    first = Call(aten.mul.Tensor, (Slot(0), Slot(1)), {}, (2,))
    free = (Free(2), Launch("twice", (3, 3)))
    x, y = torch.randn(2, 3), torch.randn(2, 3)
    (out,) = both(Plan("p", 2, (), (first, over, Launch("twice", (2, 3)), *free), (3,)), x, y)
    assert torch.equal(out, 4 * x * y)
    view = View(4, 2, (3, 2), (1, 3), 0, F32)  # somebody else holds the memory
    steps = (first, view, over, Launch("twice", (2, 3)))
    turned, out = both(Plan("p", 2, (), steps, (4, 3)), x, y)
    assert torch.equal(turned, (x * y).t())
    assert torch.equal(out, 2 * x * y)


@pytest.mark.parametrize("op", [aten.lift_fresh.default, aten.detach.default])
def test_result_aliasing_an_input_is_not_overwritten(both, op):
    steps = (
        Call(op, (Slot(0),), {}, (1,)),
        Reuse(2, 1, (2, 3), (3, 1), F32, CPU),
        Launch("twice", (1, 2)),
        Free(1),
        alloc(3, (2, 3)),
        Launch("twice", (0, 3)),
    )
    x = torch.randn(2, 3)
    doubled, again = both(Plan("p", 1, (), steps, (2, 3)), x)
    assert torch.equal(doubled, x * 2)
    assert torch.equal(again, x * 2)


def test_aten_calls_see_pool_and_views(both):
    steps = (
        Pool(2, 0, (2, 3), (3, 1), F32, CPU),
        Launch("twice", (0, 2)),
        View(3, 2, (3, 2), (1, 3), 0, F32),
        alloc(4, (2, 2)),
        Call(aten.mm.out, (Slot(2), Slot(3)), {}, (4,), out=True),
        Call(aten.cat.default, ([Slot(4), Slot(1)], 1), {}, (5,)),
        Free(4),
    )
    x, y = torch.randn(2, 3), torch.randn(2, 1)
    (out,) = both(Plan("p", 2, (), steps, (5,), pool_bytes=64), x, y)
    assert torch.allclose(out, torch.cat([4 * x @ x.T, y], 1))


def test_views_that_kernels_read(both):
    """Inputs and constants need an address only; a view keeps memory alive that may be freed."""
    whole, half = ((2, 3), (3, 1)), ((1, 3), (3, 1))
    steps = (
        View(2, 0, *whole, 6, F32),
        View(3, 2, *half, 3, F32),
        View(4, 1, *half, 3, F32),
        alloc(5, (2, 3)),
        Launch("twice", (2, 5)),
        View(6, 5, *half, 3, F32),
        Free(5),
        alloc(7, (1, 3)),
        Launch("twice_a_row", (3, 7)),
        alloc(8, (1, 3)),
        Launch("twice_a_row", (4, 8)),
        alloc(9, (1, 3)),
        Launch("twice_a_row", (6, 9)),
    )
    x, constant = torch.randn(4, 3), torch.randn(2, 3)
    a, b, c = both(Plan("p", 1, (constant,), steps, (7, 8, 9)), x)
    assert torch.equal(a, 2 * x[3:])
    assert torch.equal(b, 2 * constant[1:])
    assert torch.equal(c, 4 * x[3:])


def test_constants_defaults_and_lists_of_optional_tensors(both):
    steps = (
        Call(aten.index.Tensor, (Slot(0), [None, Slot(1)]), {}, (2,)),
        Call(aten.max.dim, (Slot(2), 1), {}, (3, 4)),
        Call(aten.sum.dim_IntList, (Slot(2), [0]), {"dtype": torch.float64}, (5,)),
    )
    plan = Plan("p", 1, (torch.tensor([2, 0]),), steps, (3, 4, None, 5))
    x = torch.randn(3, 3)
    values, indices, nothing, total = both(plan, x)
    assert nothing is None
    assert torch.equal(values, x[:, [2, 0]].max(1).values)
    assert torch.equal(indices, x[:, [2, 0]].max(1).indices)
    assert total.dtype == torch.float64


def test_results_laid_out_otherwise_are_copied_into_the_expected_strides(both):
    expected = Layout((2, 3), (1, 2), F32, CPU, required=True)
    steps = (
        Call(aten.neg.default, (Slot(0),), {}, (1,), layouts=(expected,)),
        View(2, 1, (6,), (1,), 0, F32),
    )
    x = torch.arange(6.0).reshape(2, 3)
    result, memory = both(Plan("p", 1, (), steps, (1, 2)), x)
    assert result.stride() == (1, 2)
    assert torch.equal(result, -x)
    assert torch.equal(memory, -x.t().flatten())


@pytest.mark.parametrize("required", [True, False])
def test_results_of_another_shape_are_an_error_where_kernels_read_them(both, required):
    expected = Layout((3, 3), (3, 1), F32, CPU, required)
    plan = Plan(
        "p", 1, (), (Call(aten.neg.default, (Slot(0),), {}, (1,), layouts=(expected,)),), (1,)
    )
    if required:
        with pytest.raises(RuntimeError, match="another shape or dtype"):
            both(plan, torch.ones(2, 3))
    else:
        assert both(plan, torch.ones(2, 3))[0].shape == (2, 3)


def test_view_starts_where_its_base_starts(both):
    plan = Plan("p", 1, (), (View(1, 0, (2,), (2,), 1, F32),), (1,))
    base = torch.arange(10.0)
    made = make_executable(plan, {})(base[2:8])
    assert made[0].tolist() == [3.0, 5.0]
    assert made[0].untyped_storage().data_ptr() == base.untyped_storage().data_ptr()


def test_a_kernel_that_meets_a_bad_index_raises_index_error(library):
    plan = Plan("p", 1, (), (Launch("refuse", (0,)),), ())
    with pytest.raises(IndexError):
        make_executable(plan, {"refuse": CpuEntry(library.address("refuse"), library)})(
            torch.ones(1)
        )


def test_errors_of_aten_calls_keep_their_type_and_leave_no_trace():
    plan = Plan("p", 2, (), (Call(aten.mm.default, (Slot(0), Slot(1)), {}, (2,)),), (2,))
    run = make_executable(plan, {})
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        run(torch.ones(2, 3), torch.ones(2, 3))
    assert run(torch.ones(2, 3), torch.ones(3, 2))[0].shape == (2, 2)


@pytest.mark.parametrize("args", [(), (torch.ones(1), torch.ones(1)), (1,)])
def test_wrong_inputs_are_type_errors(args):
    run = make_executable(Plan("p", 1, (), (), (0,)), {})
    with pytest.raises(TypeError):
        run(*args)


NEG, CAT, INDEX = aten.neg.default, aten.cat.default, aten.index.Tensor


@pytest.mark.parametrize(
    "plan",
    [
        Plan("an output", 1, (), (), (7,)),
        Plan("an argument", 1, (), (Call(NEG, (Slot(9),), {}, (1,)),), (1,)),
        Plan("one of a list", 1, (), (Call(CAT, ([Slot(0), None],), {}, (1,)),), (1,)),
        Plan("one of a list", 1, (), (Call(INDEX, (Slot(0), [None, Slot(9)]), {}, (1,)),), (1,)),
    ],
    ids=lambda plan: plan.name,
)
def test_invalid_slots_are_refused(plan):
    with pytest.raises(ValueError, match="malformed program: slot"):
        make_executable(plan, {})


@pytest.mark.parametrize("at", [5, 6])
def test_programs_of_another_shape_are_refused(at):
    program = [*lower_plan(Plan("p", 1, (), (), (0,)), {})]
    program[at] = [*program[at]]
    with pytest.raises(TypeError, match="malformed description"):
        runtime_module().Executable(tuple(program), (), ())


def test_small_results_come_back_to_the_free_list(library):
    plan = Plan("p", 1, (), (alloc(1, (2, 3)), Launch("twice", (0, 1))), (1,))
    run = make_executable(plan, {"twice": CpuEntry(library.address("twice"), library)})
    x = torch.randn(2, 3)
    addresses = {run(x)[0].data_ptr() for _ in range(50)}
    assert len(addresses) < 50
    kept = [run(x)[0] for _ in range(50)]
    assert len({t.data_ptr() for t in kept}) == 50
    assert all(torch.equal(t, x * 2) for t in kept)


def test_results_can_be_resized_and_freed_elsewhere(library):
    plan = Plan("p", 1, (), (alloc(1, (2, 3)), Launch("twice", (0, 1))), (1,))
    run = make_executable(plan, {"twice": CpuEntry(library.address("twice"), library)})
    made = [run(torch.ones(2, 3))[0] for _ in range(8)]
    made[0].resize_(100, 100).fill_(1)
    thread = threading.Thread(target=made.clear)
    thread.start()
    thread.join()
    gc.collect()
    assert run(torch.ones(2, 3))[0].sum() == 12


@pytest.mark.parametrize(
    ("op", "given", "dtype"),
    [
        (aten.add.Tensor, torch.int8, torch.int8),  # a wrapped number does not widen
        (aten.mul.Tensor, torch.bfloat16, torch.bfloat16),
        (aten.floor_divide.default, torch.int64, torch.int64),
    ],
)
@pytest.mark.parametrize("first", [False, True])
def test_numbers_for_tensors_promote_as_numbers(both, op, given, dtype, first):
    x = torch.tensor([5, 3], dtype=given)
    args = (7, Slot(0)) if first else (Slot(0), 7)
    (made,) = both(Plan("p", 1, (), (Call(op, args, {}, (1,)),), (1,)), x)
    assert made.dtype is dtype
    assert torch.equal(made, op(7, x) if first else op(x, 7))
