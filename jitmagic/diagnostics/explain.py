"""explain: what was captured, why it broke, what was fused, what it costs.

Comes in: the journal of a handle (records of every frame compiled for it, resume functions
included). Goes out: an `Explanation`, plain data, readable as text, by rich, and as static HTML in
a notebook. All counts in all views come from here, so no two of them can disagree.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from ..api import handle_of, tagged_copy
from ..errors import UserLine
from ..frame.handle import Handle
from ..guards.show import show_guard
from ..guards.source import describe
from ..loops.ir import Extern
from ..records import CompileRecord, Journal
from ..trace.result import Break, Trace

__all__ = [
    "BreakReport",
    "Explainer",
    "Explanation",
    "KernelReport",
    "TrialReport",
    "explain",
    "explanation_of",
]


@dataclass(frozen=True, slots=True)
class BreakReport:
    """One graph break on the user's own line."""

    kind: str
    reason: str
    hint: str
    where: UserLine

    def __str__(self) -> str:
        return f"{self.reason}\n  {self.where}\n  hint: {self.hint}"


@dataclass(frozen=True, slots=True)
class KernelReport:
    """One generated kernel: which graph it belongs to, its language, what it computes, its text."""

    name: str
    graph: str
    language: str
    computes: tuple[str, ...]
    text: str


@dataclass(frozen=True, slots=True)
class TrialReport:
    """One way that mode="max-autotune" tried to do something; seconds of one run, 0 if none."""

    graph: str
    subject: str  # a kernel, or a matrix product
    config: str
    seconds: float
    outcome: str  # "chosen" | "slower" | "wrong result" | "failed: why"
    measured: bool  # by this compile; else it is remembered from an earlier one


@dataclass(frozen=True, repr=False)
class Explanation:
    """Everything known about one compiled function. Times in seconds."""

    name: str
    source: tuple[str, int, tuple[str, ...]]  # file, first line, lines; empty when unknown
    graph_count: int
    graph_break_count: int
    op_count: int
    graphs: tuple[torch.fx.GraphModule, ...]
    break_reasons: tuple[BreakReport, ...]
    guards: tuple[str, ...]
    compile_times: tuple[tuple[str, float], ...]
    kernels: tuple[KernelReport, ...]
    externs: tuple[tuple[str, str], ...]  # ATen calls left whole, and why
    decisions: tuple[str, ...]  # fusions made and refused, in words
    cache_hits: int
    outcomes: tuple[str, ...] = field(default=())  # "f ran as eager: why" of frames left alone
    waiting: int = 0  # backwards that are compiled when they are first used
    trials: tuple[TrialReport, ...] = ()  # what mode="max-autotune" tried
    untuned: tuple[str, ...] = ()  # what it did not try, and why
    numbers: tuple[str, ...] = ()  # Python numbers that change from call to call, in words

    @property
    def seconds(self) -> float:
        """Total compile time."""
        return sum(seconds for _, seconds in self.compile_times)

    def __str__(self) -> str:
        from .report import text_report  # noqa: PLC0415 - report knows Explanation, not the reverse

        return text_report(self)

    __repr__ = __str__  # what the prompt and IPython without HTML show

    def __rich__(self) -> Any:
        from .report import rich_report  # noqa: PLC0415

        return rich_report(self)

    def _repr_html_(self) -> str:
        from .html import html_report  # noqa: PLC0415

        return html_report(self)


def explain(target: Callable[..., Any], /, *arguments: Any, **options: Any) -> Explainer:
    """`explain(fn)(*args)`: run `fn` on the arguments with a compile of its own and report on it.

    `fn` may be plain or tagged (its options are kept unless others are given); neither its compiled
    variants nor its counters change. The call itself happens once, with all its effects. Where
    something requires grad, the backward is compiled as well (it does not run), so that its kernels
    and its time are in the report.
    """
    if arguments:
        raise TypeError("explain(f, x) is written explain(f)(x): what it returns is called")
    return Explainer(target, tagged_copy(target, options))


@dataclass(frozen=True, slots=True, repr=False)
class Explainer:
    """`explain(fn)`: called with fn's arguments, it runs fn and gives the Explanation."""

    target: Callable[..., Any]  # a tagged copy of a module does not keep the module alive
    made: Callable[..., Any]

    @property
    def name(self) -> str:
        """What is explained: the function's name, or the module's class."""
        return _shown_name(self.target, _handle(self.made))

    def __call__(self, *args: Any, **kwargs: Any) -> Explanation:
        self.made(*args, **kwargs)
        handle = _handle(self.made)
        for record in handle.journal:
            for later in record.waiting():
                later()
        return describe_journal(handle.journal, self.name, handle.source_lines)

    def __repr__(self) -> str:
        return f"<jitmagic.explain of {self.name}: call it with the arguments, explain(f)(x)>"


def explanation_of(target: Callable[..., Any]) -> Explanation:
    """The explanation of what a tagged function or module has compiled so far."""
    handle = _handle(target)
    return describe_journal(handle.journal, _shown_name(target, handle), handle.source_lines)


def _handle(target: Callable[..., Any]) -> Handle:
    handle = handle_of(target)
    if handle is None:
        raise TypeError(f"{target!r} is not compiled by jitmagic: tag it with jitmagic.jit first")
    return handle


def _shown_name(target: object, handle: Handle) -> str:
    return type(target).__name__ if isinstance(target, torch.nn.Module) else handle.name


def describe_journal(
    journal: Journal, name: str, source: tuple[str, int, tuple[str, ...]]
) -> Explanation:
    """Collect one explanation from all records of a handle."""
    records = list(journal)
    used = [r for r in records if not r.outcome.startswith("eager")]  # of the others nothing runs
    traces = [t for r in used if isinstance(t := r.result("trace"), Trace)]
    graphs = [t.graph for t in traces if _ops(t.graph)]
    breaks = [t.exit for t in traces if isinstance(t.exit, Break)]
    return Explanation(
        name=name,
        source=source,
        graph_count=len(graphs),
        graph_break_count=len(breaks),
        op_count=sum(len(_ops(graph)) for graph in graphs),
        graphs=tuple(graphs),
        break_reasons=tuple(
            BreakReport(b.reason.kind, b.reason.message, b.reason.hint, b.where) for b in breaks
        ),
        guards=tuple(dict.fromkeys(show_guard(g) for t in traces for g in t.guards)),
        compile_times=_times(records),
        kernels=tuple(kernel for record in used for kernel in _kernels(record)),
        externs=tuple(extern for record in used for extern in _externs(record)),
        decisions=tuple(line for record in used for line in _decisions(record)),
        cache_hits=sum(record.cache_hits for record in records),
        outcomes=tuple(
            f"{r.name} ran as {r.outcome}"
            for r in records
            if r.outcome not in ("compiled", "running")
        ),
        waiting=sum(len(record.waiting()) for record in records),
        trials=tuple(trial for record in records for trial in _trials(record)),
        untuned=tuple(
            f"{graph}: not tuned: {tuned.reason}"
            for record in records
            for graph, tuned in _stages(record, "tune")
            if tuned.reason
        ),
        numbers=tuple(dict.fromkeys(n for t in traces for n in _numbers(t))),
    )


def _numbers(traced: Trace) -> list[str]:
    return [
        f"{describe(entry.source)}: {'a float' if entry.spec.dtype.is_floating_point else 'an int'}"
        ", data of the graph"
        for entry in traced.inputs
        if entry.is_number
    ]


def _ops(graph: torch.fx.GraphModule) -> list[torch.fx.Node]:
    return [n for n in graph.graph.nodes if n.op not in ("placeholder", "output", "get_attr")]


def _times(records: list[CompileRecord]) -> tuple[tuple[str, float], ...]:
    totals: dict[str, float] = {}
    for record in records:
        for stage in record.stages:
            name = stage.stage.rpartition(": ")[2]
            totals[name] = totals.get(name, 0.0) + stage.seconds
    return tuple(totals.items())


def _stages(record: CompileRecord, suffix: str) -> list[tuple[str, Any]]:
    """(graph name, result) of every stage called `<graph>: <suffix>`."""
    found = [(stage.stage.partition(": "), stage.result) for stage in record.stages]
    return [(name[0], result) for name, result in found if name[2] == suffix and result is not None]


def _kernels(record: CompileRecord) -> list[KernelReport]:
    made = []
    origins = {
        step.name: step.origins
        for _, schedule in _stages(record, "schedule")
        for step in schedule.program.steps
        if hasattr(step, "origins")
    }
    for graph, (_, source) in _stages(record, "render"):
        if source is None:
            continue
        for name in source.symbols:
            text = source.text
            made.append(KernelReport(name, graph, source.language, origins.get(name, ()), text))
    return made


def _externs(record: CompileRecord) -> list[tuple[str, str]]:
    """What is still an ATen call after scheduling, which makes kernels of some."""
    return [
        (str(step.op), step.reason)
        for _, schedule in _stages(record, "schedule")
        for step in schedule.program.steps
        if isinstance(step, Extern)
    ]


def _trials(record: CompileRecord) -> list[TrialReport]:
    return [
        TrialReport(graph, t.subject, t.config, t.seconds, t.outcome, t.measured)
        for graph, tuned in _stages(record, "tune")
        for t in tuned.trials
    ]


def _decisions(record: CompileRecord) -> list[str]:
    return [
        f"{'fused' if d.fused else 'kept apart'}: {d.producer} -> {d.consumer}: {d.reason}"
        for _, schedule in _stages(record, "schedule")
        for d in schedule.decisions
    ]
