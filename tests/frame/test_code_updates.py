"""Code and defaults replaced in place in a tagged function: every kind of target and change.

A program here is a namespace with `call(x)`, which uses a tagged object, and `function`, the
function underneath. It runs, the function is changed, and it runs again: each result equals that of
the untagged program.
"""

from __future__ import annotations

import functools
import gc
import inspect
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import pytest
import torch

import jitmagic
from jitmagic.api import handle_of


@dataclass
class Program:
    function: FunctionType
    call: Callable[[torch.Tensor], Any]
    tagged: Any
    bound: bool = False  # the function's first parameter is `self`


def _base() -> FunctionType:
    def g(x, k=2, *, d=1):
        return x * k + d

    return g


def _method() -> FunctionType:
    def g(self, x, k=2, *, d=1):
        return x * k + d

    return g


def function(tag):
    g = _base()
    tagged = tag(g)
    return Program(g, tagged, tagged)


def bound_method(tag):
    g = _method()
    instance = type("Owner", (), {"g": g})()
    tagged = tag(instance.g)
    return Program(g, tagged, tagged, True)


def method_of_a_class(tag):
    g = _method()
    tagged = tag(g)
    return Program(g, type("Owner", (), {"g": tagged})().g, tagged, True)


def static_method(tag):
    g = _base()
    tagged = tag(staticmethod(g))
    return Program(g, type("Owner", (), {"g": tagged}).g, tagged)


def class_method(tag):
    g = _method()
    tagged = tag(classmethod(g))
    return Program(g, type("Owner", (), {"g": tagged}).g, tagged, True)


def partial(tag):
    g = _base()
    tagged = tag(functools.partial(g))
    return Program(g, tagged, tagged)


def module(tag):
    g = _method()
    instance = type("Net", (torch.nn.Module,), {"forward": g})()
    return Program(g, tag(instance), instance, True)


def module_class(tag):
    g = _method()
    cls = tag(type("Net", (torch.nn.Module,), {"forward": g}))
    return Program(g, cls(), cls, True)


def callee_inlined(tag):
    g = _base()
    tagged = tag(lambda x: g(x) + 1)
    return Program(g, tagged, tagged)


def callee_after_a_break(tag):
    g = _base()

    def outer(x):
        y = x + 1
        jitmagic.graph_break()
        return _through(g, y)

    tagged = tag(outer)
    return Program(g, tagged, tagged)


def _through(g, y):
    jitmagic.graph_break()
    return g(y)


def tagged_callee(tag):
    g = _base()
    inner = tag(g)
    tagged = tag(lambda x: inner(x) + 1)
    return Program(g, tagged, tagged)


KINDS = [
    function, bound_method, method_of_a_class, static_method, class_method, partial, module,
    module_class, callee_inlined, callee_after_a_break, tagged_callee,
]  # fmt: skip


def _like(text: str, bound: bool) -> FunctionType:
    made: dict[str, Any] = {}
    exec(f"def g({'self, ' if bound else ''}{text}", {}, made)
    return made["g"]


def new_code(g, bound):
    g.__code__ = _like("x, k=2, *, d=1): return x - k - d", bound).__code__


def other_signature(g, bound):
    other = _like("x, a=5, k=7, *rest, d=1, e=2, **more): return x * a + k + e + len(rest)", bound)
    for name in ("__code__", "__defaults__", "__kwdefaults__"):
        setattr(g, name, getattr(other, name))


def fewer_parameters(g, bound):
    other = _like("x): return x / 4", bound)
    for name in ("__code__", "__defaults__", "__kwdefaults__"):
        setattr(g, name, getattr(other, name))


def new_defaults(g, bound):
    g.__defaults__ = (9,)


def new_kwdefaults(g, bound):
    g.__kwdefaults__ = {"d": 11}


def kwdefaults_edited(g, bound):
    g.__kwdefaults__["d"] = 12


def back_again(g, bound):
    code = g.__code__
    new_code(g, bound)
    g.__code__ = code


CHANGES = [
    new_code, other_signature, fewer_parameters, new_defaults, new_kwdefaults, kwdefaults_edited,
    back_again,
]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_stubs_follow_changes_of_the_function(kind, change):
    tag = functools.partial(jitmagic.jit, backend="eager")
    program, plain, x = kind(tag), kind(lambda one: one), torch.arange(3.0)
    for _ in range(2):
        assert torch.equal(program.call(x), plain.call(x))
    for one in (program, plain):
        change(one.function, one.bound)
    for _ in range(2):
        assert torch.equal(program.call(x), plain.call(x))
    assert str(handle_of(program.tagged).outcome) == "compiled"


def test_explicit_and_default_arguments_are_distinguished():
    def g(x, k=1):
        return x * k

    tagged, x = jitmagic.jit(g, backend="eager"), torch.ones(2)
    assert tagged(x)[0] == 1
    g.__defaults__ = (2,)
    assert [tagged(x, 1)[0], tagged(x)[0]] == [1, 2]  # the first call after the change, too
    assert tagged.__defaults__ == (2,)
    assert inspect.signature(tagged, follow_wrapped=False) == inspect.signature(g)


def test_the_stub_is_current_before_its_next_call():
    def g(x):
        return x

    def other(x, y):
        return x + y

    tagged = jitmagic.jit(g, backend="eager")
    g.__code__ = other.__code__
    assert tagged(torch.ones(2), torch.ones(2))[0] == 2
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'y'"):
        tagged(torch.ones(2))


def test_new_code_may_be_that_of_a_generator():
    def g(x):
        return x + 1

    def generator(x):
        yield x + 2

    tagged, x, code = jitmagic.jit(g, backend="eager"), torch.zeros(2), g.__code__
    tagged(x)
    g.__code__ = generator.__code__
    assert [one[0].item() for one in tagged(x)] == [2]
    assert handle_of(tagged) is not None
    g.__code__ = code
    assert tagged(x)[0] == 1
    assert str(handle_of(tagged).outcome) == "compiled"


def test_several_stubs_of_one_function_follow():
    g = _base()
    stubs, x = [jitmagic.jit(g, backend="eager") for _ in range(3)], torch.ones(2)
    assert {stub(x)[0].item() for stub in stubs} == {3}
    new_code(g, False)
    assert {stub(x)[0].item() for stub in stubs} == {-2}


def test_a_running_call_finishes_in_the_old_code():
    def g(x):
        y = x + 1
        swap()
        return y * 10

    def other(x):
        return x - 1

    def swap():
        g.__code__ = moved.__code__

    code = other.__code__.replace(co_freevars=g.__code__.co_freevars)
    moved = FunctionType(code, {}, closure=g.__closure__)
    tagged, x = jitmagic.jit(g, backend="eager"), torch.ones(2)
    assert tagged(x)[0] == 20
    assert tagged(x)[0] == 0


def test_following_keeps_nothing_alive():
    g = _base()
    tagged = jitmagic.jit(g, backend="eager")
    tagged(torch.ones(2))
    old = weakref.ref(handle_of(tagged))
    new_code(g, False)
    tagged(torch.ones(2))
    gc.collect()
    assert old() is None
    refs = [weakref.ref(g), weakref.ref(tagged)]
    del g, tagged
    gc.collect()
    assert [ref() for ref in refs] == [None, None]


def test_a_module_tagged_with_a_replaced_forward_stays_compiled():
    class Net(torch.nn.Module):
        def forward(self, x):
            return x + 1

    model, x = jitmagic.jit(Net(), backend="eager"), torch.ones(2)
    assert model(x)[0] == 2
    Net.forward = lambda self, x, k=3: x * k
    assert [model(x)[0].item() for _ in range(2)] == [3, 3]
    assert str(handle_of(model).outcome) == "compiled"
    Net.forward = print  # what cannot be tagged is called as it is
    assert model(x) is None
