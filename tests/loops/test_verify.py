"""Every rule of the IR: a program that breaks it is refused; fused programs that keep them run."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from jitmagic.errors import VerifyError
from jitmagic.loops.expr import Axis, AxisVar, Integer, ValueIndex, add
from jitmagic.loops.interp import run
from jitmagic.loops.ir import (
    Alias,
    Buffer,
    BufferRef,
    Cast,
    Compute,
    Constant,
    Extern,
    IndexValue,
    Load,
    LoopProgram,
    Nest,
    Reduction,
    Store,
)
from jitmagic.loops.verify import verify

CPU = torch.device("cpu")
F32, BOOL, I64 = torch.float32, torch.bool, torch.int64
I, J, R, R2 = Axis("i", 3), Axis("j", 5), Axis("r", 5), Axis("r2", 5)


def at(*axes):
    return tuple(AxisVar(a) if isinstance(a, Axis) else Integer(a) for a in axes)


def buffer(name, *shape, role="temp", dtype=F32):
    stride = tuple(torch.empty(shape, device="meta").stride())
    return Buffer(name, shape, stride, dtype, CPU, role)


BUFFERS = {
    b.name: b
    for b in (
        buffer("x", 3, 5, role="input"),
        buffer("n", 3, role="input", dtype=I64),
        buffer("y", 3, 5, role="output"),
        buffer("s", 3, role="output"),
        buffer("t", 3, 5),
        buffer("b", 3, dtype=BOOL),
        buffer("k", 3, role="constant"),
    )
}
X, X_R = Load("x", at(I, J), F32), Load("x", at(I, R), F32)


def program(*steps, outputs=("y",), **changes):
    made = LoopProgram("p", BUFFERS, ("x", "n"), outputs, steps, {"k": torch.zeros(3)})
    return replace(made, **changes)


def nest(value, *, outer=(I, J), inner=(), target="y", index=at(I, J), mode="set"):
    return Nest("nest", outer, (Store(target, inner, index, value, mode),))


def test_a_good_program():
    verify(program(nest(X)))


ONE, TRUE = Constant(1.0, F32), Constant(True, BOOL)

BROKEN = {
    "no buffer": program(nest(Load("nobody", at(I, J), F32))),
    "read before": program(nest(Load("t", at(I, J), F32))),
    "not torch": program(nest(Cast(Load("x", at(I, J), torch.float64), F32))),
    "stored as": program(nest(Cast(X, torch.float64))),
    "dimensions": program(nest(Load("x", at(I), F32))),
    "not bound": program(nest(X, outer=(I,), index=at(I, 0))),
    "outside": program(nest(Load("x", at(I, 5), F32))),
    "runs past": program(nest(Load("x", at(J, J), F32), outer=(I, J))),
    "Add.* runs past y": program(nest(X, index=(AxisVar(I), add(AxisVar(J), Integer(1))))),
    "Add.* starts before x": program(
        nest(Load("x", (AxisVar(I), add(AxisVar(J), Integer(-1))), F32))
    ),
    "every j writes the same": program(nest(X, index=at(I, 0))),
    "bound outside": program(nest(X, outer=(I, J), inner=(J,))),
    "bound twice": program(nest(X, outer=(I, J, J))),
    "has extent": program(nest(X, outer=(I, J, Axis("z", 0)))),
    "no such mode": program(nest(X, mode="max")),
    "is a constant": program(nest(Load("k", at(I), F32), outer=(I,), target="k", index=at(I))),
    "op frobnicate": program(nest(Compute("frobnicate", (X,), F32))),
    "op add on 1": program(nest(Compute("add", (X,), F32))),
    "mixes": program(nest(Compute("add", (X, Constant(1, I64)), F32))),
    "is for bools": program(nest(Cast(Compute("logical_and", (X, X), BOOL), F32))),
    "typed": program(nest(Compute("lt", (X, X), F32))),
    "condition": program(nest(Compute("where", (X, X, X), F32))),
    "same dtype": program(nest(Cast(X, F32))),
    "no such reduction": program(nest(Reduction("median", (R,), X_R, F32))),
    "argmax of": program(nest(Cast(Reduction("argmax", (R,), X_R, torch.int32), F32))),
    "axis i is already bound outside": program(nest(Reduction("sum", (Axis("i", 4),), X, F32))),
    "a mask is bool": program(nest(Load("x", at(I, J), F32, X))),
    "run-time index": program(nest(Load("x", (ValueIndex(X, 3), AxisVar(J)), F32))),
    "without stores": program(Nest("nest", (I,), ())),
    "have this name": program(nest(X), nest(X)),
    "leaves the call": program(nest(X, target="t"), outputs=("t",)),
    "the outputs: y is read": program(nest(X, target="t")),
    "not an ATen overload": program(nest(X), Extern("e", max, (), {}, ("t",))),
    "base's dtype": program(nest(X), Alias("b", "x", 0)),
    "no buffer ghost": program(
        nest(X), Extern("e", torch.ops.aten.mm.default, ([BufferRef("ghost")],), {}, ())
    ),
    "under another name": program(nest(X), buffers=BUFFERS | {"q": BUFFERS["t"]}),
}


@pytest.mark.parametrize("rule", BROKEN)
def test_each_rule(rule):
    with pytest.raises(VerifyError, match=rule):
        verify(BROKEN[rule])


def test_masked_loads_may_point_outside():
    shifted = (AxisVar(I), add(AxisVar(J), Integer(-2)))
    mask = Compute("ge", (IndexValue(AxisVar(J)), Constant(2, I64)), BOOL)
    made = program(nest(Load("x", shifted, F32, mask, 7.0)))
    verify(made)
    x = torch.randn(3, 5)
    (y,) = run(made, [x, torch.zeros(3, dtype=I64)])
    assert torch.equal(y, torch.cat([torch.full((3, 2), 7.0), x[:, :3]], 1))


# -- fused programs, as the schedule writes them --------------------------------------------------


def test_a_fused_softmax_with_a_stored_statistic():
    top = Reduction("max", (R,), X_R, F32)
    weight = Compute("exp", (Compute("sub", (X, top), F32),), F32)
    weight_r = Compute("exp", (Compute("sub", (Load("x", at(I, R2), F32), top), F32),), F32)
    total = Reduction("sum", (R2,), weight_r, F32)
    stores = (
        Store("s", (), at(I), total),
        Store("y", (J,), at(I, J), Compute("truediv", (weight, total), F32)),
    )
    made = program(Nest("softmax", (I,), stores), outputs=("y", "s"))
    verify(made)
    x = torch.randn(3, 5)
    y, s = run(made, [x, torch.zeros(3, dtype=I64)])
    assert torch.allclose(y, x.softmax(1), atol=1e-7)
    assert torch.allclose(s, (x - x.amax(1, keepdim=True)).exp().sum(1))


def test_the_same_reduction_axis_bound_in_a_reduction_and_a_store():
    mean = Compute("truediv", (Reduction("sum", (J,), X, F32), Constant(5.0, F32)), F32)
    made = program(
        Nest("center", (I,), (Store("y", (J,), at(I, J), Compute("sub", (X, mean), F32)),))
    )
    verify(made)
    x = torch.randn(3, 5)
    assert torch.allclose(run(made, [x, torch.zeros(3, dtype=I64)])[0], x - x.mean(1, keepdim=True))


def test_adding_stores_accumulate_duplicates():
    row = ValueIndex(Load("n", at(I), I64), 3)
    zero = Nest("zero", (I, J), (Store("y", (), at(I, J), Constant(0.0, F32)),))
    add_rows = Nest("add", (I, J), (Store("y", (), (row, AxisVar(J)), X, "add"),))
    made = program(zero, add_rows)
    verify(made)
    x, n = torch.randn(3, 5), torch.tensor([2, 0, -1])
    want = torch.zeros(3, 5).index_put((n,), x, accumulate=True)
    assert torch.allclose(run(made, [x, n])[0], want)


def test_argmax_over_two_axes_is_the_row_major_position():
    a, b = Axis("a", 3), Axis("b", 5)
    place = Reduction("argmax", (a, b), Load("x", at(a, b), F32), I64)
    made = program(nest(Cast(place, F32)))
    verify(made)
    x = torch.randn(3, 5)
    assert run(made, [x, torch.zeros(3, dtype=I64)])[0][0, 0] == x.argmax()


def test_loads_see_the_memory_before_the_nest():
    stores = (Store("x", (), at(I, J), ONE), Store("y", (), at(I, J), X))
    made = program(Nest("both", (I, J), stores))
    x = torch.randn(3, 5)
    before = x.clone()
    (y,) = run(made, [x, torch.zeros(3, dtype=I64)])
    assert torch.equal(y, before)
    assert torch.equal(x, torch.ones(3, 5))


def test_float64_answers():
    made = program(nest(Compute("truediv", (ONE, Compute("add", (X, ONE), F32)), F32)))
    x = torch.rand(3, 5)
    (wide,) = run(made, [x, torch.zeros(3, dtype=I64)], "float64")
    assert torch.equal(wide, 1 / (x.double() + 1))
