"""Lets each of two ranks find other things, and returns what they decided (`agreeing`)."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

import jitmagic
from jitmagic.api import handle_of
from jitmagic.frame.timing import comparison, pay_back

QUIET: dict[str, Any] = {"persist": False, "keep": "compiled", "background": False}
SETTLING = 0.5  # seconds in which the other rank has read its notes, five times a second


def _compiles(tagged: Any) -> int:
    handle = handle_of(tagged)
    assert handle is not None
    return sum(record.result("trace") is not None for record in handle.journal)


def _summed(x: Tensor) -> Tensor:
    total = x.sum()
    dist.all_reduce(total)
    return total


def numbers(rank: int) -> list[Any]:
    """Call with a number that varies on one rank; return compiles and results."""

    def scaled(x: Tensor, scale: float) -> Tensor:
        return _summed(x * scale)

    tagged, results = jitmagic.jit(scaled, options=QUIET), []
    for step in range(6):
        scale = 2.0 + step if rank == 0 and step > 1 else 2.0
        results.append(float(tagged(torch.ones(4), scale)))
        time.sleep(SETTLING if step == 2 else 0)
    return [_compiles(tagged), results]


def limit(rank: int) -> list[Any]:
    """Reach the recompile limit on one rank; return whether both stop, then try again together."""

    def named(x: Tensor, name: str) -> Tensor:
        return _summed(x.sin() * len(name))

    tagged = jitmagic.jit(named, options={**QUIET, "recompile_limit": 2})
    handle = handle_of(tagged)
    assert handle is not None
    stopped = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in range(4):
            tagged(torch.ones(4), "ab" if rank else "ab" + "c" * step)
        dist.barrier()
        time.sleep(SETTLING)
        stopped.append(handle.given_up is not None)
        before = _compiles(tagged)
        for _ in range(9):  # rank 0 tries again after 8 calls that fit no variant
            tagged(torch.ones(4), "new" if rank == 0 else "ab")
        dist.barrier()
        time.sleep(SETTLING)
        tagged(torch.ones(4), "new")
    return [stopped, _compiles(tagged) - before, len(caught)]


def _verdict(judge: Callable[..., bool | None]) -> str:
    """Return which of compiled code and eager a function uses after a comparison."""
    comparison.judge = judge

    def summed(x: Tensor) -> Tensor:
        return _summed(x.sin().cos())

    tagged = jitmagic.jit(summed, options={**QUIET, "keep": "faster"})
    for step in range(32):
        tagged(torch.ones(4))
        if step == 12:
            dist.barrier()
            time.sleep(SETTLING)
    handle = handle_of(tagged)
    assert handle is not None
    (entry,) = handle.dispatcher.entries
    assert entry.comparison is None or type(entry.comparison).__name__ == "CallBatch"
    return type(entry.notes.outcome).__name__


def slower(rank: int) -> str:
    """Let one rank find that compiled code is slower, and the other nothing."""
    return _verdict(lambda compiled, eager: None if rank else (False if compiled else None))


def contrary(rank: int) -> str:
    """Let the ranks find contrary things at the same call."""
    jitmagic.reset()
    return _verdict(lambda compiled, eager: bool(rank) if compiled else None)


def pays(rank: int) -> list[int]:
    """Let one rank find that a compile pays; return the call at which each has compiled."""
    pay_back.PayBack._pays = lambda self, values: rank == 1 and steps > 3
    layers = [nn.Linear(4, 4) for _ in range(12)]
    model = nn.Sequential(*layers)

    def step(x: Tensor) -> Tensor:
        y = model(x)
        total = y.detach().sum()
        dist.all_reduce(total)
        return y.sum() + total

    tagged = jitmagic.jit(step, options={"persist": False})
    found = []
    for steps in range(40):
        tagged(torch.randn(3, 4)).backward()
        time.sleep(0.02)
        if not found and _compiles(tagged):
            found.append(steps)
    return [*found, _compiles(tagged)]


def answers(rank: int) -> dict[str, Any]:
    """Return what a rank finds in each of these."""
    judge = comparison.judge
    found: dict[str, Any] = {run.__name__: run(rank) for run in (numbers, limit, slower, contrary)}
    comparison.judge = judge
    return {**found, "pays": pays(rank)}
