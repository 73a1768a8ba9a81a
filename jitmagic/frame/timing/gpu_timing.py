"""spans: how long a GPU works on what is asked of it between two moments, without waiting for it.

Comes in: a device, and the host's time for the same work. Goes out: by how much the GPU took
longer, once it is through. A call on a GPU returns when its kernels are queued; a program that
repeats it waits for the host or for the GPU, whichever takes longer, so that is what a call takes.
"""

from __future__ import annotations

import torch

__all__ = ["Span", "can_be_timed", "has_room"]


class Span:
    """Two marks in the queue of the device's current stream; the first is set when it is made."""

    __slots__ = ("_begin", "_device", "_end", "_host")

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._begin = self._mark()
        self._end: torch.cuda.Event | None = None
        self._host = 0

    def _mark(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event

    def end(self, host: int) -> None:
        """`host`: nanoseconds that the host took for the same work."""
        self._end = self._mark()
        self._host = host

    @property
    def is_over(self) -> bool:
        """Whether the GPU is through with it."""
        return self._end is not None and self._end.query()

    @property
    def excess(self) -> int:
        """Nanoseconds of the GPU beyond the host's, of a span that is over."""
        assert self._end is not None
        milliseconds: float = self._begin.elapsed_time(self._end)
        return max(0, round(milliseconds * 1e6) - self._host)


def can_be_timed() -> bool:
    """Whether marks may be set now: in a CUDA graph that the user records they would be part of
    it, and plain Python in place of compiled code too.
    """
    return not torch.cuda.is_current_stream_capturing()


def has_room(device: torch.device, nbytes: int) -> bool:
    """Whether so much memory can be had: what torch's allocator holds and does not use counts."""
    free, _ = torch.cuda.mem_get_info(device)
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return free + unused >= nbytes
