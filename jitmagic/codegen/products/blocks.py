"""Makes programs of matrix products for the block interpreter: the header's gemm writes the sums to
scratch memory, and a loop of blocks computes the pointwise values from them.

In: a Structure whose nest is one small product or a chain of them (schedule/products.py). Out: the
loop form of its kernel. Each sum is added in the order of the C++ kernel (cpp.py), so that calls
give the same bits before and after that takes the program's place.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

from ...loops.expr import Axis, AxisVar, Expr, add, times
from ...loops.ir import Buffer, Load, Value
from ...schedule.products import Product
from ...symbols.size import Size, expr_of
from ..kernel import (
    Call,
    For,
    Group,
    Kernel,
    Let,
    Parallel,
    Pointer,
    Scratch,
    Statement,
    Store,
    Var,
)
from ..loop_form import Body, on_threads, params_of
from ..loop_structure import Structure
from .cpp import a_steps, b_steps, products_in, stores_of, way_of
from .dequantised_cpp import start_of

__all__ = ["product_program", "programmed_products"]


def programmed_products(kernel: Structure) -> tuple[Product, ...]:
    """Return the products of a nest, first to last, if a program can compute them."""
    products = products_in(kernel)
    return products if products and products[0].is_plain else ()


def product_program(
    kernel: Structure, products: Sequence[Product], buffers: Mapping[str, Buffer]
) -> Kernel:
    """Return the loop form of `programmed_products`."""
    body = tuple(_statements(kernel, products))
    return Kernel(kernel.name, params_of(kernel, buffers), kernel.symbols, body, kernel.origins)


def _statements(kernel: Structure, products: Sequence[Product]) -> Iterator[Statement]:
    rows = None  # the sums of the product before, whose values are now its epilogue's
    for number, (product, after) in enumerate(itertools.zip_longest(products, products[1:])):
        m, n, k = product.m, product.n, product.k
        sums = f"sums{number}"
        yield Scratch(sums, product.total.dtype, times(expr_of(m.extent), n.extent))
        left = (start_of(*_place(product.a)), *a_steps(product)) if rows is None else rows
        b = Group((start_of(*_place(product.b)), *b_steps(product)))
        target = Pointer(sums, expr_of(0)), n.extent
        args = (m.extent, n.extent, k.extent, Group(left), b, *target, "jm::NoEpilogue{}")
        # A chain of static sizes takes tiles for few rows too.
        takes_tiles = len(products) > 1 and not isinstance(m.extent, Size)
        way = "jm::Way::Swapped" if takes_tiles else way_of(product, left[1:])
        yield Call("gemm", args, "gemm", (way,))
        if after is not None:
            stores: Body = (Store(sums, _position(m, n), after.a),)
        else:
            stores = tuple(Store(s.buffer, s.index[0], s.value) for s in stores_of(kernel))
        yield _loop(product, sums, stores)
        rows = (Pointer(sums, expr_of(0)), n.extent, 1)


def _loop(product: Product, sums: str, stores: Body) -> Parallel:
    """Return the loop in which the stores read finished sums."""
    m, n = product.m, product.n
    var = Var(f"{sums}_of", product.total.dtype)
    found = Let(var, Load(sums, (_position(m, n),), product.total.dtype))
    return on_threads(For((m, n), (found, Let(product.total, var), *stores), "block"))


def _position(m: Axis, n: Axis) -> Expr:
    return add(times(AxisVar(m), n.extent), AxisVar(n))


def _place(operand: Value) -> tuple[str, Expr]:
    assert isinstance(operand, Load)
    return operand.buffer, operand.index[0]
