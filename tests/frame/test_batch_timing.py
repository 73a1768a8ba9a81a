"""Batch timing of short calls after a comparison; plain Python with little overhead."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import jitmagic
from jitmagic.frame.native import Entry, Spread
from jitmagic.frame.timing import batch_timing, comparison
from jitmagic.frame.timing.batch_timing import CALLS, TURNS, entry_cost, freeing_cost
from jitmagic.frame.timing.comparison import PLAN
from jitmagic.records import CompileRecord

from .which_ran import X, handle, raising, ran, which

pytestmark = pytest.mark.usefixtures("calls_are_compared")

BEFORE = PLAN[:7] + "c"  # then it is clear
ROW = ("e" * CALLS + "c" * CALLS) * TURNS


@pytest.fixture(autouse=True)
def clear(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make compiled code the faster side, and no call long."""
    monkeypatch.setattr(comparison, "judge", lambda compiled, eager: True)
    monkeypatch.setattr(comparison, "MOST_SECONDS", 3600.0)


def record_of(tagged: Any) -> CompileRecord:
    return handle(tagged).journal.records[0]


def entry_of(tagged: Any) -> Entry:
    return handle(tagged).dispatcher.entries[0]


def test_a_batch_of_calls_runs_the_same_entry() -> None:
    tagged = jitmagic.jit(which)
    row = "".join(ran(tagged(X)) for _ in range(len(BEFORE) + len(ROW) + 5))
    assert row == BEFORE + ROW + "ccccc"
    measured = record_of(tagged).measured
    assert measured is not None and measured.calls == CALLS * TURNS
    assert measured.compiled > entry_cost() + freeing_cost() and measured.eager > freeing_cost()
    entry = entry_of(tagged)
    assert entry.comparison is None and entry.hits == len(BEFORE) + len(ROW) + 5


def test_the_comparisons_times_stay_until_batches_finish() -> None:
    tagged = jitmagic.jit(which)
    for _ in range(len(BEFORE) + 5):
        tagged(X)
    measured = record_of(tagged).measured
    assert measured is not None and measured.calls == 2


def test_long_calls_are_not_timed_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "MOST_SECONDS", 0.0)
    tagged = jitmagic.jit(which)
    row = "".join(ran(tagged(X)) for _ in range(40))
    assert row == BEFORE + "c" * (40 - len(BEFORE))


def test_calls_with_a_backward_are_not_timed_in_batches() -> None:
    tagged, w = jitmagic.jit(lambda x, w: which(x) * w), torch.ones(6, requires_grad=True)
    row = "".join(ran(tagged(X, w)) for _ in range(60))
    assert row.endswith("c" * 30)


def test_a_call_that_raises_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    # The call that raises is a graph break, and after one there may be work for an accelerator.
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    seen: list[int] = []
    tagged, row = jitmagic.jit(raising(5, seen)), ""
    for n in range(1, 200):
        if n % 5 == 0:
            with pytest.raises(ValueError, match="own"):
                tagged(X)
        else:
            row += ran(tagged(X))
    assert len(seen) == 199
    assert ROW in row and row.endswith("ccccc")
    assert entry_of(tagged).comparison is None


def test_nested_tagged_functions_are_timed_as_part_of_the_call() -> None:
    within = jitmagic.jit(which)
    outer = jitmagic.jit(lambda x: within(x) + 0)
    row = "".join(ran(outer(X)) for _ in range(len(BEFORE) + len(ROW)))
    assert set(row[: len(BEFORE)]) == {"c"} and "e" not in row  # as eager it calls what is compiled
    assert entry_of(outer).comparison is None


def test_other_variants_are_compared_during_a_batch() -> None:
    tagged = jitmagic.jit(which)
    for _ in range(len(BEFORE) + 5):
        tagged(X)
    other = torch.linspace(-1, 1, 7).double()
    row = "".join(ran(tagged(other)) + ran(tagged(X)) for _ in range(len(BEFORE) + len(ROW)))
    assert row.endswith("cccc")


# ----------------------------------------------------------------------------------- plain Python


def keywords(x: Tensor, *, scale: float = 2.0, shift: int) -> tuple[Any, ...]:
    return x, scale, shift


def stars(x: Tensor, *rest: int, **more: int) -> tuple[Any, ...]:
    return x, rest, more


def all_kinds(x: Tensor, /, y: int = 1, *rest: int, k: int = 3, **more: int) -> tuple[Any, ...]:
    return x, y, rest, k, more


def enclosed() -> Callable[..., Any]:
    total = 4

    def add(x: Tensor, *rest: int, k: int = 1) -> tuple[Any, ...]:
        return x, rest, total + k

    return add


CALLS_OF: dict[str, tuple[Callable[[], Callable[..., Any]], tuple[Any, ...], dict[str, Any]]] = {
    "keywords": (lambda: keywords, (X,), {"shift": 3}),
    "keywords, all": (lambda: keywords, (X,), {"shift": 3, "scale": 0.5}),
    "stars": (lambda: stars, (X, 1, 2), {"a": 1, "b": 2}),
    "stars, empty": (lambda: stars, (X,), {}),
    "all": (lambda: all_kinds, (X, 5, 6, 7), {"k": 8, "c": 9}),
    "all, none given": (lambda: all_kinds, (X,), {}),
    "closure": (enclosed, (X, 4), {"k": 2}),
}


@pytest.mark.parametrize("case", CALLS_OF)
def test_plain_python_gets_the_arguments(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "judge", lambda compiled, eager: False)
    make, args, kwargs = CALLS_OF[case]
    plain, tagged = make(), jitmagic.jit(make())
    for _ in range(12):
        assert tagged(*args, **kwargs)[1:] == plain(*args, **kwargs)[1:]
    assert "measured slower" in str(record_of(tagged).outcome)
    assert isinstance(entry_of(tagged).run, Spread)  # and nothing of ours is called


def test_given_up_functions_run_without_python_callbacks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Functions with cells or stars too: they used to go through jitmagic's Python (3 us)."""

    def looks(x: Tensor, *rest: int, k: int = 1) -> list[str]:
        where = [frame.function for frame in inspect.stack()]
        warnings.warn("here", stacklevel=2)
        return [*where, str(len(CALLS_OF)), str(k), str(args_of)]

    args_of = (X.shape, 1)
    tagged = jitmagic.jit(looks)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        stacks = [fn(X, 1, k=3) for fn in (looks, *[tagged] * 5)]
    assert stacks == stacks[:1] * 6
    assert {warning.filename for warning in caught} == {__file__}


def test_spread_refuses_the_wrong_number_of_values() -> None:
    made = Spread(all_kinds.__code__, globals())
    assert made(X, 1, 3, (2,), {"a": 4})[1:] == (1, (2,), 3, {"a": 4})
    with pytest.raises(TypeError, match="takes 5 values"):
        made(X)
    with pytest.raises(TypeError, match="takes 5 values"):
        made(X, 1, 3, (2,), {}, a=1)


def test_entry_costs_are_measured_once() -> None:
    assert 0 < entry_cost() < 1e-3 and entry_cost() == entry_cost()
    assert 0 < freeing_cost() < 1e-3 and batch_timing.MOST_SECONDS < 1e-3
