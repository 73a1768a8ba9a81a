"""sources: finds functions and statements in the user's files and notebook cells.

Input: a filename known to linecache, which includes notebook cells. Output: the function around a
line, or the statement that begins on it and its successor. Lines with magics are left out.
"""

from __future__ import annotations

import ast
import linecache
import textwrap
from collections.abc import Iterator
from functools import lru_cache

__all__ = ["Span", "function_around", "lines_of_statement", "statement_at"]

Span = tuple[str, int, int, str]  # file, first and last line, name
_Function = (ast.FunctionDef, ast.AsyncFunctionDef)


def function_around(filename: str, number: int) -> Span:
    """Return file, first line, last line and name of the innermost function around a line."""
    spans = [span for span in _functions(_text_of(filename)) if span[0] <= number <= span[1]]
    begin, end, name = max(spans, default=(number, number, "top level"))
    return filename, begin, end, name


def statement_at(filename: str, number: int) -> tuple[ast.stmt, ast.stmt | None] | None:
    """Return the statement that begins on a line, and the next one in its block."""
    for block in _blocks(_tree(_text_of(filename))):
        for place, statement in enumerate(block):
            if statement.lineno == number:
                return statement, block[place + 1] if place + 1 < len(block) else None
    return None


def lines_of_statement(filename: str, statement: ast.stmt) -> list[str]:
    """Return the statement's lines as written, dedented, without a trailing comment."""
    text = ast.get_source_segment(_text_of(filename), statement, padded=True)
    return textwrap.dedent(text or ast.unparse(statement)).splitlines()


def _text_of(filename: str) -> str:
    """Return the text with lines of magics blanked: they are not Python."""
    lines = linecache.getlines(filename)
    return "".join("\n" if line.startswith(("%", "!")) else line for line in lines)


@lru_cache(maxsize=64)
def _tree(text: str) -> ast.Module:
    try:
        return ast.parse(text.encode("utf-8", "replace"))
    except (SyntaxError, ValueError):  # without a tree, reports show single lines
        return ast.Module([], [])


@lru_cache(maxsize=64)
def _functions(text: str) -> tuple[tuple[int, int, str], ...]:
    return tuple(_walk(_tree(text), ""))


def _walk(node: ast.AST, inside: str) -> Iterator[tuple[int, int, str]]:
    for child in ast.iter_child_nodes(node):
        name = inside
        if isinstance(child, (*_Function, ast.ClassDef)):
            name = f"{inside}.{child.name}" if inside else child.name
        if isinstance(child, _Function):
            yield child.lineno, child.end_lineno or child.lineno, name
        yield from _walk(child, name)


def _blocks(tree: ast.Module) -> Iterator[list[ast.stmt]]:
    for node in ast.walk(tree):
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, None)
            if isinstance(block, list) and block and isinstance(block[0], ast.stmt):
                yield block
