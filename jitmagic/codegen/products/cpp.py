"""Makes kernels of matrix products on the CPU: a call of the header's gemm, or of its chain for
consecutive products, with the nest's pointwise values as epilogues.

Products with dequantised weights are dequantised_cpp.py's.

In: a Structure whose nest is one small product or a chain of them (schedule/products.py). Out: the
statements of the kernel body. An epilogue receives each finished vector of sums once, in registers,
and returns the values that are stored or multiplied next.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import torch

from ...loops.expr import Axis, Expr, coefficient
from ...loops.ir import Buffer, Load, Store, Value, walk
from ...schedule.products import Product, products_of
from ...symbols.size import Dimension, Size, hint_of
from ..kernel import (
    NATIVE,
    Argument,
    Call,
    Function,
    Group,
    Kernel,
    Let,
    Return,
    Statement,
    Var,
)
from ..kernel import Store as KernelStore
from ..loop_form import Body, params_of
from ..loop_structure import Structure
from .dequantised_cpp import can_write_dequantised, dequantised_call, start_of

__all__ = ["a_steps", "b_steps", "product_kernel", "products_in", "stores_of", "way_of"]

Step = int | Expr


def products_in(kernel: Structure) -> tuple[Product, ...]:
    """Return the products of a nest, first to last, if the header can compute them: all stores
    must be pointwise, and those of gemm run along n.
    """
    stores = stores_of(kernel)
    products = products_of(kernel.outer, (store.value for store in stores))
    if not products or any(store.inner for store in stores):
        return ()
    if not products[0].is_plain:
        return products if can_write_dequantised(products[0]) else ()
    if any(coefficient(store.index[0], products[-1].n) != 1 for store in stores):
        return ()
    return products if _main_store(stores, products[-1]) is not None else ()


def product_kernel(
    kernel: Structure, products: Sequence[Product], buffers: Mapping[str, Buffer]
) -> Kernel:
    """Return the loop form: one call of jm::gemm, jm::chain or jm::dequantised."""
    stores = stores_of(kernel)
    if not products[0].is_plain:
        body = dequantised_call(products[0], stores)
    elif len(products) == 1:
        body = _gemm(stores, products[0])
    else:
        body = _chain(stores, products)
    return Kernel(kernel.name, params_of(kernel, buffers), kernel.symbols, body, kernel.origins)


def stores_of(kernel: Structure) -> list[Store]:
    """Return the stores of a nest."""
    return [store for single in kernel.passes for store in single.stores]


def _main_store(stores: Sequence[Store], product: Product) -> Store | None:
    """Return the store that gemm itself performs: the last float32 one that needs the sum."""
    for store in reversed(stores):
        if store.value.dtype == torch.float32 and product.total in walk((store.value,)):
            return store
    return None


def _gemm(stores: Sequence[Store], product: Product) -> Body:
    main = _main_store(stores, product)
    assert main is not None
    m, n, k = product.m, product.n, product.k
    operands = _operand(product.a, a_steps(product)), _operand(product.b, b_steps(product))
    args: list[Argument] = [m.extent, n.extent, k.extent, *operands, *_target(main, m)]
    if stores == [main] and main.value == product.total:
        args.append("jm::NoEpilogue{}")
    else:
        args.append(_epilogue(stores, main, product))
    function = "gemm_rows" if _is_rows(product) else "gemm"
    return (Call(function, tuple(args), "gemm", (way_of(product),)),)


def _is_rows(product: Product) -> bool:
    """Return whether both methods are in one kernel: few rows are computed as dot products."""
    # They are 3 times as fast if both operands are contiguous along k. A separate template for few
    # rows was one compile more. An MLP of 784-256-128-10 takes 0.92 to 1.01 of the static kernels'
    # time from 2 to 1024 rows.
    left, right = _known_steps(product)
    return isinstance(product.m.extent, Size) and left[1] == 1 != right[1]


def _known_steps(product: Product, left: Sequence[object] = ()) -> list[list[int]]:
    """Return the strides of both operands, 0 for a dynamic one, which is not known to be 1."""
    pairs = (left or a_steps(product), b_steps(product))
    return [[step if isinstance(step, int) else 0 for step in pair] for pair in pairs]


def way_of(product: Product, left: Sequence[object] = ()) -> Group:
    """Return the method as a constant, so that one of the three is compiled: any is correct for all
    sizes; for dynamic rows it is chosen by this call's sizes. `left`: the strides of the first
    operand if it is no buffer that the product loads from.
    """
    a, b = (Group(("nullptr", *steps)) for steps in _known_steps(product, left))
    return Group((hint_of(product.m.extent), hint_of(product.n.extent), a, b), "gemm_way")


def _chain(stores: Sequence[Store], products: Sequence[Product]) -> Body:
    links: list[Argument] = []
    made: list[Statement] = []
    for number, (product, after) in enumerate(itertools.pairwise(products)):
        # The lanes are rows: one column of sums at a time.
        name, given = f"after{number}", Var("sum", product.total.dtype, NATIVE)
        body = (Let(product.total, given), Return(after.a))
        made.append(Function(name, given, (product.n,), product.m, body, count=""))
        links.append(Group((*_link(product), name), "link"))
    final = products[-1]
    main = _main_store(stores, final)
    assert main is not None
    made.append(_epilogue(stores, main, final, "finish"))
    first = _operand(products[0].a, a_steps(products[0]))
    function = "chain_rows" if isinstance(final.m.extent, Size) else "chain"
    last = Group((*_link(final), *_target(main, final.m), "finish"), "last")
    made.append(Call(function, (final.m.extent, first, *links, last), "chain"))
    return tuple(made)


def _epilogue(stores: Sequence[Store], main: Store, product: Product, name: str = "") -> Function:
    """Return the function from a vector of sums along n to the values that `main` stores; it
    performs the other stores itself.
    """
    given = Var("sum", product.total.dtype, NATIVE)
    others = [KernelStore(s.buffer, s.index[0], s.value) for s in stores if s is not main]
    body = (Let(product.total, given), *others, Return(main.value))
    return Function(name, given, (product.m, product.n), product.n, body)


def a_steps(product: Product) -> tuple[Step, Step]:
    """Return the strides of the first operand along m and k."""
    return _pair(product.a, product.m, product.k)


def b_steps(product: Product) -> tuple[Step, Step]:
    """Return the strides of the second operand along k and n."""
    return _pair(product.b, product.k, product.n)


def _pair(load: Value, first: Axis, second: Axis) -> tuple[Step, Step]:
    assert isinstance(load, Load)
    first_step, second_step = (coefficient(load.index[0], axis) for axis in (first, second))
    assert first_step is not None
    assert second_step is not None
    return first_step, second_step


def _operand(load: Value, steps: tuple[Step, Step]) -> Group:
    assert isinstance(load, Load)
    return Group((start_of(load.buffer, load.index[0]), *steps))


def _link(product: Product) -> tuple[Argument, ...]:
    sizes: tuple[Dimension, ...] = (product.n.extent, product.k.extent)
    return (*sizes, _operand(product.b, b_steps(product)))


def _target(main: Store, m: Axis) -> tuple[Argument, ...]:
    offset = main.index[0]
    step = coefficient(offset, m)
    assert step is not None
    return start_of(main.buffer, offset), step
