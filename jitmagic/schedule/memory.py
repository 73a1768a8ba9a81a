"""Plans the memory of temporaries: one pool per call, with memory reused after the last reader.

In: the ordered program. Out: byte offsets (64-byte aligned) for every temporary that a nest writes,
the size of the pool, and for every buffer the step after which it is dead. A pointwise nest may
write its result over an operand that dies there, if each point accesses both at the same offset of
memory, whatever their shapes are (a linear layer's result has two dimensions).
Invariant: two temporaries whose lifetimes overlap never overlap in memory; outputs, and memory that
an ATen op allocates itself, are never in the pool.

The pool is allocated for the whole call, in addition to ATen's own results, and both are seldom at
their peak together. On a GPU, whose allocator returns freed memory in less time than a launch
takes, large temporaries are therefore allocated at their first use and freed after the last, and
may also reuse the memory of an ATen result.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Protocol, TypeVar

from ..devices import row_of
from ..lazy_dataclass import dataclass, field
from ..loops.expr import Integer, add, position
from ..loops.ir import Alias, Buffer, Extern, Load, LoopProgram, Nest, Reduction, Scan, walk
from ..symbols.size import Dimension, is_same
from .dependencies import reads_of, storages, store_values, writes_of
from .externs import out_overload

__all__ = [
    "ALIGNMENT", "MemoryPlan", "last_uses", "places_in", "plan_memory", "poolable", "storage_bytes",
]  # fmt: skip

Bytes_contra = TypeVar("Bytes_contra", bound=Dimension, contravariant=True)
# A cache line, and the widest vector register.
ALIGNMENT = 64
# bf16 inference of 10 models on an H200: eager's peak memory over jitmagic's was 0.81 with all
# temporaries in one pool, and is 1.29 with large ones allocated separately.
_LARGE = 1 << 20  # that allocator has separate pools for small and for large blocks


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Holds the memory plan; see schedule.result.Schedule for the fields."""

    pool: Mapping[str, int]
    pool_bytes: int
    last_use: Mapping[str, int]
    reused: Mapping[str, str]


@dataclass(slots=True)
class _FreeList:
    """Tracks the gaps (offset, size) in a pool that grows at its end; first fit, neighbours
    merged.
    """

    end: int = 0
    gaps: list[tuple[int, int]] = field(default_factory=list)

    def take(self, size: int) -> int:
        for number, (offset, room) in enumerate(self.gaps):
            if room >= size:
                rest = [(offset + size, room - size)] if room > size else []
                self.gaps[number : number + 1] = rest
                return offset
        offset = self.end
        if self.gaps and sum(self.gaps[-1]) == self.end:  # grow the gap at the end
            offset = self.gaps.pop()[0]
        self.end = offset + size
        return offset

    def give(self, offset: int, size: int) -> None:
        merged: list[tuple[int, int]] = []
        for start, room in sorted([*self.gaps, (offset, size)]):
            if merged and sum(merged[-1]) == start:
                merged[-1] = (merged[-1][0], merged[-1][1] + room)
            else:
                merged.append((start, room))
        self.gaps = merged


def storage_bytes(buffer: Buffer) -> int:
    """Return the bytes from the first to the last element, rounded up to the pool's alignment."""
    if 0 in buffer.shape:
        return ALIGNMENT
    last = sum((n - 1) * s for n, s in zip(buffer.shape, buffer.stride, strict=True))
    return -(-(last + 1) * buffer.dtype.itemsize // ALIGNMENT) * ALIGNMENT


def last_uses(program: LoopProgram) -> dict[str, int]:
    """Return buffer -> last step that accesses its memory; an owner lives as long as its
    aliases.
    """
    owner = storages(program)
    last: dict[str, int] = {}
    for number, step in enumerate(program.steps):
        for name in (*reads_of(step), *writes_of(step)):
            last[name] = last[owner[name]] = number
    end = len(program.steps)
    for output in program.outputs:
        if output is not None:
            last[output] = last[owner[output]] = end
    return last


def plan_memory(program: LoopProgram) -> MemoryPlan:
    """Allocate and free the memory of temporaries in one walk over the steps."""
    last, owner = last_uses(program), storages(program)
    pooled, pool = poolable(program, owner), _FreeList()
    separate = _separate(program, pooled, owner)
    size = {name: storage_bytes(program.buffers[name]) for name in pooled | separate}
    offsets, reused = places_in(pool, program, pooled, size, last, separate)
    return MemoryPlan(offsets, pool.end, last, reused)


class Places(Protocol[Bytes_contra]):
    """Memory that is handed out and taken back."""

    def take(self, size: Bytes_contra) -> int:
        """Return a place of at least this size."""
        ...

    def give(self, place: int, size: Bytes_contra) -> None:
        """Free a place."""
        ...


def places_in(
    pool: Places[Bytes_contra],
    program: LoopProgram,
    pooled: Container[str],
    size: Mapping[str, Bytes_contra],
    last: Mapping[str, int],
    separate: Container[str] = (),
) -> tuple[dict[str, int], dict[str, str]]:
    """Return the place in the pool of each pooled temporary, and the operands that `separate` ones
    overwrite. `size` has all that may be overwritten.
    """
    owner, places, reused = storages(program), dict[str, int](), dict[str, str]()
    starts, placed = _starts(program), set[str]()
    for number, step in enumerate(program.steps):
        written = dict.fromkeys(writes_of(step))
        fresh = [name for name in written if name in pooled and name not in placed]
        dying = [n for n in dict.fromkeys(owner[r] for r in reads_of(step)) if last[n] == number]
        for name in fresh:
            placed.add(name)
            operand = operand_to_overwrite(program, step, name, dying, owner, starts, size)
            if operand is not None:
                dying.remove(operand)
            if name in separate:
                reused.update({} if operand is None else {name: operand})
            else:
                places[name] = pool.take(size[name]) if operand is None else places[operand]
        dead = [name for name in fresh if last[name] == number]
        for name in dict.fromkeys((*dying, *dead)):
            if name in places:
                pool.give(places[name], size[name])
    return places, reused


def _separate(program: LoopProgram, pooled: set[str], owner: Mapping[str, str]) -> set[str]:
    """Return the temporaries allocated outside the pool: on a GPU large ones, ATen results
    included.
    """
    if not row_of(program.device).caches_memory:
        return set()
    external = {owner[n] for n in (*program.outputs, *program.inputs, *program.constants) if n}
    made = set(pooled)
    for step in program.steps:
        if isinstance(step, Extern):
            made.update(name for name in step.results if name is not None)
    here = {name for name in made - external if program.buffers[name].device == program.device}
    return {name for name in here if storage_bytes(program.buffers[name]) >= _LARGE}


def poolable(program: LoopProgram, owner: Mapping[str, str]) -> set[str]:
    """Return the temporaries on the pool's device, except for outputs, that nests write, or ops
    with `out=` or in place.
    """
    leaving = {owner[name] for name in (*program.outputs, *program.inputs) if name is not None}
    made: set[str] = set()
    taken: set[str] = set()  # results that bring their own memory
    for step in program.steps:
        writes_out = isinstance(step, Extern) and out_overload(step, program.buffers) is not None
        written = writes_of(step) if writes_out or isinstance(step, Nest) else ()
        if isinstance(step, Extern):
            written = (*written, *step.writes)
            taken.update(name for name in step.results if name is not None and not writes_out)
        made.update(name for name in written if program.buffers[name].role == "temp")
    device = program.device
    made = {name for name in made if program.buffers[name].device == device}
    return made - taken - leaving - set(program.constants)


def _starts(program: LoopProgram) -> dict[str, int]:
    """Return at which element of its owner's memory each alias starts."""
    starts: dict[str, int] = {}
    for step in program.steps:
        if isinstance(step, Alias):
            starts[step.name] = starts.get(step.base, 0) + step.offset
    return starts


def operand_to_overwrite(
    program: LoopProgram,
    step: object,
    name: str,
    dying: Sequence[str],
    owner: Mapping[str, str],
    starts: Mapping[str, int],
    size: Mapping[str, Dimension],
) -> str | None:
    """Return a dying operand of a pointwise nest of which each point reads only the element that it
    writes of `name`.
    """
    if not isinstance(step, Nest):
        return None
    store = next(store for store in step.stores if store.buffer == name)
    nodes = walk(store_values(step.stores))
    # A reduction or a scan may read an element after another point has overwritten it.
    is_read_again = any(isinstance(n, (Reduction, Scan)) for n in nodes)
    if store.inner or store.mode != "set" or is_read_again:
        return None
    mine = program.buffers[name]
    here = position(store.index, mine.stride)

    def is_here(load: Load) -> bool:
        other = program.buffers[load.buffer]
        at = add(position(load.index, other.stride), Integer(starts.get(load.buffer, 0)))
        return other.dtype is mine.dtype and at == here

    for candidate in dying:
        if candidate not in size or not is_same(size[candidate], size[name]):
            continue
        if program.buffers[candidate].dtype is not mine.dtype:
            continue
        loads = [n for n in nodes if isinstance(n, Load) and owner[n.buffer] == candidate]
        if loads and all(map(is_here, loads)):
            return candidate
    return None
