"""findings: all that explain knows of a compiled function, as plain data that page.py arranges."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from ...errors import UserLine
from ...records import CompileRecord, Eager, Failed, Measured
from ...symbols.interval import Interval
from .breaks import BreakReport
from .cost import Costs
from .footprint import Footprint
from .kernels import KernelReport, Refusal
from .verdict import UNMEASURED, Verdict

__all__ = ["BreakReport", "Findings", "KernelReport", "SymbolReport", "TrialReport"]


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
    verdict: Verdict = UNMEASURED
    measured: Measured | None = None  # the calls so far beside eager's
    payback: str = ""  # "pays back after 3 calls"
    facts: tuple[str, ...] = ()  # what must stay the same and a caller can change, in words
    other_facts: int = 0  # how many more guards there are
    refused: tuple[Refusal, ...] = ()  # fusions that would have saved memory traffic
    footprints: tuple[Footprint, ...] = ()  # bytes alive, one of each frame; empty: not measured
    variants: int = 1  # of the function itself, that its guards and graphs are of
    ledger: tuple[str, ...] = ()  # variant by variant: when, for which call, why not the one before
    costs: Costs = field(default_factory=Costs)  # empty where nothing was measured
    memory: tuple[int, int] = (0, 0)  # bytes at most, compiled and as eager; 0: not known
    numbers: tuple[str, ...] = ()  # sizes and numbers that change from call to call, in words
    symbols: tuple[SymbolReport, ...] = ()  # the same as data
    records: tuple[CompileRecord, ...] = ()  # what each stage made: pictures are drawn of it

    @property
    def seconds(self) -> float:
        """Total compile time."""
        return sum(seconds for _, seconds in self.compile_times)
