"""Decides what of an executable is recorded as CUDA graphs, for mode="reduce-overhead".

In: an executable over CUDA tensors of fixed shapes, and its Plan. Out: the same callable, faster
where launch overhead dominates. The first call runs without recording, so that libraries
initialise; the second is recorded, and later ones replay the recording, natively
(extensions/runtime/replay.cpp) as long as it fits.

A recording reads an input where it is if the input was there in consecutive calls (parameters,
static caches), or is a result of another recording (what a forward saves for its backward). An
input that moves is copied into the recording's memory by the graph, and back if the graph writes to
it. Results are in the recording's memory and belong to the caller, which costs nothing, as long as
the caller drops them before the next call; those that were still referenced then are copied into
new memory by the graph from then on. Where copying would take too long, further recordings are
made, up to MAX_RECORDINGS; beyond that, calls launch their kernels one by one. No tensor that the
user can see is ever overwritten. `refused` says why nothing is recorded.

A plan of which some steps cannot be recorded is cut at its first call (partitions.py). Its parts
have executables and replayers of their own from then on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch

from ...codegen.plan import Plan, View
from ...devices import row_of
from ...errors import warn
from ...extension import runtime_module
from ...lazy_dataclass import replace
from ...protocols import Protocol
from ...torch_types import Executable
from .capture import Outputs, capture
from .graph_pool import GraphPool
from .partitions import Partition, partitions_of
from .plan_parts import split_plan
from .refusals import generator_states, launch_count
from .replayed_parts import PartPool, ReplayedParts, chained

__all__ = ["Replayer", "can_replay", "replaying"]

MAX_RECORDINGS = 4  # recordings alive at a time
# Bytes that a replay copies for each launch that it saves. A GPU copies 8 MB in the time of a
# launch on the host: hf_bert training copied up to 573 MB per replay, 27.4 ms a step with CUDA
# graphs, 24.0 without. Copying an eighth of it is better than making a recording, 25 ms.
LAUNCH_BYTES = 8 << 20
CHEAP_BYTES = LAUNCH_BYTES // 8
MAX_UNUSED = 6  # recordings without a second replay, e.g. for inputs saved by a plain forward
MAX_PLAIN = 64  # more calls that are launched than replayed: choosing takes 10 us
MAX_MADE = 16  # recordings in total: addresses that never settle are not worth more


class _Recording(Protocol):
    """Is the type Recording of extensions/runtime/recording.cpp, which has its words."""

    replays: int
    last_use: int
    copied_bytes: int

    def moved(self, inputs: tuple[torch.Tensor, ...]) -> list[int]: ...
    def held(self) -> list[int]: ...
    def is_free(self) -> bool: ...
    def owns(self, tensor: torch.Tensor) -> bool: ...


def can_replay(plan: Plan) -> bool:
    """Return whether the plan has anything to record."""
    return row_of(plan.device).runs_cuda and bool(plan.steps)


def replaying(replayer: Replayer) -> Executable:
    """Return the callable for which a replayer decides."""
    plan = replayer.plan
    outputs = tuple(_passed_through(plan))
    made: Executable = runtime_module().Replay(
        replayer, replayer.recordings, str(plan.device), plan.inputs, plan.constants, outputs
    )
    return made


def _passed_through(plan: Plan) -> Iterable[tuple[object, ...] | None]:
    """Yield for each output its source, as Replay reads it, or None if it is new memory."""
    offsets = dict.fromkeys(range(plan.inputs + len(plan.constants)), 0)
    origin: dict[int, tuple[object, ...]] = {slot: (slot,) for slot in offsets}
    for step in plan.steps:
        if isinstance(step, View) and step.base in origin:
            offsets[step.slot] = offsets[step.base] + step.offset
            origin[step.slot] = (
                *origin[step.base][:1],
                step.shape,
                step.stride,
                offsets[step.slot],
            )
    for slot in plan.outputs:
        yield None if slot is None else origin.get(slot)


def _empty_like(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Allocate memory of the same layout for any strides (elements may share memory)."""
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)


def _span(tensor: torch.Tensor) -> int:
    """Return the bytes from the first element to the last one."""
    if not tensor.numel():
        return 0
    last = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.element_size()


def _storage(tensor: torch.Tensor) -> tuple[int, int, int]:
    """Return (identity, address, bytes) of the tensor's storage."""
    found: tuple[int, int, int] = runtime_module().storage_of(tensor)
    return found


def _address(tensor: torch.Tensor) -> int:
    return _storage(tensor)[1]


Bind = Callable[[Plan], Executable]


class Replayer:
    """Chooses the recording for a call, and makes new ones. `refused`: why nothing is recorded.

    `bind` returns the executable of a part of the plan; without it, a plan is recorded as a whole
    or not at all.
    """

    def __init__(
        self,
        run: Executable,
        plan: Plan,
        graph_pool: GraphPool | PartPool | None = None,
        bind: Bind | None = None,
    ) -> None:
        self.run, self.plan, self._graph_pool, self._bind = run, plan, graph_pool, bind
        self.refused = ""
        self.parts: ReplayedParts | None = None  # runs in place of this
        self.recordings: list[_Recording] = []  # Replay looks here first
        self.made = 0
        self.plain_calls = 0
        self.moving = self._states = generator_states(plan)  # inputs that are copied
        self.copied: frozenset[int] = frozenset()  # outputs that are copied
        self._mutated = frozenset(plan.mutated)
        self._own = [source is None for source in _passed_through(plan)]
        self._last: list[int] | None = None  # addresses of the inputs at the previous call
        # Of each recording: the inputs in memory of other recordings, by their storage's address.
        self._fed: dict[_Recording, tuple[int, ...]] = {}
        self._result_bytes: dict[int, tuple[int, int]] = {}  # by output: storage and its bytes
        self._dropped_replays = 0

    @property
    def replays(self) -> int:
        """Return the number of replayed calls."""
        return self._dropped_replays + sum(recording.replays for recording in self.recordings)

    @property
    def last_use(self) -> int:
        """Return when a recording was last replayed, as a count of all replays."""
        return max((recording.last_use for recording in self.recordings), default=0)

    def describe(self) -> str:
        """Return a sentence about the calls so far, for `explain`."""
        if self.parts is not None:
            return self.parts.describe()
        if self.refused:
            return f"not replayed as a CUDA graph: {self.refused}"
        text = f"{self.replays} of {self.replays + self.plain_calls} calls replayed a CUDA graph"
        copies = [*(f"input {n}" for n in sorted(self.moving))]
        copies += [f"result {n}" for n in sorted(self.copied)]
        if not copies or not self.recordings:
            return f"{text}, which copies nothing"
        last = self.recordings[-1]
        size = last.copied_bytes // max(1, last.replays)
        return f"{text}, which copies {size:,} bytes: {', '.join(copies)}"

    def choose(self, inputs: tuple[torch.Tensor, ...]) -> _Recording | Executable | None:
        """Return the recording to replay for these inputs, new if necessary; None: do not replay;
        an executable: run that from now on. Called natively if no recording fits and is free, with
        a lock on all replayers: recordings share the capture stream and memory.
        """
        with torch.no_grad():
            is_decided = self.refused or self.parts is not None  # by another thread, meanwhile
            chosen = None if is_decided else self._chosen(inputs)
        if self.parts is not None:
            return self.parts.run
        return self.run_unrecorded if self.refused else chosen

    def _chosen(self, inputs: tuple[torch.Tensor, ...]) -> _Recording | None:
        fitting = [one for one in self.recordings if not one.moved(inputs)]
        for recording in fitting:
            if recording.is_free():
                return recording
        if self._last is None:
            self._begin(inputs)
            self._last = [tensor.data_ptr() for tensor in inputs]
            return None
        made = self._beside(fitting[-1], inputs) if fitting else self._elsewhere(inputs)
        if made is None and self.plain_calls > self.replays + MAX_PLAIN and not self.refused:
            self._give_up("its results stay referenced")
        return made

    def _begin(self, inputs: Sequence[torch.Tensor]) -> None:
        """Find out what of the plan can be recorded, at its first call."""
        partitions = partitions_of(self.plan, inputs)
        if len(partitions) > 1 and self._bind is not None:
            self.parts = self._cut(partitions, self._bind)
        else:
            self.refused = next((why for one in partitions for why in one.refused), "")

    def _cut(self, partitions: Sequence[Partition], bind: Bind) -> ReplayedParts:
        """Return the parts of the plan, with replayers of their own."""
        parts = split_plan(self.plan, [one.steps for one in partitions])
        pool = None if self._graph_pool is None else PartPool(self._graph_pool)
        replayers, runs = [], []
        for number, (partition, part) in enumerate(zip(partitions, parts, strict=True), 1):
            plan = replace(part.plan, name=f"{self.plan.name}, part {number} of {len(parts)}")
            replayer = Replayer(bind(plan), plan, pool)
            replayer.refused = "; ".join(partition.refused)
            replayers.append(replayer)
            runs.append(replayer.run_unrecorded if replayer.refused else replaying(replayer))
        made = ReplayedParts(chained(self.plan, parts, runs), replayers)
        if pool is not None:
            pool.belongs_to(made)
        return made

    def run_plainly(self, inputs: tuple[torch.Tensor, ...]) -> Outputs:
        """Launch the kernels one by one."""
        self.plain_calls += 1
        return self.run_unrecorded(*inputs)

    @property
    def run_unrecorded(self) -> Executable:
        """Return what launches the kernels one by one."""
        return self._run_with_states if self._states else self.run

    def _run_with_states(self, *inputs: torch.Tensor) -> Outputs:
        """Run with states of the generator on the device where ATen expects them (refusals.py)."""
        is_recorded = torch.cuda.is_current_stream_capturing()
        given = (
            tensor.cpu() if n in self._states and not is_recorded else tensor
            for n, tensor in enumerate(inputs)
        )
        return self.run(*given)

    # -- choosing --------------------------------------------------------------------------------

    def _beside(self, busy: _Recording, inputs: tuple[torch.Tensor, ...]) -> _Recording | None:
        """Choose for inputs that fit a recording whose results are still referenced."""
        copied = self.copied | frozenset(busy.held())
        has_room = len(self.recordings) < MAX_RECORDINGS
        limit = CHEAP_BYTES if has_room else LAUNCH_BYTES
        if copied != self.copied and self._copies(inputs, self.moving, copied, limit):
            self.copied = copied
            self._drop(self.recordings)
        elif not has_room:
            return None
        return self._make(inputs)

    def _elsewhere(self, inputs: tuple[torch.Tensor, ...]) -> _Recording | None:
        """Choose for inputs of which some are not where any recording has them."""
        self._drop([one for one, fed in self._fed.items() if not all(map(_is_recorded, fed))])
        moved = self._movable(inputs, self._moved_from_nearest(inputs))
        has_room = len(self.recordings) < MAX_RECORDINGS
        if not has_room:
            # Compared with all recordings, not only the nearest: freed memory is reused, so a
            # moving input may by chance be at its last address.
            every = {n for recording in self.recordings for n in recording.moved(inputs)}
            moved = self._movable(inputs, every, is_last=True)
        limit = CHEAP_BYTES if has_room else LAUNCH_BYTES
        if moved and self._copies(inputs, self.moving | moved, self.copied, limit):
            self.moving |= moved
            self._drop(self.recordings)
        elif not has_room:
            self.drop_unused()
            if len(self.recordings) >= MAX_RECORDINGS:
                return None
        return self._make(inputs)

    def _moved_from_nearest(self, inputs: tuple[torch.Tensor, ...]) -> set[int]:
        if self.recordings:
            return min((set(one.moved(inputs)) for one in self.recordings), key=len)
        assert self._last is not None
        return {n for n, tensor in enumerate(inputs) if tensor.data_ptr() != self._last[n]}

    def _movable(
        self, inputs: Sequence[torch.Tensor], moved: set[int], is_last: bool = False
    ) -> frozenset[int]:
        """Return those of the moved inputs that can be copied and are not results of another
        executable's recording, which stay there. The latter are copied too as a last resort.
        """
        return frozenset(
            n
            for n in moved - self.moving
            if (n not in self._mutated or inputs[n].is_contiguous())
            and (is_last or not self._is_fed(inputs[n]))
        )

    def _is_fed(self, tensor: torch.Tensor) -> bool:
        """Return whether the input is a result of another executable's recording."""
        own = any(recording.owns(tensor) for recording in self.recordings)
        return not own and _is_recorded(_address(tensor))

    def _copies(
        self,
        inputs: Sequence[torch.Tensor],
        moving: frozenset[int],
        copied: frozenset[int],
        limit: int,
    ) -> bool:
        """Return whether a replay may copy these inputs and outputs, at most `limit` bytes for each
        launch.
        """
        size = sum(_span(inputs[n]) * (1 + (n in self._mutated)) for n in moving)
        size += sum(dict(self._result_bytes[n] for n in copied).values())
        return size <= limit * launch_count(self.plan)

    def _make(self, inputs: Sequence[torch.Tensor]) -> _Recording | None:
        if (self.made >= MAX_UNUSED and self.replays == self.made) or self.made >= MAX_MADE:
            self._give_up("its inputs move at every call")
            return None
        if not self._copies(inputs, self.moving, self.copied, LAUNCH_BYTES):
            self._give_up("copying its moving inputs would take longer than it saves")
            return None
        self.made += 1
        try:
            recording = self._record(inputs)
        except RuntimeError as error:  # the capture met an operation that CUDA cannot record
            self._give_up(str(error).splitlines()[0])
            return None
        self.recordings.append(recording)
        fixed = (tensor for n, tensor in enumerate(inputs) if n not in self.moving)
        self._fed[recording] = tuple(_address(t) for t in fixed if self._is_fed(t))
        if self._graph_pool is not None:
            self._graph_pool.note(self)
        return recording

    def _record(self, inputs: Sequence[torch.Tensor]) -> _Recording:
        device, given = self.plan.device, list(inputs)
        moving = sorted(self.moving)
        written = tuple(n for n in moving if n in self._mutated)
        for n in moving:
            given[n] = _empty_like(inputs[n], device)
        captured = capture(
            self._run_recorded,
            given,
            self.plan.pool_bytes,
            tuple(_span(given[n]) for n in moving),
            lambda outputs: self._tail_sizes(outputs, [_span(given[n]) for n in written]),
        )
        memory = {_address(tensor) for tensor in given if tensor.numel()}
        if any(out is not None and _address(out) in memory for out in captured.outputs):
            raise RuntimeError("an operation returns memory of an input")
        made: _Recording = runtime_module().Recording(
            captured.graph,
            captured.exec,
            captured.kept,
            str(device),
            tuple(0 if n in self.moving else t.data_ptr() for n, t in enumerate(inputs)),
            tuple((n, given[n]) for n in moving),
            written,
            captured.outputs,
            tuple(sorted(self.copied)),
            captured.head,
            captured.tail,
        )
        return made

    def _run_recorded(self, *inputs: torch.Tensor) -> Outputs:
        """Run, and return only outputs in the recording's memory."""
        outputs = self.run(*inputs)
        return tuple(out if own else None for own, out in zip(self._own, outputs, strict=True))

    def _tail_sizes(self, outputs: Outputs, written: list[int]) -> tuple[int, ...]:
        """Return the sizes of the copies after the kernels: storages of results, then inputs."""
        made = ((n, _storage(out)) for n, out in enumerate(outputs) if out is not None)
        self._result_bytes = {n: (identity, size) for n, (identity, _, size) in made}
        copied = {self._result_bytes[n][0] for n in self.copied}
        storages = dict(self._result_bytes.values())
        return (*(size for storage, size in storages.items() if storage in copied), *written)

    def drop_unused(self) -> None:
        """Drop the recordings whose results have no other references."""
        self._drop([recording for recording in self.recordings if recording.is_free()])

    def _drop(self, dropped: Sequence[_Recording]) -> None:
        for recording in list(dropped):
            self._dropped_replays += recording.replays
            self.recordings.remove(recording)
            del self._fed[recording]

    def _give_up(self, why: str) -> None:
        self.refused = why
        self._drop(self.recordings)
        warn(f"{self.plan.name}: not replayed as a CUDA graph: {why}")


def _is_recorded(address: int) -> bool:
    return bool(runtime_module().is_recorded(address))
