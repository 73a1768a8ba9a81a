"""Writes values as Python statements for numba; every value is a variable.

In: nodes of a Structure and the stack of open loops. Out: lines. A value is set in the outermost
loop that binds all of its axes, so that loop-invariant values are computed before the inner loop.
Only constants are written into the expressions that use them. Offsets are in elements, int64.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
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
)
from ..loops.ir import (
    Cast,
    Compute,
    Constant,
    IndexValue,
    Load,
    Store,
    Value,
)
from ..symbols.size import Size, expr_of
from .numba_ops import HALVES, cast_text, compute_text, literal
from .scoped_text import Scope, ScopedText, sum_text

__all__ = ["NumbaBody"]


@dataclass(slots=True)
class _Scope(Scope):
    """Represents one open block, with the run-time indexes that are checked in it."""

    checked: dict[tuple[ValueIndex, str], str] = field(default_factory=dict)


class NumbaBody(ScopedText[_Scope]):
    """Writes the statements of one kernel."""

    scope_type = _Scope
    first_depth = 1

    def lines(self, texts: Iterable[str]) -> None:
        self.scopes[-1].lines.extend(texts)

    def loops(self, axes: tuple[Axis, ...]) -> None:
        """Open one loop per axis."""
        for axis in axes:
            extent = self._index(expr_of(axis.extent), 0)
            self.open(f"for {_variable(axis)} in range({extent}):", (axis,))

    def close_all(self, axes: tuple[Axis, ...]) -> None:
        """Close the loops of these axes."""
        for _ in axes:
            self.close()

    def assign(self, value: Value, code: str) -> None:
        """Bind `value` to a new variable in the current block."""
        name = self.name()
        self.line(f"{name} = {code}")
        self.define(value, name)

    # -- values ------------------------------------------------------------------------------------

    def name_of(self, value: Value) -> str:
        """Return the variable of the value; its statements are added where they are missing."""
        return self.reach(value, self.depth).code

    def constant(self, node: Constant) -> str:
        return literal(node.value, node.dtype)

    def enter(self, node: Value) -> None:
        super().enter(node)
        self.reach(node, 0)  # every value is a variable

    def code_of(self, node: Value, depth: int) -> str:
        match node:
            case Load():
                return self._load(node, depth)
            case Cast(value=value, dtype=dtype):
                return cast_text(self.name_of(value), value.dtype, dtype)
            case Compute(op=op, args=args, dtype=dtype):
                return compute_text(op, [self.name_of(arg) for arg in args], dtype, args[-1].dtype)
            case IndexValue(expr=expr, dtype=dtype):
                return cast_text(f"({self._index(expr, depth)})", torch.int64, dtype)
        raise TypeError(f"no numba for {type(node).__name__} here")

    # -- memory ------------------------------------------------------------------------------------

    def _load(self, node: Load, depth: int) -> str:
        fill = literal(node.fill, node.dtype)
        if 0 in self.buffers[node.buffer].shape:
            return fill
        mask = "" if node.mask is None else self.name_of(node.mask)
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
        return self._index(expr, self.depth)

    def _index(self, expr: Expr, depth: int, mask: str = "") -> str:
        return sum_text(expr, lambda atom: self._atom(atom, depth, mask))

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
        value, at = self.name_of(index.value), self.name("at")
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
