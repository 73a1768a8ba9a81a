"""Measures how long a GPU works between two points of a stream, without waiting for it.

Input: a device, and the host's time for the same work. Output: by how much the GPU took longer,
once it has finished. A call on a GPU returns when its kernels are queued. A program that repeats it
waits for the host or the GPU, whichever takes longer, so that maximum is the cost of a call.
"""

from __future__ import annotations

import torch

__all__ = ["GpuInterval", "can_be_timed", "has_room"]


class GpuInterval:
    """Two events in the device's current stream; the first is recorded on construction."""

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
        """Record the second event; `host` is the host's time for the same work in nanoseconds."""
        self._end = self._mark()
        self._host = host

    @property
    def is_over(self) -> bool:
        """True once the GPU has finished the work."""
        return self._end is not None and self._end.query()

    @property
    def excess(self) -> int:
        """Nanoseconds that the GPU took beyond the host; needs `is_over`."""
        assert self._end is not None
        milliseconds: float = self._begin.elapsed_time(self._end)
        return max(0, round(milliseconds * 1e6) - self._host)


def can_be_timed() -> bool:
    """Return whether events may be recorded now.

    While the user captures a CUDA graph they would become part of it, and so would plain Python run
    in place of compiled code.
    """
    return not torch.cuda.is_current_stream_capturing()


def has_room(device: torch.device, nbytes: int) -> bool:
    """Return whether `nbytes` are available, including memory that torch's allocator has cached."""
    free, _ = torch.cuda.mem_get_info(device)
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return free + unused >= nbytes
