"""limits: how fast this machine moves memory, which no kernel that reads and writes can beat.

Comes in: a number of bytes. Goes out: the seconds that a plain copy takes which reads and writes as
many in all, measured once a process for each power of two, so that what fits a cache is compared
with what fits it too.
"""

from __future__ import annotations

import time
from functools import cache

import torch

__all__ = ["copy_seconds"]

LEAST, MOST = 1 << 18, 1 << 28  # bytes: below, a call costs as much as the copy; above, no memory
_ROUNDS = 5


def copy_seconds(nbytes: int, device: torch.device) -> float | None:
    """Return the speed of a copy that reads half of them and writes as many; None for few bytes."""
    if nbytes < LEAST:
        return None
    known = min(MOST, 1 << (nbytes - 1).bit_length())
    return _copied(known, device) * nbytes / known


@cache
def _copied(nbytes: int, device: torch.device) -> float:
    source = torch.full((nbytes // 2,), 1, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return min(_seconds(source, target) for _ in range(_ROUNDS))


def _seconds(source: torch.Tensor, target: torch.Tensor) -> float:
    if source.is_cuda:
        torch.cuda.synchronize(source.device)
    started = time.perf_counter()
    target.copy_(source)
    if source.is_cuda:
        torch.cuda.synchronize(source.device)
    return time.perf_counter() - started
