"""Prints addresses of elements: pointers of buffers plus offsets.

In: a buffer and an offset of the linear form, the Tile of a program. Out: text. Offsets have 32
bits, or 64 in a wide tile. In a Section the place of a tile's first point is computed in 64 bits,
once for all points, and the distances of the others from it in 32 bits.
"""

from __future__ import annotations

from collections.abc import Mapping

from ...loops.expr import Axis, Expr, Integer, Symbol, coefficient, linear, substitute
from ...symbols.polynomial import factors
from .offsets import TileOffsets
from .tile import Tile

__all__ = ["TileAddresses"]


class TileAddresses(TileOffsets):
    """Prints addresses of one kernel. `names`: the variables of buffers and sections."""

    def __init__(self, tile: Tile, names: Mapping[str, str]) -> None:
        super().__init__(tile)
        self.names, self.sections = {**names}, set[str]()

    def section(self, name: str, buffer: str, offset: Expr) -> str:
        """Return the first address of a section, which has its name from here on."""
        self.names[name] = name
        self.sections.add(name)
        return " + ".join([self.names[buffer], *self.wide_terms(offset)])

    def pointer(self, buffer: str, offset: Expr) -> str:
        """Return the addresses of elements."""
        name = self.names[buffer]
        if buffer in self.sections:
            return " + ".join([name, *self.section_terms(offset)])
        return name if offset == Integer(0) else f"{name} + {self.index(offset)}"

    def section_terms(self, offset: Expr) -> list[str]:
        """Return the terms of an offset in a section, those of neighbouring elements last."""
        blocks = [b for b in self.ordered(self.blocks_over(self.axes_in(offset))) if b.size > 1]
        first = {block.axes[0]: Integer(0) for block in blocks}
        terms, near, next_to = self.wide_terms(substitute(offset, first)), [], []
        for block in blocks:
            step, start = _step(offset, block.axes[0]), self.scope.starts[block]
            if step == Integer(1):
                next_to.append(self.scope.flat[block] if start else self.lanes(block))
                continue
            if start:
                terms.append(f"{start}.to(tl.int64) * {self.wide_factor(step)}")
            near.append(f"{self.lanes(block)} * {self.closed_index(step)}")
        return [*terms, *near, *next_to]

    def wide_terms(self, expr: Expr) -> list[str]:
        """Return the terms of a sum in arithmetic of 64 bits."""
        constant, terms = linear(expr)
        texts = [self.wide_term(atom, n) for atom, n in terms.items()]
        return [*texts, *([str(constant)] if constant else [])]

    def wide_term(self, atom: Expr, n: int) -> str:
        """Return a multiple of a product, with the product of its sizes as one factor."""
        parts = factors(atom)
        others = [f"{self.atom(p)}.to(tl.int64)" for p in parts if not isinstance(p, Symbol)]
        sizes = [f"{part.name}_wide" for part in parts if isinstance(part, Symbol)]
        sizes += [str(n)] if n != 1 else []
        if others and len(sizes) > 1:
            sizes = [f"({' * '.join(sizes)})"]
        return " * ".join([*others, *sizes])

    def wide_factor(self, size: Expr) -> str:
        """Return a size in 64 bits, in brackets if it may have an operator."""
        if isinstance(size, Integer):
            return str(size.value)
        return f"({' + '.join(self.wide_terms(size))})"


def _step(offset: Expr, axis: Axis) -> Expr:
    step = coefficient(offset, axis)
    assert step is not None, "an offset in a section is a sum of multiples of axes"
    return step if isinstance(step, Expr) else Integer(step)
