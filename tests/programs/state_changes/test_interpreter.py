"""Changes of the interpreter around compiled code: builtins, tracers of lines, sys.modules."""

from __future__ import annotations

import builtins
import sys
from typing import Any

import pytest
import torch

import jitmagic
from jitmagic.errors import FallbackWarning

from ...processes import run_forked

LENGTH, RANGE = len, range


def lengths(x):
    return x * len((1, 2)) + sum([len("abc")])


def rounds(x):
    for i in range(2):
        x = x + i
    return x


def untouched(x):
    y = x + 1
    print(y.shape)
    return y * 2


class Shifted(list):
    def __init__(self, *args: Any) -> None:
        super().__init__([n + 3 for n in RANGE(*args)])


REPLACED = {
    "len": lambda of: LENGTH(of) + 5,
    "range": Shifted,
    "sum": lambda *args: 100,
    "isinstance": lambda one, kind, real=isinstance: real(one, kind),
    "tuple": type("tuple", (tuple,), {}),
    "getattr": lambda *args, real=getattr: real(*args),
}


@pytest.mark.parametrize("name", REPLACED)
@pytest.mark.parametrize("program", [lengths, rounds, untouched])
def test_a_builtin_that_is_replaced_for_some_calls(program, name, monkeypatch, capsys):
    def answers(call):
        seen = []
        for replaced in (False, True, False, True):
            with monkeypatch.context() as patch:
                if replaced:
                    patch.setattr(builtins, name, REPLACED[name])
                seen += [call(x).tolist() for x in (torch.ones(2), torch.ones(3), torch.ones(3))]
        return seen

    want = answers(program)
    tagged = jitmagic.jit(program, backend="eager")
    assert answers(tagged) == want
    assert capsys.readouterr().out.count("Size") % 2 == 0


@pytest.mark.parametrize("name", REPLACED)
@pytest.mark.parametrize("program", [lengths, rounds])
def test_tagged_while_a_builtin_is_replaced_it_stays_plain_python(program, name, monkeypatch):
    x = torch.ones(2)

    def tagged_and_called():
        with monkeypatch.context() as patch:
            patch.setattr(builtins, name, REPLACED[name])
            tagged = jitmagic.jit(program)
            return tagged, tagged(x), program(x)

    with pytest.warns(FallbackWarning, match=f"builtins.{name} was replaced"):
        tagged, got, want = tagged_and_called()
    assert torch.equal(got, want)
    assert torch.equal(tagged(x), program(x))


def test_calls_of_a_replaced_builtin_are_the_programs_own(monkeypatch):
    tagged = jitmagic.jit(lengths, backend="eager")
    calls = []

    def counting(of):
        calls.append(of)
        return LENGTH(of)

    tagged(torch.ones(2))
    monkeypatch.setattr(builtins, "len", counting)
    for _ in RANGE(2):
        tagged(torch.ones(2))
    monkeypatch.undo()
    assert calls == [(1, 2), "abc"] * 2


def keywords(x, *more, scale=2.0, **named):
    return x * scale + named["shift"] + sum(more)


@pytest.mark.parametrize("name", ["dict", "zip", "tuple", "enumerate"])
def test_arguments_are_passed_without_the_replaced_builtin(name, monkeypatch):
    offset, calls = 1.0, []

    def closure(x, *, by=3.0):
        return x * by + offset

    tagged, again = (jitmagic.jit(each, backend="eager") for each in (keywords, closure))
    real = getattr(builtins, name)
    x = torch.ones(2)
    with monkeypatch.context() as patch:
        patch.setattr(
            builtins, name, lambda *args, **named: calls.append(1) or real(*args, **named)
        )
        got = tagged(x, 1, scale=3.0, shift=2), again(x, by=4.0)
        seen = LENGTH(calls)
    assert [each.tolist() for each in got] == [[6.0, 6.0], [5.0, 5.0]]
    assert seen == 0


def callers_seen(x):
    frame, names = sys._getframe(), []
    while frame is not None and LENGTH(names) < 3:
        names.append(frame.f_code.co_name)
        frame = frame.f_back
    return names


def test_originals_see_eagers_callers_while_a_builtin_is_replaced(monkeypatch):
    tagged = jitmagic.jit(callers_seen, backend="eager")
    x = torch.ones(2)
    monkeypatch.setattr(builtins, "len", REPLACED["len"])
    got, want = tagged(x), callers_seen(x)
    monkeypatch.undo()
    assert got == want


def test_wrappers_of_output_are_no_reason_for_eager(monkeypatch):
    monkeypatch.setattr(builtins, "print", lambda *args, real=print: real("seen", *args))
    tagged = jitmagic.jit(lengths, fullgraph=True, backend="eager")
    assert tagged(torch.ones(1)).item() == 5


def lines_of(program, call, x):
    seen = []

    def tracer(frame, event, argument):
        if frame.f_code.co_name == program.__name__ and event == "line":
            seen.append(frame.f_lineno - program.__code__.co_firstlineno)
        return tracer

    before = sys.gettrace()
    sys.settrace(tracer)
    try:
        call(x)
    finally:
        sys.settrace(before)
    return [line for line in seen if line]  # line 0: the call of the stub


@pytest.mark.parametrize("program", [lengths, rounds, untouched])
def test_a_tracer_sees_every_line(program, capsys):
    x = torch.ones(2)
    want = lines_of(program, program, x)
    tagged = jitmagic.jit(program, backend="eager")
    assert lines_of(program, tagged, x) == want
    tagged(x), tagged(x)
    assert lines_of(program, tagged, x) == want
    assert torch.equal(tagged(x), program(x))


def test_a_package_that_is_purged_and_imported_again():
    done = run_forked(PURGED, imported="torch")
    assert done.returncode == 0, done.stderr


PURGED = """
import sys, warnings
import torch
import jitmagic

def f(x):
    return torch.relu(x * 2 + 1)

def g(x):
    y = x + 1
    print(end="")
    return y * 2

def purge():
    for name in [n for n in sys.modules if n.partition(".")[0] == "jitmagic"]:
        del sys.modules[name]

warnings.simplefilter("error")
x = torch.ones(3, requires_grad=True)
late = jitmagic.jit(f)
purge()
with warnings.catch_warnings(record=True) as told:  # its compiler was never imported
    warnings.simplefilter("always")
    assert torch.equal(late(x), f(x))
assert "purged" in str(told[0].message), told

import jitmagic
old, old_g = jitmagic.jit(f), jitmagic.jit(g)
assert torch.equal(old(x), f(x)) and torch.equal(old_g(x), g(x))
first = jitmagic
purge()
import jitmagic
assert jitmagic is not first
new, new_g, both = jitmagic.jit(f), jitmagic.jit(g), jitmagic.jit(lambda x: old(x) + new(x))
for size in (3, 4, 5):
    x = torch.ones(size, requires_grad=True)
    for call, plain in ((old, f), (new, f), (old_g, g), (new_g, g), (both, lambda x: f(x) * 2)):
        for _ in range(2):
            assert torch.equal(call(x), plain(x))
            (mine,), (want,) = (torch.autograd.grad(c(x).sum(), x) for c in (call, plain))
            assert torch.equal(mine, want)
lstm = torch.nn.LSTM(3, 4)
trained = jitmagic.jit(lambda x: lstm(x)[0].sum())
trained(torch.ones(2, 1, 3)).backward()
journal = [*jitmagic.api.handle_of(new).journal, *first.api.handle_of(old).journal]
assert len(journal) > 2 and all(str(record.outcome) == "compiled" for record in journal)
"""
