"""Defines Traced, a data-less tensor that knows its value in the functional graph.

`Traced` is a tensor without data that reports the real device. Memory is modelled by `Cell`s: a
cell holds the current functional value of one storage, a Traced is a path of view steps into a
cell. Reading a view replays its path on the current value; writing to one makes a new value of the
whole cell. Raises CompileFailed for what cannot be modelled.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from itertools import count

import torch
from torch.fx import Node

from ...compat.modes import ignore_torch_function
from ...compat.tensors import set_conjugate
from ...errors import CompileFailed
from ...graph.dispatch_mode import dataless
from ...graph.symbolic.sym_node import as_dimension, as_dimensions, as_torch
from ...graph.wrappers.wrapping import holds_wrapper
from ...lazy_dataclass import dataclass, field
from ...torch_types import OpOverload
from .recorder import Sym
from .views import CONJUGATE, ViewStep, are_disjoint, is_conjugate

__all__ = ["AliasCall", "Cell", "Traced", "VersionCounter"]

aten = torch.ops.aten
_RECENT = 16  # writes remembered for the test that parts of a split are disjoint


@dataclass(frozen=True, slots=True, eq=False)
class AliasCall:
    """A call whose results alias its argument's memory, with the state needed to replay it on real
    tensors.
    """

    op: OpOverload | None  # None: the attribute `.data`
    source: Traced
    args: tuple[object, ...] = ()
    outputs: int = 1
    grad: bool = field(default_factory=torch.is_grad_enabled)
    version: int = field(init=False)  # of the source's counter, at the call
    label: int = field(init=False)  # of the source, at the call
    number: int = field(default_factory=count().__next__)  # in program order

    def __post_init__(self) -> None:
        object.__setattr__(self, "version", self.source._version)
        object.__setattr__(self, "label", self.source.label)


@dataclass(slots=True)
class VersionCounter:
    """autograd's version counter, which a tensor and its views share. Writes that an operation's
    schema hides are not counted.
    """

    writes: int = 0


class Cell:
    """One storage: its current value, its write count, and the tensor that owns it."""

    __slots__ = ("base", "first", "frozen", "input", "parts", "recent", "value", "version")

    def __init__(self, value: Sym, input: int | None = None, frozen: str = "") -> None:
        self.first = self.value = value
        # (path, value) of each write
        self.parts: list[tuple[tuple[ViewStep, ...], Sym]] | None = []
        self.version = 0
        # paths of the latest writes
        self.recent: deque[tuple[ViewStep, ...]] = deque(maxlen=_RECENT)
        self.input = input
        self.frozen = frozen  # why it must not be written to
        self.base: Traced | None = None

    def changed_since(self, version: int, path: Sequence[ViewStep]) -> bool:
        """Return whether a view may have been written after the version. Writes to disjoint parts
        of a split do not count.
        """
        writes = self.version - version
        if writes > len(self.recent):
            return True
        return any(not are_disjoint(path, self.recent[-n]) for n in range(1, writes + 1))


class Traced(torch.Tensor):
    """A tensor being traced. C++ autograd treats it as any tensor of that device."""

    cell: Cell
    path: tuple[ViewStep, ...]
    counter: VersionCounter
    origin: tuple[AliasCall, int] | None  # the call and the index of the result it is
    label: int = 0  # how often its shape was changed in place
    custom: Node | None = None  # the call whose history it has, if that is no view
    _sym: Sym
    _version_read: int

    __torch_function__ = ignore_torch_function  # type: ignore[assignment]

    @staticmethod
    def make(
        sym: Sym,
        cell: Cell,
        path: tuple[ViewStep, ...],
        requires_grad: bool,
        layout: torch.Tensor | None = None,
        origin: tuple[AliasCall, int] | None = None,
        counter: VersionCounter | None = None,
    ) -> Traced:
        """Make a traced tensor. `layout` gives its strides in the storage if they differ from the
        value's; `counter` is shared with the tensor it is a view of.
        """
        meta = sym.meta if layout is None else layout
        offset = meta.storage_offset() if path else 0
        made = dataless(Traced, meta, sym.device, offset, requires_grad)
        made.cell, made.path, made._sym, made._version_read = cell, path, sym, cell.version
        made.origin, made.counter = origin, VersionCounter() if counter is None else counter
        if is_conjugate(path):  # composites of torch ask for the bit
            set_conjugate(made, True)  # type: ignore[attr-defined]
        return made

    @property
    def sym(self) -> Sym:
        """Return the current value, read through the views."""
        if self._version_read != self.cell.version:
            if self.cell.changed_since(self._version_read, self.path):
                self._sym = self._replay()[-1]
            self._version_read = self.cell.version
        return self._sym

    def memory_layout(self) -> torch.Tensor | None:
        """Return the tensor's layout in its storage if it differs from its value's. A write to an
        input with gaps makes a dense value, while its memory keeps the gaps.
        """
        shape, stride = as_dimensions(self.shape), as_dimensions(self.stride())
        if stride == self.sym.strides or not self.numel():
            return None
        offset = as_dimension(self.storage_offset())
        last = offset + sum((n - 1) * s for n, s in zip(shape, stride, strict=True))
        memory = torch.empty(as_torch(last + 1), dtype=self.dtype, device="meta")
        return memory.as_strided(self.shape, self.stride(), as_torch(offset))

    def _replay(self) -> list[Sym]:
        values = [self.cell.value]
        for step in self.path:
            values.append(step.apply(values[-1]))
        return values

    def write(self, new: Sym, counted: bool = True) -> None:
        """Make `new` the value for every tensor of this storage."""
        cell = self.cell
        if cell.frozen:
            raise CompileFailed(cell.frozen)
        if CONJUGATE in self.path:  # torch conjugates the memory, writes and conjugates it back
            raise CompileFailed("an in-place write through a conjugate view is not supported")
        bases = self._replay()
        value = self._conform(new)
        cell.version += 1
        cell.recent.append(self.path)
        self.counter.writes += counted
        self._sym, self._version_read = value, cell.version
        if cell.parts is not None:
            # After a write to the whole no byte keeps its old value.
            whole = not any(step.is_part for step in self.path)
            cell.parts = None if whole else [*cell.parts, (self.path, value)]
        for step, base in zip(reversed(self.path), reversed(bases[:-1]), strict=True):
            value = step.write_back(base, value)
            # Scatters return dense tensors, the storage keeps its layout.
            if value.strides != base.strides:
                value = value.recorder.restride(value, base.strides)
        cell.value = value

    def written_parts(self) -> list[tuple[Sym, Sym]]:
        """Return (region of this input's memory, new value) per write, in order, for partly written
        bools. A bool in memory holds any byte, while its value is 0 or 1; bytes that the program
        does not write must stay.
        """
        if self.dtype is not torch.bool:
            return []
        return [(_seen_through(path, self.cell.first), new) for path, new in self.cell.parts or ()]

    def _conform(self, new: Sym) -> Sym:
        """Cast, broadcast and lay out like this tensor, as writing into its memory does."""
        new = new.to(self.dtype)
        shape = as_dimensions(self.shape)
        if new.shape != shape:
            new = new.expand(*shape).one(aten.clone.default, memory_format=torch.contiguous_format)
        return new.recorder.restride(new, self._sym.strides)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: OpOverload, types: Collection[type] = (), *unused: object
    ) -> object:
        if holds_wrapper(types):
            return NotImplemented
        raise CompileFailed(f"{func} met a traced tensor outside of the trace")


def _seen_through(path: tuple[ViewStep, ...], value: Sym) -> Sym:
    for step in path:
        value = step.apply(value)
    return value
