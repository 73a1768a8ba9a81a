"""Source: the operations that every kind has; each subclass is the row of one kind.

    describe     the path as Python text: `self.fc1.weight`, `cfg['n']`
    read         follows it in a live frame, in Python; raises one of UNREADABLE (guards/read.py).
                 This is the reference of the native step, and agrees with it for every frame
    load         the native step (extensions/frame/guard_steps.h), without its target register
    emit         bytecode that reads it again after the graph

A kind that is read from another source derives from `Derived` and defines `TEXT`, `STEP`, `follow`
and, where calling `follow` is not the shortest way, `code`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

from ...bytecode import FrameSnapshot, Instruction, build
from ...lazy_dataclass import dataclass
from ...protocols import Protocol

__all__ = ["Code", "Derived", "Registers", "Residual", "Source", "Step", "describe"]

Step = tuple[Any, ...]
Code = list[Instruction]


class Registers(Protocol):
    """The native program under construction; a register holds the value at one path."""

    namespace: dict[str, object]
    builtins: dict[str, object]

    def register(self, source: Source) -> int: ...

    def registers(self, sources: tuple[Source, ...]) -> tuple[int, ...]: ...

    def native(self, function: Callable[..., object]) -> Callable[..., object]:
        """Return the C function that does the same, if the extension has one."""


class Residual(Protocol):
    """The code of one frame under construction, as far as reading sources needs it."""

    @property
    def parameters(self) -> Sequence[str]: ...

    @property
    def builtins(self) -> Mapping[str, object]: ...

    @property
    def with_getattribute(self) -> frozenset[Source]:
        """Objects whose class has a Python `__getattribute__`, which would see reads."""

    def base(self, source: Source) -> Code:
        """Return code that pushes the object at a source that others may be read from."""

    def call_on(self, function: Callable[..., object], base: Source) -> Code:
        """Return code that pushes the result of a function without side effects."""


@dataclass(frozen=True, slots=True)
class Source:
    """Abstract base of the family."""

    # Not an ABC: isinstance() of those takes 4x as long (tests/guards/test_sources.py checks).

    @abstractmethod
    def describe(self) -> str:
        """Return the path as Python text."""

    @abstractmethod
    def read(self, frame: FrameSnapshot) -> object:
        """Return the object at the path."""

    @abstractmethod
    def load(self, registers: Registers) -> Step:
        """Return the name and the operands of the native step."""

    @abstractmethod
    def emit(self, residual: Residual) -> Code:
        """Return code that pushes the object, without running user code where that is possible."""

    @property
    def bases(self) -> tuple[Source, ...]:
        """The sources that it is read from."""
        return ()

    def path(self) -> Iterator[Source]:
        """Yield the source, its base, the base of that, ... down to the root."""
        at = self
        yield at
        while isinstance(at, Derived):
            at = at.base
            yield at

    @property
    def root(self) -> Source:
        """The beginning of the path: an argument, a global, ..."""
        *_, last = self.path()
        return last

    @property
    def depth(self) -> int:
        """The length of the longest path to a root."""
        return 1 + max((base.depth for base in self.bases), default=0)


@dataclass(frozen=True, slots=True)
class Derived(Source):
    """A source that is read from others: `base`, and `index` too if the class defines `bases`."""

    base: Source

    TEXT: ClassVar[str]  # of `describe`: {0} is the text of the base, {1} that of the index
    STEP: ClassVar[str]  # the native step; its operands are the registers of `bases`, then these:
    follow: ClassVar[Callable[..., object]]  # the object, from those at `bases`
    code: ClassVar[Callable[..., Code] | None] = None  # likewise; None: code that calls `follow`

    def operands(self) -> tuple[object, ...]:
        """Return the operands of the native step after the registers: the source's own fields."""
        return tuple(getattr(self, name) for name in self.__match_args__[len(self.bases) :])

    @property
    def bases(self) -> tuple[Source, ...]:
        return (self.base,)

    def describe(self) -> str:
        return self.TEXT.format(*(base.describe() for base in self.bases), self=self)

    def read(self, frame: FrameSnapshot) -> object:
        return self.follow(*(base.read(frame) for base in self.bases))

    def load(self, registers: Registers) -> Step:
        return (self.STEP, *registers.registers(self.bases), *self.operands())

    def emit(self, residual: Residual) -> Code:
        bases = [residual.base(base) for base in self.bases]
        return self.code(*bases) if self.code else build.call(self.follow, *bases)


def describe(source: Source) -> str:
    """Return the path as Python text: `self.fc1.weight`, `cfg['n']`."""
    return source.describe()
