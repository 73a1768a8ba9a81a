"""Dispatchers and entries: order, re-entrancy, continuation, results, errors, references."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from types import FunctionType

from jitmagic._frame import Dispatcher, Entry, GuardProgram, continue_with, resume_hook, suspend
from jitmagic.bytecode import call_stub

from .rig import assert_no_growth, raises, registry

CHECKS, check = registry()
ANY = GuardProgram(())


def only(value):
    return GuardProgram((("ARGUMENT", 0, 0), ("EQUALS", 0, value)))


def missing(values):
    return ("missed", values)


def failing(entry, values, error):
    raise error


def dispatcher(arity=1, miss=missing, error=failing):
    return Dispatcher("f", arity, miss, error)


@check
def without_entries_miss_is_called():
    made = dispatcher(2)
    assert made(1, 2) == ("missed", (1, 2)) and made.calls == 1
    raises(TypeError, made, 1, text="takes 2 positional arguments")
    raises(TypeError, lambda: made(1, b=2))
    raises(TypeError, Dispatcher, "f")
    assert made.name == "f" and made.arity == 2 and "0 entries" in repr(made)


@check
def the_entry_used_last_is_tried_first():
    made = dispatcher()
    entries = [Entry(only(i), lambda value: value * 10) for i in range(3)]
    for entry in entries:
        made.add(entry)
    assert made.entries == (entries[2], entries[1], entries[0])
    assert made(0) == 0 and made.entries == (entries[0], entries[2], entries[1])
    assert made(2) == 20 and made.entries == (entries[2], entries[0], entries[1])
    assert made(7) == ("missed", (7,))
    assert [entry.hits for entry in entries] == [1, 0, 1] and made.calls == 3
    made.remove(entries[2])
    assert made(2) == ("missed", (2,))
    raises(ValueError, made.remove, entries[2])
    made.clear()
    assert made.entries == ()
    raises(TypeError, made.add, 3)
    raises(ValueError, made.add, Entry(GuardProgram((("ARGUMENT", 0, 4),)), len))


class Comparison:
    """Returns prepared answers and records the results and times it gets."""

    def __init__(self, *answers):
        self.answers, self.log = list(answers), []

    def begin(self):
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer() if callable(answer) else answer

    def end(self, result, nanoseconds, in_graphs):
        assert type(nanoseconds) is int and nanoseconds >= in_graphs >= 0
        self.log.append(result)

    def drop(self):
        self.log.append("dropped")


@check
def a_comparison_chooses_the_entry():
    made = dispatcher()
    plain = Entry(ANY, lambda value: ("plain", value))
    compiled = Entry(only(1), lambda value: ("compiled", value))
    made.add(compiled)
    assert compiled.comparison is None
    asked = compiled.comparison = Comparison(compiled, plain, None, KeyError("begin"), plain)
    assert made(1) == ("compiled", 1) and made(1) == ("plain", 1) and made(1) == ("compiled", 1)
    assert made(2) == ("missed", (2,)) and made.entries == (compiled,)
    raises(KeyError, made, 1, text="begin")
    assert asked.log == [("compiled", 1), ("plain", 1)]
    assert (compiled.hits, plain.hits) == (3, 1), "turns of eager are calls of the variant"
    asked.end = lambda result, nanoseconds, in_graphs: {}[result]
    raises(KeyError, made, 1)
    compiled.comparison = None
    assert made(1) == ("compiled", 1) and not asked.answers


@check
def a_comparison_is_notified_of_calls_that_raise():
    made = dispatcher()

    def fails(value):
        raise ValueError("of the call")

    compiled = Entry(ANY, fails)
    made.add(compiled)
    asked = compiled.comparison = Comparison(compiled)
    raises(ValueError, made, 1, text="of the call")
    assert asked.log == ["dropped"]


@check
def guards_are_checked_again_after_a_comparison():
    namespace, made = {"n": 1}, dispatcher()
    steps = ("NAMESPACE_ITEM", 0, namespace, "n"), ("EQUALS", 0, 1)
    compiled = Entry(GuardProgram(steps), lambda value: "compiled")
    made.add(compiled)

    def change():
        namespace["n"] = 2
        return compiled

    asked = compiled.comparison = Comparison(change)
    assert made(5) == ("missed", (5,)) and asked.log == ["dropped"]


@check
def nested_calls_are_not_timed_separately():
    inner, made = dispatcher(), dispatcher()
    within = Entry(ANY, lambda value: ("inner", value))
    within.comparison = Comparison(within)
    inner.add(within)
    next_one = Entry(ANY, lambda value: continue_with(inner, value + 1))
    next_one.comparison = Comparison(next_one, None)
    made.add(next_one)
    assert made(1) == ("inner", 2) and within.comparison.log == []
    assert next_one.comparison.log == [("inner", 2)]
    assert made(2) == ("inner", 3) and within.comparison.log == [("inner", 3)]


@check
def entries_and_their_comparisons_are_collected():
    gc.collect()
    made = dispatcher()
    entry = Entry(ANY, len)
    asked = entry.comparison = Comparison(entry)
    made.add(entry)
    gone = weakref.ref(asked)
    del made, entry, asked
    gc.collect()
    assert gone() is None


@check
def entries_may_change_while_they_run():
    made = dispatcher()

    def remove_self(value):
        made.clear()
        gc.collect()
        return made(value)

    made.add(Entry(ANY, remove_self))
    assert made(5) == ("missed", (5,))

    def add_more(values):
        made.add(Entry(ANY, lambda value: ("new", value)))
        return made(*values)

    again = Dispatcher("g", 1, add_more, failing)
    assert again(3) == ("new", 3) or made(3) == ("new", 3)


@check
def recursion_through_the_dispatcher():
    def fib(n):
        return n if n < 2 else made(n - 1) + made(n - 2)

    made = dispatcher()
    made.add(Entry(ANY, fib))
    assert made(15) == 610

    def endless(n):
        return made(n + 1)

    made.clear()
    made.add(Entry(ANY, endless))
    raises(RecursionError, made, 0)
    made.clear()
    assert made(1) == ("missed", (1,))


@check
def continuing_in_a_resume_function_does_not_grow_the_stack():
    made, other = dispatcher(), dispatcher(2)

    def step(n):
        return continue_with(other, n, "carried")

    def back(n, carried):
        assert carried == "carried"
        return continue_with(made, n - 1) if n else ("done", len(sys._current_frames()))

    made.add(Entry(ANY, step))
    other.add(Entry(ANY, back))
    assert made(50_000) == ("done", 1)
    assert other.calls == 50_001
    raises(TypeError, continue_with, made, 1, 2)
    raises(TypeError, continue_with, 3)
    late = Dispatcher("late", 1, lambda values: continue_with(other, 0, "carried"), failing)
    assert late(1) == ("done", 1)


@check
def graphs_take_registers_and_templates_build_results():
    program = GuardProgram(
        (("ARGUMENT", 0, 0), ("ITEM", 1, 0, "x"), ("ITEM", 2, 0, "y"), ("ARGUMENT", 3, 1))
    )
    seen = []

    def graph(*inputs):
        seen.append(inputs)
        return tuple(value * 2 for value in inputs)

    constant = object()
    template = (
        "tuple",
        ("out", 0),
        ("list", ("out", 1), ("const", constant)),
        ("dict", ("k", ("reg", 3)), (2, ("tuple",))),
    )
    made = dispatcher(2)
    made.add(Entry(program, graph, (2, 1), template))
    mark = [1]
    first = made({"x": 1, "y": 20}, mark)
    assert first == (40, [2, constant], {"k": mark, 2: ()}) and first[2]["k"] is mark
    assert seen == [(20, 1)]
    assert made({"x": 1, "y": 20}, mark)[1] is not first[1]  # containers are made anew
    for bad in (("out",), ("reg", 9), ("reg", -1), ("set",), (), ("dict", 3), 5, ("out", "x")):
        raises((ValueError, TypeError), Entry, program, graph, (0,), bad)
    raises(ValueError, Entry, program, graph, (4,), ("out", 0))
    raises(TypeError, Entry, program, graph, [0], ("out", 0))
    short = dispatcher(2)
    short.add(Entry(program, graph, (), ("out", 0)))
    raises(SystemError, short, {"x": 1, "y": 1}, 2)
    wrong = dispatcher(2)
    wrong.add(Entry(program, lambda: [1], (), ("out", 0)))
    raises(TypeError, wrong, {"x": 1, "y": 1}, 2, text="a graph returns a tuple")


@check
def inputs_live_as_long_as_the_graph_runs():
    class Thing:
        pass

    box = {"x": Thing(), "y": Thing()}
    gone = weakref.ref(box["x"]), weakref.ref(box["y"])
    program = GuardProgram((("ARGUMENT", 0, 0), ("ITEM", 1, 0, "x"), ("ITEM", 2, 0, "y")))

    def graph(x):
        box.clear()
        gc.collect()
        assert gone[0]() is x and gone[1]() is not None
        return ()

    made = dispatcher()
    made.add(Entry(program, graph, (1,), ("reg", 2)))
    result = made(box)
    assert result is gone[1]()
    del result
    assert gone[0]() is None and gone[1]() is None


@check
def a_failing_graph_calls_the_error_handler():
    calls = []

    def error(entry, values, exception):
        calls.append((entry, values, exception))
        if values[0] == 1:
            raise KeyError("the user's own") from None
        return "eager"

    def graph():
        raise stop

    made = dispatcher(1, error=error)
    entry = Entry(ANY, graph, (), ("const", None))
    made.add(entry)
    stop = ValueError("inside")
    assert made(0) == "eager" and calls == [(entry, (0,), stop)]
    assert stop.__traceback__ is not None
    raises(KeyError, made, 1)
    stop = KeyboardInterrupt()
    raises(KeyboardInterrupt, made, 0)
    assert len(calls) == 2
    residual = dispatcher(1, error=error)
    residual.add(Entry(ANY, lambda value: graph()))
    stop = ValueError("residual")
    raises(ValueError, residual, 0, text="residual")  # it is the user's own Python
    assert len(calls) == 2


@check
def giving_up_calls_the_function_natively():
    made = dispatcher(2)
    made.give_up(lambda a: ("plain", a), 1)
    assert made(1, 2) == ("plain", 1)
    made.add(Entry(only(5), lambda a, b: "entry"))
    assert made(5, 0) == "entry" and made(6, 0) == ("plain", 6)
    made.give_up(None, 0)
    assert made(6, 0) == ("missed", (6, 0))
    raises(ValueError, made.give_up, len, 3)


@check
def giving_up_may_be_limited_to_a_number_of_calls():
    made = dispatcher(1)
    made.give_up(lambda a: ("plain", a), 1, 2)
    made.add(Entry(only(5), lambda a: "entry"))
    assert [made(n) for n in (5, 6, 5, 7)] == ["entry", ("plain", 6), "entry", ("plain", 7)]
    assert made(8) == ("missed", (8,)) and made(5) == "entry"
    made.give_up(lambda a: ("again", a), 1, 1)
    assert [made(n) for n in (8, 9)] == [("again", 8), ("missed", (9,))]


@check
def suspended_dispatchers_only_miss():
    made = dispatcher()
    made.add(Entry(ANY, lambda value: "entry"))
    made.give_up(lambda value: "plain", 1)
    suspend()
    suspend()
    resume_hook()
    assert made(1) == ("missed", (1,))
    seen = []
    other = threading.Thread(target=lambda: seen.append(made(1)))
    other.start()
    other.join()
    resume_hook()
    assert seen == ["entry"] and made(1) == "entry"
    raises(RuntimeError, resume_hook)


@check
def members_of_entries():
    entry = Entry(ANY, len, None, None, True)
    assert entry.hook and entry.residual and entry.notes is None and not entry.mutates
    assert entry.program is ANY and entry.run is len and entry.alive and entry.check(())
    entry.notes, entry.mutates = "n", True
    assert entry.notes == "n" and entry.mutates
    graph = Entry(ANY, len, (), ("const", 1))
    assert not graph.residual and not graph.hook
    raises(TypeError, Entry, 3, len)


@check
def stubs_reach_their_dispatcher():
    def user(a, b=2, *rest, k=3, **more):
        return None

    made = dispatcher(5)
    function = FunctionType(call_stub(user.__code__, made), globals(), "user", (2,))
    function.__kwdefaults__ = {"k": 3}
    assert function(1, z=9) == ("missed", (1, 2, 3, (), {"z": 9}))
    assert function(1, 5, 6, k=7) == ("missed", (1, 5, 7, (6,), {}))
    raises(TypeError, function)


@check
def threads_share_a_dispatcher():
    made = dispatcher()
    for i in range(4):
        made.add(Entry(only(i), lambda value: value + 1))
    wrong = []

    def work(seed):
        for i in range(3000):
            value = (i + seed) % 5
            expected = value + 1 if value < 4 else ("missed", (4,))
            if made(value) != expected:
                wrong.append(value)
            if i % 100 == 0:
                entry = Entry(only(9), len)
                made.add(entry)
                made.remove(entry)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and len(made.entries) == 4


@check
def nothing_leaks():
    made = dispatcher(2)
    program = GuardProgram((("ARGUMENT", 0, 0), ("ARGUMENT", 1, 1), ("TYPE_IS", 0, list)))
    shape = ("tuple", ("out", 0), ("reg", 1), ("dict", ("k", ("const", None))))
    made.add(Entry(program, lambda a: (a, a), (0,), shape))
    residual = dispatcher(1)
    residual.add(Entry(ANY, lambda a: continue_with(made, [a], a)))
    argument, tail = [1], object()
    before = sys.getrefcount(argument), sys.getrefcount(tail), sys.getrefcount(made)

    def once():
        made(argument, tail)
        made((), tail)
        residual(tail)
        made.add(entry := Entry(program, lambda a: (a,), (0,), ("out", 0)))
        made(argument, tail)
        made.remove(entry)

    assert_no_growth(once)
    after = sys.getrefcount(argument), sys.getrefcount(tail), sys.getrefcount(made)
    assert before == after, (before, after)


@check
def cycles_are_collected():
    class Owner:
        def miss(self, values):
            return None

    owner = Owner()
    owner.dispatcher = Dispatcher("f", 1, owner.miss, owner.miss)
    owner.dispatcher.owner = owner
    entry = Entry(ANY, owner.miss)
    entry.notes = entry
    owner.dispatcher.add(entry)
    gone = weakref.ref(owner), weakref.ref(owner.dispatcher)
    del owner, entry
    gc.collect()
    assert gone[0]() is None and gone[1]() is None
