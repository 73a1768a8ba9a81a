"""Writes matrix products in C++ as a call of the header's gemm, or of its chain for consecutive
products, with the nest's pointwise values as epilogues.

Products with dequantised weights are dequantised_cpp.py's.

In: a Structure whose nest is one small product or a chain of them (schedule/products.py). Out: the
statements of the kernel body. An epilogue receives each finished vector of sums once, in registers,
and returns the values that are stored or multiplied next.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import torch

from ...loops.expr import Axis, Expr
from ...loops.ir import Load, Store, Value, walk
from ...schedule.products import Product, products_of
from ...symbols.size import Size, hint_of
from ..cpp_text import count_text, start_text, step_text
from ..cpp_values import CppBody
from ..loop_structure import Structure, coefficient
from .dequantised_cpp import can_write_dequantised, write_dequantised

__all__ = ["products_in", "write_products"]

Step = int | Expr


def products_in(kernel: Structure) -> tuple[Product, ...]:
    """Return the products of a nest, first to last, if the header can compute them: all stores
    must be pointwise, and those of gemm run along n.
    """
    stores = [store for single in kernel.passes for store in single.stores]
    products = products_of(kernel.outer, (store.value for store in stores))
    if not products or any(store.inner for store in stores):
        return ()
    if products[0].is_dequantised:
        return products if can_write_dequantised(products[0]) else ()
    if any(coefficient(store.index[0], products[-1].n) != 1 for store in stores):
        return ()
    return products if _main_store(stores, products[-1]) is not None else ()


def _main_store(stores: list[Store], product: Product) -> Store | None:
    """Return the store that gemm itself performs: the last float32 one that needs the sum."""
    for store in reversed(stores):
        if store.value.dtype == torch.float32 and product.total in walk((store.value,)):
            return store
    return None


def write_products(
    kernel: Structure, products: Sequence[Product], body: CppBody, names: Mapping[str, str]
) -> None:
    """Write one call of jm::gemm, jm::chain or jm::dequantised."""
    if products[0].is_dequantised:
        write_dequantised(kernel, products[0], body, names)
    elif len(products) == 1:
        _write_gemm(kernel, products[0], body, names)
    else:
        _write_chain(kernel, products, body, names)


def _write_gemm(
    kernel: Structure, product: Product, body: CppBody, names: Mapping[str, str]
) -> None:
    stores, main = _stores(kernel, product)
    m, n, k = product.m, product.n, product.k
    left = _operand(product.a, _a_steps(product), names)
    right = _operand(product.b, _b_steps(product), names)
    sizes, target = _extents(m, n, k), _target(main, m, names)
    call = f"{_function(product)}(\n    {sizes}, {left}, {right}, {target},"
    if stores == [main] and main.value == product.total:
        for text in f"{call} jm::NoEpilogue{{}});".split("\n"):
            body.line(text)
        return
    # The call and its epilogue are opened by one text, so that loads in the epilogue that depend on
    # no axis are hoisted above the call.
    _write_epilogue(stores, main, product, body, f"{call}\n    ", ");")


def _function(product: Product) -> str:
    """Return the function with its method as a constant, so that one of the three is compiled."""
    # Any method is correct for all sizes; for dynamic rows the method is chosen by this call's
    # sizes.
    left, right = (  # a dynamic stride is not known to be 1
        tuple(step if isinstance(step, int) else 0 for step in steps)
        for steps in (_a_steps(product), _b_steps(product))
    )
    # Few rows are computed as dot products, 3 times as fast, if both operands are contiguous along
    # k.
    # Both methods are in one kernel: a separate template for few rows was one compile more. An MLP
    # of 784-256-128-10 takes 0.92 to 1.01 of the static kernels' time from 2 to 1024 rows.
    several = isinstance(product.m.extent, Size) and left[1] == 1 != right[1]
    rows, columns = hint_of(product.m.extent), hint_of(product.n.extent)
    a, b = (f"{{nullptr, {first}, {second}}}" for first, second in (left, right))
    name = "jm::gemm_rows" if several else "jm::gemm"
    return f"{name}<jm::gemm_way({rows}, {columns}, {a}, {b})>"


def _write_chain(
    kernel: Structure, products: Sequence[Product], body: CppBody, names: Mapping[str, str]
) -> None:
    links = []
    for number, (product, after) in enumerate(itertools.pairwise(products)):
        # The lanes are rows: one column of sums at a time.
        name = f"after{number}"
        body.set_lanes(product.m, None)
        header = f"const auto {name} = [&](auto sum, int64_t {product.n.name}) JM_BODY {{"
        body.open(header, (product.m, product.n), footer="};")
        body.define(product.total, "sum", vector=True)
        body.line(f"return {body.use(after.a, as_vector=True)};")
        body.close()
        links.append(f"jm::link({_link(product, names)}, {name})")
    final = products[-1]
    stores, main = _stores(kernel, final)
    _write_epilogue(stores, main, final, body, "const auto finish = ", ";")
    first = _operand(products[0].a, _a_steps(products[0]), names)
    function = "jm::chain_rows" if isinstance(final.m.extent, Size) else "jm::chain"
    body.line(f"{function}({_extents(final.m)}, {first},")
    for text in links:
        body.line(f"    {text},")
    body.line(f"    jm::last({_link(final, names)}, {_target(main, final.m, names)}, finish));")


def _write_epilogue(
    stores: list[Store], main: Store, product: Product, body: CppBody, before: str, after: str
) -> None:
    """Write the function from a vector of sums along n to the values that `main` stores; it
    performs the other stores itself.
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


def _stores(kernel: Structure, product: Product) -> tuple[list[Store], Store]:
    stores = [store for single in kernel.passes for store in single.stores]
    main = _main_store(stores, product)
    assert main is not None
    return stores, main


def _a_steps(product: Product) -> tuple[Step, Step]:
    assert isinstance(product.a, Load)
    offset = product.a.index[0]
    return _pair(offset, product.m, product.k)


def _b_steps(product: Product) -> tuple[Step, Step]:
    assert isinstance(product.b, Load)
    offset = product.b.index[0]
    return _pair(offset, product.k, product.n)


def _pair(offset: Expr, first: Axis, second: Axis) -> tuple[Step, Step]:
    first_step, second_step = coefficient(offset, first), coefficient(offset, second)
    assert first_step is not None
    assert second_step is not None
    return first_step, second_step


def _extents(*axes: Axis) -> str:
    return ", ".join(count_text(axis.extent) for axis in axes)


def _operand(load: Value, steps: tuple[Step, Step], names: Mapping[str, str]) -> str:
    assert isinstance(load, Load)
    first, second = map(step_text, steps)
    return f"{{{start_text(names[load.buffer], load.index[0])}, {first}, {second}}}"


def _link(product: Product, names: Mapping[str, str]) -> str:
    sizes = _extents(product.n, product.k)
    return f"{sizes}, {_operand(product.b, _b_steps(product), names)}"


def _target(main: Store, m: Axis, names: Mapping[str, str]) -> str:
    offset = main.index[0]
    step = coefficient(offset, m)
    assert step is not None
    return f"{start_text(names[main.buffer], offset)}, {step_text(step)}"
