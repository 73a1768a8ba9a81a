"""Matrix products in C++: a call of the header's gemm with the nest's pointwise values as its
epilogue.

In: a Structure whose nest is a small product (schedule/products.py). Out: the statements of the
kernel body. The epilogue sees each finished vector of sums once, in registers, and returns what is
stored.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from ..loops.expr import Expr, linear
from ..loops.ir import Store, walk
from ..schedule.products import Product, product_of
from .cpp_values import Body
from .structure import Structure, coefficient

__all__ = ["product_in", "write_product"]


def product_in(one: Structure) -> Product | None:
    """The product the structure computes, when gemm can: all stores pointwise, running along n."""
    stores = [store for single in one.passes for store in single.stores]
    product = product_of(one.outer, (store.value for store in stores))
    if product is None or any(store.inner for store in stores):
        return None
    if any(coefficient(store.index[0], product.n) != 1 for store in stores):
        return None
    return product if _main_store(stores, product) is not None else None


def _main_store(stores: list[Store], product: Product) -> Store | None:
    """The store that gemm itself performs: the last float32 one that needs the sum."""
    for store in reversed(stores):
        if store.value.dtype == torch.float32 and product.total in walk((store.value,)):
            return store
    return None


def write_product(one: Structure, product: Product, body: Body, names: Mapping[str, str]) -> None:
    """One call of jm::gemm."""
    stores = [store for single in one.passes for store in single.stores]
    main = _main_store(stores, product)
    assert main is not None
    m, n, k = product.m, product.n, product.k
    a, b = product.a.index[0], product.b.index[0]
    a_steps = f"{coefficient(a, m)}, {coefficient(a, k)}"
    b_steps = f"{coefficient(b, k)}, {coefficient(b, n)}"
    left = f"{{{_start(names[product.a.buffer], a)}, {a_steps}}}"
    right = f"{{{_start(names[product.b.buffer], b)}, {b_steps}}}"
    target = _start(names[main.buffer], main.index[0])
    sizes = f"{m.extent}, {n.extent}, {k.extent}"
    # chosen by the compiler, so that it compiles one method of the three
    way = f"jm::gemm_way({m.extent}, {n.extent}, {{nullptr, {a_steps}}}, {{nullptr, {b_steps}}})"
    target = f"{target}, {coefficient(main.index[0], m)}"
    call = f"jm::gemm<{way}>(\n    {sizes}, {left}, {right}, {target},"
    if stores == [main] and main.value == product.total:
        for text in f"{call} jm::NoEpilogue{{}});".split("\n"):
            body.line(text)
        return
    body.set_lanes(n, None)
    arguments = f"auto sum, int64_t {m.name}, int64_t {n.name}, int64_t n"
    # one header: what the epilogue reads of no axis is loaded before the whole call
    header = f"{call}\n    [&]({arguments}) JM_BODY {{"
    body.open(header, (m, n), footer="});")
    body.define(product.total, "sum", vector=True)
    texts = [body.store(store) for store in stores if store is not main]
    result = body.use(main.value, as_vector=True)
    for text in texts:
        body.line(text)
    body.line(f"return {result};")
    body.close()
    body.set_lanes(None, 1)


def _start(pointer: str, offset: Expr) -> str:
    constant = linear(offset)[0]
    return f"{pointer} + {constant}" if constant else pointer
