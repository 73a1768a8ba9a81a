"""The frame hook: which frames get stubs, that nothing else changes, and that it is uninstalled."""

from __future__ import annotations

import asyncio
import gc
import inspect
import signal
import sys
import threading
import traceback
import weakref
from types import FunctionType

from jitmagic import _frame
from jitmagic._frame import Dispatcher, Entry, GuardProgram

from .rig import Family, assert_no_growth, raises, registry

CHECKS, check = registry()


def helper(a, b=2):
    return a + b


def caller(a):
    return helper(a) * helper(a, b=10)


@check
def callees_are_hooked_but_not_the_called_function():
    family = Family("helper", "caller")
    assert family.run(caller, 3) == 65
    assert family.log == [("helper", (3, 2), {}), ("helper", (3, 10), {})]
    assert _frame.active() == 0
    assert caller(3) == 65 and len(family.log) == 2  # outside of the extent nothing is touched
    assert family.asked == ["helper"]


@check
def the_callback_runs_once_per_code():
    family = Family("helper")

    def unknown():
        return 1

    def work():
        return unknown() + unknown() + helper(1)

    assert family.run(work) == 5 and family.run(work) == 5
    assert family.asked.count("unknown") == 1
    _frame.forget(helper.__code__, family)
    family.run(work)
    assert family.asked.count("helper") == 2
    _frame.forget(unknown.__code__)
    family.run(work)
    assert family.asked.count("unknown") == 2
    raises(TypeError, _frame.forget, 3)


@check
def each_family_has_its_own_stub():
    one = Family("helper")
    assert one.run(caller, 1) == 33
    two = Family("helper")
    assert two.run(caller, 1) == 33
    assert len(one.log) == len(two.log) == 2
    _frame.skip(helper.__code__, two)
    assert two.run(caller, 1) == 33 and len(two.log) == 2
    _frame.set_callback(one.stub_for)
    assert one.run(caller, 1) == 33 and len(one.log) == 4
    for family in (one, two):
        _frame.forget(helper.__code__, family)


@check
def every_kind_of_signature():
    outer = 100

    def plain(a, b):
        return (a, b)

    def full(a, /, b, c=3, *rest, k, m=5, **more):
        return a, b, c, rest, k, m, more

    def closure(a):
        return a + outer

    def captured(a, *rest, k=1, **more):
        def inner():
            nonlocal a
            a += k
            return a, rest, k, more

        return inner()

    def nothing():
        return "nothing"

    def many_locals(a):
        b = a + 1
        c = b + 1
        d = [i * c for i in range(3)]
        return a, b, c, d

    def work():
        return (
            plain(1, b=2),
            full(1, 2, k=4),
            full(1, 2, 3, 4, 5, k=6, m=7, z=8),
            closure(1),
            captured(1, 2, k=3, z=4),
            nothing(),
            many_locals(1),
            (lambda x, *y: (x, y))(1, 2),
        )

    expected = work()
    names = ("plain", "full", "closure", "captured", "nothing", "many_locals", "<lambda>")
    family = Family(*names)
    assert family.run(work) == expected and family.run(work) == expected
    assert set(family.names_called) == set(names) and len(family.log) == 16
    raises(TypeError, family.run, lambda: full(1, 2), text="required keyword-only argument")


@check
def functions_given_their_callers_frame_are_not_hooked():
    """Signal handlers run between two instructions; neither they nor their callees are hooked."""

    def by_name(number, frame):
        return helper(number)

    def by_stars(*given):
        return helper(given[0])

    def captured(number, frame=None, more=3):
        def inner():
            return frame.f_code.co_name, number

        return helper(inner()[1])

    def work():
        signal.raise_signal(signal.SIGUSR1)
        return helper(2)

    def looks(frame):
        return helper(len(frame.f_code.co_name))

    def other(frame):
        return looks(sys._getframe()) + looks(frame)

    def outer():
        return other(sys._getframe(0).f_back)

    family = Family("helper", "by_name", "by_stars", "captured", "inner", "looks")
    for handler in (by_name, by_stars, captured, lambda number, frame: helper(number)):
        before = signal.signal(signal.SIGUSR1, handler)
        try:
            family.run(work)
        finally:
            signal.signal(signal.SIGUSR1, before)
        assert [name for name, *_ in family.log] == ["helper"], (handler, family.log)
        family.log.clear()
    family.run(outer)
    assert [name for name, *_ in family.log] == ["looks", "helper"], family.log


@check
def methods_and_classes():
    class Base:
        def __init__(self, n):
            self.n = n

        def value(self):
            return self.n

        @classmethod
        def make(cls, n):
            return cls(n)

        @staticmethod
        def twice(n):
            return 2 * n

        @property
        def prop(self):
            return self.value() + 1

    class Derived(Base):
        def value(self):
            return super().value() * 10

    def work():
        class Local(Derived):  # a class body runs as it is
            n = [i for i in range(3)]

        made = Local.make(Local.twice(2))
        return made.value(), made.prop, made.n

    expected = work()
    family = Family("__init__", "value", "make", "twice", "prop")
    assert family.run(work) == expected == (40, 41, 4)
    # 3.13 enters a plain __init__ without asking the hook; it then runs as it is.
    assert {"value", "make", "twice", "prop"} == set(family.names_called) - {"__init__"}
    assert "__init__" in family.names_called or sys.version_info >= (3, 13)
    assert "Local" not in family.asked


@check
def recursion():
    def fib(n):
        return n if n < 2 else fib(n - 1) + fib(n - 2)

    family = Family("fib")
    assert family.run(lambda: fib(12)) == 144
    assert len(family.log) == 465


@check
def deep_recursion_of_unhooked_code_is_as_deep_as_eager():
    def down(n):
        return 0 if n == 0 else 1 + down(n - 1)

    def depth():
        reached = 0

        def endless():
            nonlocal reached
            reached += 1
            endless()

        try:
            endless()
        except RecursionError:
            return reached

    plain = depth()
    family = Family("helper")
    inside = family.run(depth)
    assert inside > 0.9 * plain, (inside, plain)
    assert family.run(down, 800) == 800
    assert family.run(caller, 1) == 33 and len(family.log) == 2  # the hook is back in its place


@check
def endless_recursion_of_hooked_code_ends():
    def endless(n):
        return endless(n + 1)

    family = Family("endless")
    raises(RecursionError, family.run, lambda: endless(0))
    assert _frame.active() == 0
    again = Family("helper")
    assert again.run(caller, 1) == 33
    _frame.forget(helper.__code__)


@check
def data_stack_boundaries():
    # Frames of many sizes at many depths: some lie at the end of a chunk, where none can grow.
    def grow(n, a=1, b=2, c=3, d=4, e=5, f=6, g=7, h=8):
        if n == 0:
            return tiny(3)
        wide = [n] * 3
        x = y = z = n
        return tiny(n) + grow(n - 1) + x + y + z + sum(wide) - 6 * n

    def tiny(n):
        return n

    def work(n):
        return grow(n)

    family = Family("tiny")
    for n in range(0, 120):
        assert family.run(work, n) == n * (n + 1) // 2 + 3
    assert len(family.log) > 1000


@check
def exceptions_and_tracebacks():
    def fails(n):
        if n:
            raise ValueError(f"n is {n}")
        return n

    def guarded():
        try:
            fails(1)
        except ValueError as error:
            return error

    family = Family("fails")
    error = family.run(guarded)
    last = traceback.extract_tb(error.__traceback__)[-1]
    assert last.name == "fails" and last.line.startswith("raise ValueError")
    assert raises(ValueError, family.run, lambda: fails(2)).args == ("n is 2",)
    assert _frame.active() == 0 and family.run(lambda: fails(0)) == 0
    assert [args for _, args, _ in family.log] == [(1,), (2,), (0,)]


@check
def generators_and_coroutines_are_not_hooked():
    def numbers(n):
        for i in range(n):
            yield helper(i)

    async def waiting(n):
        await asyncio.sleep(0)
        return helper(n)

    async def streaming(n):
        for i in range(n):
            yield helper(i)

    async def main():
        return await waiting(1), [i async for i in streaming(2)]

    def work():
        return list(numbers(3)), asyncio.run(main()), sum(helper(i) for i in range(2))

    expected = work()
    family = Family("helper", "numbers", "waiting", "streaming", "main", "<genexpr>")
    assert family.run(work) == expected
    assert set(family.names_called) == {"helper"} and len(family.log) == 8
    suspended = numbers(2)
    assert family.run(lambda: next(suspended)) == 2
    assert next(suspended) == 3  # made inside, resumed outside


@check
def other_threads_are_not_hooked():
    family = Family("helper")
    results = []

    def in_thread():
        results.append(caller(1))

    def work():
        thread = threading.Thread(target=in_thread)
        thread.start()
        thread.join()
        return helper(1)

    assert family.run(work) == 3 and results == [33]
    assert family.names_called == ["helper"]


@check
def threads_in_extents_of_their_own():
    family = Family("helper")
    wrong = []

    def work(seed):
        for i in range(200):
            if family.run(caller, i + seed) != (i + seed + 2) * (i + seed + 10):
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and len(family.log) == 1600 and _frame.active() == 0


@check
def nothing_happens_under_tracing_and_profiling():
    family = Family("helper")
    seen = []

    def tracer(frame, event, argument):
        seen.append((frame.f_code.co_name, event))
        return tracer

    for switch in (sys.settrace, sys.setprofile):
        seen.clear()
        switch(tracer)
        try:
            assert family.run(caller, 1) == 33
        finally:
            switch(None)
        assert ("helper", "call") in seen and family.log == []
    assert family.run(caller, 1) == 33 and len(family.log) == 2


@check
def failing_callbacks_and_unfitting_stubs():
    unraisable = []
    previous, sys.unraisablehook = sys.unraisablehook, unraisable.append

    def broken(a):
        return a

    def misfit(a):
        return a

    def callback(code, namespace):
        if code.co_name == "broken":
            raise RuntimeError("callback")
        return helper.__code__ if code.co_name == "misfit" else 3

    try:
        family = Family()
        _frame.set_callback(callback)
        assert family.run(lambda: (broken(1), misfit(2), helper(3))) == (1, 2, 5)
        assert family.run(lambda: (broken(1), misfit(2), helper(3))) == (1, 2, 5)
    finally:
        sys.unraisablehook = previous
    assert len(unraisable) == 1
    _frame.set_callback(None)
    assert family.run(caller, 1) == 33
    for function in (broken, misfit, helper):
        _frame.forget(function.__code__)


@check
def code_with_other_globals_is_not_hooked():
    family = Family("callee")
    source = "def callee(): return name\ndef work(): return callee()"
    code = compile(source, "<test>", "exec")
    one, two = {"name": 1}, {"name": 2}
    exec(code, one)
    exec(code, two)
    assert one["callee"].__code__ is two["callee"].__code__
    assert family.run(one["work"]) == 1 and family.run(two["work"]) == 2
    assert len(family.log) == 1


@check
def extents_by_hand():
    family = Family("helper")
    assert _frame.active() == 0 and _frame.current_family() is None
    raises(RuntimeError, _frame.uninstall)
    _frame.install(family.stub_for)
    _frame.install(family.stub_for)
    assert _frame.active() == 2
    _frame.suspend()
    assert _frame.active() == 0 and _frame.suspended()
    _frame.resume_hook()
    assert _frame.active() == 2 and not _frame.suspended()
    _frame.uninstall()
    _frame.uninstall()
    assert _frame.active() == 0
    assert family.run(lambda: (_frame.active(), _frame.current_family())) == (1, family)
    raises(TypeError, _frame.call_plainly, 3, (), None, None)


@check
def plain_runs_without_a_family_pause_the_hook():
    family = Family("helper")
    assert family.run(lambda: _frame.call_plainly(caller, (1,), None, None)) == 33
    assert family.log == []


@check
def callees_of_plain_code_are_hooked_in_a_new_extent_only():
    family = Family("helper")
    decide = family.stub_for
    _frame.set_callback(lambda code, names: code.co_name == "plain" or decide(code, names))

    def plain(n):
        first = caller(n)  # not hooked
        return first, family.run(caller, n), caller(n)

    def fails():
        raise KeyError("plain")

    assert family.run(lambda: (plain(1), caller(1))) == ((33, 33, 33), 33)
    assert len(family.log) == 4 and _frame.active() == 0
    assert raises(KeyError, family.run, lambda: _frame.call_plainly(fails, (), None, None))
    assert family.run(caller, 1) == 33 and len(family.log) == 6


@check
def a_plain_stretch_of_one_thread_leaves_the_others_hooked():
    family = Family("helper")
    inside, ended = threading.Event(), threading.Event()

    def waits():
        inside.set()
        assert ended.wait(60)
        return caller(1)

    results = []
    other = threading.Thread(
        target=lambda: results.append(
            family.run(lambda: _frame.call_plainly(waits, (), None, None) + helper(1))
        )
    )
    other.start()
    assert inside.wait(60)
    assert family.run(caller, 1) == 33 and len(family.log) == 2
    ended.set()
    other.join()
    assert results == [36] and len(family.log) == 3


@check
def an_unbalanced_suspension_stays_in_effect():
    family = Family("helper")
    family.run(lambda: _frame.suspend())
    assert _frame.suspended()
    _frame.resume_hook()
    assert not _frame.suspended() and _frame.active() == 0
    assert family.run(caller, 1) == 33 and len(family.log) == 2


@check
def entries_with_the_hook_reach_callees():
    family = Family("helper")

    def miss(values):
        raise AssertionError("missed")

    def dispatcher(hook, run):
        made = Dispatcher("f", 1, miss, miss)
        made.family = family
        made.add(Entry(GuardProgram(()), run, None, None, hook))
        return made

    assert dispatcher(True, caller)(1) == 33 and len(family.log) == 2
    assert dispatcher(False, caller)(1) == 33 and len(family.log) == 2
    inner = dispatcher(False, caller)
    assert dispatcher(True, lambda n: (inner(n), helper(n)))(1) == (33, 3)
    assert len(family.log) == 3  # the inner one ends the extent for what it calls
    python = dispatcher(True, lambda n: helper(n))
    assert python(5) == 7 and len(family.log) == 4 and _frame.active() == 0


@check
def frames_show_the_users_code():
    def look():
        return [frame.function for frame in inspect.stack(0)[:3]]

    def locals_of(a, b):
        c = a + b
        return dict(locals())

    family = Family("look", "locals_of")
    assert family.run(lambda: look())[0] == "look"
    assert family.run(lambda: locals_of(1, 2)) == {"a": 1, "b": 2, "c": 3}


@check
def stubs_die_with_their_code():
    family = Family("short_lived")
    made = {}
    exec("def short_lived(): return 1\ndef work(): return short_lived()", made)
    dispatchers = []
    original = family.dispatcher

    def remember(code, namespace):
        made_dispatcher = Dispatcher("f", 0, lambda values: 5, lambda *args: 6)
        dispatchers.append(weakref.ref(made_dispatcher))
        return made_dispatcher

    family.dispatcher = remember
    assert family.run(made["work"]) == 5
    assert dispatchers[0]() is not None
    made.clear()
    gc.collect()
    assert dispatchers[0]() is None
    family.dispatcher = original


@check
def nothing_leaks():
    family = Family("helper", "closure")
    base = 10

    def closure(a):
        return a + base

    def fails():
        raise ValueError

    def work():
        try:
            fails()
        except ValueError:
            pass
        return helper(mark), closure(1)

    class Mark:
        def __add__(self, other):
            return self

    mark = Mark()

    def once():
        family.run(work)
        family.log.clear()

    once()
    codes = [f.__code__ for f in (helper, closure, work)]
    before = [sys.getrefcount(o) for o in (mark, *codes, helper, closure, family)]
    assert_no_growth(once)
    after = [sys.getrefcount(o) for o in (mark, *codes, helper, closure, family)]
    assert before == after, (before, after)


@check
def replacing_a_frames_code_keeps_its_callers_intact():
    def sums(a, b, c):
        return helper(a, b) + c

    def work():
        values = [1, 2, 3]
        total = 0
        for i in values:
            total += sums(i, *values[:2]) + helper(*[i]) + helper(**{"a": i, "b": 1})
        with open("/dev/null", "w") as sink:
            print(helper(1), file=sink)
        return (
            total,
            f"{helper(1)!r:>3}",
            [helper(i) for i in values],
            {k: helper(k) for k in values},
        )

    expected = work()
    family = Family("helper", "sums")
    for _ in range(30):  # long enough for the interpreter to specialise
        assert family.run(work) == expected
    assert isinstance(work, FunctionType) and work() == expected


@check
def a_finished_frame_can_show_other_code():
    def shown(error):
        entry = error.__traceback__.tb_next
        arguments = inspect.getargvalues(entry.tb_frame)
        return entry.tb_lineno, entry.tb_frame.f_lineno, arguments.args, dict(arguments.locals)

    def fails(a, extra):
        b = a + extra
        return b + [_frame.show_as(sys._getframe(), fails.__code__), None][1]

    fewer = fails.__code__.replace(co_argcount=1)
    try:
        fails(1, 2)
    except TypeError as error:
        before = shown(error)
        frame = error.__traceback__.tb_next.tb_frame
        assert _frame.show_as(frame, fewer)
        line, frame_line, arguments, values = shown(error)
        assert (line, frame_line) == before[:2] and values == before[3]
        assert before[2] == ["a", "extra"] and arguments == ["a"]
        assert values["b"] == 3 and frame.f_code is fewer
        raises(ValueError, _frame.show_as, frame, helper.__code__)
        count = sys.getrefcount(fewer)
        del frame
    else:
        raise AssertionError
    gc.collect()
    assert sys.getrefcount(fewer) < count
    assert not _frame.show_as(sys._getframe(), helper.__code__)  # which still runs
