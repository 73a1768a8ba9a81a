"""Operators registered with torch.library, and torch.ops reached in every way: graphs like any."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import jitmagic
from tests.programs.harness import Program, check

from . import operators_defined as defined

ops = getattr(torch.ops, defined.NAMESPACE)
aten = torch.ops.aten
add_tensors = torch.ops.aten.add.Tensor
library = torch.library.Library  # what tests register is gone with the object


def leaf():
    return [(torch.linspace(-1, 1, 6).reshape(2, 3).requires_grad_(),)]


def plain():
    return [(torch.linspace(-1, 1, 6).reshape(2, 3),)]


def by_packet(x):
    return torch.ops.jitmagic_tests.scaled(x.sin(), 3.0).cos()


def by_overload(x):
    return ops.scaled.default(x.sin(), 0.5, times=2) + 1


def by_definition(x):
    return defined.scaled(x.exp(), 2.0)


def called_twice(x):
    return ops.scaled(x, 2.0) + ops.scaled(x, 2.0)


def with_saved_tensors(x):
    return ops.square(x.sin()).sum()


def with_lists(x):
    a, b = ops.apart([x, x * 2], [1.5, 2.5], "mul")
    return a + b


def two_results(x):
    y, order = ops.both(x)
    return y * 2, order


def composed(x):
    return ops.composed(x, n=3) + ops.composed(x)


def overloads(x):
    return ops.combined(x) + ops.combined(x, x * 2) + ops.combined.one(x)


def draws(x):
    return ops.noise(x) + torch.rand_like(x) + ops.noise(x)


def prints_in_order(x):
    ops.note(x, "first")
    y = x.sum(0)
    ops.note(y, "second")
    ops.note(x, "first")
    return y * 2


def writes(x):
    total, count = torch.zeros_like(x), torch.zeros((), dtype=torch.int64)
    ops.add_into(total, x, count)
    ops.add_into(total[0], x[1], count)
    ops.add_into(total, x, count=count)
    return total * 2, count


def writes_input(x):
    y = x + 1
    ops.add_into(x, y, torch.zeros((), dtype=torch.int64))
    return x * y


def writes_by_default(x):
    ops.add_into(x, x * 2)
    return x + 1


def writes_lists(x):
    rows = [torch.ones_like(x), torch.zeros_like(x)]
    made = ops.push(rows, x)
    return made, rows[0] - rows[1]


def writes_and_returns(x):
    y = x * 1
    z = ops.mul_(y, 3.0)
    return z + 1, y


def cast(x):
    with torch.autocast("cpu", torch.bfloat16):
        y = F.linear(x, torch.ones(3, 3, dtype=x.dtype))
        return ops.scaled(y, 2.0)


def aten_by_name(x):
    return aten.add(x, x) + aten.mul.Tensor(x, 2) + aten.sum(x)


def aten_by_overload(x):
    return add_tensors(x, x).sin() + add_tensors.overloadpacket(x, 1)


def aten_by_default(x, space=torch.ops.aten, root=torch.ops):
    return space.add.Tensor(x, x).sin() + root.aten.mul(x, 2)


def aten_in_closure():
    root, space = torch.ops, torch.ops.aten
    return lambda x: root.aten.mul(x, 2) + space.relu.default(x)


class Holder:
    space = torch.ops.aten


def aten_by_attribute(x, holder=Holder()):  # noqa: B008 - an object of the process
    return holder.space.mul(x, 2) + Holder.space.exp(x)


def aten_of_numbers(x):
    return x + aten.add(2, 3) + aten.mul(2.0, 4)


def prims_too(x):
    return torch.ops.prims.sin(x) + torch.ops.prims.mul(x, x)


def sized_by_data(x):
    return ops.positives(x.sin()) * 2


def returns_numbers(x):
    return x * ops.rank(x) + x.sin() * ops.count(x)


def returns_a_size(x):
    return torch.zeros(ops.count(x)) + x.sum()


def returns_a_tensor_and_a_number(x):
    y, scale = ops.normed(x)
    return y.cos() * scale, scale + 1


def returns_a_flag(x):
    return x.sin(), ops.is_large(x)


def number_of_a_tensor_with_grad(x):
    return x * ops.rank(x)


WITH_GRADIENTS = (
    number_of_a_tensor_with_grad,
    by_packet,
    by_overload,
    by_definition,
    called_twice,
    with_saved_tensors,
    with_lists,
    two_results,
    composed,
    cast,
    aten_by_name,
    aten_by_overload,
    aten_by_default,
    aten_in_closure(),
    aten_by_attribute,
    aten_of_numbers,
)
WITHOUT = (
    overloads,
    prints_in_order,
    writes,
    writes_input,
    writes_lists,
    writes_and_returns,
    prims_too,
    sized_by_data,
    returns_numbers,
    returns_a_size,
    returns_a_tensor_and_a_number,
    returns_a_flag,
)


def program(function, calls):
    name = function.__name__
    return Program(name, lambda: function, calls, graphs=1, options={"fullgraph": True})


@pytest.mark.parametrize(
    "made",
    [program(f, leaf) for f in WITH_GRADIENTS] + [program(f, plain) for f in WITHOUT],
    ids=str,
)
def test_whole_graph(made):
    check(made)


def _takes_defaults():
    """torch 2.11 does not find the argument that is written and left out."""
    try:
        ops.add_into(torch.zeros(1), torch.ones(1))
    except IndexError:
        return False
    return True


@pytest.mark.skipif(not _takes_defaults(), reason="eager refuses it")
def test_a_written_argument_may_be_left_out():
    check(program(writes_by_default, plain))


def test_random_draws_keep_their_order():
    check(Program("draws", lambda: draws, plain, graphs=1, exact=True))


def test_an_unread_call_runs_all_the_same(capsys):
    def program(x):
        ops.scaled(x, 2.0)
        ops.note(x, "one")
        return x.sin()

    fast = jitmagic.jit(program, fullgraph=True)
    fast(torch.ones(2))
    capsys.readouterr()
    fast(torch.ones(2))
    assert capsys.readouterr().out == "one (2,)\n"


def test_kernel_runs_at_calls_only(capsys):
    def program(x):
        ops.note(x, "one")
        return ops.both(x)[0] + ops.sounding(x)

    for dynamic in (False, True):
        jitmagic.jit(program, fullgraph=True, dynamic=dynamic)(torch.ones(1, 3))
        assert capsys.readouterr().out == "one (1, 3)\nsounding\n"


def integers():
    return torch.arange(6).reshape(1, 6)


def bools():
    return torch.tensor([True, False, True])


OF_OTHER_DTYPES = {
    "pooling": (lambda x: F.avg_pool1d(x, 2), integers),
    "product": (lambda x: torch.outer(x, x), bools),
    "converted": (lambda x: torch.log_softmax(x, -1, dtype=torch.float32), integers),
    "reflected": (lambda x: torch.Tensor.__rmatmul__(x, x.T), integers),
    "of the class": (lambda x: torch.Tensor.norm(x.float()) + x.__rpow__(2), integers),
}


@pytest.mark.parametrize("name", OF_OTHER_DTYPES)
def test_kernels_say_which_dtypes_they_take(name):
    function, values = OF_OTHER_DTYPES[name]
    calls = lambda: [(values(),)]  # noqa: E731
    check(Program(name, lambda: function, calls, graphs=1, options={"fullgraph": True}))


REFUSED = [
    (lambda x: ops.plain(x) * 2, 'register_fake("jitmagic_tests::plain"'),
    (lambda x: x * ops.number(x), "returns a value of type number"),
    (lambda x: ops.part(x) * 2, "returns a view of an argument"),
]


@pytest.mark.parametrize(("function", "words"), REFUSED, ids=lambda v: v if type(v) is str else "")
def test_what_no_graph_can_hold_breaks_with_a_reason(function, words):
    x = torch.linspace(-1, 1, 5)
    with pytest.raises(jitmagic.JitmagicError, match=words.partition("(")[0]):
        jitmagic.jit(function, fullgraph=True)(x)
    assert torch.equal(jitmagic.jit(function)(x), function(x))


def test_an_input_returned_against_the_schema_is_noticed():
    def program(x):
        return ops.same(x + 1) * 2

    fast = jitmagic.jit(program)
    x = torch.ones(3)
    with pytest.warns(jitmagic.FallbackWarning, match="it does not share"):
        assert torch.equal(fast(x), program(x))


def redefined(factor):
    made = torch.library.custom_op(
        "jitmagic_tests::renewed",
        lambda x: x * factor,
        mutates_args=(),
        schema="(Tensor x) -> Tensor",
    )
    made.register_fake(torch.empty_like)
    made.register_autograd(lambda ctx, g: g * factor)
    return made


def gradient(f):
    x = torch.ones(3, requires_grad=True)
    f(x).sum().backward()
    return x.grad.tolist()


def test_an_operator_defined_anew_is_the_new_one():
    first = redefined(2.0)
    fast = jitmagic.jit(lambda x: torch.ops.jitmagic_tests.renewed(x) + 1)
    assert gradient(fast) == [2.0] * 3
    second = redefined(5.0)
    assert gradient(fast) == [5.0] * 3
    assert first is not second


def test_another_formula_or_fake_kernel_is_followed():
    made = redefined(2.0)
    fast = jitmagic.jit(lambda x: torch.ops.jitmagic_tests.renewed(x))
    assert gradient(fast) == [2.0] * 3
    made.register_autograd(lambda ctx, g: g * 7)
    assert gradient(fast) == [7.0] * 3
    made.register_fake(lambda x: torch.empty_like(x, dtype=torch.float64))
    wrong = jitmagic.jit(lambda x: made(x) * 2)  # its kernel gives another dtype than that
    with pytest.warns(jitmagic.FallbackWarning, match="another shape or dtype"):
        assert wrong(torch.ones(3)).dtype is torch.float32


def test_a_deleted_operator_is_missed():
    lib = library("jitmagic_tests", "FRAGMENT")
    lib.define("passing(Tensor x) -> Tensor")
    lib.impl("passing", lambda x: x * 2, "CompositeExplicitAutograd")
    torch.library.register_fake("jitmagic_tests::passing", torch.empty_like, lib=lib)
    fast = jitmagic.jit(lambda x: torch.ops.jitmagic_tests.passing(x) + 1)
    assert fast(torch.ones(2)).tolist() == [3.0, 3.0]
    lib._destroy()
    with pytest.raises(AttributeError, match="passing"):
        fast(torch.ones(2))
