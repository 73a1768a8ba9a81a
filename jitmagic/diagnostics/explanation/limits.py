"""limits: measures the memory speed of this machine, which bounds kernels that compute little.

Input: a number of bytes. Output: seconds of a copy that reads and writes that many bytes in total.
It is measured once per process for each power of two, so that a kernel whose data fit a cache is
compared with a copy that fits it too.
"""

from __future__ import annotations

import time
from functools import cache

import torch

__all__ = ["copy_seconds"]

LEAST, MOST = 1 << 18, 1 << 28  # bytes: below, call overhead dominates; above, memory would run out
_ROUNDS = 5


def copy_seconds(nbytes: int, device: torch.device) -> float | None:
    """Return seconds of a copy that reads and writes half of `nbytes` each; None below LEAST."""
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
