"""What a tagged call was given dies when its caller lets go of it, also after a compile."""

# ruff: noqa: T201
from __future__ import annotations

import contextlib
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

import jitmagic
from jitmagic.api import handle_of


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
