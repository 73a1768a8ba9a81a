"""The journal is for people: if it is emptied or never written, behaviour does not change."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import jitmagic
from jitmagic.api import handle_of
from jitmagic.records import COMPILED, Failed, Missed, Recording


def numbers(x: Tensor, by: float, n: int) -> Tensor:
    return x * by + n


def broken(x: Tensor, n: int) -> Tensor:
    y = x + n
    print(end="")
    return y.relu()


def refused(x: Tensor, n: int) -> Tensor:
    return x.sparse_mask(x.to_sparse()).to_dense() + n


def learned(x: Tensor, n: int) -> Tensor:
    w = torch.full_like(x, 2.0 + n, requires_grad=True)
    ((x * w).sin() ** 2).sum().backward()
    assert w.grad is not None
    return w.grad


def shapes(x: Tensor, n: int) -> Tensor:
    return torch.cat([x] * (n + 1)).sum(0)


X = torch.linspace(-1, 1, 6)
PROGRAMS: dict[str, tuple[Callable[..., Any], list[tuple[Any, ...]]]] = {
    "numbers": (numbers, [(X, 0.5 + n / 4, n) for n in range(5)]),
    "broken": (broken, [(X, n) for n in (1, 2, 1, 3, 4, 5, 6)]),
    "refused": (refused, [(X, n) for n in (1, 2, 1)]),
    "learned": (learned, [(X, n) for n in (1, 1, 2)]),
    "shapes": (shapes, [(X, n) for n in range(6)]),
    "kinds": (shapes, [(X.to(t), 1) for t in (torch.float32, torch.float64, torch.int32)] * 2),
}


@dataclasses.dataclass
class Seen:
    """Everything calls show, except the journal."""

    results: list[Tensor]
    warned: list[str]
    hits: list[list[int]]
    outcomes: list[Any]
    missed: Missed


def observe(fn: Callable[..., Any], calls: list[tuple[Any, ...]], forget: bool) -> Seen:
    tagged = jitmagic.jit(fn, options={"recompile_limit": 3})
    handle = handle_of(tagged)
    assert handle is not None
    seen = Seen([], [], [], [], ())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for call in calls:
            seen.results.append(tagged(*call))
            seen.hits.append([entry.hits for entry in handle.dispatcher.entries])
            seen.outcomes.append(handle.outcome)
            if forget:
                handle.journal.records.clear()
    seen.warned = [str(warning.message) for warning in caught]
    seen.missed = handle.why_missed(calls[0])
    return seen


@pytest.fixture(params=["emptied", "never written"])
def forgetful(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    if request.param == "never written":
        monkeypatch.setattr(Recording, "end", lambda *_: None)
    return


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.usefixtures("forgetful")
def test_behaviour_without_the_journal(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fn, calls = PROGRAMS[name]
    without = observe(fn, calls, forget=True)
    monkeypatch.undo()
    kept = observe(fn, calls, forget=False)
    assert all(map(torch.equal, without.results, kept.results))
    for result, call in zip(kept.results, calls, strict=True):
        torch.testing.assert_close(result, fn(*call))
    without.results, kept.results = [], []
    assert without == kept


def test_records_are_frozen() -> None:
    tagged = jitmagic.jit(numbers)
    tagged(X, 0.5, 1)
    handle = handle_of(tagged)
    assert handle is not None
    (record,) = handle.journal
    for part in (record, record.stages[0], record.outcome):
        field = dataclasses.fields(part)[0].name if dataclasses.fields(part) else "why"
        with pytest.raises((dataclasses.FrozenInstanceError, AttributeError, TypeError)):
            setattr(part, field, "changed")
    assert record.outcome == COMPILED


def test_a_backward_has_a_record_of_its_own() -> None:
    def square(x: Tensor) -> Tensor:
        return (x.sin() ** 2).sum()

    tagged = jitmagic.jit(square)
    handle = handle_of(tagged)
    assert handle is not None
    x = X.clone().requires_grad_()
    loss = tagged(x)
    assert [len(handle.journal), len(handle.pending())] == [1, 1]
    loss.backward()
    assert [len(handle.journal), len(handle.pending())] == [2, 0]
    assert handle.journal.records[1].result("backward: lower") is not None


def test_a_failure_keeps_its_traceback_but_no_frames() -> None:
    def fail() -> None:
        secret = X.clone()
        raise ValueError(f"no {secret.numel()}")

    with pytest.raises(ValueError) as caught:
        fail()
    failed = Failed.of(caught.value, "joint")
    assert failed == Failed("ValueError: no 6", "joint")
    assert 'raise ValueError(f"no' in failed.traceback
    assert failed.why == "compiling it failed with ValueError: no 6 (stage joint)"
