"""CUDA graphs: an executable recorded once and replayed, for mode="reduce-overhead".

In: an executable over CUDA tensors of fixed shapes, and its Plan. Out: the same callable, faster
where launching is what takes the time. The first call runs plainly (libraries set themselves up),
the second is recorded, later ones are replayed.

A recording is tied to addresses: of inputs that were found again where they had been (parameters,
results of another recording), which are checked at every call; other inputs are copied to memory of
the recording. A backward's first inputs come from a forward that ran plainly, the next ones from
its recording, where they will be again: they are not taken for inputs that move. Results live in
the recording's memory and belong to the user: a recording whose results are still held somewhere is
not replayed; another one is made, up to MOST, and then calls run plainly. So nothing that a user
can see is ever overwritten. What cannot be recorded says why in `refused` and runs plainly.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from threading import RLock
from typing import Any
from weakref import WeakSet

import torch

from ..codegen.plan import Alloc, Call, Plan, PlanStep, Pool, Reuse, Slot, View
from ..errors import warn
from .graph_pool import Shelf
from .native import slots_needing_tensors

__all__ = ["Replayer", "can_replay", "replayed", "why_not"]

MOST = 4  # recordings alive at a time
LAUNCH_BYTES = 8 << 20  # what a GPU copies in the time that the host takes for one launch
MOST_IN_VAIN = 6  # recordings none of which was replayed again: what a forward that runs plainly
# saves for this backward, say
MOST_MADE = 16  # recordings made in all: addresses that never settle are not worth more

_UNKNOWN_SIZE = frozenset(
    (
        torch.Tag.dynamic_output_shape,
        torch.Tag.data_dependent_output,
        torch.Tag.cudagraph_unsafe,
    )
)
_INDEXING = (torch.ops.aten.index.Tensor, torch.ops.aten._unsafe_index.Tensor)
_MASKS = (torch.bool, torch.uint8)
Outputs = tuple[torch.Tensor | None, ...]
Run = Callable[..., Outputs]

# Where the random generator stood when a forward drew: a CPU scalar after a plain run, whose value
# the backward reads on the CPU, and a CUDA scalar after a recording (ATen, "Note [Seed and Offset
# Device]"). Handed the wrong one, ATen reads an address of the other memory: a crash.
_aten = torch.ops.aten
_READS_GENERATOR_STATE = {
    _aten._scaled_dot_product_efficient_attention_backward.default,
    _aten._efficient_attention_backward.default,
}
_GENERATOR_STATE = ("philox_seed", "philox_offset")


def can_replay(plan: Plan) -> bool:
    """Whether the plan has anything to record."""
    return plan.device.type == "cuda" and bool(plan.steps)


def replayed(run: Run, plan: Plan, shelf: Shelf | None = None) -> Run:
    """`run` behind CUDA graphs, or `run` itself where the plan has nothing to record. `shelf`: of
    what runs the same graph at other sizes.
    """
    return Replayer(run, plan, shelf) if can_replay(plan) else run


def why_not(plan: Plan, inputs: Sequence[torch.Tensor]) -> str:
    """What forbids recording, as a sentence; empty when nothing does."""
    anywhere, dtypes = _generator_states(plan), _dtypes(plan, inputs)
    for number, tensor in enumerate(inputs):
        if tensor.device != plan.device and number not in anywhere:
            return f"input {number} lives on {tensor.device}, not on {plan.device}"
    if _has_constant_elsewhere(plan):
        return f"it reads a constant that is not on {plan.device}"
    for step in plan.steps:
        if _made_elsewhere(step, plan.device):
            return f"a part of it is not on {plan.device}"
        if not isinstance(step, Call):
            continue
        if _waits(step, dtypes):
            return f"{step.op} waits for the GPU to know the size of its result"
        if step.foreign:
            return f"{step.op} comes from outside of torch: a recording may miss what it does"
        parts = (*step.args, *step.kwargs.values())
        if any(isinstance(part, torch.Generator) for part in parts):
            return f"{step.op} draws from a generator of its own"
    return ""


def _has_constant_elsewhere(plan: Plan) -> bool:
    """Of a CPU's tensor that kernels alone take, a size, the host reads the number."""
    needed = slots_needing_tensors(plan)
    return any(
        constant.device != plan.device and plan.inputs + number in needed
        for number, constant in enumerate(plan.constants)
    )


def _waits(step: Call, dtypes: Mapping[int, torch.dtype]) -> bool:
    """Whether the host looks at data; of an indexing, whether any index may be a mask."""
    if _UNKNOWN_SIZE.isdisjoint(step.op.tags):
        return False
    if step.op not in _INDEXING:
        return True
    return any(
        isinstance(index, Slot) and dtypes.get(index.index, torch.bool) in _MASKS
        for index in step.args[1]
    )


def _dtypes(plan: Plan, inputs: Sequence[torch.Tensor]) -> dict[int, torch.dtype]:
    """Of the slots that are known before a run."""
    known = {number: tensor.dtype for number, tensor in enumerate((*inputs, *plan.constants))}
    for step in plan.steps:
        if isinstance(step, Call):
            for slot, layout in zip(step.results, step.layouts, strict=False):
                if slot is not None and layout is not None:
                    known[slot] = layout.dtype
        elif isinstance(step, Alloc | Reuse | Pool | View):
            known[step.slot] = step.dtype
    return known


def _generator_states(plan: Plan) -> frozenset[int]:
    """The inputs that are a random generator's state of an earlier draw."""
    found: set[int] = set()
    for step in plan.steps:
        if isinstance(step, Call) and step.op in _READS_GENERATOR_STATE:
            names = [argument.name for argument in step.op._schema.arguments]
            given = {**dict(zip(names, step.args, strict=False)), **step.kwargs}
            slots = (given[name] for name in _GENERATOR_STATE)
            found.update(slot.index for slot in slots if isinstance(slot, Slot))
    return frozenset(number for number in found if number < plan.inputs)


def _made_elsewhere(step: PlanStep, device: torch.device) -> bool:
    if isinstance(step, Call):
        return any(layout is not None and layout.device != device for layout in step.layouts)
    return isinstance(step, Alloc) and step.device != device


@dataclass(slots=True)
class _Given:
    """A result that is an input or a constant, or a view of one: made anew from the caller's
    tensor.
    """

    slot: int
    view: tuple[tuple[int, ...], tuple[int, ...], int] | None

    def of(self, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        tensor = tensors[self.slot]
        if self.view is None:
            return tensor
        shape, stride, offset = self.view
        return tensor.as_strided(shape, stride, tensor.storage_offset() + offset)


def _given_results(plan: Plan) -> dict[int, _Given]:
    """Output position -> where it comes from, for outputs that the plan does not make."""
    origin = {slot: _Given(slot, None) for slot in range(plan.inputs + len(plan.constants))}
    for step in plan.steps:
        if isinstance(step, View) and step.base in origin:
            base = origin[step.base]
            before = base.view[2] if base.view is not None else 0
            view = (step.shape, step.stride, before + step.offset)
            origin[step.slot] = _Given(base.slot, view)
    return {
        n: origin[slot]
        for n, slot in enumerate(plan.outputs)
        if slot is not None and slot in origin
    }


class _Recording:
    """One CUDA graph, the memory it reads and writes, and whether its results are still held."""

    def __init__(
        self,
        run: Run,
        inputs: Sequence[torch.Tensor],
        moving: frozenset[int],
        device: torch.device,
    ) -> None:
        self.moving = tuple(sorted(moving))
        self.addresses = [
            None if n in moving else tensor.data_ptr() for n, tensor in enumerate(inputs)
        ]
        given = list(inputs)
        for n in self.moving:
            given[n] = _empty_like(inputs[n], device)
        self.buffers = [_memory(given[n]) for n in self.moving]
        self.graph, self.outputs = _record(run, given)
        self.storages = _storages(self.outputs)
        self.held = [_holders(storage) for storage in self.storages]
        theirs = {tensor.untyped_storage().data_ptr() for tensor in given}
        if any(storage.data_ptr() in theirs for storage in self.storages):
            raise RuntimeError("an operation returns memory of an input")
        _alive.add(self)

    def fits(self, inputs: Sequence[torch.Tensor]) -> bool:
        """Whether every input that must be at its recorded address is."""
        return all(
            address is None or tensor.data_ptr() == address
            for tensor, address in zip(inputs, self.addresses, strict=True)
        )

    def free(self) -> bool:
        """Whether nobody but the recording holds its results."""
        return all(
            _holders(storage) == held
            for storage, held in zip(self.storages, self.held, strict=True)
        )

    def replay(self, inputs: Sequence[torch.Tensor]) -> Outputs:
        if self.moving:
            # The host need not wait: what is on the CPU (generator states) is not pinned, so that
            # the driver has read it before it returns.
            moved = [_memory(inputs[n]) for n in self.moving]
            torch._foreach_copy_(self.buffers, moved, non_blocking=True)
        self.graph.replay()
        return tuple(None if out is None else out.data for out in self.outputs)


_alive: WeakSet[_Recording] = WeakSet()


def _recorded_memory() -> set[int]:
    """Where the results of all recordings are: each replay puts them there again."""
    return {storage.data_ptr() for recording in list(_alive) for storage in recording.storages}


def _moved_bytes(inputs: Sequence[torch.Tensor], moving: frozenset[int]) -> int:
    """What a replay copies before it starts."""
    return sum(inputs[n].numel() * inputs[n].element_size() for n in moving)


def _empty_like(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Memory of the same layout, whatever its strides (elements may share memory)."""
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)


def _memory(tensor: torch.Tensor) -> torch.Tensor:
    """What is copied: the tensor, or, where it has gaps or repeats, its memory from end to end."""
    if tensor.is_contiguous():
        return tensor
    last = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.as_strided((last + 1 if tensor.numel() else 0,), (1,))


def _storages(outputs: Outputs) -> list[torch.UntypedStorage]:
    """The distinct memory of the outputs."""
    found = {}
    for output in outputs:
        if output is not None and output.untyped_storage().nbytes():
            storage = output.untyped_storage()
            found[storage.data_ptr()] = storage
    return list(found.values())


def _holders(storage: torch.UntypedStorage) -> int:
    return int(torch._C._storage_Use_Count(storage._cdata))  # type: ignore[attr-defined]


def _record(run: Run, inputs: Sequence[torch.Tensor]) -> tuple[Any, Outputs]:
    """Capture on a side stream; nothing runs on the GPU yet."""
    graph, pool = torch.cuda.CUDAGraph(), torch.cuda.graph_pool_handle()
    side = _capture_stream(torch.cuda.current_device())
    side.wait_stream(torch.cuda.current_stream())
    _give_workspace(side)
    collecting = gc.isenabled()
    gc.disable()  # a collected CUDA event or graph would spoil the capture
    try:
        with torch.cuda.stream(side):
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            try:
                outputs = run(*inputs)
            finally:
                graph.capture_end()
    except RuntimeError:
        _recover(graph, pool, side)
        raise
    finally:
        if collecting:
            gc.enable()
    torch.cuda.current_stream().wait_stream(side)
    return graph, outputs


@cache
def _capture_stream(device: int) -> torch.cuda.Stream:
    """One for all recordings: cuBLAS keeps a workspace (64 MB on an H200) per stream for ever."""
    return torch.cuda.Stream(device)


@cache
def _workspaces(device: int) -> torch.cuda.MemPool:
    """Memory of library workspaces, which recordings read and write at every replay."""
    with torch.cuda.device(device):
        return torch.cuda.MemPool()


def _give_workspace(side: torch.cuda.Stream) -> None:
    """Allocate cuBLAS's workspace of the capture stream where no recording owns it.

    During a capture it would come out of that recording's memory, and keep that alive. In a pool of
    its own it stays where it is even if somebody clears the workspaces, as torch.compile does.
    """
    pool = _workspaces(side.device_index)
    with torch.cuda.use_mem_pool(pool), torch.cuda.stream(side):
        torch.cuda.current_blas_handle()


_failed: list[torch.cuda.CUDAGraph] = []
"""Graphs whose capture failed. torch's allocator of pinned memory asks every graph that began a
capture, and cannot be told that one failed: they must not be freed."""


def _recover(graph: torch.cuda.CUDAGraph, pool: tuple[int, int], side: torch.cuda.Stream) -> None:
    """After a capture that failed, torch's allocator and random generator still think it goes on.

    The allocator is told, and that nobody needs the pool. Who does that depends on torch's version:
    a graph that takes its capture for ended (it tells its pool) gives the pool back itself, and
    twice would be an error of the allocator's. The generator forgets at the end of the next
    capture, so one is made.
    """
    _failed.append(graph)
    device = torch.cuda.current_device()
    with suppress(RuntimeError):
        torch._C._cuda_endAllocateToPool(device, pool)  # type: ignore[attr-defined]
    try:
        graph.pool()
        graph.reset()
    except RuntimeError:
        with suppress(RuntimeError):
            torch._C._cuda_releasePool(device, pool)  # type: ignore[attr-defined]
    with suppress(RuntimeError), torch.cuda.stream(side):
        small = torch.zeros(1, device="cuda")
        again = torch.cuda.CUDAGraph()
        again.capture_begin(capture_error_mode="thread_local")
        small.add_(1)
        again.capture_end()


_last_stream: dict[torch.device, torch.cuda.Stream] = {}
"""Where recordings of a device were replayed last."""

_one_at_a_time = RLock()
"""Recordings share the capture stream and its workspaces: no two threads record or start a replay
at once."""


class Replayer:
    """Callable like the executable it stands for. `refused`: why it runs plainly, empty if it does
    not.
    """

    def __init__(self, run: Run, plan: Plan, shelf: Shelf | None = None) -> None:
        self.run, self.plan, self._shelf = run, plan, shelf
        self.refused = ""
        self.recordings: list[_Recording] = []
        self.made = 0
        self.replays = 0
        self._given = _given_results(plan)
        self._mutated = frozenset(plan.mutated)
        self._states = _generator_states(plan)
        self._last: list[int] | None = None  # where the inputs were at the call before
        self._moving = self._states

    def __call__(self, *inputs: torch.Tensor) -> Outputs:
        if torch.cuda.is_current_stream_capturing():
            return self.run(*inputs)
        if self.refused:
            return self._run_plainly(inputs)
        if torch.cuda.current_device() != self.plan.device.index:
            with torch.cuda.device(self.plan.device):
                return self(*inputs)
        with _one_at_a_time, torch.no_grad():
            recording = self._choose(inputs)
            if recording is not None:
                self._order()
                self.replays += 1
                if self._shelf is not None:
                    self._shelf.note(self)
                outputs = recording.replay(inputs)
        if recording is None:
            return self._run_plainly(inputs)
        if not self._given:
            return outputs
        tensors = (*inputs, *self.plan.constants)
        return tuple(
            self._given[n].of(tensors) if n in self._given else out for n, out in enumerate(outputs)
        )

    def _run_plainly(self, inputs: Sequence[torch.Tensor]) -> Outputs:
        if not self._states:
            return self.run(*inputs)
        given = (t.cpu() if n in self._states else t for n, t in enumerate(inputs))
        return self.run(*given)

    # -- choosing --------------------------------------------------------------------------------

    def _choose(self, inputs: Sequence[torch.Tensor]) -> _Recording | None:
        """A recording that may be replayed for these inputs, made if need be; None: run plainly."""
        fitting = [recording for recording in self.recordings if recording.fits(inputs)]
        for recording in fitting:
            if recording.free():
                return recording
        if self._last is None:
            self.refused = why_not(self.plan, inputs)
            self._last = [tensor.data_ptr() for tensor in inputs]
            return None
        if len(self.recordings) < MOST:
            return self._make(inputs)
        return None if fitting else self._settle(inputs)

    def _settle(self, inputs: Sequence[torch.Tensor]) -> _Recording | None:
        """No recording has the inputs where they are now: what differs is copied from now on.

        From any recording, not only the newest: freed memory is handed out again, so what moves may
        be by chance where it was last.
        """
        moved = {
            n
            for recording in self.recordings
            for n, (tensor, address) in enumerate(zip(inputs, recording.addresses, strict=True))
            if address is not None and tensor.data_ptr() != address
        }
        self._moving |= frozenset(moved - self._mutated)
        self.forget()
        if len(self.recordings) >= MOST:
            return None
        return self._make(inputs)

    def _make(self, inputs: Sequence[torch.Tensor]) -> _Recording | None:
        in_vain = self.made >= MOST_IN_VAIN and self.replays == self.made
        if in_vain or self.made >= MOST_MADE:
            self._give_up("its inputs are never where they were before")
            return None
        if not self.recordings and self.made == 0:
            assert self._last is not None
            lasting = _recorded_memory()
            moved = {
                n
                for n, tensor in enumerate(inputs)
                if tensor.data_ptr() != self._last[n]
                and tensor.untyped_storage().data_ptr() not in lasting
            }
            self._moving |= frozenset(moved - self._mutated)
        if _moved_bytes(inputs, self._moving) > LAUNCH_BYTES * len(self.plan.steps):
            self._give_up("copying its inputs to where they were would take longer than it saves")
            return None
        self.made += 1
        try:
            recording = _Recording(self._kept_inside, inputs, self._moving, self.plan.device)
        except RuntimeError as error:  # the capture met an operation that CUDA cannot record
            self._give_up(str(error).splitlines()[0])
            return None
        self.recordings.append(recording)
        return recording

    def _kept_inside(self, *inputs: torch.Tensor) -> Outputs:
        """Only the outputs that are made in the recording's memory."""
        outputs = self.run(*inputs)
        return tuple(None if n in self._given else out for n, out in enumerate(outputs))

    def forget(self) -> None:
        """Give up the recordings whose results nobody holds."""
        self.recordings = [recording for recording in self.recordings if not recording.free()]

    def _give_up(self, why: str) -> None:
        self.refused = why
        self.recordings.clear()
        warn(f"{self.plan.name}: not replayed as a CUDA graph: {why}")

    def _order(self) -> None:
        """A replay on another stream comes after the replays before it: a recording owns memory,
        and all of a device share the workspaces of libraries.
        """
        stream = torch.cuda.current_stream()
        before = _last_stream.get(self.plan.device)
        if before is not None and stream != before:
            stream.wait_stream(before)
        _last_stream[self.plan.device] = stream
