"""highlight: source as pieces with a colour's name, line by line; the one user of pygments.

Comes in: text and its language. Goes out: for each line (kind of token, text) pairs, which the HTML
shows as classes and rich as styles. Joined, the pieces are the text that came in.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import groupby

from pygments import lex
from pygments.lexers import CppLexer, PythonLexer
from pygments.token import Token

__all__ = ["Piece", "highlighted"]

Piece = tuple[str, str]  # ("keyword", "def")

_KINDS = (
    (Token.Comment, "comment"),
    (Token.Keyword, "keyword"),
    (Token.Operator.Word, "keyword"),
    (Token.Literal.String, "string"),
    (Token.Literal.Number, "number"),
    (Token.Name.Decorator, "function"),
    (Token.Name.Function, "function"),
    (Token.Name.Class, "function"),
    (Token.Name.Builtin, "builtin"),
)
_LEXERS = {"python": PythonLexer, "triton": PythonLexer, "numba": PythonLexer, "cpp": CppLexer}


@lru_cache(maxsize=64)
def highlighted(text: str, language: str = "python") -> tuple[tuple[Piece, ...], ...]:
    """The lines of a text, without their ends."""
    lexer = _LEXERS[language](stripnl=False, ensurenl=False)
    lines: list[list[Piece]] = [[]]
    for kind, piece in _pieces(text, lexer):
        first, *rest = piece.split("\n")
        lines[-1].append((kind, first))
        lines += [[(kind, part)] for part in rest]
    return tuple(tuple((kind, part) for kind, part in line if part) for line in lines)


def _pieces(text: str, lexer: PythonLexer | CppLexer) -> Iterator[Piece]:
    """Neighbours of one kind are one. What the lexer drops or makes anew (carriage returns) is not
    highlighted at all.
    """
    found = [(_kind(token), piece) for token, piece in lex(text, lexer)]
    if "".join(piece for _, piece in found) != text:
        found = [("", text)]
    for kind, pieces in groupby(found, key=lambda piece: piece[0]):
        yield kind, "".join(piece for _, piece in pieces)


def _kind(token: object) -> str:
    return next((name for kind, name in _KINDS if token in kind), "")
