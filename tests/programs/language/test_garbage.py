"""What a tagged call was given dies when its caller lets go of it, also after a compile."""

# ruff: noqa: T201
from __future__ import annotations

import contextlib
import gc
import threading
import types
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

import jitmagic
from jitmagic.api import handle_of
from jitmagic.records import COMPILED


def make_class() -> type:
    class Thing:
        __slots__ = ("there", "written")
        scale = 2.0

        def __init__(self):
            self.there = 3.0

        @property
        def read(self):
            return 1.0

        def method(self):
            return self.there

    return Thing


@pytest.mark.parametrize(
    "use",
    [
        lambda thing, t: t * thing.there,
        lambda thing, t: t * thing.read,
        lambda thing, t: t * thing.method(),
        lambda thing, t: t * thing.scale,
        lambda thing, t: (setattr(thing, "written", 1.0), t + 1),
        lambda thing, t: t + 1 if isinstance(thing, (int, Holder)) else t * hasattr(thing, "other"),
        lambda thing, t: t + (thing == thing) + bool(thing),
    ],
)
def test_a_class_dies_that_a_compiled_function_relied_on(use: Callable[..., Any]) -> None:
    """Guards hold it weakly: a cell of a notebook that defines it anew does not pile them up."""
    tagged = jitmagic.jit(use)
    made = make_class()
    tagged(made(), torch.ones(3))
    alive = weakref.ref(made)
    del made
    gc.collect()
    assert alive() is None
    tagged(make_class()(), torch.ones(3))
    assert len(handle_of(tagged).dispatcher.entries) == 1


class Holder:
    def __init__(self, t):
        self.t = t


def one_graph(o, t):
    return o.t * 2 + t


def with_a_break(o, t):
    y = o.t * 2
    print(end="")
    return y + t


def with_restarts(o, t):
    items = (item for item in [t, o.t])
    next(items)
    print(end="")
    return [item.item() for item in o.t], next(items)


def that_raises(o, t):
    y = o.t * 2
    raise ValueError(y.shape)


@pytest.mark.parametrize("fn", [one_graph, with_a_break, with_restarts, that_raises])
def test_what_a_call_was_given_dies_without_the_collector(fn: Callable[..., Any]) -> None:
    tagged = jitmagic.jit(fn)
    for size in (3, 3, 4):
        holder, tensor = Holder(torch.ones(size)), torch.ones(size, requires_grad=True)
        alive = [weakref.ref(one) for one in (holder, holder.t, tensor)]
        gc.collect()
        gc.disable()
        try:
            with contextlib.suppress(ValueError):
                tagged(holder, tensor)
            del holder, tensor
            assert [ref() for ref in alive] == [None] * 3
        finally:
            gc.enable()


class Answer(dict):
    def __init__(self, **parts):
        super().__init__(parts)


LOCK = threading.Lock()


def of_a_class(o, t):
    return Answer(loss=(o.t * 2 + t).sum(), logits=t.relu())


def that_writes(o, t):
    o.t = o.t * 2
    return o.t + t


def that_draws(o, t):
    return Holder(torch.dropout(o.t, 0.5, True) + t)


def under_a_lock(o, t):
    with LOCK:
        o.t = o.t + 1
    return Holder(o.t * t)


def that_decides(o, t):
    return Holder(o.t + t if bool((o.t > -1).all()) else t)


def that_steps(o, t):
    leaf = torch.nn.Parameter(o.t.clone())
    optimizer = torch.optim.SGD([leaf], lr=0.1)
    (leaf * t.detach()).sum().backward()
    optimizer.step()
    return Answer(leaf=leaf.detach())


def of_sizes(o, t):
    return Answer(rows=[row * 2 for row in o.t], n=len(o.t))


def of_items(o, t):
    return [Holder(one + t) for one in (o.t, o.t * 2)]


def through_a_callee(o, t):
    return that_writes(o, t) + with_a_break(o, t)


WRITTEN = [of_a_class, that_writes, that_draws, under_a_lock, that_decides, that_steps]
WRITTEN += [of_sizes, of_items, through_a_callee]


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("fn", [one_graph, with_a_break, with_restarts, that_raises, *WRITTEN])
def test_what_was_compiled_dies_with_the_tagged_function(fn: Callable[..., Any], dynamic) -> None:
    """With it go kernels, constants and, on a GPU, the memory of its CUDA graphs."""
    tagged = jitmagic.jit(types.FunctionType(fn.__code__, globals()), dynamic=dynamic)
    for size in (3, 3, 3, 4, 4, 5, 5):
        given = Holder(torch.ones(size)), torch.ones(size, requires_grad=True)
        with contextlib.suppress(ValueError):
            tagged(*given)
    handles = [handle_of(tagged), *handle_of(tagged).family.members]
    entries = [entry for handle in handles for entry in handle.dispatcher.entries]
    assert entries
    alive = [weakref.ref(one) for one in (*handles, *entries)]
    del tagged, handles, entries, given
    for _ in range(3):  # a root's end lets go of its family, whose cycles are found after that
        gc.collect()
    assert [ref() for ref in alive] == [None] * len(alive)


@pytest.mark.parametrize("fn", WRITTEN)
def test_reset_lets_go_of_what_was_compiled(fn: Callable[..., Any]) -> None:
    tagged = jitmagic.jit(types.FunctionType(fn.__code__, globals()))
    for _ in range(3):
        tagged(Holder(torch.ones(3)), torch.ones(3, requires_grad=True))
    alive = [weakref.ref(entry) for entry in handle_of(tagged).dispatcher.entries]
    assert alive
    jitmagic.reset()
    gc.collect()
    assert [ref() for ref in alive] == [None] * len(alive)


class Loud:
    def __init__(self, scale):
        self.scale = scale

    def __del__(self):
        print("gone")


class Quiet:
    scale = 2.0


def dropped(x):
    loud = Loud(3.0)
    y = x * loud.scale
    del loud
    print("after")
    return y


def dropped_by_a_callee(x):
    y = (lambda scale: x * Loud(scale).scale)(2.0)
    print("after")
    return y


def referred_to(x):
    quiet = Quiet()
    reference = weakref.ref(quiet)
    alive = reference() is quiet
    quiet = None
    return x * 2, alive, reference() is None


def with_a_call_back(x):
    quiet, told = Quiet(), []
    kept = weakref.ref(quiet, lambda reference: told.append("gone"))
    del quiet
    return x * 2, told, kept() is None


def in_a_weak_set(x):
    members, quiet = weakref.WeakSet(), Quiet()
    members.add(quiet)
    length = len(members)
    del quiet
    return x + 1, length, len(members)


def in_a_weak_table(x):
    quiet, table = Quiet(), weakref.WeakValueDictionary()
    table["quiet"] = quiet
    length = len(table)
    del quiet
    return x + 1, length, len(table)


def finalized(x):
    quiet = Quiet()
    ends = weakref.finalize(quiet, print, "gone")
    print("before", ends.alive)
    del quiet
    print("after", ends.alive)
    return x.sin()


MORTAL = [
    *(dropped, dropped_by_a_callee, referred_to, with_a_call_back),
    *(in_a_weak_set, in_a_weak_table, finalized),
]


@pytest.mark.parametrize("fn", MORTAL)
def test_what_is_made_inside_dies_when_it_dies_in_eager(fn: Callable[..., Any], capsys) -> None:
    tagged = jitmagic.jit(fn)
    for start in range(3):
        x = torch.arange(start, start + 3.0)
        wanted, told = repr(fn(x)), capsys.readouterr().out
        assert repr(tagged(x)) == wanted
        assert capsys.readouterr().out == told


def test_a_layer_that_refers_to_its_weights_weakly_is_compiled() -> None:
    """Its module holds them: nothing dies."""

    def fn(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.LSTM(3, 2)(x)[0].sum() * 0 + x.sum()

    tagged = jitmagic.jit(fn)
    torch.testing.assert_close(tagged(torch.ones(4, 3)), fn(torch.ones(4, 3)))
    outcomes = [member.outcome for member in handle_of(tagged).family.members]
    assert outcomes.count(COMPILED) >= 1
