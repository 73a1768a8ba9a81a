"""Stack walks skip frames that eager would not have: stubs' and jitmagic's Python."""

from __future__ import annotations

import sys
import traceback
from types import FunctionType

from jitmagic._frame import Dispatcher, Entry, GuardProgram, call_plainly
from jitmagic.bytecode import call_stub

from .rig import raises, registry

CHECKS, check = registry()


def missing(values):
    raise AssertionError("there is an entry")


def failing(entry, values, error):
    raise error


def names_below(depth=12):
    """Functions on the stack, the innermost first, down to the check."""
    frame, found = sys._getframe(1), []
    while frame and frame.f_code.co_name != "main" and len(found) < depth:
        found.append(frame.f_code.co_name)
        frame = frame.f_back
    return found


def tagged(original, run=None, miss=missing):
    """A stub of `original`, whose dispatcher runs `run` or misses."""
    cells = original.__closure__ or ()
    count = original.__code__.co_argcount
    made = Dispatcher(original.__name__, count + len(cells), miss, failing)
    if run is not None:
        made.add(Entry(GuardProgram(()), run))
    code = call_stub(original.__code__, made, lambda error: None)
    name, cells = original.__name__, original.__closure__
    return FunctionType(code, original.__globals__, name, None, cells)


@check
def a_stub_is_hidden_from_stack_walks_of_its_callee():
    def user(value):
        return names_below()

    def caller(function):
        return function(1)

    stub = tagged(user, user)
    expected = caller(user)
    assert expected[:2] == ["user", "caller"]
    for _ in range(3):
        assert caller(stub) == expected
    outer = tagged(caller, caller)
    assert outer(stub) == expected


@check
def a_stub_is_visible_again_afterwards():
    kept = []

    def user(value):
        kept.append(sys._getframe())
        if value:
            raise ValueError("boom")

    def caller(value):
        return stub(value)

    stub = tagged(user, lambda value, *cells: user(value))
    for value in (0, 1, 0, 1):
        error = raises(ValueError, caller, value, text="boom") if value else caller(value)
        assert kept[-1].f_back.f_back.f_code is caller.__code__
        if value:
            named = [entry.name for entry in traceback.extract_tb(error.__traceback__)]
            assert named == ["raises", "caller", "user", "<lambda>", "user"], named


@check
def frames_of_the_package_are_hidden_from_the_original():
    def user(value):
        return names_below()

    def caller(function):
        return function(1)

    space = {"__name__": "jitmagic.frame.handle", "user": user, "call_plainly": call_plainly}
    exec("def inner(values): return call_plainly(user, values, None, None)", space)
    exec("def miss(values): return inner(values)", space)
    stub = tagged(user, miss=space["miss"])
    assert caller(stub) == caller(user)
    space["__name__"] = "somewhere.else"
    assert caller(stub)[:3] == ["user", "inner", "miss"]
