"""More of the corpus: syntax that older Pythons do not compile, as text.

Importing the module adds the programs that the running Python compiles to
`python_programs.PROGRAMS`.
"""

from __future__ import annotations

import sys
import textwrap

from .python_programs import program

__all__ = ["NEW_SYNTAX"]

NEW_SYNTAX: list[str] = []
"""The names of the programs."""


def _since(version: tuple[int, int], text: str, *args: object) -> None:
    if sys.version_info >= version:
        namespace: dict = {"__name__": __name__}
        source = textwrap.dedent(text)
        # Without the future import of this file, which would turn annotations into strings.
        exec(compile(source, f"<since {version}>", "exec", dont_inherit=True), namespace)
        (fn,) = (value for name, value in namespace.items() if not name.startswith("__"))
        NEW_SYNTAX.append(fn.__name__)
        program(*args)(fn)


_since((3, 14), """
    def except_without_parentheses(n):
        try:
            return [n][n]
        except IndexError, KeyError:
            return n
    """, 3)  # fmt: skip

_since((3, 14), """
    def deferred_annotations(n):
        def plus(a: Undefined, b: int = 2) -> "text":
            return a + b
        def times(a: int, b: 'x' = 2) -> list[int]:
            return [a * b]
        notes = times.__annotations__
        return plus(n), plus.__annotate__ is None, notes["a"], notes["b"], len(notes)
    """, 3)  # fmt: skip

_since((3, 14), """
    def annotations_that_raise_when_read(n):
        def plus(a: Undefined):
            return a + n
        try:
            plus.__annotations__
        except NameError as error:
            return plus(1), str(error)
    """, 3)  # fmt: skip

_since((3, 14), """
    def annotations_in_a_class_body(n):
        class Record:
            a: int = 3
            b: Undefined
            def m(self, y: Undefined) -> Record:
                return y
        return n
    """, 3)  # fmt: skip

_since((3, 14), """
    def builtins_over_inlined_generators(n):
        values = [n, 0, 300, -1]
        return (
            all(v < 400 for v in values), any(v > 299 for v in values),
            tuple(v for v in values), all(v for v in values), any(v == 7 for v in values),
            tuple(v for v in ()), all(v for v in ()), any(v for v in ()),
        )
    """, 3)  # fmt: skip
