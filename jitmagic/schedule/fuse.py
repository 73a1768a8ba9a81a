"""Fuses loop nests into kernels.

In: groups (one per step of the LoopProgram). Out: fewer groups, with a Decision, a sentence, for
every pair that was considered.

  1. inline     a pointwise producer that need not be stored is inlined into its readers' values;
  2. vertical   a producer joins a reader's nest when axes line up, and is stored only if needed;
  3. horizontal nests over the same points that read the same memory become one nest.

In this order: inlining leaves fewer and longer nests, vertical fusion saves a round trip to memory,
horizontal fusion only a second read. Legality (legality.py, Groups.cyclic) is tested before profit
(profit.py, score.py): only a legal nest is rebuilt.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

from ..budget import check
from ..devices import Target
from ..lazy_dataclass import dataclass, field, replace
from ..loops.expr import Axis, AxisVar
from ..loops.ir import Buffer, Load, LoopProgram, Store, Value
from ..symbols.size import is_same
from .dependencies import Graph, loads_of
from .groups import Group, Groups, bits
from .index_checks import lost_check
from .legality import Alignment, align, inline_load, overwrites_reads, solve
from .open_nests import OpenNests
from .products import contiguous_stores, product_of
from .profit import FEW_SCANS, not_worth, waits_for_scan
from .result import Decision
from .score import (
    CHEAP,
    PARALLEL_WORK,
    buffer_bytes,
    extent_product,
    value_cost,
    walk_cost,
)
from .substitution import Rebuilder

__all__ = ["MAX_BUFFERS", "Fusion", "fuse"]

MAX_BUFFERS = 48  # arguments of one kernel: already more than there are registers for addresses
CHECKS_FIRST = "an input is written only after all index checks"
PLAIN_OPERANDS = "a matrix product keeps its own loops and reads its operands from memory"
MAX_NODES = 800  # values in one nest, a bound for the compile time of one kernel


@dataclass(slots=True)
class Fusion:
    """Holds the state of one run: the program, the groups and the decisions."""

    program: LoopProgram
    graph: Graph
    target: Target
    groups: Groups
    decisions: list[Decision] = field(default_factory=list)

    @property
    def buffers(self) -> Mapping[str, Buffer]:
        return self.program.buffers

    def say(self, producer: Group, consumer: Group, fused: bool, reason: str) -> None:
        self.decisions.append(Decision(producer.name, consumer.name, fused, reason))


def fuse(fusion: Fusion) -> None:
    """Run the three phases in order; `fusion.groups` is changed in place."""
    _inline(fusion)
    _vertical(fusion)
    _horizontal(fusion)


# --- 1. inline ------------------------------------------------------------------------------------


def _inline(fusion: Fusion) -> None:
    groups = fusion.groups
    ready: dict[str, tuple[tuple[Axis, ...], Store]] = {}
    for key in list(groups.alive):
        check()
        group = groups.alive[key]
        if not group.is_nest:
            continue
        _write_in(group, ready)
        readers = _inline_readers(fusion, group)
        if readers:
            # In program order each reader is rewritten once, after all that it reads.
            ready[group.stores[0].buffer] = (group.outer, group.stores[0])
            for reader in readers:
                target = groups.alive[reader]
                target.origins = tuple(dict.fromkeys((*group.origins, *target.origins)))
                fusion.say(group, target, True, "pointwise: inlined into its reader")
            groups.drop(key)


def _write_in(group: Group, ready: Mapping[str, tuple[tuple[Axis, ...], Store]]) -> None:
    """Replace loads of inlined buffers by the values they held."""
    read = [ready[load.buffer] for load in group.shape.loads if load.buffer in ready]
    if not read:
        return
    # The longest chain keeps its axes, the others are renamed: unrolled loops stay linear.
    outer, longest = max(read, key=lambda entry: len(entry[1].value.below))
    _take_axes(group, outer, {longest.buffer: longest})

    def on_load(load: Load) -> Value:
        if load.buffer not in ready:
            return load
        outer, store = ready[load.buffer]
        bindings = solve(store, load, outer)
        return load if bindings is None else inline_load(load, store, bindings)

    rebuild = Rebuilder(on_load=on_load)
    group.rewrite(group.outer, [rebuild.store(store) for store in group.stores])


def _take_axes(reader: Group, outer: tuple[Axis, ...], stores: Mapping[str, Store]) -> None:
    """Rename the reader's axes to the producer's, if the producer is the longer one and each point
    of the reader reads one point of it.
    """
    # The producer's value is then reused unchanged; else a chain of n operations is renamed n
    # times. Extents must stay the same: a cat runs past the end of each of its parts, under a mask.
    links = [load for load in reader.shape.loads if load.buffer in stores]
    link = max(links, key=lambda load: len(stores[load.buffer].value.below))
    store = stores[link.buffer]
    if reader.shape.rigid or store.inner:
        return
    if len(store.value.below) <= sum(len(own.value.below) for own in reader.stores):
        return
    bindings = solve(store, link, outer) or {}
    names = {
        e.axis: AxisVar(axis)
        for axis, e in bindings.items()
        if isinstance(e, AxisVar) and is_same(e.axis.extent, axis.extent)
    }
    if len(names) < len(bindings) or set(names) != set(reader.outer):
        return
    rename = Rebuilder(names)
    axes = tuple(names[axis].axis for axis in reader.outer)
    reader.rewrite(axes, [rename.store(own) for own in reader.stores])


def _inline_readers(fusion: Fusion, group: Group) -> tuple[int, ...]:
    """Return the steps into which the group is inlined, or () if it stays a nest."""
    graph, groups = fusion.graph, fusion.groups
    if len(group.stores) != 1 or group.shape.rigid or group.adds:
        return ()
    store = group.stores[0]
    readers = graph.readers.get(store.buffer, ())
    memory = graph.storage[store.buffer]
    # Two tests: the union of both sets took half of the time to schedule 1,600 products.
    if memory in graph.escaping or memory in graph.mutated or not readers:
        return ()
    # Inlined, its loads would run later, with the reader: after a write to the memory that they
    # read.
    if any(graph.storage[load.buffer] in graph.changing for load in group.shape.loads):
        return ()
    cost = value_cost(store.value)
    for reader in readers:
        target = groups.alive[reader]
        if not target.is_nest:
            return ()
        links = [load for load in target.shape.loads if load.buffer == store.buffer]
        # All readers or none: a buffer that one still reads must be written, and nothing is saved.
        if any(solve(store, load, group.outer) is None for load in links):
            fusion.say(group, target, False, "it is read through an index that loops cannot follow")
            return ()
        lost = lost_check(store, group.outer, links, target.stores)
        if lost is None and graph.write_constraints.mixes_writes_and_checks(
            [store, *target.stores], graph.storage
        ):
            lost = CHECKS_FIRST
        if lost is not None:
            fusion.say(group, target, False, lost)
            return ()
        if target.product and any(load in target.product.loads for load in links):
            fusion.say(group, target, False, PLAIN_OPERANDS)
            return ()
        if waits_for_scan(target.shape, fusion.target, cost):
            fusion.say(group, target, False, FEW_SCANS)
            return ()
        if not _cheap_enough(group, target, cost, links):
            fusion.say(group, target, False, "its value would be recomputed many times")
            return ()
        if len(target.shape.loads) + len(group.shape.loads) > MAX_BUFFERS or cost > MAX_NODES:
            return ()
    if len(readers) > 1 and not _cheap_to_repeat(fusion, group, cost):
        return ()
    return readers


def _cheap_enough(group: Group, target: Group, cost: int, links: Sequence[Load]) -> bool:
    """Return whether inlining at most doubles the evaluations of the value, or repeats little
    work.
    """
    points = extent_product(group.outer)
    times = extent_product(target.outer) * max(
        (extent_product(binder) for binder in target.shape.binders), default=1
    )
    if times <= points * 2 or cost <= CHEAP:
        return True
    # A value that does not vary in the innermost loop is hoisted out of it.
    innermost = target.shape.binders[0] if target.shape.binders else target.outer[-1:]
    varies = any(AxisVar(axis) in load.index for load in links for axis in innermost)
    return not varies or (times - points) * cost <= PARALLEL_WORK


def _cheap_to_repeat(fusion: Fusion, group: Group, cost: int) -> bool:
    """Return whether recomputing the value in each reader is cheap."""
    # Cheap arithmetic on one tensor costs less than a round trip to memory.
    size = extent_product(group.outer)
    full = {
        load.buffer
        for load in group.shape.loads
        if element_count(fusion.buffers[load.buffer]) >= max(size, 2) // 2
    }
    return cost <= CHEAP and len(full) <= 1


def element_count(buffer: Buffer) -> int:
    return buffer_bytes(buffer) // buffer.dtype.itemsize


# --- 2. vertical ----------------------------------------------------------------------------------


def _vertical(fusion: Fusion) -> None:
    """Fuse readers, in program order, with their producers, one after the other."""
    # Most bytes first: if only some fit, those save the most memory traffic.
    for key in list(fusion.groups.alive):
        refused: set[int] = set()
        while key in fusion.groups.alive and fusion.groups.alive[key].is_nest:
            check()
            candidate = _next_producer(fusion, key, refused)
            if candidate is None:
                break
            if not _join(fusion, candidate, key):
                refused.add(candidate)


def _next_producer(fusion: Fusion, key: int, refused: set[int]) -> int | None:
    sizes: dict[int, int] = {}
    for load in fusion.groups.alive[key].shape.loads:
        producer = fusion.groups.producer.get(load.buffer)
        if producer is not None and producer != key and producer not in refused:
            size = buffer_bytes(fusion.buffers[load.buffer])
            sizes[producer] = sizes.get(producer, 0) + size
    return max(sizes, key=lambda producer: sizes[producer], default=None)


def _join(fusion: Fusion, first: int, second: int) -> bool:
    groups = fusion.groups
    producer, consumer = groups.alive[first], groups.alive[second]
    stores = groups.made_by(first)
    _take_axes(consumer, producer.outer, stores)
    links = [(stores[load.buffer], load) for load in consumer.shape.loads if load.buffer in stores]
    refusal: str | None = None
    # Cheap tests first: few pairs of a long unrolled loop pass them, and a rebuild copies both.
    if producer.adds or consumer.adds:
        refusal = "one of them adds into memory in an order of its own"
    elif groups.cyclic(producer, consumer):
        refusal = "another step has to run between them"
    refusal = refusal or _lost_check(producer, consumer, stores)
    refusal = refusal or _too_many_buffers(producer, consumer, frozenset(stores))
    plan = refusal or align(producer.shape, consumer.shape, links)
    if isinstance(plan, str):
        fusion.say(producer, consumer, False, plan)
        return False
    joined = _joined_stores(producer, consumer, plan, frozenset(stores))
    # A remaining load would read what the same nest writes at another point: a race.
    if any(load.buffer in stores for load in loads_of(joined)):
        fusion.say(producer, consumer, False, "its reads do not match the writes")
        return False
    refusal = _spoils_product(fusion, producer, consumer, plan.outer, joined)
    refusal = refusal or _hazard(fusion, joined)
    if refusal is None and walk_cost(joined) > MAX_NODES:
        refusal = "the kernel would become too long"
    refusal = refusal or not_worth(producer, consumer, plan, fusion.buffers, fusion.target)
    if refusal:
        fusion.say(producer, consumer, False, refusal)
        return False
    fusion.say(producer, consumer, True, "its values are used where they are computed")
    groups.merge(first, second)
    groups.alive[second].rewrite(plan.outer, joined)
    return True


def _lost_check(producer: Group, consumer: Group, stores: Mapping[str, Store]) -> str | None:
    """Return the run-time index whose check the joined nest would lose, or None."""
    for name, store in stores.items():
        links = [load for load in consumer.shape.loads if load.buffer == name]
        lost = lost_check(store, producer.outer, links, consumer.stores) if links else None
        if lost is not None:
            return lost
    return None


def _too_many_buffers(producer: Group, consumer: Group, written: frozenset[str]) -> str | None:
    """Return a refusal if the joined nest would have too many buffers."""
    # Known before a rebuild: joining keeps all loads except those of `written` buffers. Sixteen
    # steps of an unrolled recurrence were rebuilt into ever longer nests.
    read = {load.buffer for load in consumer.shape.loads} - written
    read.update(load.buffer for load in producer.shape.loads)
    if len(read) + len(producer.stores) + len(consumer.stores) > MAX_BUFFERS:
        return "the kernel would need too many buffers"
    return None


def _joined_stores(
    producer: Group, consumer: Group, plan: Alignment, shared: frozenset[str]
) -> list[Store]:
    into_rows = Rebuilder(plan.producer)
    produced = [
        _with_inner(into_rows.store(store), plan.producer_inner) for store in producer.stores
    ]
    by_buffer = {store.buffer: store for store in produced if store.buffer in shared}
    rename = Rebuilder(plan.consumer)

    def on_load(load: Load) -> Value:
        store = by_buffer.get(load.buffer)
        bindings = None if store is None else solve(store, load, store.inner, split=True)
        return load if store is None or bindings is None else inline_load(load, store, bindings)

    use = Rebuilder(on_load=on_load)
    used = [
        _with_inner(use.store(rename.store(store)), plan.consumer_inner)
        for store in consumer.stores
    ]
    return [*produced, *used]


def _with_inner(store: Store, axes: tuple[Axis, ...]) -> Store:
    return replace(store, inner=(*axes, *store.inner)) if axes else store


def _spoils_product(
    fusion: Fusion, a: Group, b: Group, outer: tuple[Axis, ...], joined: Sequence[Store]
) -> str | None:
    """Return why joining would spoil a small matrix product, or None."""
    # It takes pointwise readers after it, its epilogue, and nothing else: its tiles are a loop nest
    # of their own (include/jitmagic/gemm.h), which reads whole vectors.
    if a.product is None and b.product is None:
        return None
    product = product_of(outer, [store.value for store in joined], b.halves)
    if product is None or not contiguous_stores(product, joined, fusion.buffers):
        return PLAIN_OPERANDS
    return None


def _hazard(fusion: Fusion, stores: Sequence[Store]) -> str | None:
    graph = fusion.graph
    fixed = graph.mutated
    if not any(graph.storage[store.buffer] in fixed for store in stores):
        return None
    if overwrites_reads(stores, loads_of(stores), graph.storage, fixed):
        return "one would overwrite memory that the other still reads"
    return (
        CHECKS_FIRST
        if graph.write_constraints.mixes_writes_and_checks(stores, graph.storage)
        else None
    )


# --- 3. horizontal --------------------------------------------------------------------------------


def _horizontal(fusion: Fusion) -> None:
    """Join nests, neighbours in program order, that read a common buffer at the same points."""
    groups, nests = fusion.groups, OpenNests(MAX_BUFFERS)
    for key in list(groups.alive):
        group = groups.alive[key]
        if group.is_nest and not group.adds and group.product is None and nests.has_room(group):
            _join_earlier(fusion, key, nests)
            if nests.has_room(groups.alive[key]):
                nests.add(key, groups.alive[key])


def _join_earlier(fusion: Fusion, key: int, nests: OpenNests) -> None:
    """Join the nest with earlier ones that read the same buffers, most shared bytes first."""
    check()
    alive = fusion.groups.alive
    mine = frozenset(load.buffer for load in alive[key].shape.loads)
    done, joined = (-math.inf, 0), True
    while joined:  # a joined nest brings loads that further nests may share
        joined = False
        for rank in _ranked(fusion, nests.candidates(alive[key]), mine, done):
            done, earlier = rank, rank[1]
            other = alive[earlier]
            if _join_horizontally(fusion, earlier, key):
                nests.remove(earlier, other)
                joined = True
                break


def _ranked(
    fusion: Fusion, keys: int, mine: frozenset[str], done: tuple[float, int]
) -> list[tuple[float, int]]:
    """Return (minus the bytes of `mine` that a nest reads, key) of nests that sort after `done`."""
    ranks = []
    for key in bits(keys):
        common = mine.intersection(load.buffer for load in fusion.groups.alive[key].shape.loads)
        if common:
            ranks.append((-sum(buffer_bytes(fusion.buffers[name]) for name in common), key))
    return sorted(rank for rank in ranks if rank > done)


def _join_horizontally(fusion: Fusion, first: int, second: int) -> bool:
    groups = fusion.groups
    a, b = groups.alive[first], groups.alive[second]
    if groups.cyclic(a, b) or (a.after & b.members) or (b.after & a.members):
        return False
    if groups.far_apart(a, b):  # a later region would run early and keep its memory
        return False
    read = {load.buffer for group in (a, b) for load in group.shape.loads}
    if len(read) + len(a.stores) + len(b.stores) > MAX_BUFFERS:
        return False
    plan = _over_common_axes(a, b)
    if plan is None:
        return False
    outer, stores = plan
    if _hazard(fusion, stores):
        return False
    fusion.say(a, b, True, "they read the same memory at the same points")
    groups.merge(first, second)
    groups.alive[second].rewrite(outer, stores)
    return True


def _over_common_axes(a: Group, b: Group) -> tuple[tuple[Axis, ...], list[Store]] | None:
    """Return common outer axes and the stores of both, if a shared load then has the same index."""
    # Without one, joining saves a launch but no memory traffic, and holds more values in registers.
    pairs = list(itertools.zip_longest(a.outer, b.outer))
    alike = all(x and y and is_same(x.extent, y.extent) for x, y in pairs)
    if not alike or a.shape.rigid != b.shape.rigid:
        return None
    rename = Rebuilder({x: AxisVar(y) for x, y in zip(b.outer, a.outer, strict=True)})
    moved = [rename.store(store) for store in b.stores]
    stores = [*a.stores, *moved]
    mine = {_where(load, a.outer) for load in a.shape.loads}
    theirs = {_where(load, a.outer) for load in loads_of(moved)}
    return (a.outer, stores) if mine & theirs else None


def _where(load: Load, outer: Sequence[Axis]) -> tuple[object, ...]:
    """Return the index of a load, with inner axes represented by their extents."""
    return (
        load.buffer,
        *(
            part.axis.extent if isinstance(part, AxisVar) and part.axis not in outer else part
            for part in load.index
        ),
    )
