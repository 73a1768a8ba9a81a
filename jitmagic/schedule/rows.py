"""Padded rows of matrices: who shares the memory, and what becomes of its strides.

In: the unfused program. Out, through `Rows`: which memory may have longer rows without anyone
noticing, and the buffers and aliases as they are then. Only nests (which take strides from the
Buffer) and matrix products (which take a distance between rows) may touch such memory.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace

from ..loops.ir import Alias, Buffer, Expr, LoopProgram, Nest, Step
from .deps import reads_of, storages, writes_of

__all__ = ["Rows"]


@dataclass(slots=True)
class Rows:
    """`buffers` and `start`, how many elements into the memory that it shares a buffer begins, are
    as `lengthen` leaves them.
    """

    program: LoopProgram
    takes_rows: Callable[[Step, str], bool]  # whether a step may touch a buffer of longer rows
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
        """Whether the memory of a buffer holds the same values wherever it is read."""
        owner = self.owner[name]
        given = owner in (*self.program.inputs, *self.program.constants)
        return self._writers(owner) == (0 if given else 1)

    def behind(self, name: str, point: tuple[Expr, ...]) -> tuple[str, tuple[Expr, ...]]:
        """The buffer and the index of the element at `point` of a buffer: where that is another
        with its dimensions in another order, that other, which nests can be fused by.
        """
        owner, buffer = self.buffers[self.owner[name]], self.buffers[name]
        at = dict(zip(buffer.stride, point, strict=True))
        same = _dimensions(owner) == _dimensions(buffer)
        if not same or self.start[name] or len(at) < len(point):
            return name, point
        return owner.name, tuple(at[stride] for stride in owner.stride)

    def _writers(self, owner: str) -> int:
        return sum(named in writes_of(step) for step, named in self._touching[owner])

    def may_be_longer(self, name: str, row: int, maker: Step | None = None) -> bool:
        """Whether the memory of a buffer may have rows of more than `row` elements. `maker`: a step
        that writes it now and will not then.
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
        """Rows of `row` elements begin `longer` elements apart from now on, in all of the memory
        that the buffer shares.
        """
        for one in self._family[self.owner[name]]:
            moved = _moved(self.buffers[one], self.start[one], row, longer)
            assert moved is not None
            stride, self.start[one] = moved
            self.buffers[one] = replace(self.buffers[one], stride=stride)

    def moved(self, steps: Iterable[Step]) -> Iterator[Step]:
        """Steps, with the program's aliases where they begin by now."""
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
    """Strides and start of a view when rows of `row` elements are `longer` elements apart; None if
    it goes from row to row otherwise than in whole rows.
    """
    inside = sum((n - 1) * s for n, s in zip(buffer.shape, buffer.stride, strict=True) if s < row)
    across = all(s < row or s % row == 0 for s in buffer.stride)
    if not across or start % row + inside >= row or 0 in buffer.shape:
        return None
    strides = (s if s < row else s // row * longer for s in buffer.stride)
    return tuple(strides), start // row * longer + start % row
