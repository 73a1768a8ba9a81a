"""Tracks which matrices may have padded rows, through all views that share their memory.

In: the unfused program. Out, through `Rows`: the memory whose rows may be padded without a visible
change, and the buffers and aliases after padding. Only nests (which take strides from the Buffer)
and matrix products (which take a row stride) may access such memory.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator

from ...lazy_dataclass import dataclass, field, replace
from ...loops.ir import Alias, Buffer, Expr, LoopProgram, Nest, Step
from ..dependencies import reads_of, storages, writes_of

__all__ = ["Rows"]


@dataclass(slots=True)
class Rows:
    """Tracks the layouts of shared memory. `buffers` and `start` (a buffer's offset in elements
    into the shared memory) are updated by `lengthen`.
    """

    program: LoopProgram
    takes_rows: Callable[[Step, str], bool]  # whether a step may access a padded buffer
    buffers: dict[str, Buffer] = field(init=False)
    start: dict[str, int] = field(init=False)
    owner: dict[str, str] = field(init=False)
    _family: dict[str, list[str]] = field(init=False)
    _touching: dict[str, list[tuple[Step, str]]] = field(init=False)

    def __post_init__(self) -> None:
        program = self.program
        self.buffers, self.owner = dict(program.buffers), storages(program)
        self.start = dict.fromkeys(program.buffers, 0)
        self._family, self._touching = defaultdict(list), defaultdict(list)
        for name, owner in self.owner.items():
            self._family[owner].append(name)
        for step in program.steps:
            if isinstance(step, Alias):
                self.start[step.name] = self.start[step.base] + step.offset
                continue
            for name in dict.fromkeys((*reads_of(step), *writes_of(step))):
                self._touching[self.owner[name]].append((step, name))

    def is_fixed(self, name: str) -> bool:
        """Return whether the memory of a buffer holds the same values at all reads."""
        owner = self.owner[name]
        is_external = owner in (*self.program.inputs, *self.program.constants)
        return self._writers(owner) == (0 if is_external else 1)

    def element_of_owner(self, name: str, point: tuple[Expr, ...]) -> tuple[str, tuple[Expr, ...]]:
        """Return the buffer and index of the element at `point`."""
        # A permutation of the owner's dimensions reads the owner itself, so that nests can fuse
        # with it.
        owner, buffer = self.buffers[self.owner[name]], self.buffers[name]
        at = dict(zip(buffer.stride, point, strict=True))
        same = _dimensions(owner) == _dimensions(buffer)
        if not same or self.start[name] or len(at) < len(point):
            return name, point
        return owner.name, tuple(at[stride] for stride in owner.stride)

    def _writers(self, owner: str) -> int:
        return sum(named in writes_of(step) for step, named in self._touching[owner])

    def may_be_longer(self, name: str, row: int, maker: Step | None = None) -> bool:
        """Return whether the memory of a buffer may have rows of more than `row` elements. `maker`:
        a step that writes it now and will be replaced.
        """
        owner, program = self.owner[name], self.program
        family = self._family[owner]
        leaving = {n for n in program.outputs if n is not None}
        if program.buffers[owner].role != "temp" or not leaving.isdisjoint(family):
            return False
        if program.buffers[owner].device != program.device or self._writers(owner) != 1:
            return False
        fits = all(_moved(self.buffers[n], self.start[n], row, row) is not None for n in family)
        return fits and all(
            step is maker or isinstance(step, Nest) or self.takes_rows(step, touched)
            for step, touched in self._touching[owner]
        )

    def lengthen(self, name: str, row: int, longer: int) -> None:
        """Change the distance of rows of `row` elements to `longer` elements, in all buffers of the
        shared memory.
        """
        for one in self._family[self.owner[name]]:
            moved = _moved(self.buffers[one], self.start[one], row, longer)
            assert moved is not None
            stride, self.start[one] = moved
            self.buffers[one] = replace(self.buffers[one], stride=stride)

    def moved(self, steps: Iterable[Step]) -> Iterator[Step]:
        """Return the steps with the program's aliases at their new offsets."""
        own = {step.name for step in self.program.steps if isinstance(step, Alias)}
        for step in steps:
            if isinstance(step, Alias) and step.name in own:
                offset = self.start[step.name] - self.start[step.base]
                yield replace(step, offset=offset)
            else:
                yield step


def _dimensions(buffer: Buffer) -> list[tuple[int, int]]:
    return sorted(zip(buffer.stride, buffer.shape, strict=True))


def _moved(buffer: Buffer, start: int, row: int, longer: int) -> tuple[tuple[int, ...], int] | None:
    """Return the strides and start of a view after padding rows of `row` elements to `longer`; None
    if it crosses rows.
    """
    inside = sum((n - 1) * s for n, s in zip(buffer.shape, buffer.stride, strict=True) if s < row)
    across = all(s < row or s % row == 0 for s in buffer.stride)
    if not across or start % row + inside >= row or 0 in buffer.shape:
        return None
    strides = (s if s < row else s // row * longer for s in buffer.stride)
    return tuple(strides), start // row * longer + start % row
