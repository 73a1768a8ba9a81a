"""Tagged generators can be inspected, traced, reset, pickled and freed like plain ones."""

from __future__ import annotations

import gc
import inspect
import pickle
import sys
import traceback
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import jitmagic

from .generators import counting, inner
from .registry import pieces, same


def test_the_frame_of_a_suspended_generator_has_its_variables() -> None:
    def steps(x: Tensor, n: int) -> Iterator[Tensor]:
        y = x.sin()
        z = [y, n]
        yield y
        n += 1
        yield y + n + len(z)

    for f in (steps, jitmagic.jit(steps)):
        g = f(torch.ones(1), 3)
        assert inspect.getgeneratorstate(g) == "GEN_CREATED"
        next(g)
        assert inspect.getgeneratorstate(g) == "GEN_SUSPENDED"
        assert g.gi_frame is not None
        assert g.gi_frame.f_lineno == steps.__code__.co_firstlineno + 3
        seen = g.gi_frame.f_locals
        assert set(seen) == {"x", "n", "y", "z"}
        assert seen["n"] == 3
        next(g)
        assert g.gi_frame.f_locals["n"] == 4
        assert g.gi_code.co_name == "steps"
        assert next(g, None) is None
        assert g.gi_frame is None


def test_what_a_generator_delegates_to_is_visible() -> None:
    def outer(x: Tensor) -> Iterator[Tensor]:
        y = x + 1
        yield from inner(y, 2)

    g = jitmagic.jit(outer)(torch.ones(1))
    next(g)
    assert g.gi_yieldfrom.gi_code is inner.__code__


def test_pieces_are_shared_by_all_generators_of_a_function() -> None:
    tagged = jitmagic.jit(counting)
    for _ in range(4):
        list(tagged(torch.ones(4), 6))
    assert len(pieces(tagged)) <= 3  # the body once for constants, once for a varying number


def test_tracebacks_show_the_lines_of_the_program_once() -> None:
    def fails(x: Tensor) -> Iterator[Tensor]:
        yield x
        helper(x)

    def helper(x: Tensor) -> None:
        x.view(77)

    expected = None
    for f in (fails, jitmagic.jit(fails)):
        for _ in range(2):
            g = f(torch.ones(1))
            next(g)
            with pytest.raises(RuntimeError) as caught:
                next(g)
            lines = traceback.extract_tb(caught.value.__traceback__)
            shown = [(line.name, line.lineno) for line in lines]
            expected = expected or shown
            assert shown == expected


def test_a_tagged_generator_is_freed() -> None:
    def make() -> Any:
        def steps(x: Tensor) -> Iterator[Tensor]:
            yield x + 1
            yield x.sin()

        return jitmagic.jit(steps)

    tagged = make()
    list(tagged(torch.ones(1)))
    gone = weakref.ref(tagged)
    x = torch.ones(1)
    g = tagged(x)
    next(g)
    del tagged
    gc.collect()
    torch.testing.assert_close(next(g), x.sin())  # a suspended generator outlives its function
    held = weakref.ref(x)
    del g, x
    gc.collect()
    assert held() is None
    assert gone() is None


def test_reset_compiles_the_pieces_again() -> None:
    tagged = jitmagic.jit(counting)
    list(tagged(torch.ones(2), 2))
    jitmagic.reset()
    assert not pieces(tagged)
    same(list(tagged(torch.ones(2), 2)), list(counting(torch.ones(2), 2)))
    assert pieces(tagged)


def test_new_code_is_followed() -> None:
    def steps(x: Tensor) -> Iterator[Tensor]:
        yield x + 1

    def others(x: Tensor) -> Iterator[Tensor]:
        yield x + 2
        yield x * 3

    tagged = jitmagic.jit(steps)
    list(tagged(torch.ones(1)))
    steps.__code__ = others.__code__
    same(list(tagged(torch.ones(1))), list(others(torch.ones(1))))


def test_tagged_generators_are_followed_by_tagged_functions() -> None:
    stages = jitmagic.jit(counting)

    @jitmagic.jit(fullgraph=True)
    def total(x: Tensor) -> Tensor:
        return sum(stages(x, 3))  # type: ignore[return-value]

    x = torch.ones(3)
    torch.testing.assert_close(total(x), sum(counting(x, 3)))


def test_under_a_tracer_lines_are_those_of_the_program() -> None:
    seen: list[int] = []

    def note(frame: Any, event: str, _: Any) -> Any:
        if frame.f_code.co_name == "counting" and event == "line":
            if seen[-1:] != [frame.f_lineno]:
                seen.append(frame.f_lineno)
        return note

    logs = []
    for f in (counting, jitmagic.jit(counting)):
        seen.clear()
        before = sys.gettrace()
        sys.settrace(note)
        try:
            list(f(torch.ones(2), 2))
        finally:
            sys.settrace(before)
        logs.append(list(seen))
    assert logs[0] == logs[1]


def test_pickled_by_value() -> None:
    cloudpickle = pytest.importorskip("cloudpickle")
    tagged = jitmagic.jit(_local())
    copied = pickle.loads(cloudpickle.dumps(tagged))
    same(list(copied(torch.ones(2))), list(tagged(torch.ones(2))))


def _local() -> Any:
    def steps(x: Tensor) -> Iterator[Tensor]:
        y = x.sin()
        yield y
        yield y + x.cos()

    return steps


def test_a_reader_of_its_frame_is_refused_as_a_whole_graph() -> None:
    def reads(x: Tensor) -> Iterator[Any]:
        yield locals()

    with pytest.raises(jitmagic.Unsupported, match="locals"):
        jitmagic.jit(reads, fullgraph=True)
    assert "locals" in str(jitmagic.api.handle_of(jitmagic.jit(reads)).outcome)


def test_stances_hold_for_pieces() -> None:
    tagged = jitmagic.jit(counting)
    x = torch.ones(2)
    with torch.compiler.set_stance("force_eager"):
        same(list(tagged(x, 3)), list(counting(x, 3)))
    assert not pieces(tagged)
    with torch.compiler.set_stance("eager_then_compile"):
        list(tagged(x, 1))
        assert not pieces(tagged)
        same(list(tagged(x, 3)), list(counting(x, 3)))
    assert pieces(tagged)
