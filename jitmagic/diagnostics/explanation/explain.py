"""explain: what was captured, why it broke, what was fused, what it costs.

Comes in: a handle, whose journal has a record of every frame compiled for it (resume functions
included). Goes out: an `Explanation`, plain data, readable as text, by rich, and as static HTML in
a notebook. All counts in all views come from here, so no two of them can disagree.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import torch

from ...api import handle_of, tagged_copy, tagged_handle
from ...errors import UsageError
from ...frame.binding import bind
from ...frame.handle import Handle
from ...frame.ledger import Lazy
from ...frame.native import Entry
from ...frame.skip import is_of_library_module
from ...frame.timing.comparison import comparison_paused
from ...guards.check import show_guard
from ...guards.guard import ClassFacts, Guard, IdentityIs, NamespaceFacts
from ...loops.ir import Extern
from ...options import Options
from ...records import Compiled, CompileRecord
from ...trace.result import Break, Trace
from ..checking.builds import builds_in_use, builds_of, newest_variants
from ..status import ledger_of
from ..words import Text, refuse_arguments
from .breaks import break_reports
from .cost import costs_of
from .facts import facts_of
from .findings import Findings, KernelReport, TrialReport
from .footprint import footprints_of, planned_memory
from .html import html_report
from .kernels import kernels_of, refusals_of
from .pictures import Picture, picture_of
from .report import full_report, rich_report, text_report
from .symbols import changing, symbol_reports
from .verdict import measured_of, payback, verdict_of

__all__ = ["Explainer", "Explanation", "described", "explain", "explanation_of"]


class Explanation(Findings):
    """What was found, readable as text, by rich, and as HTML."""

    def __str__(self) -> str:
        return text_report(self)

    __repr__ = __str__  # what the prompt and IPython without HTML show

    def __rich__(self) -> Any:
        return rich_report(self)

    def _repr_html_(self) -> str:
        return html_report(self)

    def full(self) -> Text:
        """All of it as text, guards, fusions, variants and the time of each stage included."""
        return Text(full_report(self))

    def picture(self, kind: str = "graph") -> Picture:
        """ "graph": operations by kernel; "compile": a flame of compile time; "memory": bytes alive
        over a step, eager and compiled, for which the graphs run once on made-up tensors.
        """
        return picture_of(kind, self.name, self.records)


def explain(target: Callable[..., Any], /, *arguments: Any, **options: Any) -> Explainer:
    """`explain(fn)(*args)`: run `fn` once on the arguments, with all effects, and report on it.

    Where `fn` is tagged and a compiled variant of it fits the call, that one runs and is told of.
    Else, and with `options` that differ, the report is of a compile of its own, with the options of
    `fn` unless others are given, and nothing of `fn` changes. Where something requires grad, the
    backward is compiled as well (it does not run), so that its kernels and its time are there.
    """
    refuse_arguments("explain", arguments)
    return Explainer(target, tagged_copy(target, options), bool(options))


@dataclass(frozen=True, slots=True, repr=False)
class Explainer:
    """`explain(fn)`: called with fn's arguments, it runs fn and gives the Explanation. Shown as it
    is, it tells what is compiled now: nothing runs, nothing is compiled.
    """

    target: Callable[..., Any]  # a tagged copy of a module does not keep the module alive
    made: Callable[..., Any]
    is_apart: bool = False  # it is compiled in any case

    @property
    def name(self) -> str:
        """What is explained: the function's name, or the module's class."""
        return _shown_name(self.target, tagged_handle(self.made))

    def __call__(self, *args: Any, **kwargs: Any) -> Explanation:
        known = handle_of(self.target)
        entry = None if self.is_apart else _fitting(self.target, args, kwargs)
        if known is not None and entry is not None:
            records = _run_variant(known, entry, lambda: self.target(*args, **kwargs))
            return _with_figures(described(known, self.name, records), known.options)
        handle = tagged_handle(self.made)
        handle.family.reported.add("notice")  # the report says it
        self.made(*args, **kwargs)
        for later in _waiting(handle):
            later()
        found = _with_figures(described(handle, self.name), handle.options)
        if known is None:
            return found
        # The calls of what is tagged have been counted and timed; the copy's have not.
        return replace(found, **_worth(known), ledger=ledger_of(known) or found.ledger)

    @property
    def now(self) -> Explanation | None:
        """What is compiled of the tagged function now; None: nothing, or it is not tagged."""
        known = handle_of(self.target)
        return None if known is None or not len(known.journal) else described(known, self.name)

    def picture(self, kind: str = "graph") -> Picture:
        """That of what is compiled now, as Explanation.picture. Raises UsageError before that."""
        now = self.now
        if now is None:
            raise UsageError(f"nothing of {self.name} is compiled yet: call it, or explain(f)(x)")
        return now.picture(kind)

    def __repr__(self) -> str:
        if (now := self.now) is not None:
            return str(now)
        return f"<jitmagic.explain of {self.name}: call it with the arguments, explain(f)(x)>"

    def _repr_html_(self) -> str | None:
        now = self.now
        return None if now is None else now._repr_html_()


def explanation_of(target: Callable[..., Any], *, measured: bool = False) -> Explanation:
    """The explanation of what a tagged function or module has compiled so far; `measured`: with
    what its lines cost.
    """
    handle = tagged_handle(target)
    found = described(handle, _shown_name(target, handle))
    return _with_figures(found, handle.options) if measured else found


def _with_figures(found: Explanation, options: Options) -> Explanation:
    """With what its lines cost and eager's memory, for which the graphs run."""
    made = footprints_of(newest_variants(found.records))
    eager = max((max(each.eager, default=0) for each in made), default=0)
    costs = costs_of(found.records, options)
    return replace(found, costs=costs, footprints=made, memory=(found.memory[0], eager))


def _worth(handle: Handle) -> dict[str, Any]:
    """Return what the function's own calls have shown."""
    verdict, measured = verdict_of(handle), measured_of(handle)
    return {
        "verdict": verdict,
        "measured": measured,
        "payback": payback(handle, verdict, measured),
    }


def _fitting(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Entry | None:
    """The compiled variant that a call runs; None: there is none, or `target` is not tagged."""
    if handle_of(target) is None:
        return None
    try:
        handle, values = bind(target, args, kwargs)
    except TypeError:  # the call raises it in Python's words
        return None
    entry = next((entry for entry in handle.dispatcher.entries if entry.check(values)), None)
    is_compiled = entry is not None and isinstance(entry.notes.outcome, Compiled)
    return entry if is_compiled else None


def _run_variant(
    handle: Handle, entry: Entry, call: Callable[[], object]
) -> tuple[CompileRecord, ...]:
    """The records of what a call runs, that of `entry` and of what follows its graph breaks, told
    by the counters; their backwards are compiled.
    """
    before = {each: each.hits for _, each in _entries(handle)}
    with comparison_paused(entry):
        call()
    ran = [(part, each) for part, each in _entries(handle) if each.hits > before.get(each, 0)]
    ran = ran or [(handle, entry)]  # it ran as plain Python: inside of jitmagic.disable, say
    for _, each in ran:
        for later in each.notes.pending():
            later()
    numbers = {(part.serial, each.notes.number) for part, each in ran}
    return tuple(each for each in handle.journal if (each.frame, each.number) in numbers)


def _entries(handle: Handle) -> list[tuple[Handle, Entry]]:
    """Of the function, its resume functions and callees."""
    parts = (handle, *handle.family.members)
    return [(part, entry) for part in parts for entry in part.dispatcher.entries]


def _shown_name(target: object, handle: Handle) -> str:
    return type(target).__name__ if isinstance(target, torch.nn.Module) else handle.name


def _waiting(handle: Handle) -> list[Lazy]:
    """The backwards of the function, its resume functions and callees that have not been needed."""
    return [later for part in (handle, *handle.family.members) for later in part.pending()]


def described(
    handle: Handle, name: str = "", chosen: Sequence[CompileRecord] | None = None
) -> Explanation:
    """Collect one explanation from all records of a handle's family, or from some of them."""
    records = list(handle.journal) if chosen is None else chosen
    used = [r for r in records if isinstance(r.outcome, Compiled)]  # of the others nothing runs
    traces = [t for r in used if isinstance(t := r.result("trace"), Trace)]
    graphs = [t.graph for t in traces if _ops(t.graph)]
    breaks = sum(isinstance(t.exit, Break) for t in traces)
    own, of_library = _guards(used)
    facts, other_facts = facts_of(dict.fromkeys(guard for t in traces for guard in t.guards))
    builds = [build for frame in newest_variants(records) for build in builds_in_use(frame)]
    return Explanation(
        name=name or handle.label,
        source=handle.source_lines,
        graph_count=len(graphs),
        graph_break_count=breaks,
        op_count=sum(len(_ops(graph)) for graph in graphs),
        graphs=tuple(graphs),
        break_reasons=break_reports(used),
        guards=(*own, *of_library),
        library_guards=len(of_library),
        compile_times=_times(records),
        kernels=_kernels(used),
        externs=tuple(extern for record in used for extern in _externs(record)),
        decisions=tuple(line for record in used for line in _decisions(record)),
        cache_hits=sum(record.cache_hits for record in records),
        outcomes=tuple((r.name, r.outcome) for r in records if not isinstance(r.outcome, Compiled)),
        waiting=len(_waiting(handle)) if chosen is None else 0,
        **_worth(handle),
        facts=facts,
        other_facts=other_facts,
        refused=tuple(dict.fromkeys(r for build in builds for r in refusals_of(build))),
        trials=tuple(trial for record in records for trial in _trials(record)),
        untuned=tuple(
            f"{graph}: not tuned: {tuned.reason}"
            for record in records
            for graph, tuned in _stages(record, "tune")
            if tuned.reason
        ),
        variants=len({r.number for r in used if r.frame == handle.serial}) or 1,
        ledger=ledger_of(handle),
        memory=(planned_memory(newest_variants(records)), 0),
        numbers=tuple(dict.fromkeys(n for t in traces for n in changing(t))),
        symbols=tuple(dict.fromkeys(s for t in traces for s in symbol_reports(t))),
        records=tuple(records),
    )


def _guards(records: Sequence[CompileRecord]) -> tuple[list[str], list[str]]:
    """Those about values and code of the user's, and those about code of installed packages; those
    that not all variants of a frame have, with the numbers of those that do.
    """
    variants: dict[int, set[int]] = {}  # by frame
    having: dict[tuple[int, str], set[int]] = {}
    is_library: dict[str, bool] = {}
    for record in records:
        traced = record.result("trace")
        if not isinstance(traced, Trace):
            continue
        variants.setdefault(record.frame, set()).add(record.number)
        for guard in traced.guards:
            text = show_guard(guard)
            having.setdefault((record.frame, text), set()).add(record.number)
            is_library[text] = is_library.get(text, True) and _is_of_library(guard)
    told = {
        (_of_variants(numbers, variants[frame]) + text): is_library[text]
        for (frame, text), numbers in having.items()
    }
    own = [line for line, of_library in told.items() if not of_library]
    return own, [line for line, of_library in told.items() if of_library]


def _of_variants(numbers: set[int], every: set[int]) -> str:
    """`variant 1: `, `variants 1, 3: `; empty of all."""
    if numbers == every:
        return ""
    return f"variant{'s' * (len(numbers) > 1)} {', '.join(map(str, sorted(numbers)))}: "


def _is_of_library(guard: Guard) -> bool:
    """Whether nothing that a user edits changes what it is about: torch.relu, torch.Tensor."""
    match guard:
        case NamespaceFacts():
            return is_of_library_module(guard.table.get("__name__"))
        case ClassFacts():
            return is_of_library_module(getattr(guard.cls, "__module__", ""))
        case IdentityIs():
            name = guard.value.__name__ if isinstance(guard.value, ModuleType) else None
            return name is not None and is_of_library_module(name)
    return False


def _ops(graph: torch.fx.GraphModule) -> list[torch.fx.Node]:
    return [n for n in graph.graph.nodes if n.op not in ("placeholder", "output", "get_attr")]


def _times(records: Sequence[CompileRecord]) -> tuple[tuple[str, float], ...]:
    totals: dict[str, float] = {}
    for record in records:
        for stage in record.stages:
            name = stage.stage.rpartition(": ")[2]
            totals[name] = totals.get(name, 0.0) + stage.seconds
    return tuple(totals.items())


def _stages(record: CompileRecord, suffix: str) -> list[tuple[str, Any]]:
    """(graph name, result) of every stage called `<graph>: <suffix>`."""
    named = [(stage.stage.partition(": "), stage.result) for stage in record.stages]
    return [(name[0], result) for name, result in named if name[2] == suffix and result is not None]


def _kernels(records: Sequence[CompileRecord]) -> tuple[KernelReport, ...]:
    """Of the code that was loaded, in the order of the graphs."""
    variants: dict[tuple[int, int], list[CompileRecord]] = {}
    for record in records:  # a backward is compiled later than its graph was split off
        variants.setdefault((record.frame, record.number), []).append(record)
    return tuple(
        kernel
        for (_, number), own in variants.items()
        for build in builds_of(own)
        for kernel in kernels_of(build, number)
        if kernel.is_generated
    )


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
    schedules = [schedule for _, schedule in _stages(record, "schedule")]
    return [str(decision) for schedule in schedules for decision in schedule.decisions]
