"""Traces of a frame per compile, and the reasons to trace again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

jitmagic = pytest.importorskip("jitmagic")
from jitmagic.compile import retracing, tracing  # noqa: E402
from jitmagic.compile.retracing import Rule, settle  # noqa: E402
from jitmagic.trace.assumptions import Assumptions  # noqa: E402


def cell(x: Tensor, w: Tensor) -> Tensor:
    h = c = x.new_zeros(x.shape[1])
    for row in x:
        h, c = torch.tanh(h @ w + row), c * 2 + h
    return h + c


def counted(x: Tensor, w: Tensor) -> Tensor:
    i, h = 0, x.new_zeros(8)
    while i < x.shape[0]:
        h = torch.tanh(h @ w + x[i])
        i += 1
    return h


def added(x: Tensor, w: Tensor) -> Tensor:
    total = 0
    for i in range(x.shape[0]):
        total += i * i
    return x @ w + total


def scaled(x: Tensor, w: Tensor) -> Tensor:
    return (x @ w).relu().sum(0) / x.shape[0]


def rules_of(fn: Callable[..., Any], lengths: tuple[int, ...]) -> list[tuple[str, ...]]:
    """The rules that were tried in each compile of the function itself, for these lengths."""
    made, w = jitmagic.jit(fn), torch.randn(8, 8, dtype=torch.float64) / 3
    for length in lengths:
        x = torch.randn(length, 8, dtype=torch.float64)
        torch.testing.assert_close(made(x, w), fn(x, w))
    return tried_in(made)


def tried_in(made: Any) -> list[tuple[str, ...]]:
    journal = jitmagic.api.handle_of(made).journal
    own = [one for one in journal if one.frame == journal.records[0].frame]
    return [traced.retraced for one in own if (traced := one.result("trace")) is not None]


def test_loop_of_varying_length_is_rolled_and_peeled_by_one_trace() -> None:
    assert rules_of(cell, (4, 6, 5, 9)) == [(), ()]


def test_while_loop_is_rolled_after_its_test_has_fixed_a_size() -> None:
    assert rules_of(counted, (4, 6, 5, 9))[1] == ("a trip count varies",)


def test_loop_without_tensor_work_is_compared_and_left_to_python() -> None:
    compared = ("a rolled loop may have no tensor work", "a loop without tensor work")
    assert rules_of(added, (4, 6, 5, 9))[1] == compared


def test_sizes_of_one_are_known_before_the_trace() -> None:
    assert rules_of(scaled, (1, 4, 6, 1)) == [(), ()]


class Cache:
    keys: Tensor


def append(cache: Cache, x: Tensor) -> Tensor:
    cache.keys = torch.cat((cache.keys, x))
    return cache.keys.sum(0)


def test_cache_that_grows_is_traced_again_in_its_first_call() -> None:
    made, cache, plain = jitmagic.jit(append), Cache(), Cache()
    cache.keys = plain.keys = torch.zeros(3, 8)
    for _ in range(4):
        x = torch.randn(1, 8)
        torch.testing.assert_close(made(cache, x), append(plain, x))
    assert tried_in(made) == [("the frame changes sizes",)]


def test_number_of_traces_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    rule = Rule("again", lambda traced, assumed: replace(assumed, rolls=not assumed.rolls))
    monkeypatch.setattr(retracing, "RULES", (rule,) * 20)
    traced, runs = rules_trace(), []

    def run(assumed: Assumptions) -> Any:
        runs.append(assumed.rolls)
        return traced

    _, assumed, tried = settle(run, Assumptions())
    assert runs == [False, True, False, True, False]
    assert tried == ("again",) * 4 and not assumed.rolls


def rules_trace() -> Any:
    """A finished trace of some function."""
    found = []
    made = jitmagic.jit(scaled)
    with pytest.MonkeyPatch.context() as patch:
        plain = tracing.trace
        patch.setattr(tracing, "trace", lambda *args: found.append(plain(*args)) or found[-1])
        made(torch.randn(4, 8, dtype=torch.float64), torch.randn(8, 8, dtype=torch.float64))
    return found[0]


def test_rejected_trace_leaves_the_one_before() -> None:
    first, second = rules_trace(), rules_trace()
    traces = iter((first, second))
    never = Rule("never", lambda traced, assumed: assumed, lambda before, after: False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(retracing, "RULES", (never,))
        traced, _, tried = settle(lambda assumed: next(traces), Assumptions())
    assert traced is first and tried == ("never",)
