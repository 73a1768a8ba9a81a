"""Groups steps on the way to fused nests, and tracks their order.

In: the program and its dependency Graph. A Group starts as one step; `merge` joins two. The order
between groups is stored as bit masks over the original steps (transitive), so that testing for a
cycle takes a few integer operations.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..lazy_dataclass import dataclass, field
from ..loops.expr import Axis
from ..loops.ir import Extern, Load, LoopProgram, Nest, Reduction, Scan, Step, Store, landmarks
from .dependencies import Graph, store_values
from .legality import Shape
from .products import Product, products_of

__all__ = ["Group", "Groups", "bits"]


@dataclass(slots=True)
class Group:
    """Represents one step of the result. `after`/`before`: masks of the steps that must follow /
    precede.
    """

    step: Step
    members: int
    before: int
    after: int
    outer: tuple[Axis, ...] = ()
    stores: tuple[Store, ...] = ()
    origins: tuple[str, ...] = ()
    halves: bool = False  # products of 16-bit matrices are kernels of the target
    _shape: Shape | None = field(default=None)
    _products: tuple[Product, ...] | None = field(default=None)

    @property
    def is_nest(self) -> bool:
        return isinstance(self.step, Nest)

    @property
    def name(self) -> str:
        return (
            self.step.name if isinstance(self.step, Nest) else str(getattr(self.step, "name", ""))
        )

    @property
    def shape(self) -> Shape:
        """Return facts about the current stores, computed at the first use."""
        if self._shape is None:
            self._shape = _shape_of(self.outer, self.stores)
        return self._shape

    @property
    def products(self) -> tuple[Product, ...]:
        """Return the chain of matrix products that the group consists of, or ()."""
        if self._products is None:
            self._products = products_of(self.outer, store_values(self.stores), self.halves)
        return self._products

    @property
    def product(self) -> Product | None:
        """Return the single matrix product that the group consists of, or None."""
        return self.products[0] if len(self.products) == 1 else None

    def rewrite(self, outer: tuple[Axis, ...], stores: Sequence[Store]) -> None:
        self.outer, self.stores = outer, tuple(stores)
        self._shape = self._products = None

    @property
    def adds(self) -> bool:
        return any(store.mode == "add" for store in self.stores)


def _shape_of(outer: tuple[Axis, ...], stores: tuple[Store, ...]) -> Shape:
    nodes = landmarks(stores)
    loads = tuple(node for node in nodes if isinstance(node, Load))
    binders = dict.fromkeys(store.inner for store in stores if store.inner)
    binders.update((node.axes, None) for node in nodes if isinstance(node, Reduction))
    scans = any(isinstance(node, Scan) for node in nodes)
    return Shape(outer, stores, loads, bool(binders), tuple(binders), scans)


class Groups:
    """Holds the groups that are alive, keyed by a step of theirs; `merge` keeps the key of the
    consumer. `halves`: see Group.
    """

    def __init__(self, program: LoopProgram, graph: Graph, halves: bool = False) -> None:
        self.alive: dict[int, Group] = {}
        self.producer: dict[str, int] = {}  # buffer written once -> key of the nest that stores it
        self._gone = 0  # inlined steps, which no longer constrain the order
        self._owner = list(range(len(program.steps)))  # step -> key of its group
        masks, after = _transitive(graph.before)
        self._calls = sum(1 << n for n, s in enumerate(program.steps) if isinstance(s, Extern))
        for number, step in enumerate(program.steps):
            group = Group(step, 1 << number, masks[number], after[number], halves=halves)
            if isinstance(step, Nest):
                group.outer, group.stores = step.outer, step.stores
                group.origins = step.origins or (step.name,)
                for store in step.stores:
                    if graph.storage[store.buffer] not in graph.mutated:
                        self.producer[store.buffer] = number
            self.alive[number] = group

    def far_apart(self, first: Group, second: Group) -> bool:
        """Return whether joining them would move a library call past another."""
        # That is, `second` alone depends on one call between them, and another call there depends
        # on `first`. If such groups were joined, all regions that a backward recomputes would run
        # at its start and their results would stay alive: a checkpointed 12-layer Llama under AMP
        # took 3.1 GiB on an H200, eager 1.3.
        begin, end = first.members.bit_length(), (second.members & -second.members) - 1
        between = self._calls & end & ~((1 << begin) - 1)
        return bool(between & second.before & ~first.before) and bool(between & first.after)

    def drop(self, key: int) -> None:
        """Forget a group whose values were inlined into all of its readers."""
        self._gone |= 1 << key
        for store in self.alive.pop(key).stores:
            self.producer.pop(store.buffer, None)

    def made_by(self, key: int) -> dict[str, Store]:
        """Return buffer -> store, for the buffers that only this nest writes."""
        stores = self.alive[key].stores
        return {s.buffer: s for s in stores if self.producer.get(s.buffer) == key}

    def cyclic(self, a: Group, b: Group) -> bool:
        """Return whether some other step has to run between the two."""
        between = (a.after & b.before) | (b.after & a.before)
        return bool(between & ~(a.members | b.members | self._gone))

    def merge(self, producer: int, consumer: int) -> None:
        """Join the producer into the consumer's group, with the constraints of both; `rewrite` then
        sets its stores.
        """
        first, second = self.alive.pop(producer), self.alive[consumer]
        members = first.members | second.members
        # A group that follows both already has all steps before either in its mask, and one that
        # precedes both has all steps after either. Only groups in the symmetric differences need an
        # update, which are few in a long program.
        ahead = (first.before ^ second.before) & ~members
        behind = (first.after ^ second.after) & ~members
        second.members = members
        second.before = (first.before | second.before) & ~members
        second.after = (first.after | second.after) & ~members
        second.origins = tuple(dict.fromkeys((*first.origins, *second.origins)))
        for store in first.stores:
            if self.producer.get(store.buffer) == producer:
                self.producer[store.buffer] = consumer
        for number in bits(first.members):
            self._owner[number] = consumer
        up, down = members | second.after, members | second.before
        for key in self.owners(behind):
            self.alive[key].before |= down
        for key in self.owners(ahead):
            self.alive[key].after |= up

    def owners(self, mask: int) -> set[int]:
        """Return the keys of the alive groups with steps in the mask."""
        return {key for number in bits(mask) if (key := self._owner[number]) in self.alive}


def bits(mask: int) -> Iterator[int]:
    """Yield the numbers of the bits that are set, the lowest first."""
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest


def _transitive(before: Sequence[frozenset[int]]) -> tuple[list[int], list[int]]:
    """Return, for every step, the masks of all steps before it and of all steps after it."""
    masks: list[int] = []
    for direct in before:
        mask = 0
        for number in direct:
            mask |= masks[number] | 1 << number
        masks.append(mask)
    after = [0] * len(masks)
    for number in range(len(masks) - 1, -1, -1):
        for earlier in before[number]:
            after[earlier] |= after[number] | 1 << number
    return masks, after
