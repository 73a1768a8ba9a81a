"""Writes values as Python statements for numba; every value is a variable.

In: nodes of a Structure and the stack of open loops. Out: lines. A value is set in the outermost
loop that binds all of its axes, so that loop-invariant values are computed before the inner loop.
Only constants are written into the expressions that use them. Offsets are in elements, int64.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import torch

from ..loops.expr import (
    Add,
    Apply,
    Axis,
    AxisVar,
    Expr,
    FloorDiv,
    Integer,
    Mod,
    Symbol,
    ValueIndex,
    linear,
)
from ..loops.ir import (
    Buffer,
    Cast,
    Compute,
    Constant,
    IndexValue,
    Load,
    Reduction,
    Store,
    Value,
)
from ..symbols.size import Size, expr_of
from .loop_structure import Structure
from .numba_ops import HALVES, cast_text, compute_text, literal

__all__ = ["NumbaBody"]


@dataclass(slots=True)
class _Scope:
    """Represents one open block: the axes known inside it, its lines, its values and checked
    indexes.
    """

    bound: frozenset[Axis]
    header: str = ""
    lines: list[str] = field(default_factory=list)
    values: dict[Value, str] = field(default_factory=dict)
    checked: dict[tuple[ValueIndex, str], str] = field(default_factory=dict)


class NumbaBody:
    """Writes the statements of one kernel."""

    def __init__(
        self, kernel: Structure, names: Mapping[str, str], buffers: Mapping[str, Buffer]
    ) -> None:
        self.kernel, self.names, self.buffers = kernel, names, buffers
        self.scopes = [_Scope(frozenset())]
        self._count = 0

    @property
    def bound(self) -> frozenset[Axis]:
        return self.scopes[-1].bound

    def line(self, text: str) -> None:
        self.scopes[-1].lines.append(text)

    def lines(self, texts: Iterable[str]) -> None:
        self.scopes[-1].lines.extend(texts)

    def open(self, header: str, axes: tuple[Axis, ...] = ()) -> None:
        self.scopes.append(_Scope(self.bound | frozenset(axes), header))

    def loops(self, axes: tuple[Axis, ...]) -> None:
        """Open one loop per axis."""
        for axis in axes:
            extent = self._index(expr_of(axis.extent), 0)
            self.open(f"for {_variable(axis)} in range({extent}):", (axis,))

    def close(self, count: int = 1) -> None:
        """Close that many blocks."""
        for _ in range(count):
            scope = self.scopes.pop()
            self.line(scope.header)
            self.lines(f"    {line}" for line in scope.lines)

    def name(self, prefix: str = "v") -> str:
        self._count += 1
        return f"{prefix}{self._count - 1}"

    def define(self, value: Value, code: str) -> None:
        """Bind `value` to a new variable in the current block."""
        name = self.name()
        self.line(f"{name} = {code}")
        self.scopes[-1].values[value] = name

    def ready(self) -> frozenset[Value]:
        """Return the reductions whose results are known here."""
        return frozenset(v for s in self.scopes for v in s.values if isinstance(v, Reduction))

    # -- values ------------------------------------------------------------------------------------

    def name_of(self, root: Value) -> str:
        """Return the variable of the value; its statements are added where they are missing."""
        stack = [root]
        while stack:
            node = stack[-1]
            waiting = [part for part in node.operands if self._known(part) is None]
            if self._known(node) is None and waiting:
                stack.extend(reversed(waiting))
                continue
            stack.pop()
            if self._known(node) is None:
                self._enter(node)
        return self._text(root)

    def _known(self, value: Value) -> tuple[str, int] | None:
        for depth in reversed(range(len(self.scopes))):
            if value in self.scopes[depth].values:
                return self.scopes[depth].values[value], depth
        return None

    def _text(self, value: Value) -> str:
        known = self._known(value)
        assert known is not None
        return known[0]

    def _enter(self, node: Value) -> None:
        if isinstance(node, Constant):
            self.scopes[0].values[node] = literal(node.value, node.dtype)
            return
        depth = self._home(node)
        code = self._code(node, depth)
        name = self.name()
        self.scopes[depth].lines.append(f"{name} = {code}")
        self.scopes[depth].values[node] = name

    def _home(self, node: Value) -> int:
        """Return the outermost block in which all operands and axes of the node are known."""
        free = self.kernel.free[node]
        depth = next(d for d, s in enumerate(self.scopes) if d and free <= s.bound)
        known = (self._known(part) for part in node.operands)
        return max([depth, *(found[1] for found in known if found is not None)])

    def _code(self, node: Value, depth: int) -> str:
        match node:
            case Load():
                return self._load(node, depth)
            case Cast(value=value, dtype=dtype):
                return cast_text(self._text(value), value.dtype, dtype)
            case Compute(op=op, args=args, dtype=dtype):
                return compute_text(op, [self._text(arg) for arg in args], dtype, args[-1].dtype)
            case IndexValue(expr=expr, dtype=dtype):
                return cast_text(f"({self._index(expr, depth)})", torch.int64, dtype)
        raise TypeError(f"no numba for {type(node).__name__} here")

    # -- memory ------------------------------------------------------------------------------------

    def _load(self, node: Load, depth: int) -> str:
        fill = literal(node.fill, node.dtype)
        if 0 in self.buffers[node.buffer].shape:
            return fill
        mask = "" if node.mask is None else self._text(node.mask)
        code = f"{self.names[node.buffer]}[{self._index(node.index[0], depth, mask)}]"
        if node.dtype in HALVES:
            code = f"load_{HALVES[node.dtype]}({code})"
        if node.dtype == torch.bool:
            code = f"{code} != 0"
        return f"({code}) if {mask} else {fill}" if mask else code

    def store(self, store: Store) -> str:
        """Return the statement that writes one point of a store."""
        value = self.name_of(store.value)
        for part in IndexValue(store.index[0]).operands:
            self.name_of(part)
        place = f"{self.names[store.buffer]}[{self.index(store.index[0])}]"
        dtype = store.value.dtype
        if store.mode == "add":
            value = self._sum(place, value, dtype)
        if dtype in HALVES:
            value = f"store_{HALVES[dtype]}({value})"
        return f"{place} = {f'uint8({value})' if dtype == torch.bool else value}"

    def _sum(self, place: str, value: str, dtype: torch.dtype) -> str:
        if dtype == torch.bool:
            return f"{place} != 0 or {value}"
        old = f"load_{HALVES[dtype]}({place})" if dtype in HALVES else place
        return compute_text("add", [old, value], dtype, dtype)

    # -- indexes -----------------------------------------------------------------------------------

    def index(self, expr: Expr) -> str:
        """Return an offset for use in the innermost block."""
        return self._index(expr, len(self.scopes) - 1)

    def _index(self, expr: Expr, depth: int, mask: str = "") -> str:
        constant, terms = linear(expr)
        parts = []
        for atom, factor in terms.items():
            text = self._atom(atom, depth, mask)
            parts.append(text if factor == 1 else f"{text} * {factor}")
        if constant or not parts:
            parts.append(str(constant))
        return " + ".join(parts).replace("+ -", "- ")

    def _atom(self, expr: Expr, depth: int, mask: str) -> str:
        match expr:
            case AxisVar(axis):
                return _variable(axis)
            case ValueIndex():
                return self._checked(expr, depth, mask)
            case FloorDiv(a, b):
                return f"(({self._index(a, depth, mask)}) // {b})"
            case Mod(a, b):
                return f"(({self._index(a, depth, mask)}) % {b})"
            case Integer() | Add():
                return f"({self._index(expr, depth, mask)})"
            case Symbol(name):
                return name
            case Apply(op, args):
                texts = [self._index(part, depth, mask) for part in args]
                if op in ("min", "max"):
                    return f"{op}({', '.join(texts)})"
                return "(" + f" {op} ".join(f"({text})" for text in texts) + ")"
        raise TypeError(f"not an index expression: {expr!r}")

    def _checked(self, index: ValueIndex, depth: int, mask: str) -> str:
        """Check a run-time index: a negative one counts from the end, one out of range sets
        `bad`.
        """
        for scope in self.scopes[: depth + 1]:
            if (index, mask) in scope.checked:
                return scope.checked[index, mask]
        value, at = self._text(index.value), self.name("at")
        extent = self._index(expr_of(index.extent), 0)
        extent = f"({extent})" if isinstance(index.extent, Size) else extent
        self.scopes[depth].lines += [
            f"{at} = int64({value} + {extent} if {value} < 0 else {value})",
            f"if {at} < 0 or {at} >= {extent}:",
            f"    {at} = 0",
            f"    bad = 1 if {mask} else bad" if mask else "    bad = 1",
        ]
        self.scopes[depth].checked[index, mask] = at
        return at


def _variable(axis: Axis) -> str:
    return re.sub(r"\W", "_", axis.name)
