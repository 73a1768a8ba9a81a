"""Programs whose results tell whether compiled code or plain Python ran."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import jitmagic
from jitmagic.api import handle_of
from jitmagic.frame.handle import Handle

__all__ = ["X", "handle", "raising", "ran", "which"]

X = torch.linspace(-1, 1, 6)


def which(x: Tensor) -> Tensor:
    return x.sin() + (100 if jitmagic.is_compiling() else 0)


def ran(result: Tensor) -> str:
    return "c" if result.flatten()[0] > 50 else "e"


def raising(every: int, seen: list[int]) -> Callable[[Tensor], Tensor]:
    """Return `which` with every n-th call, counted in `seen`, raising ValueError at its end."""

    @jitmagic.disable
    def may_raise() -> None:
        seen.append(1)
        if len(seen) % every == 0:
            raise ValueError("of the user's own")

    def raises(x: Tensor) -> Tensor:
        y = which(x)
        may_raise()
        return y

    return raises


def handle(tagged: Any) -> Handle:
    found = handle_of(tagged)
    assert found is not None
    return found
