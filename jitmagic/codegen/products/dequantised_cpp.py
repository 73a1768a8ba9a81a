"""Writes a product with a dequantised weight in C++, as a call of the header's jm::dequantised.

In: a Structure whose nest is such a product (schedule/dequantised_products.py). Out: two functions
of vectors, the weight along k and what follows the sum along n, and the call that takes them.
"""

from __future__ import annotations

from collections.abc import Mapping

from ...loops.ir import Cast, Load, walk
from ...schedule.products import Product, is_narrow
from ..cpp_text import count_text, start_text, step_text
from ..cpp_values import CppBody
from ..loop_structure import Structure, coefficient

__all__ = ["can_write_dequantised", "write_dequantised"]


def can_write_dequantised(product: Product) -> bool:
    """Return whether the weight's elements are contiguous along k, and the rows' offsets affine."""
    narrow = [load for load in product.loads if is_narrow(load.dtype)]
    axes = [axis for axis in (product.m, product.k, product.group) if axis is not None]
    steps = [coefficient(_rows(product).index[0], axis) for axis in axes]
    weight = {node for node in walk((product.b,)) if isinstance(node, Load)}
    return None not in steps and all(
        coefficient(load.index[0], product.k) == 1 for load in narrow if load in weight
    )


def write_dequantised(
    kernel: Structure, product: Product, body: CppBody, names: Mapping[str, str]
) -> None:
    """Write one call of jm::dequantised."""
    _write_weight(product, body)
    _write_finish(kernel, product, body)
    rows = _rows(product)
    offset = rows.index[0]
    m, n, k, group = product.m, product.n, product.k, product.group
    down, along = coefficient(offset, m), coefficient(offset, k)
    assert down is not None
    assert along is not None
    start = start_text(names[rows.buffer], offset)
    groups = "1" if group is None else count_text(group.extent)
    sizes = ", ".join((count_text(m.extent), count_text(n.extent), groups, count_text(k.extent)))
    known = m.extent if isinstance(m.extent, int) else 0
    body.line(f"jm::dequantised<{known}>({sizes},")
    body.line(f"    jm::activations({start}, {step_text(down)}, {step_text(along)}),")
    body.line("    weight, finish);")


def _write_weight(product: Product, body: CppBody) -> None:
    n, k, group = product.n, product.k, product.group
    body.set_lanes(k, None)
    inside = "int64_t" if group is None else f"int64_t {group.name}"
    axes = (n, k) if group is None else (n, group, k)
    arguments = f"int64_t {n.name}, {inside}, int64_t {k.name}, auto n"
    body.open(f"const auto weight = [&]({arguments}) JM_BODY {{", axes, footer="};")
    body.line(f"return {body.use(product.b, as_vector=True)};")
    body.close()


def _write_finish(kernel: Structure, product: Product, body: CppBody) -> None:
    m, n = product.m, product.n
    body.set_lanes(n, None)
    arguments = f"auto sum, int64_t {m.name}, int64_t {n.name}, int64_t n"
    body.open(f"const auto finish = [&]({arguments}) JM_BODY {{", (m, n), footer="};")
    body.define(product.total, "sum", vector=True)
    stores = [store for single in kernel.passes for store in single.stores]
    for line in body.stores(stores):
        body.line(line)
    body.close()
    body.set_lanes(None, 1)


def _rows(product: Product) -> Load:
    rows = product.a.value if isinstance(product.a, Cast) else product.a
    assert isinstance(rows, Load)
    return rows
