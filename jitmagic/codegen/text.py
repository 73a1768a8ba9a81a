"""Writes the pieces of text that no language changes: sums, names of arguments, comments."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping

from ..loops.expr import Add, Apply, Axis, AxisVar, Expr, FloorDiv, Integer, Mod, Symbol, linear
from .kernel_values import VarIndex

__all__ = ["OffsetText", "argument_names", "comment_lines", "sum_text", "terms_text"]


def sum_text(expr: Expr, atom: Callable[[Expr], str]) -> str:
    """Return a sum of terms in integer arithmetic; `atom` writes one term without its factor."""
    constant, terms = linear(expr)
    return terms_text([], terms, constant, atom)


def terms_text(
    parts: list[str], terms: Mapping[Expr, int], constant: int, atom: Callable[[Expr], str]
) -> str:
    """Return the sum of the texts `parts`, the terms and the constant."""
    parts = [*parts]
    for part, factor in terms.items():
        text = atom(part)
        parts.append(text if factor == 1 else f"{text} * {factor}")
    if constant or not parts:
        parts.append(str(constant))
    return " + ".join(parts).replace("+ -", "- ")


class OffsetText(ABC):
    """Writes offsets and sizes as integer arithmetic. A language says how it divides, and how it
    computes with dynamic sizes.
    """

    @abstractmethod
    def divided(self, sign: str, a: Expr, b: int) -> str:
        """Return a quotient ("//") or a remainder ("%"), rounded down, by a positive number."""

    @abstractmethod
    def sized(self, expr: Apply) -> str:
        """Return arithmetic over dynamic sizes."""

    def axis_name(self, axis: Axis) -> str:
        """Return the variable of an axis."""
        return axis.name

    def index(self, expr: Expr) -> str:
        """Return an offset or a size."""
        return sum_text(expr, self.atom)

    def atom(self, expr: Expr) -> str:
        """Return a term of a sum without its factor."""
        match expr:
            case AxisVar(axis):
                return self.axis_name(axis)
            case Symbol(name):
                return name
            case VarIndex(var):
                return var.name
            case Apply():
                return self.sized(expr)
            case FloorDiv(a, b):
                return self.divided("//", a, b)
            case Mod(a, b):
                return self.divided("%", a, b)
            case Integer() | Add():
                return f"({self.index(expr)})"
        raise TypeError(f"not an index expression: {expr!r}")


def argument_names(
    buffers: Iterable[str],
    others: Collection[str],
    is_reserved: Callable[[str], bool],
    rename: Callable[[str], str] = "p_{}".format,
) -> dict[str, str]:
    """Return a variable for every buffer: its own name if possible, and not one of `others`."""
    names: dict[str, str] = {}
    for buffer in buffers:
        name = re.sub(r"\W", "_", buffer)
        if not name[0].isalpha() or is_reserved(name):
            name = rename(name)
        while name in names.values() or name in others:
            name += "_"
        names[buffer] = name
    return names


def comment_lines(words: tuple[str, ...], mark: str, width: int) -> list[str]:
    """Return a comment `a, b, c` broken into lines that begin with `mark`."""
    lines, line = [], mark
    for number, word in enumerate(words):
        piece = f" {word}" + ("," if number + 1 < len(words) else "")
        if len(line) + len(piece) > width:
            lines.append(line)
            line = f"{mark}  "
        line += piece
    return [*lines, line] if words else []
