"""Gives a thread that compiles in the background the state of the thread whose call it is for.

Input: the calling thread. Output: a ThreadState to enter on the other one. What is process-wide
(default dtype, deterministic algorithms) is not set but compared afterwards: code that was compiled
while it changed is not used.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ..compat.autograd import is_profiler_enabled, top_saved_hooks
from ..compat.modes import dispatch_mode_depth, function_mode_depth
from ..compat.tensors import transform_of_thread
from ..frame.hook import Suspended
from ..frame.sandbox import SWITCHES
from ..lazy_dataclass import dataclass

__all__ = ["ThreadState", "has_observers"]


def has_observers() -> bool:
    """Return whether modes, transforms, hooks or a profiler are active, which a compile disables
    on its own thread alone or for all threads: it then stays on the calling thread.
    """
    return bool(
        function_mode_depth()
        or dispatch_mode_depth()
        or transform_of_thread() is not None
        or top_saved_hooks(True) is not None
        or torch.is_anomaly_enabled()
        or is_profiler_enabled()
    )


@dataclass(frozen=True)
class ThreadState:
    """The switches of one thread, and the process-wide state that a compile relies on."""

    switches: tuple[Any, ...]
    is_inference: bool
    process_wide: tuple[object, ...]

    @classmethod
    def read(cls) -> ThreadState:
        """Return the state of this thread."""
        switches = tuple(read() for read, _ in SWITCHES)
        return cls(switches, torch.is_inference_mode_enabled(), _process_wide())

    @property
    def is_outdated(self) -> bool:
        """Return whether process-wide state differs from what it was."""
        return self.process_wide != _process_wide()

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Run the block in this state, on a thread that runs no user code."""
        with Suspended(), torch.inference_mode(self.is_inference):
            before = [read() for read, _ in SWITCHES]
            _switch(self.switches)
            try:
                yield
            finally:
                _switch(before)


def _switch(wanted: Any) -> None:
    for (_, write), value in zip(SWITCHES, wanted, strict=True):
        write(value)


def _process_wide() -> tuple[object, ...]:
    return torch.get_default_dtype(), torch.are_deterministic_algorithms_enabled()
