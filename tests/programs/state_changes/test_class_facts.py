"""What is relied on of classes: one guard for each, no recompiles without need, and words."""

from __future__ import annotations

import abc

import pytest

import jitmagic
from jitmagic.api import handle_of
from jitmagic.errors import RecompileWarning
from jitmagic.frame.native import lower_guards
from jitmagic.records import COMPILED

from ..counts import counts_of
from ..scenarios import x3


def test_a_class_that_counts_is_compiled_once() -> None:
    class Thing:
        calls, scale = 0, 1.0

        def __init__(self):
            self.scale = 2.0

        def __repr__(self):
            return "thing"

    @jitmagic.jit
    def f(thing, t):
        return t * thing.scale

    thing = Thing()
    for call in range(20):
        Thing.calls += 1
        Thing.scale = float(call)
        Thing.__repr__ = lambda self: "other"
        assert f(thing, x3()).tolist() == [2.0, 4.0, 6.0]
    assert counts_of(f).graphs == 1 and len(handle_of(f).dispatcher.entries) == 1


def test_one_guard_and_one_step_for_each_class() -> None:
    class Config:
        def __init__(self):
            self.a, self.b, self.c = 1.0, 2.0, 3.0

    @jitmagic.jit
    def f(one, other, t):
        return t * one.a + one.b + other.c + other.a

    f(Config(), Config(), x3())
    (record,) = [record for record in handle_of(f).journal if record.outcome == COMPILED]
    steps, _ = lower_guards(record.result("trace").guards, (), globals(), {})
    assert sorted(step[1].__name__ for step in steps if step[0] == "CLASS") == ["Config", "Tensor"]


def test_registering_a_class_does_not_use_up_the_limit() -> None:
    class Abstract(abc.ABC): ...

    @jitmagic.jit
    def f(thing, t):
        return t + 1 if isinstance(thing, Abstract) else t - 1

    for _ in range(12):
        assert f(object(), x3()).tolist() == [0.0, 1.0, 2.0]
        Abstract.register(type("Made", (), {}))
    assert len(handle_of(f).dispatcher.entries) == 1


def test_the_user_is_told_what_changed() -> None:
    class Thing:
        def __init__(self):
            self.own = 2.0

    @jitmagic.jit(options={"recompile_limit": 1})
    def f(thing, t):
        return t * thing.own

    thing = Thing()
    f(thing, x3())
    Thing.own = property(lambda self: 2.0)
    with pytest.warns(RecompileWarning, match=r"there is a .*Thing\.own now: a property"):
        assert f(thing, x3()).tolist() == [2.0, 4.0, 6.0]
