"""Times the backward of each timed call.

Input: the result of a call. Output: nanoseconds, added to its Sample after each backward. A
backward begins when the engine reaches the call's first node and ends when the engine reaches a
node of an earlier call, or with the whole pass. The engine runs nodes in the reverse order of their
creation, so the nodes of one call run consecutively; the work after them (accumulating gradients,
layers below the call) is the same for compiled code and eager. Time that a GPU takes beyond the
host's is added (gpu_timing.py). Invariant: no tensor and no node is kept alive.
"""

from __future__ import annotations

import gc
import time
import weakref
from types import FunctionType, ModuleType
from typing import Any

import torch

from ...compat.autograd import engine
from ...lazy_dataclass import dataclass, field
from .gpu_timing import GpuInterval, can_be_timed

__all__ = ["BackwardTimer", "Sample"]

_TENSORS = (torch.Tensor, torch.nn.Parameter)  # attributes of other subclasses may run code
_CONSTANTS = (
    *(bool, int, float, complex, str, bytes, type(None)),
    *(torch.Size, torch.dtype, torch.device),
)
# Tensor subclasses, and objects that refer to a whole module.
_OPAQUE = (torch.Tensor, FunctionType, ModuleType)
_HAVE_GC = 1 << 14  # Py_TPFLAGS_HAVE_GC: gc.get_referents works on it
_MOST_VALUES = 1000  # searched for tensors


@dataclass(eq=False, slots=True)
class Sample:
    """One timed call: nanoseconds, and the state of its backward."""

    is_eager: bool
    counts: bool  # not a warm-up
    forward: int = -1  # -1: it did not return
    in_graphs: int = 0  # part of `forward` that the host spent in compiled graphs
    backward: int = 0
    backwards: int = 0
    is_unknown: bool = False  # its backward cannot be timed
    mark: weakref.ref[_Mark] | None = None  # on the first nodes of its backward
    gpu_intervals: list[GpuInterval] = field(default_factory=list)  # GPU time of call and backwards

    @property
    def is_pending(self) -> bool:
        """True while its backward has not run but still may."""
        return self.mark is not None and not self.backwards and self.mark() is not None

    @property
    def is_gpu_done(self) -> bool:
        """True once the GPU has finished its work."""
        return all(interval.is_over for interval in self.gpu_intervals)

    @property
    def has_time(self) -> bool:
        """True if its time is known."""
        return self.forward >= 0 and not self.is_unknown and self.is_gpu_done

    @property
    def outside(self) -> float:
        """Return the seconds of the forward in which no compiled graph ran."""
        return (self.forward - self.in_graphs) * 1e-9

    @property
    def seconds(self) -> float:
        """Time of the host or of the GPU, whichever is longer."""
        excess = sum(each.excess for each in self.gpu_intervals)
        return (self.forward + self.backward + excess) * 1e-9


class _Mark:
    """A prehook on the autograd nodes of a call's results; lives as long as they do."""

    __slots__ = ("__weakref__", "_sample", "_timer")

    def __init__(self, timer: BackwardTimer, sample: Sample) -> None:
        self._timer, self._sample = timer, sample

    def __call__(self, gradients: object) -> None:
        self._timer.begin(self._sample)


class BackwardTimer:
    """Times the backwards of a sequence of calls; tracks the call whose backward is running."""

    def __init__(self, device: torch.device | None = None) -> None:
        """`device`: a GPU that may still work when the host is done."""
        self._device = device
        self._running: Sample | None = None
        self._since = 0
        self._interval: GpuInterval | None = None

    def watch(self, sample: Sample, result: object, first_node: int) -> None:
        """Time the backward of a call; its own nodes have sequence numbers from `first_node` on."""
        tensors = _tensors_in(result)
        if tensors is None:
            sample.is_unknown = True
            return
        try:
            nodes = [tensor.grad_fn for tensor in tensors]
        except RuntimeError:  # one of several views of a multi-output op, written in place
            sample.is_unknown = True
            return
        own = {node for node in nodes if node is not None and node._sequence_nr() >= first_node}
        if own:
            mark = _Mark(self, sample)
            sample.mark = weakref.ref(mark)
            for node in own:
                node.register_prehook(mark)

    def begin(self, sample: Sample) -> None:
        """Start the timer: the engine has reached a node of this call."""
        if self._running is sample:
            return
        self._end()
        if self._device is not None:
            if not can_be_timed():
                sample.is_unknown = True
                return
            self._interval = GpuInterval(self._device)
        engine.queue_callback(self._end)
        self._running, self._since = sample, time.perf_counter_ns()

    def interrupt(self) -> None:
        """Discard a running backward: an exception ended it, or it makes a call inside itself."""
        if self._running is not None:
            self._running.is_unknown = True
            self._running = None

    def _end(self) -> None:
        sample, self._running = self._running, None
        if sample is None:
            return
        taken = time.perf_counter_ns() - self._since
        sample.backward += taken
        sample.backwards += 1
        if self._interval is not None:
            self._interval.end(taken)
            sample.gpu_intervals.append(self._interval)


def _tensors_in(result: Any) -> list[torch.Tensor] | None:
    """Return the tensors in a result, or None if an opaque object may hold others.

    No user code runs: the references of an object (say a key-value cache) come from
    gc.get_referents.
    """
    found: list[torch.Tensor] = []
    seen: set[int] = set()
    waiting = [result]
    for _ in range(_MOST_VALUES):
        if not waiting:
            return found
        value = waiting.pop()
        kind = type(value)
        if kind in _TENSORS:
            found.append(value)
        elif kind in _CONSTANTS or issubclass(kind, type) or id(value) in seen:
            continue
        elif issubclass(kind, _OPAQUE) or not kind.__flags__ & _HAVE_GC:
            return None
        else:
            seen.add(id(value))
            waiting.extend(gc.get_referents(value))
    return None
