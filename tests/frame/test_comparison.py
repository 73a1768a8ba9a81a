"""Comparison of a compiled variant with eager on its first calls: turns, verdict, reports."""

from __future__ import annotations

import io
import sys
import threading
from collections.abc import Callable
from contextlib import redirect_stderr
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import jitmagic
from jitmagic.compile import sizes
from jitmagic.errors import CompileFailed
from jitmagic.frame.timing import comparison
from jitmagic.frame.timing.backward_timing import BackwardTimer, Sample
from jitmagic.frame.timing.comparison import PLAN, PLAN_AFTER_EAGER, judge
from jitmagic.records import COMPILED, Eager

from .which_ran import X, handle, raising, ran, which

pytestmark = pytest.mark.usefixtures("calls_are_compared")


@pytest.fixture(autouse=True)
def long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is timed in batches after the comparison; test_batch_timing.py tests that."""
    monkeypatch.setattr(comparison, "MOST_SECONDS", 0.0)


@pytest.fixture(params=[True, False, None], ids=["faster", "slower", "unclear"])
def verdict(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool | None:
    monkeypatch.setattr(comparison, "judge", lambda compiled, eager: request.param)
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def slower(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "judge", lambda compiled, eager: False)


JUDGED: dict[str, tuple[list[float], list[float], bool | None]] = {
    "nothing": ([], [], None),
    "three calls tell little": ([1.0] * 3, [1.2] * 3, None),
    "two calls tell much": ([1.0, 1.1], [1.5, 1.4], True),
    "one call tells little": ([1.0], [9.0], None),
    "two slow calls tell little": ([9.0] * 2, [1.0] * 2, None),
    "faster": ([1.0, 1.1, 1.0, 1.1], [1.2, 1.2, 1.3, 1.2], True),
    "faster, disturbed": ([1.0, 9.0, 1.0, 9.0], [1.2, 8.0, 1.3, 1.2], True),
    "slower, too few calls": ([2.0] * 7, [1.0] * 6 + [2.0], None),
    "each slower than any": ([2.0] * 4, [1.0] * 4, False),
    "each slower than any, less than the margin": ([1.04] * 4, [1.0] * 4, None),
    "slower": ([2.0] * 8, [1.0] * 8, False),
    "slower, less than the margin": ([1.04] * 10, [1.0] * 10, None),
    "slower by more": ([1.06] * 10, [1.0] * 10, False),
    "slower, disturbed": ([1.47, 1.48, *[26.0] * 8], [0.8, 0.9, 0.9, 1.1, 1.2] + [25.0] * 5, False),
    "a fast call": ([2.0] * 9 + [1.0], [1.0] * 10, None),
    "one side disturbed": ([9.0] * 5 + [1.0] * 5, [1.0] * 10, None),
}


@pytest.mark.parametrize("case", JUDGED)
def test_judge(case: str) -> None:
    compiled, eager, expected = JUDGED[case]
    assert judge(compiled, eager) is expected


def test_at_most_twenty_calls_are_timed_as_many_of_each() -> None:
    timed = PLAN[3:]
    assert len(timed) == 20 and timed.count("c") == timed.count("e") == 10


def test_calls_alternate_until_the_comparison_is_decided(verdict: bool | None) -> None:
    tagged = jitmagic.jit(which)
    row = "".join(ran(tagged(X)) for _ in range(30))
    known = handle(tagged)
    entry = known.dispatcher.entries[0]
    assert len(known.dispatcher.entries) == 1 and entry.comparison is None
    after = "e" if verdict is False else "c"
    end = len(PLAN) if verdict is None else 7
    assert row == PLAN[:end] + after * (30 - end)
    record = known.journal.records[0]
    assert record.measured is not None and record.measured.calls == (10 if verdict is None else 2)
    assert record.outcome == known.outcome == entry.notes.outcome
    assert isinstance(known.outcome, Eager) == (verdict is False)


def test_eager_is_warm_after_calls_that_it_ran(verdict: bool | None) -> None:
    """A training step of many layers runs as eager first (pay_back.py)."""
    tagged = jitmagic.jit(which)
    known = handle(tagged)
    known.pay_back.is_costly = known.pay_back.is_wanted = True
    row = "".join(ran(tagged(X)) for _ in range(30))
    after = "e" if verdict is False else "c"
    end = len(PLAN_AFTER_EAGER) if verdict is None else 6
    assert row == PLAN_AFTER_EAGER[:end] + after * (30 - end)
    assert row.startswith("cc")


def test_a_slower_variant_is_freed_and_reported_once(slower: None) -> None:
    def which(x: Tensor) -> Tensor:  # the user's line is in this file
        return x.sin()

    shown = io.StringIO()
    tagged = jitmagic.jit(which, options={"notices": "always"})
    known = handle(tagged)
    with redirect_stderr(shown):
        tagged(X)
        run = known.dispatcher.entries[0].run
        held = sys.getrefcount(*[run])  # 3.14 borrows a plain argument, if it is surely bound
        for _ in range(20):
            tagged(X)
    left = sys.getrefcount(*[run])  # pytest keeps what an assert computes
    assert left == held - 1  # the entry has gone
    (line,) = shown.getvalue().splitlines()
    assert line.startswith("jitmagic: which runs as plain Python: test_comparison.py, line ")
    assert "measured slower: " in line and " median of 4 interleaved calls" in line
    assert isinstance(known.outcome, Eager) and str(known.outcome).startswith("eager: measured")


def test_reset_starts_over(slower: None) -> None:
    tagged = jitmagic.jit(which)
    first = "".join(ran(tagged(X)) for _ in range(10))
    jitmagic.reset()
    assert "".join(ran(tagged(X)) for _ in range(10)) == first and first.endswith("eee")


def test_variants_are_measured_separately(slower: None) -> None:
    tagged = jitmagic.jit(which)
    for _ in range(10):
        tagged(X)
    other = torch.linspace(-1, 1, 7)
    assert ran(tagged(X)) == "e" and ran(tagged(other)) == "c"


def sized(count: int) -> Tensor:
    return torch.linspace(-1, 1, count)


def test_timed_calls_that_compile_new_sizes_are_repeated(
    slower: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless every call compiles. With a joint graph for all sizes only the first call does."""

    def refused(*args: object) -> None:
        raise CompileFailed("sizes cannot go through it")

    monkeypatch.setattr(sizes, "SizedJoint", refused)
    tagged = jitmagic.jit(which, options={"recompile_limit": 64})  # vectors of sizes, too
    tagged(X)
    row = "".join(ran(tagged(sized(n))) for n in range(7, 60))
    known = handle(tagged)
    assert len(known.dispatcher.entries) == 2
    end = PLAN[:3] + "c" * 32 + PLAN[3:7]
    assert row == end + "e" * (len(row) - len(end))


def test_calls_of_known_sizes_are_measured(slower: None) -> None:
    tagged = jitmagic.jit(which)
    for n in (6, 7, 8, 9):
        tagged(sized(n))
    row = "".join(ran(tagged(sized(n))) for n in (7, 8) * 6)
    assert row == PLAN[3:7] + "e" * 8


OFF: dict[str, dict[str, Any]] = {
    "keep": {"options": {"keep": "compiled"}},
    "fullgraph": {"fullgraph": True},
    "eager": {"backend": "eager"},
    "aot_eager": {"backend": "aot_eager"},
    "a backend of the user's": {"backend": lambda gm, inputs: gm.forward},
}


@pytest.mark.parametrize("case", OFF)
def test_programs_that_are_not_compared(case: str, slower: None) -> None:
    tagged = jitmagic.jit(which, **OFF[case])
    assert {ran(tagged(X)) for _ in range(25)} == {"c"} and handle(tagged).outcome == COMPILED


def test_deterministic_programs_are_not_compared(slower: None) -> None:
    tagged = jitmagic.jit(which)
    torch.use_deterministic_algorithms(True)
    try:
        assert {ran(tagged(X)) for _ in range(25)} == {"c"}
    finally:
        torch.use_deterministic_algorithms(False)


# ----------------------------------------------------------------------------- values and effects


def draws(x: Tensor, seen: list[int]) -> Tensor:
    seen.append(1)
    x.mul_(0.9).add_(torch.rand(6))
    return x * torch.randn(6)


def broken(x: Tensor, seen: list[int]) -> Tensor:
    y = x + torch.rand(6)
    print("between")
    seen.append(2)
    return inner(y) * torch.rand(6)


def inner(y: Tensor) -> Tensor:
    print("inside")
    return y.cos()


def keywords(x: Tensor, *rest: list[int], scale: float = 0.5, **more: float) -> Tensor:
    rest[0].append(1)
    return x * scale + torch.rand(6) + sum(more.values())


def enclosed() -> Callable[..., Any]:
    total = torch.zeros(6)

    def add(x: Tensor, seen: list[int]) -> Tensor:
        nonlocal total
        total = total + x * torch.rand(6)
        return total

    return add


def recursive(x: Tensor, seen: list[int], depth: int = 3) -> Tensor:
    seen.append(depth)
    print(end="")
    return x if depth == 0 else CALLED[0](x.sin() + torch.rand(6), seen, depth - 1)


CALLED: list[Callable[..., Tensor]] = [recursive]  # the function as it is called: tagged or not


PROGRAMS: dict[str, Callable[[], Callable[..., Any]]] = {
    "draws": lambda: draws,
    "broken": lambda: broken,
    "keywords": lambda: keywords,
    "enclosed": enclosed,
    "recursive": lambda: recursive,
}


def played(fn: Callable[..., Any]) -> tuple[list[Tensor], Tensor, list[int], str, Tensor]:
    torch.manual_seed(3)
    CALLED[0] = fn
    x, seen, text = X.clone(), list[int](), io.StringIO()
    sys.stdout, before = text, sys.stdout
    try:
        results = [fn(x, seen).clone() for _ in range(30)]
    finally:
        sys.stdout = before
    return results, x, seen, text.getvalue(), torch.rand(3)


@pytest.mark.parametrize("program", PROGRAMS)
def test_each_call_happens_once(program: str, verdict: bool | None) -> None:
    expected = played(PROGRAMS[program]())
    actual = played(jitmagic.jit(PROGRAMS[program]()))
    torch.testing.assert_close(actual[0], expected[0])
    torch.testing.assert_close(actual[1], expected[1])
    assert actual[2:4] == expected[2:4]
    assert actual[4].equal(expected[4])  # the generator is where eager leaves it


def test_timing_a_frame_includes_its_resume_functions(
    slower: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Where there is an accelerator, what follows a break may wait for it: no such frame is timed.
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    tagged = jitmagic.jit(broken)
    played(tagged)
    known = handle(tagged)
    assert isinstance(known.outcome, Eager) and known.family.members == []
    assert [r.measured is not None for r in known.journal].count(True) == 1


def test_nested_calls_are_not_timed_separately(slower: None) -> None:
    within = jitmagic.jit(which)
    outer = jitmagic.jit(lambda x: within(x) + 0)
    row = "".join(ran(outer(X)) for _ in range(6))
    assert row == "cccccc"  # run as eager the outer function calls the inner one, which is compiled
    assert handle(within).outcome in (None, COMPILED)
    for _ in range(20):
        outer(X)
    assert isinstance(handle(outer).outcome, Eager) and isinstance(handle(within).outcome, Eager)
    assert ran(outer(X)) == "e"


def test_callees_of_plain_python_are_measured(slower: None) -> None:
    def plain(x: Tensor) -> Tensor:
        assert locals()
        return which(x)

    tagged = jitmagic.jit(plain)
    row = "".join(ran(tagged(X)) for _ in range(10))
    assert row == PLAN[:7] + "eee"


def test_an_error_is_raised_once_and_the_comparison_continues(verdict: bool | None) -> None:
    seen: list[int] = []
    tagged = jitmagic.jit(raising(3, seen))
    for n in range(1, 40):
        if n % 3 == 0:
            with pytest.raises(ValueError, match="own"):
                tagged(X)
        else:
            torch.testing.assert_close(tagged(X) % 100, X.sin() % 100, atol=1e-4, rtol=0)
    assert len(seen) == 39 and handle(tagged).dispatcher.entries[0].comparison is None


def test_threads(verdict: bool | None) -> None:
    tagged, wrong = jitmagic.jit(which), []

    def work() -> None:
        for _ in range(60):
            result = tagged(X)
            expected = X.sin() + (100 if ran(result) == "c" else 0)
            if not torch.allclose(result, expected, atol=1e-4):
                wrong.append(result)

    tagged(X)
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and handle(tagged).dispatcher.entries[0].comparison is None
    assert isinstance(handle(tagged).outcome, Eager) == (verdict is False)


def test_an_extra_sample_of_a_simultaneous_thread_is_tolerated(verdict: bool | None) -> None:
    tagged = jitmagic.jit(which)
    for _ in range(6):
        tagged(X)
    found = samples_of(tagged)
    samples = handle(tagged).dispatcher.entries[0].comparison._samples
    samples += [Sample(is_eager=False, counts=True) for _ in range(len(PLAN) - len(found))]
    samples.append(Sample(is_eager=True, counts=True))
    for _ in range(3):
        tagged(X)
    assert handle(tagged).dispatcher.entries[0].comparison is None
    assert isinstance(handle(tagged).outcome, Eager) == (verdict is False)


# ------------------------------------------------------------------------------------- backward


def loss(x: Tensor, w: Tensor) -> dict[str, Any]:
    y = (x * w).sin() * w
    return {"loss": (y**2).mean(), "more": [y.detach(), None]}


def samples_of(tagged: Any) -> list[Sample]:
    found = handle(tagged).dispatcher.entries[0].comparison._samples
    return list(found)


def gradients(fn: Callable[..., Any], row: int) -> list[Tensor]:
    w, found = torch.linspace(0.5, 2, 6, requires_grad=True), []
    for _ in range(24 // row):
        sum(fn(X, w)["loss"] * (i + 1) for i in range(row)).backward()
        assert w.grad is not None
        found.append(w.grad.clone())
    return found


@pytest.mark.parametrize("row", [1, 6, 24])
def test_gradients_equal_eagers_during_a_comparison(row: int, verdict: bool | None) -> None:
    tagged = jitmagic.jit(loss)
    torch.testing.assert_close(gradients(tagged, row), gradients(loss, row))
    known = handle(tagged)
    with torch.enable_grad():
        tagged(X, torch.ones(6, requires_grad=True))  # a call decides about those before it
    assert isinstance(known.outcome, Eager) == (verdict is False)


@pytest.mark.parametrize("row", [1, 4, 8])
def test_each_backward_is_timed_for_its_own_call(row: int) -> None:
    tagged = jitmagic.jit(loss)
    w = torch.linspace(0.5, 2, 6, requires_grad=True)
    for _ in range(16 // row):
        sum(tagged(X, w)["loss"] for _ in range(row)).backward()
    samples = samples_of(tagged)
    assert [sample.backwards for sample in samples] == [1] * 16
    assert all(sample.backward > 0 and not sample.is_pending for sample in samples)


def test_pending_backwards_are_waited_for_until_results_are_freed(slower: None) -> None:
    tagged = jitmagic.jit(loss)
    w = torch.linspace(0.5, 2, 6, requires_grad=True)
    held = [tagged(X, w) for _ in range(23)]
    tagged(X, w)
    assert handle(tagged).outcome == COMPILED  # their backwards may still come
    held.clear()
    tagged(X, w)
    assert isinstance(handle(tagged).outcome, Eager)


class Keys:
    """Like a key-value cache: an object without any usable attribute."""

    __slots__ = ("it", "value")

    def __init__(self, value: Tensor) -> None:
        self.value, self.it = value, self

    def __getattribute__(self, name: str) -> Any:
        raise AssertionError(name)


class Other(Tensor):
    pass


@pytest.mark.parametrize("hidden", [lambda: X, torch, X.as_subclass(Other), [X] * 1001])
def test_calls_with_opaque_results_are_not_timed(hidden: Any) -> None:
    sample = Sample(is_eager=False, counts=True)
    BackwardTimer().watch(sample, (1, [hidden]), 0)
    assert sample.is_unknown and not sample.is_pending


def test_tensors_are_found_in_any_object() -> None:
    timer, first = BackwardTimer(), torch._C._autograd._get_sequence_nr()
    for hide in (Keys, lambda y: [{"a": (Keys(y), "text", 2.0)}], lambda y: SimpleNamespace(y=y)):
        sample = Sample(is_eager=False, counts=True)
        y = X.clone().requires_grad_().sin()
        held = hide(y)
        timer.watch(sample, held, first)
        assert sample.is_pending and not sample.is_unknown
        y.sum().backward()
        assert sample.backwards == 1
        old = Sample(is_eager=False, counts=True)
        timer.watch(old, held, torch._C._autograd._get_sequence_nr())
        assert not old.is_unknown and not old.is_pending  # made before the call


def test_a_backward_that_raises_is_not_measured() -> None:
    timer, sample = BackwardTimer(), Sample(is_eager=False, counts=True)
    y = X.clone().requires_grad_().sin()
    timer.watch(sample, y, 0)
    y.register_hook(lambda grad: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        y.sum().backward()
    timer.interrupt()
    assert not sample.backwards and (sample.is_unknown or sample.is_pending)


def test_checkpointed_functions_run_the_same_code_twice(slower: None) -> None:
    tagged = jitmagic.jit(loss)
    w = torch.linspace(0.5, 2, 6, requires_grad=True)
    for _ in range(12):
        checkpoint(tagged, X, w, use_reentrant=False)["loss"].backward()
    assert handle(tagged).outcome == COMPILED
    assert handle(tagged).dispatcher.entries[0].comparison is None


def test_views_that_autograd_has_no_history_for() -> None:
    """Reading grad_fn of one of several views raises once its base was written; a timed call must
    not.
    """

    def program(x):
        a, b = (x * 2).chunk(2)
        with torch.no_grad():
            a._base.add_(1)
        return a, b

    tagged = jitmagic.jit(program)
    for _ in range(6):
        x = torch.ones(4, 4, requires_grad=True)
        for got, want in zip(tagged(x), program(x), strict=True):
            assert torch.equal(got.detach(), want.detach())
