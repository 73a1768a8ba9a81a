"""Writes values as text in nested scopes: the part of the three renderers that no language changes.

In: the values of a Structure. Out: lines in scopes. A scope is one block of a kernel, and binds
axes. A value goes into the outermost scope that binds all of its axes, so that loop-invariant
values are computed before the inner loop. A short value with a single use gets no name: its text
is part of the expression that uses it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import ClassVar, Generic, TypeVar

from ..lazy_dataclass import dataclass, field
from ..loops.expr import Axis
from ..loops.ir import Buffer, Constant, Reduction, Value
from .loop_structure import Structure

__all__ = ["Scope", "ScopedText", "Text"]


@dataclass(slots=True)
class Text:
    """Holds an expression, the depth of the scope in which it is valid, and whether it is a
    vector.
    """

    code: str
    depth: int
    vector: bool = False
    named: bool = False


@dataclass(slots=True)
class Scope:
    """Represents one open block: the axes known inside it, its lines, its values."""

    bound: frozenset[Axis] = frozenset()
    header: str = ""
    footer: str = ""
    lines: list[str] = field(default_factory=list)
    texts: dict[object, Text] = field(default_factory=dict)


S = TypeVar("S", bound=Scope)


class ScopedText(ABC, Generic[S]):
    """Writes values into scopes. A renderer's subclass has the syntax, and opens the scopes."""

    scope_type: type[S]
    assignment: ClassVar[str] = "{0} = {1}"
    first_depth: ClassVar[int] = 0  # of the scope that is the body of the kernel

    def __init__(
        self, kernel: Structure, names: Mapping[str, str], buffers: Mapping[str, Buffer]
    ) -> None:
        self.kernel, self.names, self.buffers = kernel, names, buffers
        self.free = dict(kernel.free)
        self.scopes: list[S] = [self.scope_type()]
        self._count = 0

    # -- scopes ------------------------------------------------------------------------------------

    @property
    def depth(self) -> int:
        return len(self.scopes) - 1

    @property
    def bound(self) -> frozenset[Axis]:
        return self.scopes[-1].bound

    def line(self, text: str) -> None:
        self.scopes[-1].lines.append(text)

    def open(self, header: str, axes: tuple[Axis, ...] = (), footer: str = "") -> None:
        self.scopes.append(self.scope_type(self.bound | frozenset(axes), header, footer))

    def close(self) -> None:
        scope = self.scopes.pop()
        lines = [*scope.header.split("\n"), *(f"    {line}" for line in scope.lines)]
        self.scopes[-1].lines += [*lines, scope.footer] if scope.footer else lines

    def name(self, prefix: str = "v") -> str:
        """Return a new variable."""
        self._count += 1
        return f"{prefix}{self._count - 1}"

    def define(self, value: Value, code: str, vector: bool = False) -> None:
        """Bind `value` to the text `code` in the current scope."""
        self.scopes[-1].texts[value] = Text(code, self.depth, vector, named=True)

    def known(self, key: object) -> Text | None:
        for scope in reversed(self.scopes):
            if key in scope.texts:
                return scope.texts[key]
        return None

    def ready(self) -> frozenset[Value]:
        """Return the reductions whose results are known here."""
        return frozenset(v for s in self.scopes for v in s.texts if isinstance(v, Reduction))

    # -- values ------------------------------------------------------------------------------------

    @abstractmethod
    def code_of(self, node: Value, depth: int) -> str:
        """Return the expression of a value whose operands are known, in the scope at `depth`."""

    @abstractmethod
    def constant(self, node: Constant) -> str:
        """Return the text of a constant."""

    def is_vector(self, value: Value) -> bool:
        """Return whether the value has one element per lane."""
        return False

    def needs_name(self, value: Value, text: Text) -> bool:
        """Return whether the value is computed once, into a variable."""
        return True

    def reach(self, value: Value, depth: int) -> Text:
        """Return text of the value for the scope at `depth`; what is missing is written."""
        self.write(value)
        text = self.known(value)
        assert text is not None
        if not text.named and (text.depth < depth or self.needs_name(value, text)):
            self.give_name(text)
        return text

    def give_name(self, text: Text) -> None:
        name = self.name()
        self.scopes[text.depth].lines.append(self.assignment.format(name, text.code))
        text.code, text.named = name, True

    def write(self, root: Value) -> None:
        """Write everything below `root`, operands first."""
        # An explicit stack, because deep graphs would exceed Python's recursion limit.
        stack = [root]
        while stack:
            node = stack[-1]
            if self.known(node) is not None:
                stack.pop()
                continue
            waiting = [part for part in self.parts(node) if self.known(part) is None]
            if waiting:
                stack.extend(reversed(waiting))
                continue
            stack.pop()
            self.enter(node)

    def parts(self, node: Value) -> tuple[Value, ...]:
        """Return the values that have to be known before `node` is entered."""
        return node.operands

    def enter(self, node: Value) -> None:
        """Add the node's text to the scope in which it is computed."""
        if isinstance(node, Constant):
            self.scopes[0].texts[node] = Text(self.constant(node), 0, named=True)
            return
        depth = self.home(self.free[node], node.operands)
        text = Text(self.code_of(node, depth), depth, self.is_vector(node))
        self.scopes[depth].texts[node] = text

    def home(self, axes: frozenset[Axis], parts: Iterable[Value]) -> int:
        """Return the outermost scope that knows all axes and all parts."""
        depths = range(self.first_depth, len(self.scopes))
        depth = next((d for d in depths if axes <= self.scopes[d].bound), self.depth)
        return max([depth, *(text.depth for part in parts if (text := self.known(part)))])
