"""laps: how long each call of a row takes, with its backward.

Comes in: what a call returned. Goes out: nanoseconds in its Sample, as backwards run. A backward
begins where the engine reaches the call's first node and ends where that of an earlier call begins,
or with the whole pass. The engine runs nodes in the reverse order of their making, so those of one
call run in one piece; what follows them (gradients are accumulated, layers below the call) is the
same work for compiled code and for eager. What a GPU takes longer than the host is added (`spans`).
Invariant: no tensor and no node is kept alive.
"""

from __future__ import annotations

import gc
import time
import weakref
from dataclasses import dataclass, field
from types import FunctionType, ModuleType
from typing import Any

import torch

from .gpu_timing import Span, can_be_timed

__all__ = ["Laps", "Sample"]

_engine: Any = torch.autograd.Variable._execution_engine
_TENSORS = (torch.Tensor, torch.nn.Parameter)  # of others (subclasses) an attribute may be code
_CONSTANTS = (
    *(bool, int, float, complex, str, bytes, type(None)),
    *(torch.Size, torch.dtype, torch.device),
)
# Subclasses of tensors, and what refers to a whole module.
_OPAQUE = (torch.Tensor, FunctionType, ModuleType)
_HAVE_GC = 1 << 14  # Py_TPFLAGS_HAVE_GC: what it refers to can be asked for
_MOST_VALUES = 1000  # that are looked through for tensors


@dataclass(eq=False, slots=True)
class Sample:
    """One call: nanoseconds, and what is known of its backward."""

    is_eager: bool
    counts: bool  # not a warm-up
    forward: int = -1  # -1: it gave no result
    backward: int = 0
    backwards: int = 0
    is_unknown: bool = False  # its backward cannot be timed
    mark: weakref.ref[_Mark] | None = None  # on the first nodes of its backward
    spans: list[Span] = field(default_factory=list)  # of the call and its backwards, on a GPU

    @property
    def is_pending(self) -> bool:
        """Whether its backward has not run and still may."""
        return self.mark is not None and not self.backwards and self.mark() is not None

    @property
    def is_through(self) -> bool:
        """Whether a GPU has done what was asked of it."""
        return all(span.is_over for span in self.spans)

    @property
    def tells(self) -> bool:
        """Whether its time is known."""
        return self.forward >= 0 and not self.is_unknown and self.is_through

    @property
    def seconds(self) -> float:
        """Of the host or of the GPU, whichever took longer."""
        excess = sum(span.excess for span in self.spans)
        return (self.forward + self.backward + excess) * 1e-9


class _Mark:
    """A hook on the nodes of a call's results; it lives as long as they do."""

    __slots__ = ("__weakref__", "_laps", "_sample")

    def __init__(self, laps: Laps, sample: Sample) -> None:
        self._laps, self._sample = laps, sample

    def __call__(self, gradients: Any) -> None:
        self._laps.begin(self._sample)


class Laps:
    """The calls of one row, and which one's backward is running."""

    def __init__(self, device: torch.device | None = None) -> None:
        """`device`: a GPU, which works on when the host is through."""
        self._device = device
        self._running: Sample | None = None
        self._since = 0
        self._span: Span | None = None

    def watch(self, sample: Sample, result: Any, first_node: int) -> None:
        """Time the backward of a call that gave `result`; its nodes have numbers from that on."""
        tensors = _tensors_in(result)
        if tensors is None:
            sample.is_unknown = True
            return
        try:
            nodes = [tensor.grad_fn for tensor in tensors]
        except RuntimeError:  # of several views at once, whose memory was written to since
            sample.is_unknown = True
            return
        own = {node for node in nodes if node is not None and node._sequence_nr() >= first_node}
        if own:
            mark = _Mark(self, sample)
            sample.mark = weakref.ref(mark)
            for node in own:
                node.register_prehook(mark)

    def begin(self, sample: Sample) -> None:
        """The engine has come to a node of this call."""
        if self._running is sample:
            return
        self._end()
        if self._device is not None:
            if not can_be_timed():
                sample.is_unknown = True
                return
            self._span = Span(self._device)
        _engine.queue_callback(self._end)
        self._running, self._since = sample, time.perf_counter_ns()

    def interrupt(self) -> None:
        """One that has not ended by now was left by an exception, or a call is made inside it."""
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
        if self._span is not None:
            self._span.end(taken)
            sample.spans.append(self._span)


def _tensors_in(result: Any) -> list[torch.Tensor] | None:
    """The tensors of a result; None where something else may hold others. No code of the user's
    is run: what an object refers to (a cache of keys and values, say) is the garbage collector's
    knowledge.
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
