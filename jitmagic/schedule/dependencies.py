"""Analyses the dependencies between the steps of a LoopProgram.

In: the program. Out: a Graph: per step the storages it reads and writes (aliases resolved to the
buffer whose memory they share), its direct predecessors, and the readers of each buffer. An edge
means "must run before": write-read, read-write and write-write on one storage, in the program's
order; and steps that may raise run before the inputs are written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..lazy_dataclass import dataclass
from ..loops.ir import (
    Alias,
    Extern,
    Load,
    LoopProgram,
    Nest,
    Step,
    Store,
    landmarks,
    store_values,
)
from ..loops.ops.extern import has_side_effects
from .deferred_writes import WriteConstraints, write_constraints

__all__ = [
    "Graph",
    "analyse",
    "loads_of",
    "reads_of",
    "storages",
    "store_values",
    "writes_of",
]

_GENERATOR = "<random generator>"  # a pseudo storage that every random draw writes


@dataclass(frozen=True, slots=True)
class Graph:
    """Holds the dependencies. `before[i]`: the steps that step i waits for. `readers`: buffer name
    -> steps that read it.
    """

    before: tuple[frozenset[int], ...]
    reads: tuple[frozenset[str], ...]  # storages
    writes: tuple[frozenset[str], ...]  # storages
    readers: Mapping[str, tuple[int, ...]]
    storage: Mapping[str, str]
    mutated: frozenset[str]  # storages written more than once, and written inputs
    changing: frozenset[str]  # those written after they were read
    escaping: frozenset[str]  # storages of outputs and inputs
    write_constraints: WriteConstraints


def loads_of(stores: Sequence[Store]) -> list[Load]:
    """Return every distinct load below the stores."""
    return [node for node in landmarks(stores) if isinstance(node, Load)]


def reads_of(step: Step) -> tuple[str, ...]:
    """Return the names of the buffers a step reads, each once."""
    match step:
        case Nest(stores=stores):
            adds = (store.buffer for store in stores if store.mode == "add")
            return tuple(dict.fromkeys((*(load.buffer for load in loads_of(stores)), *adds)))
        case Extern():
            return tuple(dict.fromkeys(step.references))
        case Alias(base=base):
            return (base,)
    return ()


def writes_of(step: Step) -> tuple[str, ...]:
    """Return the names of the buffers a step writes or defines."""
    match step:
        case Nest(stores=stores):
            return tuple(dict.fromkeys(store.buffer for store in stores))
        case Extern(results=results, writes=writes):
            return (*(name for name in results if name is not None), *writes)
    return ()


def storages(program: LoopProgram) -> dict[str, str]:
    """Map each buffer name to the buffer that owns its memory."""
    owner = {name: name for name in program.buffers}
    for step in program.steps:
        if isinstance(step, Alias):
            owner[step.name] = owner[step.base]
    return owner


def _keeps_order(step: Step) -> bool:
    """Return whether the step draws random numbers or has other side effects, which stay in
    order.
    """
    return isinstance(step, Extern) and has_side_effects(step.op)


def analyse(program: LoopProgram) -> Graph:
    """Compute the dependencies in one scan over the steps."""
    storage = storages(program)
    writers: dict[str, list[int]] = {}
    watching: dict[str, list[int]] = {}
    alias_step: dict[str, int] = {}
    readers: dict[str, list[int]] = {}
    before: list[frozenset[int]] = []
    reads: list[frozenset[str]] = []
    writes: list[frozenset[str]] = []
    for number, step in enumerate(program.steps):
        read, written = reads_of(step), writes_of(step)
        roots = frozenset(storage[name] for name in read)
        targets = frozenset(storage[name] for name in written)
        # Draws write a common pseudo storage: in another order they would get other numbers of the
        # stream than in eager.
        if _keeps_order(step):
            targets |= {_GENERATOR}
        waits: set[int] = {alias_step[name] for name in (*read, *written) if name in alias_step}
        for root in roots:
            waits.update(writers.get(root, ()))
            watching.setdefault(root, []).append(number)
        for root in targets:
            waits.update(writers.get(root, ()))
            waits.update(watching.get(root, ()))
            writers.setdefault(root, []).append(number)
        for name in read:
            readers.setdefault(name, []).append(number)
        if isinstance(step, Alias):
            alias_step[step.name] = number
        before.append(frozenset(waits - {number}))
        reads.append(roots)
        writes.append(targets)
    # An input counts as written before the program, so a single write changes it.
    fixed = {storage[name] for name in (*program.inputs, *program.constants)}
    mutated = {r for r, who in writers.items() if len(who) > 1 or r in fixed}
    changing = {
        r for r in mutated if r in fixed or watching.get(r, [len(before)])[0] < writers[r][-1]
    }
    leaving = {storage[name] for name in program.outputs if name is not None}
    last = write_constraints(program, storage, tuple(writes))
    for number, targets in enumerate(writes if last.inputs else ()):
        if targets & last.inputs:
            before[number] |= last.raising
    return Graph(
        tuple(before),
        tuple(reads),
        tuple(writes),
        {name: tuple(who) for name, who in readers.items()},
        storage,
        frozenset(mutated),
        frozenset(changing),
        frozenset(leaving | fixed),
        last,
    )
