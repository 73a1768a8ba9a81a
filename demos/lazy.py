"""Code that cannot be tagged: operations are recorded and run as compiled graphs.

    python demos/lazy.py

A function out of a library is called as it is, in eager and inside `jitmagic.lazy()`.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

import jitmagic


def untagged(x: torch.Tensor, rounds: int = 4) -> torch.Tensor:
    """Pointwise work in a loop, as library code has it."""
    y = x
    for _ in range(rounds):
        y = (y * 1.5 + 0.5).tanh() - x.sigmoid() * 0.1
    return (y - y.mean(1, keepdim=True)) / (y.std(1, keepdim=True) + 1e-6)


def recorded(x: torch.Tensor) -> torch.Tensor:
    """The same code, recorded."""
    with jitmagic.lazy():
        return untagged(x)


def milliseconds(function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> float:
    """The median time of a call."""
    times = []
    for _ in range(30):
        started = time.perf_counter()
        function(x)
        times.append(time.perf_counter() - started)
    return statistics.median(times) * 1e3


def main() -> None:
    """Show what is pending, the first run, and the time of later ones."""
    x = torch.randn(512, 1024)
    with jitmagic.lazy():
        y = untagged(x, rounds=1)
        print(jitmagic.lazy.pending())
        del y
    started = time.perf_counter()
    first = recorded(x)
    print(f"first run, compiled: {time.perf_counter() - started:.2f} s")
    print(f"largest difference to eager: {(first - untagged(x)).abs().max():.1e}")
    eager, lazy = milliseconds(untagged, x), milliseconds(recorded, x)
    print(f"eager {eager:.2f} ms, recorded {lazy:.2f} ms ({eager / lazy:.1f}x faster)")
    print(jitmagic.lazy.counts())


if __name__ == "__main__":
    main()
