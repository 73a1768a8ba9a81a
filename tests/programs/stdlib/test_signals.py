"""Handlers of signals that arrive while a tagged frame runs: plain Python, with all that they call.

They run wherever the interpreter looks for signals, between two instructions of anything.
"""

from __future__ import annotations

import functools
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import jitmagic
from jitmagic.api import handle_of

SEEN: list[float] = []


def computes(scale: float) -> None:
    SEEN.append(float((torch.ones(2) * scale).sum()))


def plain(number: int, frame: Any) -> None:
    computes(number)


def variadic(*args: Any) -> None:
    computes(args[0])


def with_defaults(number: int, frame: Any = None, times: int = 2) -> None:
    computes(number * times)


def bound_first(scale: float, number: int, frame: Any) -> None:
    computes(scale * number)


class Counter:
    def method(self, number: int, frame: Any) -> None:
        computes(number)

    def __call__(self, number: int, frame: Any) -> None:
        computes(number)


HANDLERS: dict[str, Callable[..., None]] = {
    "function": plain,
    "variadic": variadic,
    "with defaults": with_defaults,
    "method": Counter().method,
    "object": Counter(),
    "partial": functools.partial(bound_first, 2.0),
    "lambda": lambda number, frame: computes(number),
}


@pytest.fixture(params=HANDLERS)
def _handler(request: pytest.FixtureRequest) -> Iterator[None]:
    before = signal.signal(signal.SIGUSR1, HANDLERS[request.param])
    SEEN.clear()
    yield
    signal.signal(signal.SIGUSR1, before)


def callee(x: Tensor) -> Tensor:
    signal.raise_signal(signal.SIGUSR1)
    return x * 3


def twice(x: Tensor) -> Tensor:
    y = x * 2
    signal.raise_signal(signal.SIGUSR1)
    return callee(y) + 1


@pytest.mark.usefixtures("_handler")
def test_a_handler_is_no_callee() -> None:
    tagged, x = jitmagic.jit(twice), torch.arange(3.0)
    for calls in (1, 2, 3):
        assert torch.equal(tagged(x), x * 6 + 1)
        assert len(SEEN) == 2 * calls
    handle = handle_of(tagged)
    assert handle is not None
    assert {record.name for record in handle.journal} <= {"twice", "callee"}
