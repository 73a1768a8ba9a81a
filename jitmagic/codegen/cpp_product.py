"""Matrix products in C++: a call of the header's gemm, or of its chain where products follow each
other, with the nest's pointwise values as epilogues.

In: a Structure whose nest is one small product or a chain of them (schedule/products.py). Out: the
statements of the kernel body. An epilogue sees each finished vector of sums once, in registers,
and returns what is stored or multiplied next.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import torch

from ..loops.expr import Axis, Expr, linear
from ..loops.ir import Load, Store, Value, walk
from ..schedule.products import Product, products_of
from .cpp_values import Body
from .structure import Structure, coefficient

__all__ = ["products_in", "write_products"]


def products_in(one: Structure) -> tuple[Product, ...]:
    """The products the structure computes, first to last, when gemm can: all stores pointwise,
    running along n.
    """
    stores = [store for single in one.passes for store in single.stores]
    products = products_of(one.outer, (store.value for store in stores))
    if not products or any(store.inner for store in stores):
        return ()
    if any(coefficient(store.index[0], products[-1].n) != 1 for store in stores):
        return ()
    return products if _main_store(stores, products[-1]) is not None else ()


def _main_store(stores: list[Store], product: Product) -> Store | None:
    """The store that gemm itself performs: the last float32 one that needs the sum."""
    for store in reversed(stores):
        if store.value.dtype == torch.float32 and product.total in walk((store.value,)):
            return store
    return None


def write_products(
    one: Structure, products: Sequence[Product], body: Body, names: Mapping[str, str]
) -> None:
    """One call of jm::gemm or jm::chain."""
    if len(products) == 1:
        _write_gemm(one, products[0], body, names)
    else:
        _write_chain(one, products, body, names)


def _write_gemm(one: Structure, product: Product, body: Body, names: Mapping[str, str]) -> None:
    stores, main = _stores(one, product)
    m, n, k = product.m, product.n, product.k
    a_steps, b_steps = _a_steps(product), _b_steps(product)
    left, right = _operand(product.a, a_steps, names), _operand(product.b, b_steps, names)
    # chosen by the compiler, so that it compiles one method of the three
    way = f"jm::gemm_way({m.extent}, {n.extent}, {{nullptr, {a_steps}}}, {{nullptr, {b_steps}}})"
    sizes, target = f"{m.extent}, {n.extent}, {k.extent}", _target(main, m, names)
    call = f"jm::gemm<{way}>(\n    {sizes}, {left}, {right}, {target},"
    if stores == [main] and main.value == product.total:
        for text in f"{call} jm::NoEpilogue{{}});".split("\n"):
            body.line(text)
        return
    # one header: what the epilogue reads of no axis is loaded before the whole call
    _write_epilogue(stores, main, product, body, f"{call}\n    ", ");")


def _write_chain(
    one: Structure, products: Sequence[Product], body: Body, names: Mapping[str, str]
) -> None:
    links = []
    for number, (product, after) in enumerate(itertools.pairwise(products)):
        # the lanes are rows: a column of sums at a time
        name = f"after{number}"
        body.set_lanes(product.m, None)
        header = f"const auto {name} = [&](auto sum, int64_t {product.n.name}) JM_BODY {{"
        body.open(header, (product.m, product.n), footer="};")
        body.define(product.total, "sum", vector=True)
        body.line(f"return {body.use(after.a, as_vector=True)};")
        body.close()
        links.append(f"jm::link({_link(product, names)}, {name})")
    final = products[-1]
    stores, main = _stores(one, final)
    _write_epilogue(stores, main, final, body, "const auto finish = ", ";")
    body.line(
        f"jm::chain({final.m.extent}, {_operand(products[0].a, _a_steps(products[0]), names)},"
    )
    for text in links:
        body.line(f"    {text},")
    body.line(f"    jm::last({_link(final, names)}, {_target(main, final.m, names)}, finish));")


def _write_epilogue(
    stores: list[Store], main: Store, product: Product, body: Body, before: str, after: str
) -> None:
    """The function of a vector of sums along n that gives what `main` stores, and does the other
    stores itself.
    """
    m, n = product.m, product.n
    body.set_lanes(n, None)
    arguments = f"auto sum, int64_t {m.name}, int64_t {n.name}, int64_t n"
    body.open(f"{before}[&]({arguments}) JM_BODY {{", (m, n), footer=f"}}{after}")
    body.define(product.total, "sum", vector=True)
    others = [store for store in stores if store is not main]
    body.settle([*others, main])
    texts = [body.store(store) for store in others]
    result = body.use(main.value, as_vector=True)
    for text in texts:
        body.line(text)
    body.line(f"return {result};")
    body.close()
    body.set_lanes(None, 1)


def _stores(one: Structure, product: Product) -> tuple[list[Store], Store]:
    stores = [store for single in one.passes for store in single.stores]
    main = _main_store(stores, product)
    assert main is not None
    return stores, main


def _a_steps(product: Product) -> str:
    assert isinstance(product.a, Load)
    offset = product.a.index[0]
    return f"{coefficient(offset, product.m)}, {coefficient(offset, product.k)}"


def _b_steps(product: Product) -> str:
    offset = product.b.index[0]
    return f"{coefficient(offset, product.k)}, {coefficient(offset, product.n)}"


def _operand(load: Value, steps: str, names: Mapping[str, str]) -> str:
    assert isinstance(load, Load)
    return f"{{{_start(names[load.buffer], load.index[0])}, {steps}}}"


def _link(product: Product, names: Mapping[str, str]) -> str:
    sizes = f"{product.n.extent}, {product.k.extent}"
    return f"{sizes}, {_operand(product.b, _b_steps(product), names)}"


def _target(main: Store, m: Axis, names: Mapping[str, str]) -> str:
    offset = main.index[0]
    return f"{_start(names[main.buffer], offset)}, {coefficient(offset, m)}"


def _start(pointer: str, offset: Expr) -> str:
    constant = linear(offset)[0]
    return f"{pointer} + {constant}" if constant else pointer
