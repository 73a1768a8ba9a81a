"""findings: everything that explain knows about a compiled function, as plain data for page.py."""

from __future__ import annotations

import torch

from ...errors import UserLine
from ...lazy_dataclass import dataclass, field
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
    """One configuration tried by mode="max-autotune"; seconds of one run, 0 if it did not run."""

    graph: str
    subject: str  # a kernel, or a matrix product
    config: str
    seconds: float
    outcome: str  # "chosen" | "slower" | "wrong result" | "failed: why"
    measured: bool  # in this process; otherwise read from the cache of an earlier one


@dataclass(frozen=True, slots=True)
class SymbolReport:
    """A size or a number that varies between calls: dynamic, or specialised to a constant."""

    origin: str  # "x.shape[0]"
    kind: str  # "size" | "stride" | "int" | "float" | "number" (of a constant)
    range: Interval | None = None  # values that the compiled code supports; None: a constant
    conditions: tuple[tuple[str, UserLine | None], ...] = ()  # guards, and the line that needs each
    specialized: str = ""  # the reason why it is a constant
    where: UserLine | None = None  # the line that reads it or that made it a constant


@dataclass(frozen=True, repr=False)
class Findings:
    """Everything known about one compiled function. Times are in seconds."""

    name: str
    source: tuple[str, int, tuple[str, ...]]  # file, first line, lines; no lines if unknown
    graph_count: int
    graph_break_count: int
    op_count: int
    graphs: tuple[torch.fx.GraphModule, ...]
    break_reasons: tuple[BreakReport, ...]
    guards: tuple[str, ...]  # those about the user's code and values first
    compile_times: tuple[tuple[str, float], ...]
    kernels: tuple[KernelReport, ...]
    externs: tuple[KernelReport, ...]  # calls of ATen, and of Triton kernels of the user
    decisions: tuple[str, ...]  # fusions made and refused, in words
    cache_hits: int
    library_guards: int = 0  # number of guards, at the end of `guards`, about installed packages
    outcomes: tuple[tuple[str, Eager | Failed], ...] = ()  # frames not compiled, and the reason
    waiting: int = 0  # backwards that will be compiled at their first use
    trials: tuple[TrialReport, ...] = ()  # configurations tried by mode="max-autotune"
    untuned: tuple[str, ...] = ()  # kernels that were not tuned, and the reason
    verdict: Verdict = UNMEASURED
    measured: Measured | None = None  # the user's calls compared with eager
    payback: str = ""  # "pays back after 3 calls"
    facts: tuple[str, ...] = ()  # guards about values that a caller can change, in words
    other_facts: int = 0  # number of further guards
    refused: tuple[Refusal, ...] = ()  # fusions that would have saved memory traffic
    footprints: tuple[Footprint, ...] = ()  # bytes alive, one per frame; empty: not measured
    variants: int = 1  # of the function itself, without resume functions
    ledger: tuple[str, ...] = ()  # the recompile ledger: when, for which call, which guard failed
    costs: Costs = field(default_factory=Costs)  # empty if nothing was measured
    memory: tuple[int, int] = (0, 0)  # peak bytes, compiled and as eager; 0: not known
    notes: tuple[str, ...] = ()  # sentences about activation_memory_budget and torch.func
    numbers: tuple[str, ...] = ()  # dynamic sizes and numbers, in words
    symbols: tuple[SymbolReport, ...] = ()  # the lines of `numbers` as data
    records: tuple[CompileRecord, ...] = ()  # results of the stages, from which pictures are drawn

    @property
    def seconds(self) -> float:
        """Total compile time in seconds."""
        return sum(seconds for _, seconds in self.compile_times)
