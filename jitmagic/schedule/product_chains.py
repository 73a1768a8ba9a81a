"""Joins consecutive small matrix products into one nest: y = e2(e1(x W1) W2).

In: a Fusion whose products have fused with their pointwise readers. Out: nests in which the left
operand of a product is itself a product that nothing else reads. A row of the result needs only one
row of the intermediate, so a thread can take rows through all the layers: the intermediate stays in
its cache, no thread waits between layers, and one kernel is called. Measured (784-256-128-10, batch
32, two threads): 0.92 of the time of three products.
"""

from __future__ import annotations

from ..loops.expr import Axis, AxisVar
from ..loops.ir import Load, Store, Value
from ..symbols.size import hint_of
from .dependencies import store_values
from .fuse import MAX_BUFFERS, Fusion
from .groups import Group
from .legality import inline_load, solve
from .products import Product, contiguous_stores, has_contiguous_axis, products_of
from .score import extent_product
from .substitution import Rebuilder

__all__ = ["join_chains"]

ONE_THREAD = 150_000  # multiply-adds that one thread computes alone: gemm.h's thread_grain


def join_chains(fusion: Fusion) -> None:
    """Inline each product into the product that is its only reader, first layers first."""
    groups = fusion.groups
    for key in list(groups.alive):
        group = groups.alive[key]
        products = group.products
        if not products or not products[0].is_plain:
            continue
        load = products[0].a
        assert isinstance(load, Load)
        first = groups.producer.get(load.buffer)
        before = None if first is None else groups.alive[first]
        if first is None or before is None or not before.products:
            continue
        if not before.products[0].is_plain:
            continue
        refusal, joined = _refusal(fusion, before, group, load), list[Store]()
        if refusal is None:  # last, because rebuilding both nests takes most of the time
            joined = _joined(before, group, load)
            refusal = _joined_refusal(fusion, before, group, joined)
        if refusal is None:
            group.origins = tuple(dict.fromkeys((*before.origins, *group.origins)))
            group.rewrite(group.outer, joined)
            groups.drop(first)
        why = "each thread takes rows of its own through both products"
        fusion.say(before, group, refusal is None, refusal or why)


def _joined(before: Group, group: Group, load: Load) -> list[Store]:
    """Return the stores of `group` with the value that `before` stored in place of the load."""

    def on_load(node: Load) -> Value:
        bindings = solve(before.stores[0], node, before.outer) if node is load else None
        return node if bindings is None else inline_load(node, before.stores[0], bindings)

    rebuild = Rebuilder(on_load=on_load)
    return [rebuild.store(store) for store in group.stores]


def _refusal(fusion: Fusion, before: Group, group: Group, load: Load) -> str | None:
    graph = fusion.graph
    memory, readers = graph.storage[load.buffer], graph.readers.get(load.buffer, ())
    is_fixed = memory in graph.escaping or memory in graph.mutated
    # The chain keeps a row of the intermediate in a thread's scratch and never stores it.
    if is_fixed or len(before.stores) > 1:
        return "its result is needed in memory"
    links = [node for node in group.shape.loads if node.buffer == load.buffer]
    if len(links) > 1 or any(not group.members >> reader & 1 for reader in readers):
        return "its result has other readers"
    if any(graph.storage[node.buffer] in graph.mutated for node in before.shape.loads):
        return "its operands are overwritten later"
    last = group.products[0]
    if load.index != (AxisVar(last.m), AxisVar(last.k)):
        return "its rows are not the next product's rows"
    left = before.products[0].a
    assert isinstance(left, Load)
    if not has_contiguous_axis(fusion.buffers[left.buffer]):
        return "its left operand has gaps between its elements"
    return None


def _joined_refusal(fusion: Fusion, before: Group, group: Group, joined: list[Store]) -> str | None:
    products = products_of(group.outer, store_values(joined))
    if not products:
        return "the operations between the products depend on the row"
    if not contiguous_stores(products[-1], joined, fusion.buffers):
        return "its result is not stored in float32, row by row"
    if len({node.buffer for node in (*before.shape.loads, *group.shape.loads)}) > MAX_BUFFERS:
        return f"a kernel takes at most {MAX_BUFFERS} buffers"
    return _uneven(fusion, group.outer[0], [*before.products, *group.products])


def _uneven(fusion: Fusion, rows: Axis, products: list[Product]) -> str | None:
    """Return why the rows do not divide evenly over the threads, or None."""
    # A thread takes as many rows at a time as a register has lanes. With few rows some threads stay
    # idle, while the columns of a single product can be shared among all of them.
    lanes, threads = fusion.target.lanes, fusion.target.threads
    count = hint_of(rows.extent)
    # For fewer rows gemm.h uses dot products, up to 3 times as fast as its tiles.
    if count * 2 < lanes:
        return f"{rows.extent} rows do not fill a register of {lanes}"
    if sum(extent_product((p.m, p.n, p.k)) for p in products) <= ONE_THREAD:
        return None
    panels = -(-count // lanes)
    rounds = -(-panels // threads)
    # More than a fifth of the threads' time would be idle.
    if rounds * threads * 4 > panels * 5:
        return f"{rows.extent} rows do not divide evenly over {threads} threads"
    return None
