"""Guards on facts that were read, effects on objects from before the call, and aliasing."""

from __future__ import annotations

import dis
import sys
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import jitmagic
from jitmagic.bytecode.snapshot import FrameSnapshot
from jitmagic.guards import guard as g
from jitmagic.guards.source import Argument, describe
from jitmagic.options import Options
from jitmagic.trace import result as r
from jitmagic.trace.machine import trace

from ..programs.counts import breaks_of
from .replaying import Replay

COUNTER = 0
TABLE: dict[str, int] = {"a": 1}


def traced(fn: Callable[..., Any], *args: Any) -> tuple[r.Trace, Any]:
    """Return the trace and the result of its replay."""
    snapshot = FrameSnapshot.of_call(fn, args)
    made = trace(snapshot, Options())
    assert isinstance(made.exit, r.Return), f"{made.exit.reason.message} at {made.exit.where}"
    return made, Replay(made, snapshot).run()


def kinds(made: r.Trace, *, of: str) -> list[str]:
    """Return the names of the guards on one source."""
    return [
        type(guard).__name__
        for guard in made.guards
        if hasattr(guard, "source") and describe(guard.source) == of
    ]


# -- laziness ------------------------------------------------------------------------------------


def test_values_passed_through_have_no_guard() -> None:
    made, got = traced(lambda a, b: (b, [a]), 1, object)
    assert got == (object, [1])
    assert [type(guard).__name__ for guard in made.guards] == ["GlobalState"]


def test_use_guards_the_value_and_the_type_is_implied() -> None:
    made, _ = traced(lambda a, b: a + 1, 3, 4)
    assert kinds(made, of="a") == ["ValueEquals"]
    assert kinds(made, of="b") == []


def test_guards_know_the_line() -> None:
    made, _ = traced(lambda a: a + 1, 3)
    (guard,) = (one for one in made.guards if isinstance(one, g.ValueEquals))
    assert guard.where is not None
    assert "made, _ = traced(lambda a: a + 1, 3)" in guard.where.text


def test_none_checks_guard_the_type_alone() -> None:
    made, _ = traced(lambda a: a is None, [1])
    assert kinds(made, of="a") == ["TypeIs"]


def test_a_list_that_only_grows_is_not_guarded() -> None:
    def grow(xs: list[Any], n: int) -> None:
        xs.append(n)
        xs.extend([1, n])
        xs += ["last"]

    made, _ = traced(grow, xs := ["first"], 7)
    assert xs == ["first", 7, 1, 7, "last"]
    assert kinds(made, of="xs") == ["TypeIs"]
    (effect,) = made.effects
    assert isinstance(effect, r.Perform)


def test_a_list_that_is_read_after_it_grew() -> None:
    def grow(xs: list[Any], n: int) -> Any:
        xs.append(n)
        first = xs[0], len(xs), xs[-1]
        xs.append(first)
        xs.extend(xs)
        return first, xs[-1] is first, xs

    made, got = traced(grow, xs := ["first"], 7)
    once = ["first", 7, ("first", 2, 7)]
    assert (got[:2], xs) == ((("first", 2, 7), True), [*once, *once])
    assert got[2] is xs
    assert kinds(made, of="xs") == ["TypeIs", "LengthIs"]


def test_one_list_under_two_names_grows_in_order() -> None:
    def grow(xs: list[Any], ys: list[Any]) -> None:
        xs.append(1)
        ys.append(2)
        xs.append(3)

    traced(grow, xs := [], xs)
    assert xs == [1, 2, 3]
    made, _ = traced(grow, xs := [], ys := [])
    assert (xs, ys) == ([1, 3], [2])
    assert "DifferentObjects" in {type(guard).__name__ for guard in made.guards}


def test_dict_keys_and_items() -> None:
    made, _ = traced(lambda d: d["n"] + 1, {"n": 1, "m": 2})
    assert kinds(made, of="d") == ["TypeIs"]
    assert kinds(made, of="d['n']") == ["ValueEquals"]
    assert kinds(made, of="d['m']") == []


def test_instance_attributes() -> None:
    class Config:
        depth = 3

        def __init__(self) -> None:
            self.width = 2

    def read(cfg: Any) -> Any:
        return cfg.width * cfg.depth

    made, got = traced(read, Config())
    assert got == 6
    assert kinds(made, of="cfg") == ["TypeIs"]
    assert kinds(made, of="cfg.width") == ["ValueEquals"]
    assert kinds(made, of="cfg.__dict__") == ["KeyAbsent"]
    assert kinds(made, of="type(cfg).depth") == ["ValueEquals"]


def test_inlined_functions_are_guarded_by_their_code() -> None:
    def call(fn: Any) -> Any:
        return fn(1)

    made, got = traced(call, lambda x: x + 1)
    assert got == 2
    assert kinds(made, of="fn") == []  # only a function has a code
    assert kinds(made, of="fn.__code__") == ["IdentityIs"]


def test_globals_and_builtins() -> None:
    def read() -> Any:
        return len(TABLE) + COUNTER

    made, got = traced(read)
    assert got == 1 + COUNTER
    assert any(isinstance(one, g.GlobalMissing) for one in made.guards)
    assert kinds(made, of="COUNTER") == ["ValueEquals"]


def test_state_is_one_guard() -> None:
    made, _ = traced(lambda: 1)
    (guard,) = made.guards
    assert isinstance(guard, g.GlobalState)
    assert guard.facts.grad_enabled


# -- effects -------------------------------------------------------------------------------------


def test_tracing_changes_nothing() -> None:
    xs, d = [1], {"a": 1}

    class Box:
        pass

    box = Box()

    def change(xs: Any, d: Any, box: Any) -> None:
        global COUNTER
        xs.append(2)
        d["b"] = 2
        box.v = 3
        COUNTER = 100

    before = COUNTER
    trace(FrameSnapshot.of_call(change, (xs, d, box)), Options())
    assert (xs, d, vars(box), COUNTER) == ([1], {"a": 1}, {}, before)


def test_global_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    module = sys.modules[__name__]
    monkeypatch.setattr(module, "COUNTER", 5)

    def bump() -> int:
        global COUNTER
        COUNTER += 1
        COUNTER *= 2
        return COUNTER

    made, got = traced(bump)
    assert got == module.COUNTER == 12
    assert [type(effect).__name__ for effect in made.effects] == ["SetItem"]


def test_global_deleted_and_made_again() -> None:
    namespace: dict[str, Any] = {"x": 1, "y": 2}
    code = "def f():\n global x\n del x\n try:\n  x\n except NameError:\n  x = 5\n return x"
    exec(code, namespace)
    made, got = traced(namespace["f"])
    assert got == namespace["x"] == 5
    assert [type(effect).__name__ for effect in made.effects] == ["DelItem", "SetItem"]


def test_nonlocal_writes() -> None:
    total = 10

    def add(k: int) -> int:
        nonlocal total
        total += k
        return total

    made, got = traced(add, 5)
    assert got == total == 15
    assert [type(effect).__name__ for effect in made.effects] == ["SetCell"]


def test_empty_cell_is_guarded() -> None:
    def outer() -> Any:
        def inner() -> str:
            try:
                return late
            except NameError:
                return "empty"

        if outer is None:
            late = "x"
        return inner

    made, got = traced(outer())
    assert got == "empty"
    assert any(isinstance(one, g.CellEmpty) for one in made.guards)


def test_program_order_of_attributes() -> None:
    class Box:
        def __init__(self) -> None:
            self.old = 0

    def write(box: Any) -> None:
        box.b = 1
        box.a = 2
        box.b = 3
        del box.old
        box.old = 4

    box = Box()
    made, _ = traced(write, box)
    assert list(vars(box).items()) == [("b", 3), ("a", 2), ("old", 4)]
    shown = [(type(one).__name__, one.name) for one in made.effects]
    assert shown == [("SetAttr", "b"), ("SetAttr", "a"), ("DelAttr", "old"), ("SetAttr", "old")]


def test_class_attributes_are_written() -> None:
    class Counter:
        made = 0

        def __init__(self) -> None:
            Counter.made += 1
            self.number = Counter.made

    made, got = traced(lambda: [Counter().number, Counter().number, Counter.made])
    assert got == [1, 2, 2]
    assert Counter.made == 2


def test_module_attributes(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("somewhere")
    module.value = 3

    def use(m: Any) -> int:
        m.value += 1
        m.fresh = [m.value]
        return m.value

    _, got = traced(use, module)
    assert got == module.value == 4
    assert module.fresh == [4]


def test_frozen_classes_are_filled_past_their_setattr() -> None:
    class Sealed:
        def __init__(self) -> None:
            object.__setattr__(self, "x", 1)

        def __setattr__(self, name: str, value: Any) -> None:
            raise AttributeError(name)

    def make() -> Any:
        made = Sealed()
        try:
            made.x = 2
        except AttributeError:
            return made, made.x

    made, (got, x) = traced(make)
    assert vars(got) == {"x": 1}
    assert x == 1


# -- aliasing ------------------------------------------------------------------------------------


def mutate_one(a: list, b: list) -> int:
    a.append(1)
    return len(b)


def test_one_list_by_two_paths() -> None:
    xs: list[int] = []
    made, got = traced(mutate_one, xs, xs)
    assert got == 1
    paths = Argument(0, "a"), Argument(1, "b")
    assert g.SameObject(*paths) in made.guards


def test_two_lists_must_stay_two() -> None:
    made, got = traced(mutate_one, [], [])
    assert got == 0
    assert g.DifferentObjects((Argument(0, "a"),), (Argument(1, "b"),)) in made.guards


def test_identity_is_guarded_both_ways() -> None:
    xs: list[int] = []
    same, got = traced(lambda a, b: a is b, xs, xs)
    assert got is True
    assert any(isinstance(one, g.SameObject) for one in same.guards)
    other, got = traced(lambda a, b: a is b, xs, [])
    assert got is False
    assert any(isinstance(one, g.DifferentObjects) for one in other.guards)


def test_new_objects_are_made_once() -> None:
    def share() -> Any:
        inner = [1]
        return {"a": inner, "b": inner, "c": (inner,)}

    _, got = traced(share)
    assert got["a"] is got["b"] is got["c"][0]


def test_list_holding_itself() -> None:
    def loop() -> Any:
        xs: list[Any] = [1]
        row = (xs,)
        xs.append(row)
        d: dict[str, Any] = {}
        d["me"] = d
        return xs, d

    _, (xs, d) = traced(loop)
    assert xs[1][0] is xs
    assert d["me"] is d


def test_returned_argument_is_the_argument() -> None:
    xs = [1]
    _, got = traced(lambda a: [a, a], xs)
    assert got[0] is xs
    assert got[1] is xs


def test_source_read_before_it_is_overwritten() -> None:
    class Box:
        pass

    box = Box()
    box.v = [1]
    old = box.v

    def swap(box: Any) -> Any:
        kept = box.v
        box.v = [2]
        return kept

    _, got = traced(swap, box)
    assert got is old
    assert box.v == [2]


def test_closure_that_leaves() -> None:
    def make(n: int) -> Any:
        count = n

        def step() -> int:
            nonlocal count
            count += 1
            return count

        step()
        return step, lambda: count

    _, (step, read) = traced(make, 5)
    assert read() == 6
    assert step() == 7
    assert read() == 7


def test_recursive_closure_that_leaves() -> None:
    def make() -> Any:
        def fact(k: int) -> int:
            return 1 if k < 2 else k * fact(k - 1)

        return fact

    _, fact = traced(make)
    assert fact(5) == 120


def test_cells_as_plain_arguments() -> None:
    """A resume function has LOAD_DEREF of a name that is a parameter holding a cell."""

    def outer() -> Any:
        x = 4

        def inner() -> int:
            return x + 1

        return inner

    inner = outer()
    free = inner.__code__.co_freevars
    code = inner.__code__.replace(
        co_freevars=(), co_varnames=free, co_argcount=len(free), co_nlocals=len(free)
    )
    raw = bytearray(code.co_code)
    raw[0:2] = bytes([dis.opmap["NOP"], 0])  # COPY_FREE_VARS: its operand no longer holds
    code = code.replace(co_code=bytes(raw))
    function = types.FunctionType(code, {})
    _, got = traced(function, inner.__closure__[0])
    assert got == 5


def test_stub_of_a_tagged_function_is_not_lost() -> None:
    """Marked functions: is_compiling() is true in a trace, and they pass through as themselves."""

    def is_compiling() -> bool:
        return False

    is_compiling.__jitmagic_role__ = "is_compiling"
    made, got = traced(lambda fn: (fn(), fn), is_compiling)
    assert got == (True, is_compiling)


def noted(calls: list[int]) -> Any:
    """Return a function; evaluating its annotations appends to `calls`."""
    names: dict[str, Any] = {"calls": calls}
    # Without the future import of this file, which would turn annotations into strings.
    exec(compile("def noted(a: calls.append(1)): pass", "<noted>", "exec", 0, True), names)
    return names["noted"]


@pytest.mark.skipif(sys.version_info < (3, 14), reason="annotations are evaluated at once")
def test_deferred_annotations_are_evaluated_when_the_program_reads_them() -> None:
    calls: list[int] = []
    function = noted(calls)

    def program(x: Tensor) -> Any:
        before = len(calls)
        return x + 1, before, function.__annotations__, len(calls)

    compiled = jitmagic.jit(program)
    assert compiled(torch.zeros(2))[1:] == (0, {"a": None}, 1)
    for _ in range(2):
        assert compiled(torch.zeros(2))[1:] == (1, {"a": None}, 1)


@pytest.mark.skipif(sys.version_info < (3, 14), reason="annotations are evaluated at once")
def test_evaluated_annotations_need_no_break() -> None:
    calls: list[int] = []
    function = noted(calls)

    def program(x: Tensor, f: Any) -> Any:
        return x + len(f.__annotations__), f.__annotations__

    compiled = jitmagic.jit(program)
    compiled(torch.zeros(2), function)  # breaks, and Python evaluates them
    assert compiled(torch.zeros(2), function)[1] is function.__annotations__
    assert len(breaks_of(compiled)) == 1
    strict = jitmagic.jit(program, fullgraph=True)
    assert torch.equal(strict(torch.zeros(2), function)[0], torch.ones(2))
    function.__annotations__["b"] = int
    assert torch.equal(strict(torch.zeros(2), function)[0], torch.full((2,), 2.0))
    function.__annotations__ = {}  # CPython drops `__annotate__`
    assert torch.equal(strict(torch.zeros(2), function)[0], torch.zeros(2))
    assert len(calls) == 1
    # The same code, but its annotations are not evaluated yet.
    assert compiled(torch.zeros(2), noted(calls))[1] == {"a": None}
    assert len(calls) == 2
