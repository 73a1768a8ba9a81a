"""Functions whose code changes in place, and recursion of a stub as deep as without a tag."""

from __future__ import annotations

import sys
import weakref
from types import FunctionType

from jitmagic._frame import Dispatcher, call_plainly, watch_functions
from jitmagic.bytecode import call_stub

from .rig import registry

CHECKS, check = registry()


@check
def assignments_to_functions_are_reported():
    seen = []
    watch_functions(lambda *told: seen.append(told))

    def told(a, b=1, *, c=2):
        return a

    def other(a, b=3, *, c=4):
        return b

    def unknown(a):
        return a

    ref = weakref.ref(told)
    told.__defaults__, told.__kwdefaults__ = (5,), {"c": 6}
    told.__code__ = other.__code__
    del told.__defaults__
    told.__doc__ = "not told of"
    unknown.__code__ = (lambda a: None).__code__  # nothing refers to it weakly: cannot be followed
    assert seen == [
        (told, "__defaults__", (5,)),
        (told, "__kwdefaults__", {"c": 6}),
        (told, "__code__", other.__code__),
        (told, "__defaults__", None),
    ]
    assert ref() is told and told.__defaults__ is None and told(1, 2) == 2


@check
def refused_assignments_are_not_reported():
    seen = []
    watch_functions(lambda *told: seen.append(told))
    ref = weakref.ref(assignments_to_functions_are_reported)
    for attribute, value in (("__code__", 1), ("__defaults__", [1]), ("__kwdefaults__", 3)):
        try:
            setattr(ref(), attribute, value)
        except TypeError:
            continue
        raise AssertionError(attribute)
    assert seen == []


@check
def a_failing_callback_does_not_stop_the_assignment():
    def failing(*told):
        raise ValueError("on purpose")

    caught, hook = [], sys.unraisablehook
    watch_functions(failing)
    sys.unraisablehook = lambda told: caught.append(told.exc_value)
    try:
        function = FunctionType((lambda a: a).__code__, {})
        ref = weakref.ref(function)
        function.__defaults__ = (7,)
        assert ref()() == 7 and [str(one) for one in caught] == ["on purpose"]
    finally:
        sys.unraisablehook = hook
        watch_functions(lambda *told: None)


class Owner:
    """The methods that a dispatcher calls on its handle deep in a recursion."""

    def __init__(self, code, call):
        self.code, self.call = code, call

    def code_for_deep_recursion(self):
        return self.code.replace(co_consts=(*self.code.co_consts, self.dispatcher))

    def run_original(self, values):
        return call_plainly(self.call, values, None, None)


def recursive(n):
    return 0 if n == 0 else recursive(n - 1) + 1


def swapping(n):
    return swap(n) if n == 0 else recursive(n - 1)  # noqa: F821 - the namespace of the test has it


def refuse(entry, values, error):
    raise error


def tagged_recursion():
    """Return a stub of `recursive` under its name in its namespace, and a function that restores
    it.
    """
    code, space = recursive.__code__, {"__builtins__": __builtins__}
    plain = FunctionType(code, space)
    owner = Owner(code, plain)
    made = Dispatcher("recursive", 1, owner.run_original, refuse)
    made.owner, owner.dispatcher = owner, made
    stub = FunctionType(call_stub(code, made), space)
    made.stub = weakref.ref(stub)
    space["recursive"] = stub
    return stub


def deepest(function):
    low, high = 1, 5000
    while high - low > 1:
        middle = (low + high) // 2
        try:
            assert function(middle) == middle
            low = middle
        except RecursionError:
            high = middle
    return low


@check
def recursion_goes_as_deep_as_untagged():
    stub = tagged_recursion()
    code = stub.__code__
    assert abs(deepest(stub) - deepest(recursive)) <= 1
    assert stub.__code__ is code


@check
def deep_recursion_costs_no_c_stack():
    stub, limit = tagged_recursion(), sys.getrecursionlimit()
    code = stub.__code__
    sys.setrecursionlimit(60_000)
    try:
        assert stub(50_000) == 50_000 and stub(50_000) == 50_000
    finally:
        sys.setrecursionlimit(limit)
    assert stub.__code__ is code


@check
def a_stub_given_other_code_deep_in_a_recursion_keeps_it():
    stub, seen = tagged_recursion(), []

    def other(n):
        return "other"

    space = stub.__globals__
    plain = FunctionType(swapping.__code__, space)
    made = next(one for one in stub.__code__.co_consts if type(one) is Dispatcher)
    made.owner.code, made.owner.call = plain.__code__, plain

    def swap(n):
        seen.append(n)
        stub.__code__ = other.__code__
        return n

    space["swap"] = swap
    assert stub(200) == 0 and seen == [0]
    assert stub.__code__ is other.__code__ and stub(1) == "other"
