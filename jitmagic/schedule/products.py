"""Turns matrix products into generated kernels where these beat a library's, and fuse with readers.

In: a program whose products are ATen calls. Out: the same program with some written as nests:

    c[m, n] = sum{k} a[m, k] * b[k, n]  (+ bias).

On a CPU these are the small ones. On a GPU they are those of few rows, whose time is that of
reading the right operand: one row is a reduction like any other; of several rows in 16 bits, tensor
cores multiply tiles. Sums are in float32 and rounded once, also where
`allow_bf16_reduced_precision_reduction` lets cuBLAS round parts of them.

`product_of` recognises such a nest, before and after pointwise readers have joined it: its operands
must stay plain loads, and its loops (m, n) with n contiguous in memory, so that renderers recognise
it too. `products_of` also recognises a chain of them (product_chains.py), where `a` is the result
of the previous product, and a product whose operands are converted where they are multiplied: there
`b` is a computed value, such as a dequantised weight (dequantised_products.py).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

import torch

from ..devices import Target
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
    Step,
    Store,
    Value,
    walk,
)
from ..loops.values import HALVES, cast, compute
from ..symbols.size import Size, is_same
from .result import Decision

__all__ = [
    "SMALL",
    "Product",
    "broadcast",
    "contiguous_stores",
    "generated_products",
    "has_contiguous_axis",
    "is_narrow",
    "multiplies_halves",
    "open_products",
    "product_of",
    "products_of",
    "reads_narrow",
    "with_generated_products",
]

# A BLAS call through the dispatcher costs 1.5 µs and more before it multiplies anything, and its
# result makes a round trip through memory. On AVX-512 (Zen 4) gemm.h takes 0.2 to 0.9 of MKL's time
# up to SMALL; above it the library's blocking wins.
SMALL = 16 << 20  # multiply-adds
TUNABLE = 256 << 20  # up to here tuning measures both
# H200, one row in bfloat16, cuBLAS and a kernel: 4096 x 11008 24.2 and 22.1 us, 11008 x 4096 27.1
# and 23.1, 4096 x 4096 10.2 and 6.7, 768 x 50257 29.5 and 19.6, 4096 x 1024 5.8 and 3.0; float32
# 4096 x 4096 22.2 and 17.5. A weight that is contiguous along its columns gains nothing. 8 rows:
# 4096 x 4096 8.6 and 10.1, 4096 x 6144 14.3 and 14.1, 4096 x 11008 25.8 and 24.1.
FEW_ROWS = 16  # one tile of tensor cores
COLUMNS = 32  # of a tile; fewer tiles than 3 for 2 multiprocessors leave memory idle
LEAST = 16  # columns and terms of a sum
aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class Product:
    """Describes a product: `total` is the reduction; `a` varies along m and k, `b` along k
    and n.

    A converted weight is a `b` that is no load. Its reduction may have two axes, a `group` and the
    position `k` inside it, and `m` is an axis of extent 1 that the nest lacks if there is only one
    row.
    """

    m: Axis
    n: Axis
    k: Axis
    a: Value
    b: Value
    total: Reduction
    group: Axis | None = None

    @property
    def is_plain(self) -> bool:
        return isinstance(self.b, Load)

    @property
    def loads(self) -> tuple[Load, ...]:
        """Return the loads of both operands."""
        return tuple(node for node in walk((self.a, self.b)) if isinstance(node, Load))


def product_of(
    outer: Sequence[Axis], values: Iterable[Value], halves: bool = False
) -> Product | None:
    """Return the matrix product that the values of a nest over `outer` = (m, n) consist of, or
    None.
    """
    found = products_of(outer, values, halves)
    return found[0] if len(found) == 1 else None


def products_of(
    outer: Sequence[Axis], values: Iterable[Value], halves: bool = False
) -> tuple[Product, ...]:
    """Return the products that the values consist of, each an operand of the next, or ().
    `halves`: the target's kernels multiply matrices of 16 bits.

    One with a converted weight is alone. The `a` of the first is a plain load. The arithmetic
    between two of them depends on the row m through the sum alone, so that a column of sums needs
    no other operand that varies by row.
    """
    nodes = walk(tuple(values))
    totals = [node for node in nodes if isinstance(node, Reduction)]
    if not totals or any(total.op != "sum" for total in totals):
        return ()
    free = value_axes(nodes)
    if len(totals) == 1 and (single := _converted(outer, totals[0], free, halves)) is not None:
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


def _converted(
    outer: Sequence[Axis], total: Reduction, free: Mapping[Value, frozenset[Axis]], halves: bool
) -> Product | None:
    """Return the product of rows and a weight that is computed from 8-bit numbers or, if `halves`
    is true, is converted from 16 bits; else None.
    """
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
        if not isinstance(plain, Load) or plain.mask is not None:
            continue
        if not reads_narrow(b) and not (halves and n is outer[-1] and _are_halves(a, b, rows)):
            continue
        if free[a] | {*rows} == along | {*rows} and free[b] == along | {n}:
            return Product(rows[0], n, k, a, b, total, *groups)
    return None


def _are_halves(a: Value, b: Value, rows: Sequence[Axis]) -> bool:
    """Return whether two operands are matrices of the same 16 bits."""
    if not (isinstance(a, Cast) and isinstance(b, Cast) and isinstance(b.value, Load)):
        return False
    same = a.value.dtype == b.value.dtype and b.value.dtype in HALVES
    return same and b.value.mask is None and rows[0].extent != 1


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
    if not product.is_plain:  # its epilogue performs all stores
        return all(not store.inner and store.mode == "set" for store in stores)
    for store in stores:
        strides = zip(store.index, buffers[store.buffer].stride, strict=True)
        if store.inner or (AxisVar(product.n), 1) not in strides or store.mode != "set":
            return False
    return any(s.value.dtype == torch.float32 and product.total in walk((s.value,)) for s in stores)


def generated_products(target: Target) -> bool:
    """Return whether kernels for the target may compute matrix products."""
    return multiplies_halves(target) or (target.tier == "cpp" and target.isa != "scalar")


def multiplies_halves(target: Target) -> bool:
    """Return whether the target's kernels multiply matrices of 16 bits."""
    return target.tier == "triton"


def open_products(program: LoopProgram, target: Target) -> dict[str, tuple[tuple[str, ...], bool]]:
    """Return products that could be generated kernels: "m x k @ k x n" -> (names of the steps,
    whether they are by default).
    """
    found: dict[str, tuple[tuple[str, ...], bool]] = {}
    device = program.device  # computed from all buffers
    for step in program.steps:
        sides = _sides(step, program.buffers, device)
        if sides is None or not sides.fits(target, True):
            continue
        (m, k), n = sides.a.shape, sides.b.shape[1]
        label = f"{m} x {k} @ {k} x {n}"
        names, _ = found.get(label, ((), False))
        found[label] = ((*names, sides.name), sides.fits(target, None))
    return found


def with_generated_products(
    program: LoopProgram, target: Target, generated: Mapping[str, bool] = MappingProxyType({})
) -> tuple[LoopProgram, list[Decision]]:
    """Replace the products of a program by nests where kernels are faster; `generated` overrides
    the estimate for steps by name.
    """
    steps, decisions, device = list(program.steps), [], program.device
    for number, step in enumerate(steps):
        sides = _sides(step, program.buffers, device)
        if sides is None or not sides.fits(target, wanted := generated.get(sides.name)):
            continue
        steps[number] = sides.nest()
        size = "small" if target.tier == "cpp" else "of few rows"
        product = f"a matrix product {size if wanted is None else 'that was measured'}"
        reason = f"{product}: a generated kernel, into which its readers fuse"
        decisions.append(Decision(sides.name, str(getattr(step, "op", "")), True, reason))
    return replace(program, steps=tuple(steps)), decisions


@dataclass(frozen=True, slots=True)
class _Sides:
    """Holds the buffers of a product that ATen computes: out = a @ b (+ bias). `is_vector`: of a
    matrix and a vector, out[n] = sum{k} b[n, k] * a[k], seen here as the product of one row.
    """

    name: str
    device: torch.device
    out: Buffer
    a: Buffer
    b: Buffer
    bias: Buffer | None = None
    is_vector: bool = False

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        return (self.a, self.b, *((self.bias,) if self.bias else ()), self.out)

    def fits(self, target: Target, wanted: bool | None) -> bool:
        """Return whether the product should be a kernel: by an estimate, or where it is `wanted`,
        if there is a kernel.
        """
        if wanted is False or any(b.device != self.device for b in self.buffers):
            return False
        same = all(buffer.dtype == self.out.dtype for buffer in self.buffers)
        if not same or self.out.stride != (self.out.shape[1], 1):
            return False
        return self.is_small(wanted) if target.tier == "cpp" else self.has_few_rows(target, wanted)

    def is_small(self, wanted: bool | None) -> bool:
        """Return whether a product is in float32 and small, which gemm.h computes."""
        # For dynamic sizes this guards the side of the limit; without it a small MLP at a new batch
        # size took 62.4 us, now 2.8.
        if self.out.dtype != torch.float32 or self.is_vector or not has_contiguous_axis(self.b):
            return False  # gemm.h reads the right operand in whole vectors
        (m, k), n = self.a.shape, self.b.shape[1]
        # Each by itself: the minimum of several Sizes would add guards on their order.
        large = all(size >= 2 for size in (m, n, k))
        return large and bool(m * n * k <= (TUNABLE if wanted else SMALL))

    def has_few_rows(self, target: Target, wanted: bool | None) -> bool:
        """Return whether the weight's rows, as they are in memory, are read once for few rows."""
        (m, k), n = self.a.shape, self.b.shape[1]
        if any(isinstance(size, Size) for size in (m, k, n)) or not 1 <= m <= FEW_ROWS:
            return False
        if min(k, n) < LEAST or not is_same(self.b.stride[0], 1):
            return False
        if m == 1:
            return self.out.dtype in (*HALVES, torch.float32)
        enough = 2 * n >= 3 * COLUMNS * target.multiprocessors
        return self.out.dtype in HALVES and (enough or bool(wanted))

    def nest(self) -> Nest:
        """Return the product as loops over (m, n), or over n if it has no rows."""
        (_, k_size), n_size = self.a.shape, self.b.shape[1]
        k, n = Axis(f"{self.name}.k", k_size), Axis(f"{self.name}.n", n_size)
        rows = () if self.is_vector else (Axis(f"{self.name}.m", self.a.shape[0]),)
        point = tuple(AxisVar(axis) for axis in (*rows, n))
        of_b = (AxisVar(k), AxisVar(n))
        left = Load(self.a.name, (*point[:-1], AxisVar(k)), self.a.dtype)
        right = Load(self.b.name, of_b[::-1] if self.is_vector else of_b, self.b.dtype)
        product = compute("mul", cast(left, torch.float32), cast(right, torch.float32))
        value: Value = Reduction("sum", (k,), product, torch.float32)
        if self.bias is not None:
            bias = Load(self.bias.name, broadcast(self.bias.shape, point), self.bias.dtype)
            value = compute("add", value, cast(bias, torch.float32))
        store = Store(self.out.name, (), point, cast(value, self.out.dtype))
        return Nest(self.name, (*rows, n), (store,), (self.name,))


def _sides(step: Step, found: Mapping[str, Buffer], device: torch.device) -> _Sides | None:
    """Return the operands of a matrix product that a step calls, or None."""
    if not isinstance(step, Extern) or step.kwargs or len(step.results) != 1:
        return None
    match step.op, step.args, step.results:
        case aten.mm.default, (BufferRef(a), BufferRef(b)), (str(out),):
            return _Sides(step.name, device, found[out], found[a], found[b])
        case aten.addmm.default, (BufferRef(bias), BufferRef(a), BufferRef(b)), (str(out),):
            return _Sides(step.name, device, found[out], found[a], found[b], found[bias])
        case aten.mv.default, (BufferRef(b), BufferRef(a)), (str(out),):
            turned = replace(found[b], shape=found[b].shape[::-1], stride=found[b].stride[::-1])
            row, result = _as_row(found[a]), _as_row(found[out])
            return _Sides(step.name, device, result, row, turned, is_vector=True)
    return None


def _as_row(vector: Buffer) -> Buffer:
    """Return a vector as a matrix of one row."""
    (size,) = vector.shape
    return replace(vector, shape=(1, size), stride=(size, *vector.stride))


def has_contiguous_axis(buffer: Buffer) -> bool:
    """Return whether the buffer is contiguous along some axis, in every call."""
    return any(isinstance(step, int) and step == 1 for step in buffer.stride)


def broadcast(shape: Sequence[int], point: Sequence[Expr]) -> tuple[Expr, ...]:
    """Return the index of an operand of `shape` at a point of the result."""
    last = point[len(point) - len(shape) :]
    return tuple(Integer(0) if n == 1 else p for n, p in zip(shape, last, strict=True))
