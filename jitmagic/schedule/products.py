"""Turns small matrix products into generated kernels, so that their readers fuse into them.

In: a program whose products are ATen calls. Out: the same program with the small ones written as
nests:

    c[m, n] = sum{k} a[m, k] * b[k, n]  (+ bias).

`product_of` recognises such a nest, before and after pointwise readers have joined it: its operands
must stay plain loads, and its loops (m, n) with n contiguous in memory, so that renderers recognise
it too. `products_of` also recognises a chain of them (product_chains.py), where `a` is the result
of the previous product, and a product with a weight that is dequantised where it is multiplied
(dequantised_products.py): there `b` is a computed value.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

import torch

from ..lazy_dataclass import dataclass, replace
from ..loops.expr import Axis, AxisVar, Expr, Integer
from ..loops.free_axes import value_axes
from ..loops.ir import (
    Buffer,
    BufferRef,
    Cast,
    Compute,
    Extern,
    IndexValue,
    Load,
    LoopProgram,
    Nest,
    Reduction,
    Store,
    Value,
    walk,
)
from ..symbols.size import Dimension
from .result import Decision

__all__ = [
    "SMALL",
    "Product",
    "broadcast",
    "contiguous_stores",
    "has_contiguous_axis",
    "is_narrow",
    "open_products",
    "product_of",
    "products_of",
    "reads_narrow",
    "with_small_products",
]

# A BLAS call through the dispatcher costs 1.5 µs and more before it multiplies anything, and its
# result makes a round trip through memory. On AVX-512 (Zen 4) gemm.h takes 0.2 to 0.9 of MKL's time
# up to SMALL; above it the library's blocking wins.
SMALL = 16 << 20  # multiply-adds
TUNABLE = 256 << 20  # up to here tuning measures both
aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class Product:
    """Describes a product: `total` is the reduction; `a` varies along m and k, `b` along k
    and n.

    A dequantised weight is a `b` that is no load. Its reduction may have two axes, a `group` and
    the position `k` inside it, and `m` is an axis of extent 1 that the nest lacks if there is only
    one row.
    """

    m: Axis
    n: Axis
    k: Axis
    a: Value
    b: Value
    total: Reduction
    group: Axis | None = None

    @property
    def is_dequantised(self) -> bool:
        return not isinstance(self.b, Load)

    @property
    def loads(self) -> tuple[Load, ...]:
        """Return the loads of both operands."""
        return tuple(node for node in walk((self.a, self.b)) if isinstance(node, Load))


def product_of(outer: Sequence[Axis], values: Iterable[Value]) -> Product | None:
    """Return the matrix product that the values of a nest over `outer` = (m, n) consist of, or
    None.
    """
    found = products_of(outer, values)
    return found[0] if len(found) == 1 else None


def products_of(outer: Sequence[Axis], values: Iterable[Value]) -> tuple[Product, ...]:
    """Return the products that the values consist of, each an operand of the next, or ().

    One with a dequantised weight is alone. The `a` of the first is a plain load. The arithmetic
    between two of them depends on the row m through the sum alone, so that a column of sums needs
    no other operand that varies by row.
    """
    nodes = walk(tuple(values))
    totals = [node for node in nodes if isinstance(node, Reduction)]
    if not totals or any(total.op != "sum" for total in totals):
        return ()
    free = value_axes(nodes)
    if len(totals) == 1 and (single := _dequantised(outer, totals[0], free)) is not None:
        return (single,)
    if len(outer) != 2:
        return ()
    m, n = outer
    found: list[Product] = []
    for total in reversed(totals):
        product = _product(m, n, total, free)
        if product is None:
            return ()
        found.insert(0, product)
        n = product.k
    first = found[0].a
    if not isinstance(first, Load) or first.mask is not None:
        return ()
    pairs = itertools.pairwise(found)
    return tuple(found) if all(_follows(b, a.total, free) for a, b in pairs) else ()


def _product(
    m: Axis, n: Axis, total: Reduction, free: Mapping[Value, frozenset[Axis]]
) -> Product | None:
    match total:
        case Reduction(
            op="sum", axes=(k,), value=Compute(op="mul", args=(a, b)), dtype=torch.float32
        ):
            pass
        case _:
            return None
    if free[a] == {n, k}:
        a, b = b, a
    if not isinstance(b, Load) or b.mask is not None:
        return None
    if free[a] != {m, k} or free[b] != {k, n}:
        return None
    return Product(m, n, k, a, b, total)


def _dequantised(
    outer: Sequence[Axis], total: Reduction, free: Mapping[Value, frozenset[Axis]]
) -> Product | None:
    """Return the product of rows and a weight that is computed from 8-bit numbers, or None."""
    match total:
        case Reduction(
            axes=(*groups, k), value=Compute(op="mul", args=(left, right)), dtype=torch.float32
        ) if len(groups) <= 1 and 1 <= len(outer) <= 2:
            pass
        case _:
            return None
    for n, (a, b) in itertools.product(outer, ((left, right), (right, left))):
        rows = [axis for axis in outer if axis != n] or [Axis(f"{n.name}_row", 1)]
        along = {*total.axes}
        plain = a.value if isinstance(a, Cast) else a
        if not isinstance(plain, Load) or plain.mask is not None or not reads_narrow(b):
            continue
        if free[a] | {*rows} == along | {*rows} and free[b] == along | {n}:
            return Product(rows[0], n, k, a, b, total, *groups)
    return None


def reads_narrow(value: Value) -> bool:
    """Return whether a value is computed from elements of 8 bits that are numbers."""
    return not isinstance(value, Load) and any(
        isinstance(node, Load) and is_narrow(node.dtype) for node in walk((value,))
    )


def is_narrow(dtype: torch.dtype) -> bool:
    """Return whether weights of this dtype are quantised."""
    return dtype.itemsize == 1 and dtype != torch.bool


def _follows(product: Product, before: Reduction, free: Mapping[Value, frozenset[Axis]]) -> bool:
    """Return whether the row of `product.a` is a function of the sums before it."""
    known = {*walk((before.value,)), before}
    nodes = walk((product.a,))
    own = [node for node in nodes if node not in known]
    plain = all(product.m not in free[node] for node in own if isinstance(node, (Load, IndexValue)))
    return before in nodes and plain


def contiguous_stores(
    product: Product, stores: Sequence[Store], buffers: Mapping[str, Buffer]
) -> bool:
    """Return whether all stores run along n, and a float32 one takes the product's result, as
    gemm.h needs.
    """
    if product.is_dequantised:  # its epilogue performs all stores
        return all(not store.inner and store.mode == "set" for store in stores)
    for store in stores:
        strides = zip(store.index, buffers[store.buffer].stride, strict=True)
        if store.inner or (AxisVar(product.n), 1) not in strides or store.mode != "set":
            return False
    return any(s.value.dtype == torch.float32 and product.total in walk((s.value,)) for s in stores)


def open_products(program: LoopProgram) -> dict[str, tuple[tuple[str, ...], bool]]:
    """Return products that could be generated kernels: "m x k @ k x n" -> (names of the steps,
    whether they are by default).
    """
    found: dict[str, tuple[tuple[str, ...], bool]] = {}
    for step in program.steps:
        nest = _as_nest(step, program.buffers, TUNABLE) if isinstance(step, Extern) else None
        if nest is None:
            continue
        product = product_of(nest.outer, (store.value for store in nest.stores))
        assert product is not None
        m, n, k = product.m.extent, product.n.extent, product.k.extent
        label = f"{m} x {k} @ {k} x {n}"
        names, _ = found.get(label, ((), False))
        found[label] = ((*names, nest.name), m * n * k <= SMALL)
    return found


def with_small_products(
    program: LoopProgram, generated: Mapping[str, bool] = MappingProxyType({})
) -> tuple[LoopProgram, list[Decision]]:
    """Replace the small products of a program by nests; `generated` overrides the size limit for
    steps by name.
    """
    steps, decisions = [], []
    for step in program.steps:
        wanted = generated.get(step.name) if isinstance(step, Extern) else None
        limit = SMALL if wanted is None else TUNABLE if wanted else 0
        nest = _as_nest(step, program.buffers, limit) if isinstance(step, Extern) else None
        if nest is not None:
            size = "small" if wanted is None else "measured"
            reason = f"a {size} matrix product: a generated kernel, into which its readers fuse"
            decisions.append(Decision(nest.name, str(getattr(step, "op", "")), True, reason))
        steps.append(step if nest is None else nest)
    return replace(program, steps=tuple(steps)), decisions


def _as_nest(step: Extern, buffers: Mapping[str, Buffer], limit: int) -> Nest | None:
    if step.kwargs or len(step.results) != 1 or step.results[0] is None:
        return None
    match step.op, step.args:
        case aten.mm.default, (BufferRef(a), BufferRef(b)):
            bias = None
        case aten.addmm.default, (BufferRef(bias), BufferRef(a), BufferRef(b)):
            pass
        case _:
            return None
    out = buffers[step.results[0]]
    named = [buffers[name] for name in (a, b, bias) if name is not None]
    (m, k), n = buffers[a].shape, buffers[b].shape[1]
    if not has_contiguous_axis(buffers[b]) or not _fits(m, n, k, [*named, out], limit):
        return None  # gemm.h reads the right operand in whole vectors
    return _nest(step.name, buffers[a], buffers[b], None if bias is None else buffers[bias], out)


def _fits(m: Dimension, n: Dimension, k: Dimension, buffers: Sequence[Buffer], limit: int) -> bool:
    """Return whether a product is in float32 on the CPU and small."""
    # For dynamic sizes this guards the side of the limit; without it a small MLP at a new batch
    # size took 62.4 us, now 2.8.
    if any(b.dtype != torch.float32 or b.device.type != "cpu" for b in buffers):
        return False
    # Each by itself: the minimum of several Sizes would add guards on their order.
    large = all(size >= 2 for size in (m, n, k))
    return large and buffers[-1].stride == (n, 1) and bool(m * n * k <= limit)


def has_contiguous_axis(buffer: Buffer) -> bool:
    """Return whether the buffer is contiguous along some axis, in every call."""
    return any(isinstance(step, int) and step == 1 for step in buffer.stride)


def _nest(name: str, a: Buffer, b: Buffer, bias: Buffer | None, out: Buffer) -> Nest:
    m, n = (Axis(f"{name}.{letter}", size) for letter, size in zip("mn", out.shape, strict=True))
    k = Axis(f"{name}.k", a.shape[1])
    left = Load(a.name, (AxisVar(m), AxisVar(k)), a.dtype)
    right = Load(b.name, (AxisVar(k), AxisVar(n)), b.dtype)
    product = Compute("mul", (left, right), out.dtype)
    value: Value = Reduction("sum", (k,), product, out.dtype)
    if bias is not None:
        index = broadcast(bias.shape, (AxisVar(m), AxisVar(n)))
        value = Compute("add", (value, Load(bias.name, index, bias.dtype)), out.dtype)
    store = Store(out.name, (), (AxisVar(m), AxisVar(n)), value)
    return Nest(name, (m, n), (store,), (name,))


def broadcast(shape: Sequence[int], point: Sequence[Expr]) -> tuple[Expr, ...]:
    """Return the index of an operand of `shape` at a point of the result."""
    last = point[len(point) - len(shape) :]
    return tuple(Integer(0) if n == 1 else p for n, p in zip(shape, last, strict=True))
