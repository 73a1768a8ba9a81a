"""highlight: splits source into tokens for syntax highlighting; the only user of pygments.

Input: text and its language. Output: for each line (kind of token, text) pairs, which HTML shows as
classes and rich as styles. The joined pieces are the input text.
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
    """Return the tokens of each line, without line ends."""
    lexer = _LEXERS.get(language, CppLexer)(stripnl=False, ensurenl=False)
    lines: list[list[Piece]] = [[]]
    for kind, piece in _pieces(text, lexer):
        first, *rest = piece.split("\n")
        lines[-1].append((kind, first))
        lines += [[(kind, part)] for part in rest]
    return tuple(tuple((kind, part) for kind, part in line if part) for line in lines)


def _pieces(text: str, lexer: PythonLexer | CppLexer) -> Iterator[Piece]:
    """Yield tokens, with neighbours of one kind joined.

    A text that the lexer changes (it normalises carriage returns) is not highlighted.
    """
    found = [(_kind(token), piece) for token, piece in lex(text, lexer)]
    if "".join(piece for _, piece in found) != text:
        found = [("", text)]
    for kind, pieces in groupby(found, key=lambda piece: piece[0]):
        yield kind, "".join(piece for _, piece in pieces)


def _kind(token: object) -> str:
    return next((name for kind, name in _KINDS if token in kind), "")
