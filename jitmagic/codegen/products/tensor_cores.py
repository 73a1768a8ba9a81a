"""Decides how Triton multiplies a few rows by a matrix on tensor cores, by `tl.dot`.

In: a Structure whose nest is such a product, by a dequantised weight
(schedule/dequantised_products.py) or by one of 16 bits (schedule/products.py), and the target. Out:
its tile, a block of rows, one of columns and one of the terms of a sum, and the operands as the
tensor cores take them. A single row is a reduction (matrix_vector.py).
"""

from __future__ import annotations

from math import prod

import torch

from ...devices import Target
from ...loops.ir import Axis, Cast, Load, Value, walk
from ...loops.values import cast
from ...schedule.products import Product, is_narrow, products_of
from ...symbols.size import hint_of
from ..config import TritonConfig
from ..kernel import TileBlock
from ..kernel_values import next_power
from ..loop_structure import Structure
from ..triton.tile import Tile, has_far_offsets

__all__ = ["dot_candidates", "dot_operands", "dot_product_in", "dot_tile"]

LEAST, WIDEST = 16, 128  # sides of a tile of tensor cores
# Rows -> (columns, steps whose loads are in flight) of a tile. H200, 11008 x 4096 int8: 8 rows take
# 16.1 us (eager 153; 30 us with 128 columns, since too few programs load at a time), 32 rows 25.7,
# 64 rows 33.2 (in two tiles of 32, 51). A weight of 4096 x 11008 takes 20.3 us with six steps in
# flight, 23.5 with four. With the operands exchanged, so that wgmma takes the weight from
# registers, 8 rows take 26.5 us.
TILES = {16: (32, 6), 32: (64, 3), 64: (32, 3)}
STEP = 128  # terms of the sum
MOST_BYTES = 64 << 10  # of the steps in flight, so that a multiprocessor has several programs


def dot_product_in(kernel: Structure) -> Product | None:
    """Return the product of a nest that is computed by tensor cores, or None."""
    if len(kernel.outer) != 2 or len(kernel.passes) != 2:
        return None
    stores = kernel.passes[-1].stores
    products = products_of(kernel.outer, (store.value for store in stores), halves=True)
    if len(products) != 1 or products[0].is_plain or kernel.passes[0].stores:
        return None
    return products[0] if kernel.outer == (products[0].m, products[0].n) else None


def dot_operands(product: Product) -> tuple[Value, Value]:
    """Return both operands in the dtype in which they are multiplied: that of the activations if
    the weight has been rounded to it, else float32.
    """
    rows = product.a.value if isinstance(product.a, Cast) else product.a
    weight = product.b
    if isinstance(weight, Cast) and (
        weight.value.dtype == rows.dtype or is_narrow(weight.value.dtype)
    ):
        return rows, cast(weight.value, rows.dtype)
    return cast(rows, torch.float32), weight


def dot_tile(kernel: Structure, product: Product, target: Target, overrides: TritonConfig) -> Tile:
    """Return the tile of one program; non-zero overrides win."""
    most = max(TILES)
    rows = max(min(next_power(hint_of(product.m.extent)), overrides.rows or most), LEAST)
    columns, stages = TILES[min(rows, most)]
    columns = overrides.side or columns
    programs = -(-hint_of(product.m.extent) // rows)
    # Narrower tiles give most multiprocessors a part of the weight to read.
    busy = target.multiprocessors // 2
    while columns > LEAST and programs * product.n.extent < columns * busy:
        columns //= 2
    axes = kernel.passes[0].axes
    terms = prod(axis.extent for axis in axes)
    step = min(max(next_power(terms), LEAST), overrides.step or STEP)
    outer = (
        TileBlock("y", (product.m,), product.m.extent, rows),
        TileBlock("x", (product.n,), product.n.extent, columns),
    )
    inner = {axes: TileBlock("r", axes, terms, step)}
    turned = TileBlock("z", (Axis("z", product.n.extent),), product.n.extent, columns)
    wide = has_far_offsets(kernel)
    a, b = (max(part.dtype.itemsize for part in walk((side,)) if isinstance(part, Load))
            for side in (product.a, product.b))  # fmt: skip
    in_flight = step * (rows * a + columns * b)
    stages = overrides.stages or min(stages, max(MOST_BYTES // in_flight, 2))
    return Tile(outer, inner, overrides.warps or 4, wide, stages, (turned,))


def dot_candidates(tile: Tile) -> tuple[TritonConfig, ...]:
    """Return other tiles worth measuring."""
    columns = tile.outer[1].size
    sides = [n for n in (columns // 2, columns * 2, columns * 4) if LEAST <= n <= WIDEST]
    steps = [TritonConfig(step=n) for n in (64, 256)]
    return (*(TritonConfig(side=n) for n in sides), *steps, TritonConfig(warps=2),
            TritonConfig(side=64, warps=8), TritonConfig(stages=4))  # fmt: skip
