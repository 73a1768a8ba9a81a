"""Graph breaks: their position, the state that they restore, and their reasons."""

from __future__ import annotations

import random
import time
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch

from jitmagic.bytecode import decode
from jitmagic.bytecode.snapshot import FrameSnapshot
from jitmagic.guards.source import Argument
from jitmagic.options import Options
from jitmagic.trace import breaks
from jitmagic.trace import result as r
from jitmagic.trace.machine import trace

from .replaying import Replay


def broken(fn: Callable[..., Any], *args: Any, **options: Any) -> tuple[r.Trace, r.Break, Replay]:
    """Return the trace, its break, and a replay that has performed the effects."""
    snapshot = FrameSnapshot.of_call(fn, args)
    made = trace(snapshot, Options(**options))
    assert isinstance(made.exit, r.Break), "no graph break"
    replay = Replay(made, snapshot)
    replay.run()
    return made, made.exit, replay


def opcode_at(fn: Callable[..., Any], index: int) -> str:
    return decode(fn.__code__).instructions[index].op


def state(exit_: r.Break, replay: Replay) -> tuple[dict[str, Any], list[Any]]:
    named = {name: replay.make(recipe) for name, recipe in exit_.locals.items()}
    return named, [replay.make(recipe) for recipe in exit_.stack]


def printing(xs):
    xs.append(1)
    y = [len(xs)]
    print("hi", y)
    return y


def test_print_breaks_before_the_call() -> None:
    xs: list[int] = []
    _, exit_, replay = broken(printing, xs)
    assert isinstance(exit_.reason, breaks.PrintCall)
    assert exit_.where.text == 'print("hi", y)'
    assert opcode_at(printing, exit_.index) == "CALL"
    named, stack = state(exit_, replay)
    assert xs == [1]
    assert named["xs"] is xs
    assert stack[-1] is named["y"]
    assert stack[-2:] == ["hi", [1]]
    assert print in stack
    assert None in stack  # the NULL of the call


def callee_that_prints(box):
    box["n"] = box["n"] + 1
    print(box)
    return 1


def test_break_in_a_callee_ends_at_the_call_with_its_effects_undone() -> None:
    def outer(box):
        box["m"] = 0
        return callee_that_prints(box) + 1

    box = {"n": 1}
    _, exit_, _ = broken(outer, box)
    assert opcode_at(outer, exit_.index) == "CALL"
    assert exit_.where.function == "callee_that_prints"
    assert box == {"n": 1, "m": 0}


EYE = torch.eye(2)
REASONS: list[tuple[Callable[..., Any], tuple, type[breaks.BreakReason]]] = [
    (lambda x: id(x), (1,), breaks.StatefulCall),
    (lambda: time.sleep(0), (), breaks.StatefulCall),
    (lambda: random.getrandbits(8), (), breaks.StatefulCall),
    (lambda: time.strftime("%Y"), (), breaks.UnknownCFunction),
    # It is found on the object again, where the tracer does not know it either.
    (lambda x: type(x).__reduce__(x), (types.SimpleNamespace(),), breaks.UnknownCFunction),
    (lambda: open("/nowhere"), (), breaks.PrintCall),
    (lambda x: x.y, (memoryview(b""),), breaks.UnsupportedOperation),
    (lambda x: x + 1, (memoryview(b""),), breaks.UnsupportedOperation),
    (lambda: {}["missing"], (), breaks.EscapingException),
    (lambda: 1 / 0, (), breaks.EscapingException),
    (lambda x: next(x), (iter([1]),), breaks.LoopIterator),
    (lambda x: 10**x, (10**6,), breaks.UnsupportedArguments),
    (lambda x: x.to_sparse(), (EYE,), breaks.NoMetaFunction),
    (lambda x: x.to_mkldnn(), (EYE,), breaks.NoMetaFunction),
    (lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.quint8), (EYE,), breaks.NoMetaFunction),
    (lambda x: torch.linalg.lstsq(x, x)[0], (EYE,), breaks.NoMetaFunction),
    (lambda x: torch.sparse_coo_tensor(x.long(), x[0], (2, 2)), (EYE,), breaks.RefusedTorchCall),
    (lambda: torch.zeros(2, 2, layout=torch.sparse_coo), (), breaks.RefusedTorchCall),
    (lambda x: torch.allclose(x, x), (EYE,), breaks.TensorItem),
    (lambda x: x.is_nonzero(), (EYE[0, 0],), breaks.TensorItem),
]


@pytest.mark.parametrize(
    ("fn", "args", "reason"), REASONS, ids=lambda p: getattr(p, "__name__", "")
)
def test_reasons(fn: Any, args: tuple, reason: type[breaks.BreakReason]) -> None:
    _, exit_, _ = broken(fn, *args)
    assert type(exit_.reason) is reason, exit_.reason
    assert exit_.reason.message
    assert reason.explanation
    assert exit_.reason.kind == reason.__name__


def marked(**attributes: Any) -> Callable[[], None]:
    def function() -> None: ...

    vars(function).update(attributes)
    return function


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (marked(__jitmagic_disabled__=True), breaks.DisabledFunction),
        (
            marked(_torchdynamo_disable=True, _torchdynamo_orig_callable=len),
            breaks.DisabledFunction,
        ),
        (marked(__jitmagic_role__="graph_break"), breaks.UserGraphBreak),
    ],
)
def test_marked_functions(function: Any, reason: type[breaks.BreakReason]) -> None:
    _, exit_, _ = broken(lambda fn: fn(), function)
    assert type(exit_.reason) is reason


def test_limits() -> None:
    def endless(n):
        while True:
            n += 1

    def deep(n):
        return deep(n + 1)

    _, exit_, _ = broken(endless, 0, unroll_limit=300)
    assert isinstance(exit_.reason, breaks.TooManyInstructions)
    scope = {}
    exec("def deep(n): return deep(n + 1)", scope)
    _, exit_, _ = broken(scope["deep"], 0, inline_depth=5)
    assert isinstance(exit_.reason, breaks.InlineTooDeep)


def test_a_tensor_is_not_cut_into_thousands() -> None:
    _, exit_, _ = broken(lambda x: torch.stack(x.unbind(0), -1), torch.ones(301), unroll_limit=6000)
    assert isinstance(exit_.reason, breaks.TooManyResults) and exit_.reason.whole_frame
    assert exit_.reason.message == "Tensor.unbind returns 301 tensors"


def test_a_loop_that_is_too_long_breaks_in_its_second_iteration() -> None:
    def long(xs, out):
        for x in xs:
            out.append(x)
        return out

    out: list[int] = []
    _, exit_, _ = broken(long, list(range(500)), out, unroll_limit=300)
    assert opcode_at(long, exit_.index) == "FOR_ITER"
    assert out == [0]


# -- exceptions ----------------------------------------------------------------------------------


def test_escaping_exception_breaks_before_the_raise() -> None:
    def fail(xs):
        xs.append(1)
        if len(xs) == 1:
            raise ValueError("no")

    xs: list[int] = []
    _, exit_, _ = broken(fail, xs)
    assert isinstance(exit_.reason, breaks.EscapingException)
    assert opcode_at(fail, exit_.index) == "RAISE_VARARGS"
    assert xs == [1]


def test_break_inside_a_handler_goes_before_the_exception() -> None:
    def handle(xs):
        try:
            xs.append(1)
            xs[7]
        except IndexError as error:
            xs.append(2)
            print(error)
        return xs

    xs: list[int] = []
    _, exit_, _ = broken(handle, xs)
    assert opcode_at(handle, exit_.index) == "BINARY_SUBSCR"
    assert xs == [1]


def test_a_stored_exception_breaks_before_it_was_raised() -> None:
    def keep(xs):
        try:
            raise KeyError("k")
        except KeyError as error:
            kept = error
        print(kept)

    _, exit_, _ = broken(keep, [])
    assert exit_.where.text == "print(kept)"
    assert "CALL" in {one.op for one in decode(keep.__code__).instructions[exit_.index + 1 :]}


# -- iterators -----------------------------------------------------------------------------------


def breaking_loop(xs, ys):
    total = 0
    for i, (x, y) in enumerate(zip(xs, ys)):
        total += x * y + i
        print(total)
    return total


def test_iterators_are_rebuilt_in_the_middle() -> None:
    _, exit_, replay = broken(breaking_loop, [1, 2, 3], (4, 5, 6))
    named, stack = state(exit_, replay)
    assert named["total"] == 4
    assert isinstance(stack[0], enumerate)
    assert list(stack[0]) == [(1, (2, 5)), (2, (3, 6))]


def test_range_and_map_iterators_are_rebuilt() -> None:
    def loop(n):
        for x in map(lambda v: v * 2, range(n)):
            print(x)

    _, exit_, replay = broken(loop, 4)
    assert list(state(exit_, replay)[1][0]) == [2, 4, 6]


@pytest.mark.parametrize("what", ["keys", "values", "items"])
def test_iterators_over_an_unchanged_dict_are_walked_again(what: str) -> None:
    def loop(d, what):
        for item in getattr(d, what)():
            print(item)

    d = {"a": 1, "b": 2, "c": 3}
    del d["a"]
    d["e"] = 4
    _, exit_, replay = broken(loop, d, what)
    assert opcode_at(loop, exit_.index) == "CALL"
    iterator = state(exit_, replay)[1][0]
    assert list(iterator) == list(getattr(d, what)())[1:]


def test_changed_list_under_its_iterator() -> None:
    def loop(xs):
        for x in xs:
            xs.append(x)
            print(x)

    xs = [1, 2]
    _, exit_, replay = broken(loop, xs)
    iterator = state(exit_, replay)[1][0]
    assert xs == [1, 2, 1]
    assert list(iterator) == [2, 1]


@pytest.mark.parametrize("make", [lambda d: d.items(), lambda d: (k for k in d), lambda d: set(d)])
def test_values_that_cannot_be_rebuilt_are_made_by_python(make: Any) -> None:
    def loop(d, make):
        d["z"] = 0
        for item in make(d):
            print(item)

    _, exit_, _ = broken(loop, {"a": 1}, make)
    assert opcode_at(loop, exit_.index) in ("GET_ITER", "CALL")


def loop_left_in_the_middle(iterator, total, passed):
    total = total + 1
    for x in iterator:
        total += x
        if x == 2:
            print(x)
    return total, passed


@pytest.mark.parametrize(
    "make", [iter, reversed, lambda xs: map(abs, xs), lambda xs: iter(dict.fromkeys(xs))]
)
def test_iterator_arguments_break_at_for_iter_without_value_guards(make) -> None:
    """The body of a loop with a break in it, as a resume function sees it."""
    made, exit_, replay = broken(loop_left_in_the_middle, make([1, 2, 3]), 5, 7)
    assert isinstance(exit_.reason, breaks.LoopIterator)
    assert opcode_at(loop_left_in_the_middle, exit_.index) == "FOR_ITER"
    assert state(exit_, replay)[0]["total"] == 6
    assert not any(getattr(one, "source", None) == Argument(2, "passed") for one in made.guards)
    assert not any("IteratorParts" in repr(one) for one in made.guards)


# -- stack and cells -----------------------------------------------------------------------------


def test_cells_are_restored_as_cells() -> None:
    def outer(n):
        total = n + 1

        def add():
            nonlocal total
            total += 1
            return total

        print(add())
        return add

    _, exit_, replay = broken(outer, 1)
    cell = replay.make(exit_.cells["total"])
    add = replay.make(exit_.locals["add"])
    assert cell.cell_contents == 3
    assert add.__closure__[0] is cell
    assert add() == 4


def test_break_in_the_middle_of_an_expression() -> None:
    def expression(a, b):
        return (a + 1, [b], {"k": print(a)})

    _, exit_, replay = broken(expression, 1, 2)
    _, stack = state(exit_, replay)
    assert stack[0] == 2
    assert stack[1] == [2]


def test_break_inside_with_leaves_a_working_exit() -> None:
    class Manager:
        def __init__(self):
            self.log = []

        def __enter__(self):
            self.log.append("in")
            return self

        def __exit__(self, *rest):
            self.log.append("out")

    def use(manager):
        with manager as m:
            print(m)

    manager = Manager()
    _, exit_, replay = broken(use, manager)
    _, stack = state(exit_, replay)
    assert manager.log == ["in"]
    stack[0](None, None, None)
    assert manager.log == ["in", "out"]


def test_trace_before_the_break_is_as_long_as_it_can_be() -> None:
    """A break is found once and the second attempt ends exactly there."""
    made, exit_, _ = broken(printing, [])
    again, _, _ = broken(printing, [])
    assert made.instructions == again.instructions
    assert exit_.index > 0
