"""Helpers of the checks: a Python side small enough to need no torch, and a registry."""

from __future__ import annotations

import gc
import inspect
import sys
from types import FunctionType

from jitmagic import _frame
from jitmagic.bytecode import call_stub

LOADS = 2  # references the interpreter itself may hold while it asks


def registry():
    checks = {}

    def check(function):
        checks[function.__name__] = function
        return function

    return checks, check


def raises(kind, call, *args, text=""):
    try:
        call(*args)
    except kind as error:
        assert text in str(error), error
        return error
    raise AssertionError(f"{kind.__name__} was not raised")


def spread(code, values):
    """Return positional arguments, keywords and cells of the call that has these values."""
    end = code.co_argcount + code.co_kwonlyargcount
    args = values[: code.co_argcount]
    kwargs = dict(zip(code.co_varnames[code.co_argcount : end], values[code.co_argcount : end]))
    if code.co_flags & inspect.CO_VARARGS:
        args += values[end]
        end += 1
    if code.co_flags & inspect.CO_VARKEYWORDS:
        kwargs.update(values[end])
        end += 1
    return args, kwargs, values[end:]


def arity(code):
    stars = bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
    return code.co_argcount + code.co_kwonlyargcount + stars + len(code.co_freevars)


class Family:
    """Callees of chosen names get stubs that log their values and run the original."""

    def __init__(self, *names):
        self.names, self.log, self.asked = names, [], []
        _frame.set_callback(self.stub_for)

    def stub_for(self, code, namespace):
        self.asked.append(code.co_name)
        if code.co_name not in self.names:
            return None
        return call_stub(code, self.dispatcher(code, namespace))

    def dispatcher(self, code, namespace):
        def miss(values):
            args, kwargs, cells = spread(code, values)
            self.log.append((code.co_name, args, kwargs))
            function = FunctionType(code, namespace, code.co_name, None, cells)
            return _frame.call_plainly(function, args, kwargs, self)

        def error(entry, values, exception):
            raise exception

        made = _frame.Dispatcher(code.co_qualname, arity(code), miss, error)
        made.family = self
        return made

    def run(self, function, *args, **kwargs):
        """Call with the hook on, the function itself excepted."""
        return _frame.call_plainly(function, args, kwargs, self)

    @property
    def names_called(self):
        return [name for name, *_ in self.log]


def count_objects():
    gc.collect()
    return len(gc.get_objects())


def assert_no_growth(call, times=300, slack=20):
    """Check that neither objects nor references to None accumulate."""
    for _ in range(20):
        call()
    objects, blocks = count_objects(), sys.getallocatedblocks()
    for _ in range(times):
        call()
    grown = sys.getallocatedblocks() - blocks
    assert count_objects() - objects < slack, count_objects() - objects
    assert grown < times // 2 + 200, f"{grown} blocks more after {times} calls"
