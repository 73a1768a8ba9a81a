"""Records an executable as a CUDA graph and replays it, for mode="reduce-overhead".

In: an executable over CUDA tensors of fixed shapes, and its Plan. Out: the same callable, faster
where launch overhead dominates. The first call runs without recording, so that libraries
initialise; the second is recorded, and later ones replay the recording.

A recording has fixed addresses for inputs that were at the same address in consecutive calls
(parameters, results of another recording); they are checked at every call. Other inputs are copied
into memory of the recording. The inputs of a backward's first call come from a forward that was not
recorded, those of later calls from that forward's recording; this change of address does not count.
Results live in the recording's memory and belong to the user. A recording whose results are still
referenced is not replayed; another one is made, up to MAX_RECORDINGS, and beyond that calls launch
their kernels one by one. No tensor that the user can see is ever overwritten. If recording is
impossible, `refused` has the reason.
"""

from __future__ import annotations

import gc
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from threading import RLock
from weakref import WeakSet

import torch

from ..codegen.plan import Alloc, Call, Plan, PlanStep, Pool, Reuse, Slot, View
from ..compat.functions import foreach_copy_
from ..compat.modules import end_allocation_to_pool, release_pool
from ..compat.tensors import storage_use_count
from ..devices import row_of
from ..errors import warn
from ..lazy_dataclass import dataclass
from ..torch_types import Executable
from .graph_pool import GraphPool
from .native import slots_needing_tensors

__all__ = ["Replayer", "can_replay", "recording_refusal", "with_cuda_graphs"]

MAX_RECORDINGS = 4  # recordings alive at a time
# hf_bert training copied up to 573 MB per replay: 27.4 ms a step with CUDA graphs, 24.0 without.
LAUNCH_BYTES = 8 << 20  # bytes a GPU copies in the time of one host-side launch
# A recording costs 25 ms.
MAX_UNUSED = 6  # recordings without a second replay, e.g. for inputs saved by a plain forward
MAX_MADE = 16  # recordings in total: addresses that never settle are not worth more

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
Graph = torch.cuda.CUDAGraph

# The state of the random generator at the time of a forward's draw: a CPU scalar, which the
# backward reads on the CPU, if the forward ran without recording, and a CUDA scalar if it was
# recorded (ATen, "Note [Seed and Offset Device]"). The wrong kind makes ATen crash.
_aten = torch.ops.aten
_READS_GENERATOR_STATE = {
    _aten._scaled_dot_product_efficient_attention_backward.default,
    _aten._efficient_attention_backward.default,
}
_GENERATOR_STATE = ("philox_seed", "philox_offset")


def can_replay(plan: Plan) -> bool:
    """Return whether the plan has anything to record."""
    return row_of(plan.device).runs_cuda and bool(plan.steps)


def with_cuda_graphs(run: Executable, plan: Plan, pool: GraphPool | None = None) -> Executable:
    """Wrap `run` in CUDA graphs if the plan has anything to record. `pool` limits the
    recordings of one graph at several sizes.
    """
    return Replayer(run, plan, pool) if can_replay(plan) else run


def recording_refusal(plan: Plan, inputs: Sequence[torch.Tensor]) -> str:
    """Return the sentence that says why recording is impossible, or an empty string."""
    anywhere, dtypes = _generator_states(plan), _dtypes(plan, inputs)
    for number, tensor in enumerate(inputs):
        if tensor.device != plan.device and number not in anywhere:
            return f"input {number} lives on {tensor.device}, not on {plan.device}"
    if _has_constant_off_device(plan):
        return f"it reads a constant that is not on {plan.device}"
    for step in plan.steps:
        if _is_off_device(step, plan.device):
            return f"a part of it is not on {plan.device}"
        if not isinstance(step, Call):
            continue
        if _syncs_with_host(step, dtypes):
            return f"{step.op} waits for the GPU to know the size of its result"
        if step.foreign:
            return f"{step.op} is a custom operator: a recording may miss its effects"
        parts = (*step.args, *step.kwargs.values())
        if any(isinstance(part, torch.Generator) for part in parts):
            return f"{step.op} draws from a generator of its own"
    return ""


def _has_constant_off_device(plan: Plan) -> bool:
    """Return whether ATen reads a constant that is not on the GPU; kernels take sizes by value."""
    needed = slots_needing_tensors(plan)
    return any(
        constant.device != plan.device and plan.inputs + number in needed
        for number, constant in enumerate(plan.constants)
    )


def _syncs_with_host(step: Call, dtypes: Mapping[int, torch.dtype]) -> bool:
    """Return whether the host reads data; indexing does if any index may be a mask."""
    if _UNKNOWN_SIZE.isdisjoint(step.op.tags):
        return False
    if step.op not in _INDEXING:
        return True
    return any(
        isinstance(index, Slot) and dtypes.get(index.index, torch.bool) in _MASKS
        for index in step.args[1]
    )


def _dtypes(plan: Plan, inputs: Sequence[torch.Tensor]) -> dict[int, torch.dtype]:
    """Return the dtypes of slots that are known before a run."""
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
    """Return the inputs that hold a random generator's state at an earlier draw."""
    found: set[int] = set()
    for step in plan.steps:
        if isinstance(step, Call) and step.op in _READS_GENERATOR_STATE:
            names = [argument.name for argument in step.op._schema.arguments]
            given = {**dict(zip(names, step.args, strict=False)), **step.kwargs}
            slots = (given[name] for name in _GENERATOR_STATE)
            found.update(slot.index for slot in slots if isinstance(slot, Slot))
    return frozenset(number for number in found if number < plan.inputs)


def _is_off_device(step: PlanStep, device: torch.device) -> bool:
    if isinstance(step, Call):
        return any(layout is not None and layout.device != device for layout in step.layouts)
    return isinstance(step, Alloc) and step.device != device


@dataclass(slots=True)
class _PassedThrough:
    """Describes a result that is an input, a constant or a view of one. A replay builds it from the
    tensor of that call.
    """

    slot: int
    view: tuple[tuple[int, ...], tuple[int, ...], int] | None

    def of(self, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        tensor = tensors[self.slot]
        if self.view is None:
            return tensor
        shape, stride, offset = self.view
        return tensor.as_strided(shape, stride, tensor.storage_offset() + offset)


def _passed_through(plan: Plan) -> dict[int, _PassedThrough]:
    """Return output position -> source, for outputs that are not new memory."""
    origin = {slot: _PassedThrough(slot, None) for slot in range(plan.inputs + len(plan.constants))}
    for step in plan.steps:
        if isinstance(step, View) and step.base in origin:
            base = origin[step.base]
            before = base.view[2] if base.view is not None else 0
            view = (step.shape, step.stride, before + step.offset)
            origin[step.slot] = _PassedThrough(base.slot, view)
    return {
        n: origin[slot]
        for n, slot in enumerate(plan.outputs)
        if slot is not None and slot in origin
    }


class _Recording:
    """Holds one CUDA graph, its memory, and the reference counts of its results."""

    def __init__(
        self,
        run: Executable,
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
        self.use_counts = [_use_count(storage) for storage in self.storages]
        input_memory = {tensor.untyped_storage().data_ptr() for tensor in given}
        if any(storage.data_ptr() in input_memory for storage in self.storages):
            raise RuntimeError("an operation returns memory of an input")
        _alive.add(self)

    def fits(self, inputs: Sequence[torch.Tensor]) -> bool:
        """Return whether each input with a fixed address is at that address."""
        return all(
            address is None or tensor.data_ptr() == address
            for tensor, address in zip(inputs, self.addresses, strict=True)
        )

    def is_unused(self) -> bool:
        """Return whether only the recording references its results."""
        return all(
            _use_count(storage) == count
            for storage, count in zip(self.storages, self.use_counts, strict=True)
        )

    def replay(self, inputs: Sequence[torch.Tensor]) -> Outputs:
        if self.moving:
            # Without waiting on the host: CPU inputs (generator states) are pageable, and the
            # driver reads those before it returns.
            moved = [_memory(inputs[n]) for n in self.moving]
            foreach_copy_(self.buffers, moved, non_blocking=True)
        self.graph.replay()
        return tuple(None if out is None else out.data for out in self.outputs)


_alive: WeakSet[_Recording] = WeakSet()


def _recorded_memory() -> set[int]:
    """Return the addresses of all recordings' results, where each replay writes them again."""
    return {storage.data_ptr() for recording in list(_alive) for storage in recording.storages}


def _copied_bytes(inputs: Sequence[torch.Tensor], moving: frozenset[int]) -> int:
    """Return the bytes that a replay copies before it starts."""
    return sum(inputs[n].numel() * inputs[n].element_size() for n in moving)


def _empty_like(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Allocate memory of the same layout for any strides (elements may share memory)."""
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)


def _memory(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor if contiguous, else its memory as one contiguous range, for copies."""
    if tensor.is_contiguous():
        return tensor
    last = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.as_strided((last + 1 if tensor.numel() else 0,), (1,))


def _storages(outputs: Outputs) -> list[torch.UntypedStorage]:
    """Return the distinct storages of the outputs."""
    found = {}
    for output in outputs:
        if output is not None and output.untyped_storage().nbytes():
            storage = output.untyped_storage()
            found[storage.data_ptr()] = storage
    return list(found.values())


def _use_count(storage: torch.UntypedStorage) -> int:
    return int(storage_use_count(storage._cdata))  # type: ignore[attr-defined]


def _record(run: Executable, inputs: Sequence[torch.Tensor]) -> tuple[Graph, Outputs]:
    """Capture on a side stream; nothing runs on the GPU yet."""
    graph, pool = torch.cuda.CUDAGraph(), torch.cuda.graph_pool_handle()
    side = _capture_stream(torch.cuda.current_device())
    side.wait_stream(torch.cuda.current_stream())
    _give_workspace(side)
    collecting = gc.isenabled()
    gc.disable()  # collecting a CUDA event or graph would invalidate the capture
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
    """Return one stream for all recordings: cuBLAS keeps a workspace per stream (64 MB on H200)."""
    return torch.cuda.Stream(device)


@cache
def _workspaces(device: int) -> torch.cuda.MemPool:
    """Return the pool of library workspaces, which recordings access at every replay."""
    with torch.cuda.device(device):
        return torch.cuda.MemPool()


def _give_workspace(side: torch.cuda.Stream) -> None:
    """Allocate cuBLAS's workspace of the capture stream outside of any recording's memory.

    Allocated during a capture, it would come out of that recording's memory and keep that alive. In
    its own pool it keeps its address even if the workspaces are cleared, as torch.compile does.
    """
    pool = _workspaces(side.device_index)
    with torch.cuda.use_mem_pool(pool), torch.cuda.stream(side):
        torch.cuda.current_blas_handle()


_failed: list[torch.cuda.CUDAGraph] = []
"""Graphs whose capture failed, which must not be freed. torch's pinned-memory allocator queries
every graph that began a capture, and has no call to report a failed one."""


def _recover(graph: torch.cuda.CUDAGraph, pool: tuple[int, int], side: torch.cuda.Stream) -> None:
    """Reset torch's allocator and random generator after a failed capture.

    Both still assume that the capture is running. The allocation to the pool has to be ended, and
    the pool released. Which call releases it depends on torch's version: if the graph considers its
    capture ended (`pool()` works), `reset()` releases the pool, and a second release would be an
    error. The generator leaves its capture state at the end of the next capture, so a tiny graph is
    captured.
    """
    _failed.append(graph)
    device = torch.cuda.current_device()
    with suppress(RuntimeError):
        end_allocation_to_pool(device, pool)  # type: ignore[attr-defined]
    try:
        graph.pool()
        graph.reset()
    except RuntimeError:
        with suppress(RuntimeError):
            release_pool(device, pool)  # type: ignore[attr-defined]
    with suppress(RuntimeError), torch.cuda.stream(side):
        small = torch.zeros(1, device="cuda")
        again = torch.cuda.CUDAGraph()
        again.capture_begin(capture_error_mode="thread_local")
        small.add_(1)
        again.capture_end()


_last_stream: dict[torch.device, torch.cuda.Stream] = {}
"""The stream on which recordings of a device were last replayed."""

_recording_lock = RLock()
"""Held while recording or starting a replay: recordings share the capture stream and workspaces."""


class Replayer:
    """Is called like the executable that it wraps. `refused`: why nothing is recorded, or empty."""

    def __init__(self, run: Executable, plan: Plan, graph_pool: GraphPool | None = None) -> None:
        self.run, self.plan, self._graph_pool = run, plan, graph_pool
        self.refused = ""
        self.recordings: list[_Recording] = []
        self.made = 0
        self.replays = 0
        self._passed_through = _passed_through(plan)
        self._mutated = frozenset(plan.mutated)
        self._states = _generator_states(plan)
        self._last: list[int] | None = None  # addresses of the inputs at the previous call
        self._moving = self._states

    def __call__(self, *inputs: torch.Tensor) -> Outputs:
        if torch.cuda.is_current_stream_capturing():
            return self.run(*inputs)
        if self.refused:
            return self._run_plainly(inputs)
        if torch.cuda.current_device() != self.plan.device.index:
            with torch.cuda.device(self.plan.device):
                return self(*inputs)
        with _recording_lock, torch.no_grad():
            recording = self._choose(inputs)
            if recording is not None:
                self._order()
                self.replays += 1
                if self._graph_pool is not None:
                    self._graph_pool.note(self)
                outputs = recording.replay(inputs)
        if recording is None:
            return self._run_plainly(inputs)
        if not self._passed_through:
            return outputs
        tensors = (*inputs, *self.plan.constants)
        return tuple(
            self._passed_through[n].of(tensors) if n in self._passed_through else out
            for n, out in enumerate(outputs)
        )

    def _run_plainly(self, inputs: Sequence[torch.Tensor]) -> Outputs:
        if not self._states:
            return self.run(*inputs)
        given = (t.cpu() if n in self._states else t for n, t in enumerate(inputs))
        return self.run(*given)

    # -- choosing --------------------------------------------------------------------------------

    def _choose(self, inputs: Sequence[torch.Tensor]) -> _Recording | None:
        """Return a recording to replay for these inputs, new if necessary; None: do not replay."""
        fitting = [recording for recording in self.recordings if recording.fits(inputs)]
        for recording in fitting:
            if recording.is_unused():
                return recording
        if self._last is None:
            self.refused = recording_refusal(self.plan, inputs)
            self._last = [tensor.data_ptr() for tensor in inputs]
            return None
        if len(self.recordings) < MAX_RECORDINGS:
            return self._make(inputs)
        return None if fitting else self._settle(inputs)

    def _settle(self, inputs: Sequence[torch.Tensor]) -> _Recording | None:
        """Treat inputs whose addresses match no recording as moving, so that they are copied, and
        record again.

        Addresses are compared with all recordings, not only the newest: freed memory is reused, so
        a moving input may by chance be at its last address.
        """
        moved = {
            n
            for recording in self.recordings
            for n, (tensor, address) in enumerate(zip(inputs, recording.addresses, strict=True))
            if address is not None and tensor.data_ptr() != address
        }
        self._moving |= frozenset(moved - self._mutated)
        self.drop_unused()
        if len(self.recordings) >= MAX_RECORDINGS:
            return None
        return self._make(inputs)

    def _make(self, inputs: Sequence[torch.Tensor]) -> _Recording | None:
        unused = self.made >= MAX_UNUSED and self.replays == self.made
        if unused or self.made >= MAX_MADE:
            self._give_up("its inputs move at every call")
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
        if _copied_bytes(inputs, self._moving) > LAUNCH_BYTES * len(self.plan.steps):
            self._give_up("copying its moving inputs would take longer than it saves")
            return None
        self.made += 1
        try:
            recording = _Recording(self._run_recorded, inputs, self._moving, self.plan.device)
        except RuntimeError as error:  # the capture met an operation that CUDA cannot record
            self._give_up(str(error).splitlines()[0])
            return None
        self.recordings.append(recording)
        return recording

    def _run_recorded(self, *inputs: torch.Tensor) -> Outputs:
        """Run, and return only outputs in the recording's memory."""
        outputs = self.run(*inputs)
        return tuple(None if n in self._passed_through else out for n, out in enumerate(outputs))

    def drop_unused(self) -> None:
        """Drop the recordings whose results have no other references."""
        self.recordings = [recording for recording in self.recordings if not recording.is_unused()]

    def _give_up(self, why: str) -> None:
        self.refused = why
        self.recordings.clear()
        warn(f"{self.plan.name}: not replayed as a CUDA graph: {why}")

    def _order(self) -> None:
        """Order a replay on another stream after earlier ones. A recording owns its memory, and all
        recordings of a device share library workspaces.
        """
        stream = torch.cuda.current_stream()
        before = _last_stream.get(self.plan.device)
        if before is not None and stream != before:
            stream.wait_stream(before)
        _last_stream[self.plan.device] = stream
