"""Bodies of a C++ kernel beside the one for all sizes, and which of them a call takes.

In: a Structure whose passes have lengths that vary, and what was found while its body was written.
Out: the lines around that body, which becomes a lambda: of `size0`, … for the sizes that are
constants in one of the copies, and of `single`, whether each sum is one block.

What a constant buys where a pass takes few steps: its loops are unrolled, a row stays in registers
from pass to pass, and which lanes of the last block count is known (rows of 64: layer norm takes
1.3 times as long without, maxima 1.3; rows of 384: 1.01). The copies are chosen once a call, and
threads of OpenMP see their constants as well, which their types say. For all other sizes there is
one body, to which `single` is a variable: a copy for each of its values made softmax 1.04 times as
fast at most, and took 1.4 times as long to compile.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ..loops.expr import Axis, Symbol
from ..schedule.score import extent_product
from ..symbols.scalar import symbols_of
from ..symbols.size import Dimension, Size, hint_of, size_of
from .cpp_text import count_text
from .lanes import Lanes
from .structure import Structure

__all__ = ["Cases", "cases_of", "own_names"]

SINGLE = "single"
FEW_STEPS = 16  # of a pass, that are worth unrolling
MOST_NODES = 60  # of a kernel that is compiled twice


@dataclass(frozen=True, slots=True)
class Cases:
    """`fixed`: sizes of this call, by their symbols, that are constants in a copy. `blocks`: the
    sums of the kernel, each its length and what is one block of it.
    """

    fixed: tuple[tuple[Symbol, int], ...] = ()
    blocks: dict[tuple[Size, int], None] = field(default_factory=dict)

    def single_block(self, extent: Size, size: int) -> str:
        """Text for whether a sum of that length is one block."""
        self.blocks[extent, size] = None
        return SINGLE

    @property
    def header(self) -> str:
        """The lambda around the body."""
        parameters = [f"const auto size{n}" for n in range(len(self.fixed))]
        if self.blocks:
            parameters.append(f"const auto {SINGLE}")
        return f"const auto body = [&]({', '.join(parameters)}) JM_BODY {{"

    def declarations(self) -> list[str]:
        """The first lines of the body."""
        return [
            f"const int64_t {symbol.name} = size{n};" for n, (symbol, _) in enumerate(self.fixed)
        ]

    def calls(self) -> list[str]:
        """What chooses a copy."""
        own = [symbol.name for symbol, _ in self.fixed]
        everywhere = self._call(own, " && ".join(_fit(self.blocks)))
        if not self.fixed:
            return [everywhere]
        single = all(hint_of(extent) <= size for extent, size in self.blocks)
        tests = [f"{symbol.name} == {value}" for symbol, value in self.fixed]
        if single:
            known = {symbol for symbol, _ in self.fixed}
            tests += _fit(b for b in self.blocks if not known.issuperset(symbols_of(b[0].expr)))
        constants = [f"jm::Fixed<{value}>{{}}" for _, value in self.fixed]
        fixed = self._call(constants, f"jm::Fixed<{int(single)}>{{}}")
        return [f"if ({' && '.join(tests)}) {fixed}", f"else {everywhere}"]

    def _call(self, arguments: Sequence[str], single: str) -> str:
        return f"body({', '.join([*arguments, single] if self.blocks else arguments)});"


def own_names(kernel: Structure) -> set[str]:
    """Variables of the kernel's own, which no argument may be called as."""
    if not kernel.symbols:
        return set()
    sizes = {f"size{n}" for n in range(len(kernel.symbols))}
    return {SINGLE, "body", "count", *sizes, *(symbol.name for symbol in kernel.symbols)}


def cases_of(kernel: Structure, lanes: Lanes, tile: tuple[Axis, ...]) -> Cases | None:
    """None where one body does: no pass has a length that varies, or there is much to compile. Of
    the axes of tiles the distances between rows are worth a constant, however long they are.
    """
    passes = [p.axes for p in kernel.passes if p.axes]
    looped = [*passes, (lanes.outer,)] if passes and lanes.outer is not None else [*passes, tile]
    varying = any(isinstance(axis.extent, Size) for axes in looped for axis in axes)
    if not varying or len(kernel.free) > MOST_NODES:
        return None
    fixed = _sizes(tile)
    for axes, width in _vector_loops(kernel, lanes):
        if extent_product(axes) <= FEW_STEPS * width:
            fixed.update(_sizes(axes))
    return Cases(tuple(fixed.items()))


def _vector_loops(kernel: Structure, lanes: Lanes) -> list[tuple[Sequence[Axis], int]]:
    """The loops that take several lanes a step, and how many."""
    if lanes.outer is not None:
        return [((lanes.outer,), lanes.width)]
    chosen = zip(kernel.passes, lanes.passes, strict=True)
    return [(pass_.axes, width) for pass_, (axis, width) in chosen if axis is not None]


def _fit(blocks: Iterable[tuple[Size, int]]) -> list[str]:
    return [f"{count_text(extent)} <= {size}" for extent, size in blocks]


def _sizes(axes: Sequence[Axis]) -> dict[Symbol, int]:
    """The symbols of the extents, and what they are in this call."""
    extents: list[Dimension] = [axis.extent for axis in axes]
    return {
        symbol: hint_of(size_of(symbol, size.context))
        for size in extents
        if isinstance(size, Size)
        for symbol in symbols_of(size.expr)
    }
