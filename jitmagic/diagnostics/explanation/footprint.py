"""footprint: measures the bytes alive after each operation of a graph, eager and compiled.

Input: the records of a frame's newest variant. Output: a `Footprint`. For eager, the traced graph
runs operation by operation on synthetic tensors, forward and backward, and each storage is tracked
until it is freed. For compiled code, the bytes are computed from the plan's allocations, reuses and
frees. Inputs, and workspace that a library allocates inside a call, are not counted.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence

import torch
from torch import Tensor

from ...codegen.plan import Alloc, Call, Free, Launch, Reuse
from ...figures import size
from ...graph.autocast_mode import restoring_modes
from ...graph.dispatch_mode import DispatchMode
from ...graph.node_meta import tensors_in
from ...graph.targets.control_flow import control_flow_in
from ...lazy_dataclass import dataclass
from ...loops.ir import Extern, Nest
from ...records import CompileRecord
from ...runtime.step_timing import timed_calls
from ...schedule.score import buffer_bytes
from ...torch_types import AnyFunction, Kwargs, Values
from ...trace.result import Trace
from ..builds import Build, MeasuredFrame, at_first_sizes, has_backward
from .line_timing import differentiate, differentiates, isolated, synthetic_input

__all__ = ["Footprint", "footprint_of", "footprints_of", "planned_memory"]


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes alive after each operation, in order.

    backward_at: index of the backward's first operation, eager and compiled
    why_not: the reason if nothing was measured
    """

    name: str
    eager: tuple[int, ...] = ()
    compiled: tuple[int, ...] = ()
    backward_at: tuple[int, int] = (0, 0)  # eager, compiled
    why_not: str = ""

    @property
    def peaks(self) -> str:
        """The peaks in words: `at most 4 MiB compiled, 8 MiB as eager`."""
        compiled, eager = (max(points, default=0) for points in (self.compiled, self.eager))
        return f"at most {size(compiled)} compiled, {size(eager)} as eager"


def footprint_of(records: Sequence[CompileRecord]) -> Footprint | None:
    """Return the footprint of a frame's newest variant; None if its graph has no operations."""
    frame = MeasuredFrame.of(records)
    if frame is None:
        return None
    name = frame.traced.name
    if why := _why_not(frame):
        return Footprint(name, why_not=why)
    try:
        with isolated():
            eager, eager_turn = _eager(at_first_sizes(frame.traced), has_backward(frame.builds))
    except Exception as error:  # synthetic tensors are invalid for some graphs: indices, checks
        return Footprint(name, why_not=f"{type(error).__name__}: {error}")
    compiled, turn = _compiled(frame.builds)
    return Footprint(name, eager, compiled, (eager_turn, turn))


def _why_not(frame: MeasuredFrame) -> str:
    is_split = len([build for build in frame.builds if not build.is_backward]) > 1
    if is_split or any(control_flow_in(frame.traced.graph)):
        return "its graph is split, and the lifetimes of tensors between its parts are not known"
    return frame.why_not


def footprints_of(frames: Sequence[Sequence[CompileRecord]]) -> tuple[Footprint, ...]:
    """Return the footprint of each frame with operations; the graphs run on synthetic tensors."""
    return tuple(found for records in frames if (found := footprint_of(records)) is not None)


def planned_memory(frames: Sequence[Sequence[CompileRecord]]) -> int:
    """Return the peak bytes of the plans of the largest frame, without inputs and parameters.

    Nothing runs. The result is 0 if it is not known.
    """
    known = [MeasuredFrame.of(records) for records in frames]
    plans = [frame.builds for frame in known if frame is not None and not _why_not(frame)]
    return max((max(_compiled(builds)[0], default=0) for builds in plans), default=0)


# -- eager ----------------------------------------------------------------------------------------


class _Alive(DispatchMode):
    """Tracks the storages that operations allocate until they are freed."""

    def __init__(self, given: Sequence[Tensor]) -> None:
        super().__init__()
        self.bytes = 0
        self.points: list[int] = []
        self._known: dict[int, object] = {}
        for tensor in given:
            self._known[tensor.untyped_storage()._cdata] = tensor

    def __torch_dispatch__(
        self, func: AnyFunction, types: object, args: Values = (), kwargs: Kwargs | None = None
    ) -> object:
        result = func(*args, **(kwargs or {}))
        for tensor in tensors_in(result):
            self._follow(tensor.untyped_storage())
        self.points.append(self.bytes)
        return result

    def _follow(self, storage: torch.UntypedStorage) -> None:
        key, nbytes = storage._cdata, storage.nbytes()
        if key in self._known:
            return

        def died(_: object) -> None:
            self.bytes -= nbytes
            del self._known[key]

        # torch keeps a storage's Python object alive as long as the storage, so a weakref works.
        self._known[key] = weakref.ref(storage, died)
        self.bytes += nbytes


def _eager(traced: Trace, differentiated: bool) -> tuple[tuple[int, ...], int]:
    """Return the bytes after each operation, and the index at which the backward begins."""
    given = [synthetic_input(entry.spec) for entry in traced.inputs]
    wanted = [tensor for tensor in given if tensor.requires_grad]
    gm = traced.graph
    held = [*given, *gm.parameters(), *gm.buffers()]
    with torch.set_grad_enabled(differentiated or differentiates(gm)), _Alive(held) as alive:
        results = restoring_modes(gm, gm.forward)(*given)
        turn = len(alive.points)
        if differentiated:
            differentiate(results, wanted)
    return tuple(alive.points), turn


# -- compiled -------------------------------------------------------------------------------------


def _compiled(builds: Sequence[Build]) -> tuple[tuple[int, ...], int]:
    """Return the bytes after each step of forward and backward, and the backward's first index.

    Outputs of the forward count as alive during the backward, as the caller may hold them.
    """
    forward, *backwards = builds
    points, left = _of_plan(forward)
    turn = len(points)
    for build in backwards:
        points += [left + point for point in _of_plan(build)[0]]
    return tuple(points), turn


def _of_plan(build: Build) -> tuple[list[int], int]:
    """Return the bytes after each launch and call, and those of outputs and saved tensors."""
    plan, known = build.plan, _sizes_of_calls(build)
    sizes: dict[int, int] = {}
    points = []
    for step in plan.steps:
        if isinstance(step, Alloc):
            sizes[step.slot] = math.prod(step.shape) * step.dtype.itemsize
        elif isinstance(step, Reuse):
            sizes[step.slot] = sizes.pop(step.base, 0)
        elif isinstance(step, Free):
            sizes.pop(step.slot, None)
        elif isinstance(step, Launch | Call):
            if isinstance(step, Call) and not step.out:
                sizes.update(known[id(step)])
            points.append(plan.pool_bytes + sum(sizes.values()))
    return points, sum(sizes.values())


def _sizes_of_calls(build: Build) -> dict[int, dict[int, int]]:
    """Return by call the bytes of its results, by slot."""
    program = build.schedule.program
    steps = [step for step in program.steps if isinstance(step, Nest | Extern)]
    sizes = {}
    for step, call in zip(steps, timed_calls(build.plan), strict=True):
        if isinstance(step, Extern) and isinstance(call, Call):
            pairs = zip(step.results, call.results, strict=True)
            sizes[id(call)] = {
                slot: buffer_bytes(program.buffers[name])
                for name, slot in pairs
                if name is not None and slot is not None
            }
    return sizes
