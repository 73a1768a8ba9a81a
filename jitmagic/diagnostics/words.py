"""words: formats text for all reports: counts, source lines, and results shown as text and HTML."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from html import escape
from typing import Generic, TypeVar

from ..errors import UsageError, UserLine
from ..figures import count, duration, size
from ..lazy_dataclass import dataclass

__all__ = [
    "HINT",
    "WRONG",
    "Question",
    "Readable",
    "Text",
    "count",
    "duration",
    "here",
    "line_numbers",
    "refuse_arguments",
    "size",
]

WRONG = "color:#e5484d;color:color-mix(in srgb,#e5484d 60%,currentColor);font-weight:600"
HINT = "opacity:.75"


class Text(str):
    """A string whose repr has no quotes, so that a prompt shows its lines."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


class Readable:
    """A result that is shown line by line, with the same lines in a terminal and a notebook."""

    __slots__ = ()

    def styled_lines(self) -> list[tuple[str, str]]:
        """Return (line, CSS style) pairs; the first line is the answer."""
        raise NotImplementedError

    def __str__(self) -> str:
        return "\n".join(line for line, _ in self.styled_lines())

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """Return the lines as HTML: long ones wrap with a hanging indent.

        The indentation is kept by no-break spaces too, as GitHub removes styles.
        """
        return "".join(_html_line(line, style) for line, style in self.styled_lines())


_LINE = "font:12px/1.5 monospace;white-space:pre-wrap;overflow-wrap:anywhere;max-width:110ch"


def _html_line(line: str, style: str) -> str:
    depth = len(line) - len(line.lstrip())
    place = f"{_LINE};padding-left:{depth + 4}ch;text-indent:-{depth + 4}ch"
    text = "&nbsp;" * depth + escape(line.lstrip())
    return f"<div style='{place}'><span style='{style}'>{text}</span></div>"


T = TypeVar("T")


@dataclass(frozen=True, slots=True, repr=False)
class Question(Generic[T]):
    """The result of `why(f)`, `passport(f)`, ...: call it with the arguments of f."""

    word: str  # "why"
    target: object
    answer: Callable[..., T]

    def __call__(self, *args: object, **kwargs: object) -> T:
        return self.answer(*args, **kwargs)

    def __repr__(self) -> str:
        name = getattr(self.target, "__name__", type(self.target).__name__)
        how = f"{self.word}(f)(x)"
        return f"<jitmagic.{self.word} of {name}: call it with the arguments, {how}>"


def refuse_arguments(word: str, arguments: tuple[object, ...]) -> None:
    """Raise UsageError for `why(f, x)`, which is a common mistake for `why(f)(x)`."""
    if arguments:
        raise UsageError(f"{word}(f, x) is written {word}(f)(x): what it returns is called")


def line_numbers(lines: Iterable[UserLine], home: str, most: int = 8) -> str:
    """Return `3, 4, layers.py:12, 14`: lines of the file `home` come first and without its name."""
    places = sorted({(line.filename != home, line.file, line.lineno) for line in lines})
    texts = [
        f"{file}:{number}" if away and (at == 0 or places[at - 1][1] != file) else str(number)
        for at, (away, file, number) in enumerate(places)
    ]
    return ", ".join(texts[:most]) + (", ..." if len(texts) > most else "")


def here(where: UserLine) -> str:
    """Return `file, line 3: x = f(y)`."""
    text = f": {where.text}" if where.text else ""
    return f"{where.file}, line {where.lineno}{text}"
