"""Makes kernels of products with a dequantised weight on the CPU: a call of jm::dequantised.

In: a product (schedule/dequantised_products.py) and the stores of its nest. Out: two functions of
vectors, the weight along k and what follows the sum along n, and the call that takes them.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...loops.expr import Axis, Expr, Integer, axes_of, coefficient, substitute
from ...loops.ir import Cast, Load, Store, walk
from ...schedule.products import Product, is_narrow
from ..kernel import NATIVE, Argument, Call, Function, Group, Let, Pointer, Return, Var
from ..kernel import Store as KernelStore
from ..loop_form import Body

__all__ = ["can_write_dequantised", "dequantised_call", "start_of"]


def can_write_dequantised(product: Product) -> bool:
    """Return whether the weight's elements are contiguous along k, and the rows' offsets affine."""
    narrow = [load for load in product.loads if is_narrow(load.dtype)]
    axes = [axis for axis in (product.m, product.k, product.group) if axis is not None]
    steps = [coefficient(_rows(product).index[0], axis) for axis in axes]
    weight = {node for node in walk((product.b,)) if isinstance(node, Load)}
    return None not in steps and all(
        coefficient(load.index[0], product.k) == 1 for load in narrow if load in weight
    )


def dequantised_call(product: Product, stores: Sequence[Store]) -> Body:
    """Return the statements of one call of jm::dequantised."""
    rows = _rows(product)
    offset = rows.index[0]
    m, n, k, group = product.m, product.n, product.k, product.group
    down, along = coefficient(offset, m), coefficient(offset, k)
    assert down is not None
    assert along is not None
    groups = 1 if group is None else group.extent
    activations = Group((start_of(rows.buffer, offset), down, along), "activations")
    sizes: tuple[Argument, ...] = (m.extent, n.extent, groups, k.extent)
    known = m.extent if isinstance(m.extent, int) else 0
    call = Call("dequantised", (*sizes, activations, "weight", "finish"), "dequantised", (known,))
    return _weight(product), _finish(product, stores), call


def _weight(product: Product) -> Function:
    n, k, group = product.n, product.k, product.group
    return Function("weight", None, (n, group, k), k, (Return(product.b),), count="auto n")


def _finish(product: Product, stores: Sequence[Store]) -> Function:
    m, n = product.m, product.n
    given = Var("sum", product.total.dtype, NATIVE)
    written = [KernelStore(store.buffer, store.index[0], store.value) for store in stores]
    return Function("finish", given, (m, n), n, (Let(product.total, given), *written))


def start_of(buffer: str, offset: Expr) -> Pointer:
    """Return the address of an access where all axes are 0."""
    zeros: dict[Axis, Expr] = dict.fromkeys(axes_of(offset), Integer(0))
    return Pointer(buffer, substitute(offset, zeros))


def _rows(product: Product) -> Load:
    rows = product.a.value if isinstance(product.a, Cast) else product.a
    assert isinstance(rows, Load)
    return rows
