"""What explain finds out about a compiled function: plain data that report.py and html.py show."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from ..errors import UserLine
from ..records import CompileRecord, Eager, Failed
from ..symbols.interval import Interval
from .cost import Costs

__all__ = [
    "BreakReport",
    "ComparisonReport",
    "Findings",
    "KernelReport",
    "SymbolReport",
    "TrialReport",
]


@dataclass(frozen=True, slots=True)
class BreakReport:
    """One graph break on the user's own line."""

    kind: str
    reason: str
    hint: str
    where: UserLine

    def __str__(self) -> str:
        hint = f"\n  hint: {self.hint}" if self.hint else ""
        return f"{self.reason}\n  {self.where}{hint}"


@dataclass(frozen=True, slots=True)
class KernelReport:
    """One generated kernel: which graph it belongs to, its language, what it computes, its text,
    the user's lines that this stands on, and the variant.
    """

    name: str
    graph: str
    language: str
    computes: tuple[str, ...]
    text: str
    lines: tuple[UserLine, ...] = ()
    variant: int = 1


@dataclass(frozen=True, slots=True)
class ComparisonReport:
    """A variant whose first calls were timed beside eager's."""

    name: str
    measured: str  # "4.1x as fast as eager over 4 calls"
    is_kept: bool  # else its calls run as plain Python

    def __str__(self) -> str:
        kept = "it is kept" if self.is_kept else "plain Python is kept"
        return f"{self.name}: compiled code: {self.measured}: {kept}"


@dataclass(frozen=True, slots=True)
class TrialReport:
    """One way that mode="max-autotune" tried to do something; seconds of one run, 0 if none."""

    graph: str
    subject: str  # a kernel, or a matrix product
    config: str
    seconds: float
    outcome: str  # "chosen" | "slower" | "wrong result" | "failed: why"
    measured: bool  # by this compile; else it is remembered from an earlier one


@dataclass(frozen=True, slots=True)
class SymbolReport:
    """A size or a number that changes from call to call: a symbol, or a constant all the same."""

    origin: str  # "x.shape[0]"
    kind: str  # "size" | "stride" | "int" | "float" | "number" (of a constant)
    range: Interval | None = None  # the values that the compiled code serves; None: a constant
    conditions: tuple[tuple[str, UserLine | None], ...] = ()  # decided on, and the line that asked
    specialized: str = ""  # why it is a constant
    where: UserLine | None = None  # the line that reads it, or that made it a constant


@dataclass(frozen=True, repr=False)
class Findings:
    """Everything known about one compiled function. Times in seconds."""

    name: str
    source: tuple[str, int, tuple[str, ...]]  # file, first line, lines; empty when unknown
    graph_count: int
    graph_break_count: int
    op_count: int
    graphs: tuple[torch.fx.GraphModule, ...]
    break_reasons: tuple[BreakReport, ...]
    guards: tuple[str, ...]  # the user's own first
    compile_times: tuple[tuple[str, float], ...]
    kernels: tuple[KernelReport, ...]
    externs: tuple[tuple[str, str], ...]  # extern calls, and why
    decisions: tuple[str, ...]  # fusions made and refused, in words
    cache_hits: int
    library_guards: int = 0  # of the guards: how many, the last, are about installed packages
    outcomes: tuple[tuple[str, Eager | Failed], ...] = ()  # by name: frames not compiled, and why
    waiting: int = 0  # backwards that are compiled when they are first used
    trials: tuple[TrialReport, ...] = ()  # what mode="max-autotune" tried
    untuned: tuple[str, ...] = ()  # what it did not try, and why
    compared: tuple[ComparisonReport, ...] = ()  # variants timed in the calls so far
    variants: int = 1  # of the function itself, that its guards and graphs are of
    ledger: tuple[str, ...] = ()  # variant by variant: when, for which call, why not the one before
    costs: Costs = field(default_factory=Costs)  # empty where nothing was measured
    memory: str = ""  # what a call takes at most, in words
    numbers: tuple[str, ...] = ()  # sizes and numbers that change from call to call, in words
    symbols: tuple[SymbolReport, ...] = ()  # the same as data
    records: tuple[CompileRecord, ...] = ()  # what each stage made: pictures are drawn of it

    @property
    def seconds(self) -> float:
        """Total compile time."""
        return sum(seconds for _, seconds in self.compile_times)
