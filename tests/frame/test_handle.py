"""Handles: misses, the ledger, fallbacks, errors, resets, hooked callees and memory."""

from __future__ import annotations

import gc
import sys
import threading
import time
import types
import weakref

import pytest
import torch

from jitmagic import _frame
from jitmagic.errors import FallbackWarning, RecompileWarning, Unsupported
from jitmagic.frame.handle import all_handles
from jitmagic.frame.hook import Suspended
from jitmagic.frame.ledger import Variant
from jitmagic.frame.native import Entry, GuardProgram, continue_with, lower_guards
from jitmagic.frame.tag import handle_of
from jitmagic.guards.guard import IdentityIs, ValueEquals
from jitmagic.guards.source import Argument, Global
from jitmagic.options import make_options
from jitmagic.records import AT_LIMIT, COMPILED, Eager, Failed

from .plain_compiler import PlainCompiler, entry_for


def scaled(x, factor=2, *rest, bias=0, **more):
    return x * factor + bias + len(rest) + len(more)


def helper(x):
    return x + 1


def calls_helper(x):
    return helper(x) * helper(x)


@pytest.fixture
def plain():
    return PlainCompiler()


def test_compiles_once_per_signature(plain):
    tagged = plain.tag(scaled)
    x, y = torch.ones(2), torch.ones(3)
    handle = handle_of(tagged)
    assert handle.outcome is None
    assert torch.equal(tagged(x), scaled(x))
    assert torch.equal(tagged(x), scaled(x))
    assert torch.equal(tagged(x, 3, 4, bias=5, z=6), scaled(x, 3, 4, bias=5, z=6))
    assert torch.equal(tagged(y), scaled(y))
    assert torch.equal(tagged(x), scaled(x))
    assert plain.compiled == ["scaled"] * 3
    assert handle.outcome == COMPILED
    assert [record.outcome for record in handle.journal] == [COMPILED] * 3
    assert handle.dispatcher.calls == 5 + 3  # a miss goes around once more
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'x'"):
        tagged()


def test_recompile_limit_is_a_visible_state(plain):
    tagged = plain.tag(scaled, recompile_limit=3)
    for n in (0, 1, 5):
        assert tagged(n) == scaled(n)
    handle = handle_of(tagged)
    assert handle.outcome == COMPILED
    with pytest.warns(RecompileWarning, match=r"scaled was compiled 3 times.*\n.*x is 3, was 5"):
        assert tagged(3) == scaled(3)
    assert handle.outcome == AT_LIMIT
    assert tagged(4) == scaled(4)  # no second warning: the suite turns warnings into errors
    assert tagged(4, bias=7) == scaled(4, bias=7)
    assert tagged(1) == scaled(1)
    assert handle.dispatcher.entries[0].hits == 2  # what fits a variant still runs it
    assert len(plain.compiled) == 3
    assert handle.why_missed((9, 2, 0, (), {}))[0][1].what == "x is 9, was 1"


def test_entries_of_dead_objects_do_not_count(plain):
    def user(x):
        return space["edited"](x)

    space = {"edited": None}

    def guard_on_helper(handle, snapshot, record):
        identity = IdentityIs(Global("edited"), snapshot.globals["edited"])
        return entry_for(handle, snapshot, record, (identity,))

    namespace = {"edited": None}
    exec("def user(x): return edited(x)", namespace)
    plain.answer = guard_on_helper
    tagged = plain.tag(namespace["user"], recompile_limit=2)
    for n in range(6):  # a notebook user who edits a helper again and again
        exec(f"def edited(x): return x + {n}", namespace)
        assert tagged(10) == 10 + n
        assert tagged(10) == 10 + n
    assert handle_of(tagged).outcome == COMPILED
    assert len(handle_of(tagged).dispatcher.entries) == 1


def test_each_module_instance_has_its_own_budget(plain):
    class Layer(torch.nn.Module):
        def forward(self, x):
            return x + 1

    def guard_on_self(handle, snapshot, record):
        identity = IdentityIs(Argument(0, "self"), snapshot.args[0])
        return entry_for(handle, snapshot, record, (identity,))

    plain.answer = guard_on_self
    plain.tag(Layer, recompile_limit=2)
    layers = [Layer() for _ in range(5)]
    x = torch.ones(2)
    assert all(torch.equal(layer(x), x + 1) for layer in layers for _ in range(2))
    assert len(plain.compiled) == 5
    assert handle_of(Layer).outcome == COMPILED


def test_skip_runs_as_eager_permanently(plain):
    plain.answer = lambda *_: Eager("it is a test")
    tagged = plain.tag(scaled)
    assert tagged(1, 2, bias=3) == 5
    assert tagged(2) == 4
    assert plain.compiled == ["scaled"]
    assert handle_of(tagged).outcome == Eager("it is a test")
    assert handle_of(tagged).journal.records[0].outcome == Eager("it is a test")
    simple = plain.tag(calls_helper)
    assert simple(1) == 4
    assert simple(2) == 9
    assert "helper" in plain.compiled  # callees of eager functions are looked at


def test_a_failing_stage_is_a_visible_fallback(plain):
    def fails(*_):
        raise ZeroDivisionError("stage")

    plain.answer = fails
    tagged = plain.tag(scaled)
    with pytest.warns(
        FallbackWarning, match="scaled could not be compiled.*ZeroDivisionError: stage"
    ):
        assert tagged(2) == 4
    assert tagged(3) == 6
    outcome = handle_of(tagged).outcome
    assert outcome == Failed("ZeroDivisionError: stage")
    assert "in fails" in outcome.traceback


def test_unsupported_and_interrupts_propagate_and_the_next_call_works(plain):
    for error in (Unsupported("why", "hint", None), KeyboardInterrupt()):
        tagged = plain.tag(scaled)

        def fails(*_, error=error):
            raise error

        plain.answer = fails
        with pytest.raises(type(error)):
            tagged(1)
        assert handle_of(tagged).outcome is None
        assert isinstance(handle_of(tagged).journal.records[0].outcome, Failed)
        plain.answer = None
        assert tagged(1) == 2
        assert handle_of(tagged).outcome == COMPILED
    assert not _frame.suspended()


def test_guards_that_do_not_hold_are_never_used(plain):
    def unsound(handle, snapshot, record):
        wrong = ValueEquals(Argument(0, "x"), "another value")
        return entry_for(handle, snapshot, record, (wrong,))

    plain.answer = unsound
    tagged = plain.tag(scaled)
    with pytest.warns(FallbackWarning, match="do not hold for the call.*was 'another value'"):
        assert tagged(1) == 2
    assert tagged(1) == 2
    assert handle_of(tagged).outcome.why.startswith("its guards do not hold")


def graph_entry(run, mutates=False):
    def answer(handle, snapshot, record):
        made = Entry(GuardProgram((("ARGUMENT", 0, 0),)), run, (0,), ("out", 0))
        made.mutates, made.notes = mutates, Variant()
        return made

    return answer


def test_an_error_in_a_graph_becomes_eagers_own(plain):
    def broken(x):
        raise RuntimeError("from the graph")

    def user(x):
        if x > 1:
            raise KeyError("from the user")
        return x

    plain.answer = graph_entry(broken)
    tagged = plain.tag(user)
    with pytest.raises(KeyError, match="from the user") as caught:
        tagged(5)
    assert caught.traceback[-1].name == "user"
    assert handle_of(tagged).outcome == COMPILED
    with pytest.warns(
        FallbackWarning, match="its compiled graph raised RuntimeError: from the graph"
    ):
        assert tagged(0) == 0
    assert handle_of(tagged).outcome.why.startswith("its compiled graph raised")
    assert tagged(1) == 1
    plain.answer = graph_entry(broken, mutates=True)
    again = plain.tag(user)
    with pytest.raises(RuntimeError, match="from the graph"):
        again(0)


def test_suspended_calls_run_plainly(plain):
    tagged = plain.tag(calls_helper)
    with Suspended():
        assert tagged(1) == 4
        with Suspended():
            assert tagged(1) == 4
    assert plain.compiled == []
    assert tagged(1) == 4
    assert plain.compiled == ["calls_helper", "helper"]


def test_functions_called_during_a_compile_run_as_plain_python(plain):
    inner = plain.tag(helper)
    seen = []

    def answer(handle, snapshot, record):
        seen.append((inner(1), tagged(1), handle.is_compiling, _frame.active()))
        return entry_for(handle, snapshot, record)

    plain.answer = answer
    tagged = plain.tag(calls_helper)
    assert tagged(1) == 4
    assert seen[0] == (2, 4, True, 0)
    assert plain.compiled == ["calls_helper", "helper"]


def test_reset_starts_over(plain):
    tagged = plain.tag(calls_helper, recompile_limit=1)
    assert tagged(1) == 4
    with pytest.warns(RecompileWarning):
        tagged(2)
    handle = handle_of(tagged)
    assert handle in all_handles()
    handle.reset()
    assert handle.outcome is None
    assert len(handle.journal) == 0
    assert handle.family.members == []
    plain.compiled.clear()
    assert tagged(2) == 9
    assert plain.compiled == ["calls_helper", "helper"]
    handle.reset(make_options(recompile_limit=5))
    assert handle.options.recompile_limit == 5


def test_threads_compile_once(plain):
    def slow(handle, snapshot, record):
        time.sleep(0.05)
        return entry_for(handle, snapshot, record)

    plain.answer = slow
    tagged = plain.tag(scaled)
    results = []
    threads = [threading.Thread(target=lambda: results.append(tagged(3))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [6] * 6
    assert plain.compiled == ["scaled"]


def test_recursion_compiles_every_depth(plain):
    @plain.tag
    def fib(n):
        return n if n < 2 else fib(n - 1) + fib(n - 2)

    handle_of(fib).reset(make_options(recompile_limit=50))
    assert fib(10) == 55
    assert len(plain.compiled) == 11


def test_resume_functions_share_the_family(plain):
    def first(x):
        return None

    def rest(x, y):
        return x * 10 + y

    class Flat:
        code = rest.__code__

    def answer(handle, snapshot, record):
        if handle.name == "first" and handle.flat is not None and len(snapshot.args) == 1:
            resume = handle.resume_dispatcher(Flat)
            residual = lambda x: continue_with(resume, x, 7)  # noqa: E731
            steps, _ = lower_guards((), (), {}, {})
            made = Entry(GuardProgram(steps), residual, None, None, True)
            made.notes = Variant()
            return made
        return entry_for(handle, snapshot, record)

    plain.answer = answer
    tagged = plain.tag(first)
    assert tagged(3) == 37
    assert tagged(3) == 37
    assert tagged(4) == 47
    handle = handle_of(tagged)
    assert [member.original.qualname for member in handle.family.members] == [rest.__qualname__]
    assert len(handle.journal) == 3
    assert handle.family.members[0].flat is Flat


# ---------------------------------------------------------------------------------------- callees


def test_callees_get_handles_of_the_family(plain):
    one, two = plain.tag(calls_helper), plain.tag(calls_helper, recompile_limit=3)
    assert one(1) == 4
    assert one(1) == 4
    assert plain.compiled == ["calls_helper", "helper"]
    assert two(1) == 4
    assert plain.compiled == ["calls_helper", "helper"] * 2
    limits = [handle_of(f).family.members[0].options.recompile_limit for f in (one, two)]
    assert limits == [8, 3]
    assert helper(1) == 2
    assert len(plain.compiled) == 4


def test_callees_that_give_up_are_not_hooked(plain):
    def answer(handle, snapshot, record):
        return Eager("no") if handle.name == "helper" else entry_for(handle, snapshot, record)

    plain.answer = answer
    tagged = plain.tag(calls_helper)
    assert tagged(1) == 4
    (member,) = handle_of(tagged).family.members
    calls = member.dispatcher.calls
    assert tagged(1) == 4
    assert member.dispatcher.calls == calls
    assert plain.compiled.count("helper") == 1


def test_libraries_generators_and_frame_readers_are_skipped(plain):
    def work(xs):
        return sorted(xs, key=lambda x: -x), [*counting(2)], reads_locals(1), torch.typename(xs)

    def counting(n):
        yield from range(n)

    def reads_locals(a):
        return locals()

    tagged = plain.tag(work)
    expected = work([1, 3, 2])
    assert tagged([1, 3, 2]) == expected == ([3, 2, 1], [0, 1], {"a": 1}, "list")
    assert set(plain.compiled) == {"work", "<lambda>"}


def test_redefined_callees_are_dropped(plain):
    namespace = {}
    exec("def work(x): return helper(x)", namespace)
    tagged = plain.tag(namespace["work"])
    for n in range(5):
        exec(f"def helper(x): return x + {n}", namespace)
        assert tagged(1) == 1 + n
    gc.collect()
    assert len(handle_of(tagged).family.members) <= 2


# ----------------------------------------------------------------------------------------- memory


def collect():
    """A code object hides its contents: the first pass frees it, the second its contents."""
    for _ in range(3):
        gc.collect()


def test_arguments_are_not_kept_alive(plain):
    tagged = plain.tag(calls_helper)
    x = torch.ones(3)
    gone = weakref.ref(x)
    tagged(x)
    tagged(x)
    del x
    assert gone() is None


def test_tagged_functions_are_freed(plain):
    def make():
        captured = torch.ones(2)

        def recursive(n):
            return captured if n == 0 else tagged(n - 1)

        tagged = plain.tag(recursive)
        tagged(3)
        return weakref.ref(captured), weakref.ref(handle_of(tagged)), weakref.ref(tagged)

    refs = make()
    collect()
    assert [ref() for ref in refs] == [None] * 3


def test_a_family_dies_with_its_root(plain):
    code = compile("def work(x): return helper(x)\ndef helper(x): return x", "<test>", "exec")
    namespace: dict[str, types.FunctionType] = {}
    exec(code, namespace)
    tagged = plain.tag(namespace["work"])
    tagged(1)
    refs = [weakref.ref(handle_of(tagged)), weakref.ref(handle_of(tagged).family.members[0])]
    del tagged
    collect()
    assert [ref() for ref in refs] == [None, None]
    assert namespace["work"](2) == 2


def test_calls_do_not_leak(plain):
    tagged = plain.tag(scaled)
    x = torch.ones(2)
    argument = [1]

    def once():
        tagged(x)
        tagged(x, 2, argument, bias=0, z=argument)

    for _ in range(10):
        once()
    gc.collect()
    before = sys.getrefcount(x), sys.getrefcount(argument), len(gc.get_objects())
    for _ in range(1000):
        once()
    gc.collect()
    after = sys.getrefcount(x), sys.getrefcount(argument), len(gc.get_objects())
    assert after[:2] == before[:2]
    assert after[2] - before[2] < 20
