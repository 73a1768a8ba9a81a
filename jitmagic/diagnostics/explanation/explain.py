"""explain: `jitmagic.explain`, which reports graphs, graph breaks, fusions and costs.

Input: a handle, whose journal has a record of every compile, resume functions included. Output: an
`Explanation`, plain data that is shown as text, by rich, or as static HTML. All views use the same
counts, which are collected here.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, overload

import torch

from ...api import handle_of, tagged_copy, tagged_handle
from ...autograd.result import Partition
from ...errors import UsageError
from ...figures import size
from ...frame.binding import bind
from ...frame.handle import Handle
from ...frame.ledger import Lazy
from ...frame.native import Entry
from ...frame.never_hooked import is_of_library_module
from ...frame.timing.comparison import comparison_paused
from ...guards.check import show_guard
from ...guards.guard import ClassFacts, Guard, IdentityIs, NamespaceFacts
from ...late import load
from ...lazy_dataclass import dataclass, replace
from ...options import Options
from ...records import JOINS, Compiled, CompileRecord
from ...torch_types import AnyFunction
from ...trace.result import Break, Trace
from ..builds import Build, builds_in_use, builds_of, by_variant, newest_variants, operations_of
from ..status import ledger_of
from ..whole_call import whole
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

if TYPE_CHECKING:
    from ..all_ranks import RanksReport

__all__ = ["Explainer", "Explanation", "explain", "explain_records", "explanation_of"]


class Explanation(Findings):
    """The findings about one compiled function, shown as text, by rich, and as HTML."""

    def __str__(self) -> str:
        return text_report(self)

    __repr__ = __str__

    def __rich__(self) -> object:
        return rich_report(self)

    def _repr_html_(self) -> str:
        return html_report(self)

    def full(self) -> Text:
        """Return the full report as text, with guards, fusions, variants and stage times."""
        return Text(full_report(self))

    def picture(self, kind: str = "graph") -> Picture:
        """Draw "graph" (operations by kernel), "compile" (a flame graph) or "memory".

        "memory" shows bytes alive over a step, eager and compiled; the graphs run once on synthetic
        tensors for it. Raises UsageError for another kind.
        """
        return picture_of(kind, self.name, self.records)


@overload
def explain(
    target: AnyFunction, /, *arguments: object, all_ranks: Literal[False] = False, **options: object
) -> Explainer: ...
@overload
def explain(
    target: AnyFunction, /, *arguments: object, all_ranks: Literal[True]
) -> RanksReport: ...
def explain(
    target: AnyFunction, /, *arguments: object, all_ranks: bool = False, **options: object
) -> Explainer | RanksReport:
    """`explain(fn)(*args)`: run `fn` once, with all its side effects, and report on its compile.

    If `fn` is tagged and a compiled variant matches the call, that variant runs and is reported.
    Otherwise, or if `options` are given, a copy of `fn` is compiled with them (by default with the
    options of `fn`), and `fn` is not changed. If an input requires grad, the backward is compiled
    too, without running it, so that the report includes its kernels and compile time.

    all_ranks: return what each process of a program of torch.distributed has compiled of `fn`,
        which is tagged; nothing runs, and only one rank asks.
    """
    refuse_arguments("explain", arguments)
    if all_ranks:
        asks = load("diagnostics.all_ranks").explanation_of_all_ranks
        return asks(tagged_handle(target))  # type: ignore[no-any-return]
    return Explainer(target, tagged_copy(target, options), bool(options))


@dataclass(frozen=True, slots=True, repr=False)
class Explainer:
    """The result of `explain(fn)`: call it with fn's arguments to get the Explanation.

    Its repr shows what is compiled so far, without running or compiling anything.
    """

    target: AnyFunction  # referenced, as a tagged copy does not keep its module alive
    copy: AnyFunction  # the tagged copy that is compiled
    compiles_copy: bool = False  # also if a variant of `target` matches the call

    @property
    def name(self) -> str:
        """The function's name, or the module's class."""
        return _shown_name(self.target, tagged_handle(self.copy))

    def __call__(self, *args: object, **kwargs: object) -> Explanation:
        known = handle_of(self.target)
        entry = None if self.compiles_copy else _matching_entry(self.target, args, kwargs)
        if known is not None and entry is not None:
            records = _run_variant(known, entry, lambda: whole(self.target(*args, **kwargs)))
            return _with_figures(explain_records(known, self.name, records), known.options)
        handle = tagged_handle(self.copy)
        handle.family.reported.add("notice")  # no notice: the report says the same
        whole(self.copy(*args, **kwargs))
        for later in _waiting(handle):
            later()
        found = _with_figures(explain_records(handle, self.name), handle.options)
        if known is None:
            return found
        # Only calls of the tagged function itself were counted and timed, not those of the copy.
        notes = (*_loaded_notes(known), *found.notes)
        own_ledger = ledger_of(known) or found.ledger
        return replace(found, **_worth(known), ledger=own_ledger, notes=notes)

    @property
    def now(self) -> Explanation | None:
        """The explanation of what is compiled so far; None if nothing is, or it is not tagged."""
        known = handle_of(self.target)
        return (
            None if known is None or not len(known.journal) else explain_records(known, self.name)
        )

    def picture(self, kind: str = "graph") -> Picture:
        """Draw what is compiled so far (see Explanation.picture); UsageError if nothing is."""
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


def explanation_of(target: AnyFunction, *, measured: bool = False) -> Explanation:
    """Return the explanation of what a tagged function or module has compiled so far.

    measured: include the cost of each line, for which the graphs run on synthetic tensors
    """
    handle = tagged_handle(target)
    found = explain_records(handle, _shown_name(target, handle))
    return _with_figures(found, handle.options) if measured else found


def _with_figures(found: Explanation, options: Options) -> Explanation:
    """Return the explanation with costs of lines and eager's memory, for which the graphs run."""
    footprints = footprints_of(newest_variants(found.records))
    eager = max((max(each.eager, default=0) for each in footprints), default=0)
    costs = costs_of(found.records, options)
    return replace(found, costs=costs, footprints=footprints, memory=(found.memory[0], eager))


def _worth(handle: Handle) -> dict[str, Any]:
    """Return the fields of Findings that come from measuring the function's own calls."""
    verdict, measured = verdict_of(handle), measured_of(handle)
    return {
        "verdict": verdict,
        "measured": measured,
        "payback": payback(handle, verdict, measured),
    }


def _matching_entry(
    target: object, args: Sequence[object], kwargs: Mapping[str, object]
) -> Entry | None:
    """Return the compiled variant that a call would run; None if there is none, or if another
    process has compiled it, so that there are no graphs to report.
    """
    if handle_of(target) is None:
        return None
    try:
        handle, values = bind(target, args, kwargs)
    except TypeError:  # the call itself raises it later, with Python's message
        return None
    entry = next((entry for entry in handle.dispatcher.entries if entry.check(values)), None)
    if entry is None or entry.notes.is_loaded or not isinstance(entry.notes.outcome, Compiled):
        return None
    return entry


def _loaded_notes(handle: Handle) -> tuple[str, ...]:
    """Return a sentence for each variant in use that another process has compiled."""
    times = [record.loaded for record in handle.journal if record.frame == handle.serial]
    at = [time.strftime("%d %b %H:%M", time.localtime(one)) for one in times if one is not None]
    return tuple(
        f"the tagged function runs code that was loaded, compiled {one} by another run; this "
        "report is of a copy that was compiled now"
        for one in dict.fromkeys(at)
    )


def _run_variant(
    handle: Handle, entry: Entry, call: Callable[[], object]
) -> tuple[CompileRecord, ...]:
    """Make a call; return the records of the variants that ran, and compile their backwards.

    Hit counters tell which variants ran: `entry`, those of resume functions, and those of callees.
    """
    before = {each: each.hits for _, each in _entries(handle)}
    with comparison_paused(entry):
        call()
    ran = [(part, each) for part, each in _entries(handle) if each.hits > before.get(each, 0)]
    ran = ran or [(handle, entry)]  # no counter: it ran as plain Python, as in jitmagic.disable
    for _, each in ran:
        for later in each.notes.pending():
            later()
    numbers = {(part.serial, each.notes.number) for part, each in ran}
    return tuple(each for each in handle.journal if (each.frame, each.number) in numbers)


def _entries(handle: Handle) -> list[tuple[Handle, Entry]]:
    """Return the cache entries of the function, its resume functions and callees."""
    parts = (handle, *handle.family.members)
    return [(part, entry) for part in parts for entry in part.dispatcher.entries]


def _shown_name(target: object, handle: Handle) -> str:
    return type(target).__name__ if isinstance(target, torch.nn.Module) else handle.name


def _waiting(handle: Handle) -> list[Lazy]:
    """Return the backwards of the whole family that have not been compiled yet."""
    return [later for part in (handle, *handle.family.members) for later in part.pending()]


def explain_records(
    handle: Handle, name: str = "", chosen: Sequence[CompileRecord] | None = None
) -> Explanation:
    """Collect one explanation from all records of a handle's family, or from some of them."""
    records = list(handle.journal) if chosen is None else chosen
    used = [r for r in records if isinstance(r.outcome, Compiled)]  # the others run as eager
    traces = [t for r in used if isinstance(t := r.result("trace"), Trace)]
    graphs = [t.graph for t in traces if operations_of(t.graph.graph)]
    breaks = sum(isinstance(t.exit, Break) for t in traces)
    own, of_library = _guards(used)
    facts, other_facts = facts_of(dict.fromkeys(guard for t in traces for guard in t.guards))
    builds = [build for frame in newest_variants(records) for build in builds_in_use(frame)]
    launched = _kernels(used)
    return Explanation(
        name=name or handle.label,
        source=handle.original.source_lines,
        graph_count=len(graphs),
        graph_break_count=breaks,
        op_count=sum(len(operations_of(graph.graph)) for graph in graphs),
        graphs=tuple(graphs),
        break_reasons=break_reports(used),
        guards=(*own, *of_library),
        library_guards=len(of_library),
        compile_times=_times(records),
        kernels=tuple(kernel for kernel in launched if kernel.is_generated),
        externs=tuple(kernel for kernel in launched if not kernel.is_generated),
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
        notes=_notes(used, builds),
        numbers=tuple(dict.fromkeys(n for t in traces for n in changing(t))),
        symbols=tuple(dict.fromkeys(s for t in traces for s in symbol_reports(t))),
        records=tuple(records),
    )


def _guards(records: Sequence[CompileRecord]) -> tuple[list[str], list[str]]:
    """Return the guards about the user's code and values, and those about installed packages.

    A guard that only some variants of a frame have is prefixed with their numbers.
    """
    variants: dict[int, set[int]] = {}  # the numbers of variants by frame
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
    lines = {
        (_of_variants(numbers, variants[frame]) + text): is_library[text]
        for (frame, text), numbers in having.items()
    }
    own = [line for line, of_library in lines.items() if not of_library]
    return own, [line for line, of_library in lines.items() if of_library]


def _of_variants(numbers: set[int], every: set[int]) -> str:
    """Return `variant 1: ` or `variants 1, 3: `; "" if all variants have the guard."""
    if numbers == every:
        return ""
    return f"variant{'s' * (len(numbers) > 1)} {', '.join(map(str, sorted(numbers)))}: "


def _is_of_library(guard: Guard) -> bool:
    """Return whether the guard is about code of an installed package: torch.relu, torch.Tensor."""
    match guard:
        case NamespaceFacts():
            return is_of_library_module(guard.table.get("__name__"))
        case ClassFacts():
            return is_of_library_module(getattr(guard.cls, "__module__", ""))
        case IdentityIs():
            name = guard.value.__name__ if isinstance(guard.value, ModuleType) else None
            return name is not None and is_of_library_module(name)
    return False


def _times(records: Sequence[CompileRecord]) -> tuple[tuple[str, float], ...]:
    totals: dict[str, float] = {}
    for record in records:
        for stage in record.stages:
            name = stage.stage.rpartition(": ")[2]
            totals[name] = totals.get(name, 0.0) + stage.seconds
    return tuple(totals.items())


def _stages(record: CompileRecord, suffix: str) -> list[tuple[str, Any]]:
    """Return (graph name, result) of every stage called `<graph>: <suffix>`."""
    named = [(stage.stage.partition(": "), stage.result) for stage in record.stages]
    return [(name[0], result) for name, result in named if name[2] == suffix and result is not None]


def _kernels(records: Sequence[CompileRecord]) -> tuple[KernelReport, ...]:
    """Return all launches and calls of the executables, in the order of the graphs."""
    return tuple(
        kernel
        for (_, number), own in by_variant(records).items()
        for build in builds_of(own)
        for kernel in kernels_of(build, number)
    )


def _trials(record: CompileRecord) -> list[TrialReport]:
    return [
        TrialReport(graph, t.subject, t.config, t.seconds, t.outcome, t.measured)
        for graph, tuned in _stages(record, "tune")
        for t in tuned.trials
    ]


def _budget(record: CompileRecord) -> str:
    """Return what the memory budget of a frame's backward has changed, in a sentence."""
    parts = record.result("partition")
    budget = parts.budget if isinstance(parts, Partition) else None
    if budget is None:
        return ""
    counts = Counter(budget.again)
    again = ", ".join(f"{name} (x{n})" if n > 1 else name for name, n in counts.items())
    return (
        f"activation_memory_budget={budget.share:g}: {size(budget.kept)} kept for the backward "
        f"instead of {size(budget.before)}; computed again: {again or 'nothing costly'}"
    )


def _notes(records: Sequence[CompileRecord], builds: Sequence[Build]) -> tuple[str, ...]:
    notes = [note for r in records for note in (_budget(r), _transforms(r), *_attention(r)) if note]
    notes += [f"{each.name}: {by.describe()}" for each in builds for by in each.replayers]
    notes += [
        f"{name}: {one}" for r in records for name, by in _stages(r, JOINS) for one in by.found
    ]
    return tuple(dict.fromkeys(notes))


def _attention(record: CompileRecord) -> list[str]:
    """Return what became of attention that is written out, a sentence for each."""
    return [note for stage in record.stages if stage.stage == "attention" for note in stage.result]


def _transforms(record: CompileRecord) -> str:
    """Return how a frame runs under transforms of torch.func, in a sentence."""
    why = record.result("transforms")
    if why is None:
        return ""
    if why:
        return f"under transforms of torch.func it runs operation by operation: {why}"
    return "under transforms of torch.func it is compiled for each: status() lists them"


def _decisions(record: CompileRecord) -> list[str]:
    schedules = [schedule for _, schedule in _stages(record, "schedule")]
    return [str(decision) for schedule in schedules for decision in schedule.decisions]
