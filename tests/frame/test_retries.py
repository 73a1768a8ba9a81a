"""After the limit: one more compile whenever the number of eager calls has doubled."""

from __future__ import annotations

import collections
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import jitmagic
from jitmagic.errors import RecompileWarning
from jitmagic.frame.retries import Retries
from jitmagic.frame.tag import handle_of
from jitmagic.options import make_options
from jitmagic.records import AT_LIMIT, COMPILED, Eager

from .plain_compiler import PlainCompiler


@pytest.fixture
def plain() -> Iterator[PlainCompiler]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RecompileWarning)
        yield PlainCompiler()


def scaled(x: int, factor: int) -> int:
    return x * factor


def with_rest(x: int, factor: int, *rest: int) -> int:
    return x * factor + len(rest)


@pytest.fixture(params=[scaled, with_rest], ids=["counted natively", "counted in Python"])
def fn(request: pytest.FixtureRequest) -> Callable[..., int]:
    return request.param


def calls_at_which_it_compiles(plain: PlainCompiler, calls: Iterator[tuple[int, int]], run: Any):
    found = []
    for number, call in enumerate(calls, 1):
        before = len(plain.compiled)
        assert run(*call) == call[0] * call[1]
        if len(plain.compiled) > before:
            found.append(number)
    return found


def test_retries_happen_when_eager_calls_have_doubled(plain, fn):
    tagged = plain.tag(fn, recompile_limit=2)
    found = calls_at_which_it_compiles(plain, ((n * n, 2) for n in range(200)), tagged)
    # 8, 16, 32, ... calls after the one at the limit ran as eager.
    assert found == [
        1,
        2,
        *(3 + total + retry for retry, total in enumerate([8, 16, 32, 64, 128], 1)),
    ]
    handle = handle_of(tagged)
    assert handle.outcome == AT_LIMIT and len(handle.dispatcher.entries) == 2
    assert [record.outcome for record in handle.journal] == [COMPILED] * 7


def test_stable_calls_after_the_limit_are_compiled_once(plain, fn):
    tagged = plain.tag(fn, recompile_limit=2)
    warm_up, steady = [(n, 2) for n in (0, 1, 5, 7)], [(9, 9)] * 300
    assert calls_at_which_it_compiles(plain, iter(warm_up + steady), tagged) == [1, 2, 12]
    assert handle_of(tagged).dispatcher.entries[0].hits == 300 - 7


def test_a_retry_replaces_the_least_used_variant(plain, fn):
    tagged = plain.tag(fn, recompile_limit=3)
    for call in [(0, 1)] * 50 + [(1, 1)] * 9 + [(2, 1)] * 9:
        tagged(*call)
    handle = handle_of(tagged)
    tagged(3, 1)  # the limit; from here on the second variant is used, and the first is not
    for _ in range(4):
        tagged(1, 1)
    tagged(2, 1)
    for _ in range(9):
        tagged(3, 1)
    assert {e.notes.guards[0].value for e in handle.dispatcher.entries} == {1, 2, 3}
    for x in (0, 1, 2, 3):
        assert tagged(x, 1) == x


def test_a_compile_that_fails_is_the_last(plain, fn):
    tagged = plain.tag(fn, recompile_limit=2)
    for n in range(3):
        tagged(n, 2)
    plain.answer = lambda *_: Eager("it is a test")
    assert calls_at_which_it_compiles(plain, ((n, 2) for n in range(5, 100)), tagged) == [9]
    assert handle_of(tagged).outcome == Eager("it is a test")
    assert tagged(0, 2) == 0 and tagged(50, 2) == 100


def test_a_reset_starts_over(plain, fn):
    tagged = plain.tag(fn, recompile_limit=2)
    for n in range(8):
        tagged(n, 2)
    handle_of(tagged).reset(make_options(recompile_limit=3))
    assert calls_at_which_it_compiles(plain, ((n * n, 2) for n in range(13)), tagged) == [
        1,
        2,
        3,
        13,
    ]


def test_a_size_is_compiled_when_it_stops_growing() -> None:
    retries, taken = Retries(settles=True), []
    for number in range(1, 140):
        if retries.count():
            if retries.takes(((1, min(number, 30)),)):  # type: ignore[arg-type]
                taken.append(number)
            retries.end()
    assert taken == [68, 133]  # due at 9, 18, 35, 68, 133: the call at 35 is the first of its size


@pytest.mark.filterwarnings("ignore::jitmagic.errors.RecompileWarning")
@pytest.mark.parametrize("bound", [6, 20])
def test_a_list_at_its_final_length_is_compiled(bound: int) -> None:
    kept: collections.deque[Tensor] = collections.deque(maxlen=bound)

    def smoothed(x: Tensor) -> Tensor:
        kept.append(x)
        return torch.stack(list(kept)).mean(0)

    run = jitmagic.jit(smoothed, backend="eager")
    for n in range(80):
        expected = torch.stack([torch.full((3,), float(i)) for i in range(n + 1)][-bound:]).mean(0)
        assert torch.equal(run(torch.full((3,), float(n))), expected)
    handle = handle_of(run)
    assert len(handle.journal) <= 8 + 2
    assert handle.dispatcher.entries[0].hits > 30
    assert handle.dispatcher.entries[0].notes.outcome == COMPILED
