"""page_model: the classes of explain's report as data, without markup.

`page.py` builds a `Page`; `html.py` and `report.py` render it and decide nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ...figures import size
from ...lazy_dataclass import dataclass
from .breaks import BreakReport
from .footprint import Footprint
from .highlight import Piece
from .kernels import KernelReport
from .verdict import Verdict

__all__ = [
    "RECOMPILES",
    "Chip",
    "Code",
    "CodeRow",
    "Flame",
    "Fold",
    "KernelBar",
    "Module",
    "Page",
    "badge",
]

RECOMPILES = "recompiles, and the edit that stops each"


@dataclass(frozen=True, slots=True)
class Chip:
    """One of the four facts below the verdict; tone: "good", "bad" or ""."""

    text: str
    tone: str = ""


@dataclass(frozen=True, slots=True)
class KernelBar:
    """Identical kernel launches or ATen calls; `number` is that of their badge.

    share: time relative to the slowest bar
    limit: `74 % of memory speed`, `limited by arithmetic` or ""
    """

    number: int
    kernel: KernelReport
    lines: str
    count: int = 1
    seconds: float = 0.0
    share: float = 0.0
    limit: str = ""
    decisions: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        return self.kernel.title

    @property
    def code(self) -> str:
        """The kernel's function, cut out of its translation unit; "" for an ATen call."""
        start = rf'^(?:(?://|@).*\n)*(?:extern "C" .*|def ){re.escape(self.kernel.name)}\('
        body = r".*\n(?:[ \t].*\n|\n)*(?:\}.*)?"
        program = rf"^kernel {re.escape(self.kernel.name)}\n(?:.+\n)*"  # of the interpreter
        found = re.search(rf"{start}{body}|{program}", self.kernel.text, re.MULTILINE)
        return found[0].rstrip() if found else self.kernel.text

    @property
    def owner(self) -> str:
        """The language of a generated kernel, or the operator of an ATen call."""
        kernel = self.kernel
        if kernel.user:
            return f"your {kernel.user} kernel"
        name = kernel.name.removeprefix("aten.").removesuffix(".default")
        if not kernel.is_generated:
            return f"torch's {name}"
        return f"{kernel.language}, {kernel.state}" if kernel.state else kernel.language

    @property
    def size(self) -> str:
        return size(self.kernel.nbytes * self.count) if self.kernel.nbytes else ""


@dataclass(frozen=True, slots=True)
class CodeRow:
    """A source line; eager, compiled: seconds; bars: relative to the slowest line."""

    number: int
    text: str
    pieces: tuple[Piece, ...]
    eager: float
    compiled: float
    bars: tuple[float, float]
    badges: tuple[int, ...]
    more_badges: int  # number of badges that are not shown
    breaks: tuple[BreakReport, ...]

    @property
    def is_annotated(self) -> bool:
        """True if the line has times or graph breaks."""
        return bool(self.eager or self.compiled or self.breaks)

    @property
    def indent(self) -> int:
        return len(self.text) - len(self.text.lstrip())


@dataclass(frozen=True, slots=True)
class Code:
    """The lines of a function, shown unfolded if `is_open`."""

    name: str
    rows: tuple[CodeRow, ...]
    is_open: bool
    eager: float
    compiled: float

    @property
    def width(self) -> int:
        """Characters of the longest line, to align the column of times."""
        return max((len(row.text) for row in self.rows), default=0)


@dataclass(frozen=True, slots=True)
class Module:
    """A module of a model, or `count` identical ones, with its times and its code."""

    name: str
    kind: str
    count: int
    eager: float
    compiled: float
    bars: tuple[float, float]
    part: float  # share of compiled time
    codes: tuple[Code, ...]
    inside: tuple[Module, ...]

    @property
    def title(self) -> str:
        """The name with the count: `h (x2, alike)`."""
        many = f" (x{self.count}, alike)" if self.count > 1 else ""
        return f"{self.name}{many}"

    def walk(self, depth: int = 0) -> Iterator[tuple[int, Module]]:
        """Yield (depth, module) for the module and all modules inside it."""
        yield depth, self
        for each in self.inside:
            yield from each.walk(depth + 1)


@dataclass(frozen=True, slots=True)
class Fold:
    """A section to unfold; indented lines belong to the line above them."""

    title: str
    lines: tuple[str, ...]
    number: int | None = None  # shown after the title

    @property
    def head(self) -> str:
        return self.title if self.number is None else f"{self.title} ({self.number:,})"


@dataclass(frozen=True, slots=True)
class Flame:
    """One compile with its stages as (name, seconds)."""

    name: str
    seconds: float
    stages: tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True)
class Page:
    """The whole report, in reading order."""

    name: str
    verdict: Verdict
    chips: tuple[Chip, ...]
    warnings: tuple[str, ...]  # parts that run as eager or were not tuned, and why
    codes: tuple[Code, ...]
    is_measured: bool
    elsewhere: tuple[BreakReport, ...]  # breaks on lines that are not shown
    modules: tuple[Module, ...]
    kernels: tuple[KernelBar, ...]
    refused: tuple[str, ...]
    folds: tuple[Fold, ...]
    further: tuple[Fold, ...]  # about the compiler: guards, fusion decisions, tuning
    flames: tuple[Flame, ...]
    footprints: tuple[Footprint, ...]
    facts: tuple[str, ...]
    small_print: tuple[str, ...] = ()
    seconds: float = 0.0  # compile time

    @property
    def last_recompile(self) -> tuple[str, ...]:
        """The reason of the last recompile, and the edit that avoids it; () without one."""
        ledger = next((fold.lines for fold in self.folds if fold.title == RECOMPILES), ())
        lines = [line.strip() for line in ledger if line.startswith(("    not ", "      to stop"))]
        last = max((at for at, line in enumerate(lines) if line.startswith("not ")), default=None)
        if last is None:
            return ()
        differs = lines[last].partition(": ")[2]
        return (f"recompiled because {differs}", *lines[last + 1 : last + 2])

    @property
    def sentence(self) -> str:
        """The verdict as a sentence: `step is 3.1x faster than eager (...)`."""
        return self.verdict.about(self.name)


def badge(number: int) -> str:
    """Return a number in a circle, or in parentheses above 35."""
    if number <= 20:
        return chr(0x2460 + number - 1)
    return chr(0x3251 + number - 21) if number <= 35 else f"({number})"
