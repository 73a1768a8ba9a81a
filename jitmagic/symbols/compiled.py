"""Expressions of sizes as one Python function of their symbols' values.

Comes in: nested tuples, lists and dicts with Sizes in them, or comparisons. Goes out: a function
that is called with a value for each symbol: it gives the structure with numbers for the Sizes, or
whether the comparisons hold. What is used twice is computed once. To evaluate expressions one by
one (scalar.py) takes a hundred times as long, and a vector of sizes that is new needs all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from .expr import Add, Expr, FloorDiv, Integer, Mod, Mul
from .interval import Interval
from .scalar import OPERATIONS, Apply, Symbol
from .size import Size

__all__ = ["check_function", "fill_function"]

Relation = tuple[str, Expr, Expr]
_SHORT = 200  # characters of a tuple that is worth a name


def fill_function(symbols: Sequence[Symbol], structure: Any) -> Callable[..., Any]:
    """`structure` where the symbols have the values that the function is called with."""
    writer = _Writer(symbols)
    text = writer.part(structure)
    writer.lines.append(f"return {writer.constant(structure) if text is None else text}")
    return writer.function()


def check_function(
    symbols: Sequence[Symbol], ranges: Iterable[Interval], relations: Iterable[Relation]
) -> Callable[..., bool]:
    """Whether all values, which are ints, keep to their ranges and all relations are true, in this
    order.
    """
    writer = _Writer(symbols)
    for symbol, interval in zip(symbols, ranges, strict=True):
        low, high = writer.constant(interval.low), writer.constant(interval.high)
        writer.lines.append(f"if not {low} <= {writer.expr(symbol)} <= {high}: return False")
    for op, left, right in relations:
        a, b = writer.expr(left), writer.expr(right)
        writer.lines.append(f"if not {a} {op} {b}: return False")
    writer.lines.append("return True")
    return writer.function()


class _Writer:
    """The function so far. Each name is assigned once."""

    def __init__(self, symbols: Sequence[Symbol]) -> None:
        self._arguments = [f"s{n}" for n in range(len(symbols))]
        self._known: dict[Expr, str] = dict(zip(symbols, self._arguments, strict=True))
        self._tuples: dict[str, str] = {}
        self._globals: dict[str, Any] = {}
        self.lines: list[str] = []

    def function(self) -> Callable[..., Any]:
        body = "\n    ".join(self.lines)
        made: dict[str, Any] = {}
        text = f"def computed({', '.join(self._arguments)}):\n    {body}\n"
        exec(compile(text, "<sizes>", "exec"), self._globals, made)
        function: Callable[..., Any] = made["computed"]
        return function

    def constant(self, value: Any) -> str:
        name = f"c{len(self._globals)}"
        self._globals[name] = value
        return name

    def _name(self, text: str) -> str:
        name = f"e{len(self.lines)}"
        self.lines.append(f"{name} = {text}")
        return name

    def expr(self, expr: Expr) -> str:
        if expr not in self._known:
            text = self._operation(expr)
            self._known[expr] = text if isinstance(expr, Integer) else self._name(text)
        return self._known[expr]

    def _operation(self, expr: Expr) -> str:
        match expr:
            case Integer(value):
                return f"({value})"
            case Add(a, b):
                return f"{self.expr(a)} + {self.expr(b)}"
            case Mul(a, b):
                return f"{self.expr(a)} * {self.expr(b)}"
            case FloorDiv(a, int(b)):
                return f"{self.expr(a)} // ({b})"
            case Mod(a, int(b)):
                return f"{self.expr(a)} % ({b})"
            case Apply(op, args):
                operation = self.constant(OPERATIONS[op].python)
                return f"{operation}({', '.join(map(self.expr, args))})"
        return self.constant(getattr(expr, "value"))  # noqa: B009 - a Number

    def part(self, part: Any) -> str | None:
        """The text of a part of the structure; None: there are no Sizes in it."""
        if isinstance(part, Size):
            return self.expr(part.expr)
        if isinstance(part, dict):
            texts = self._parts(list(part.values()))
            if texts is None:
                return None
            items = zip(map(self.constant, part), texts, strict=True)
            return f"{{{', '.join(f'{key}: {text}' for key, text in items)}}}"
        if not isinstance(part, tuple | list):  # fx has lists of a class of its own
            return None
        texts = self._parts(part)
        if texts is None:
            return None
        inside = ", ".join(texts)
        if isinstance(part, list):
            return f"[{inside}]"
        text = f"({inside},)"
        if len(text) > _SHORT:
            return text
        if text not in self._tuples:
            self._tuples[text] = self._name(text)
        return self._tuples[text]

    def _parts(self, parts: Sequence[Any]) -> list[str] | None:
        texts = [self.part(one) for one in parts]
        if all(text is None for text in texts):
            return None
        return [
            self.constant(one) if text is None else text
            for one, text in zip(parts, texts, strict=True)
        ]
