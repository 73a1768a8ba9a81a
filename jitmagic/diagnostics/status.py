"""status: a table of everything that is tagged, and the recompile ledger of one function.

Input: handles with their cache entries and compile records. Output: frozen rows, shown as text and
HTML. Seconds are wall time of compiling; a speed is the verdict of explanation/verdict.py.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from ..api import handles, tagged_handle
from ..errors import RUN_NAME, UserLine
from ..frame.handle import Handle
from ..frame.native import Entry
from ..guards.source import Source, describe
from ..guards.words import one_value
from ..late import load
from ..lazy_dataclass import dataclass, replace
from ..records import Compiled, CompileRecord, Difference, Measured, Missed, Outcome
from ..runtime.precompiled import refusals
from ..trace.result import Trace
from .builds import by_variant, operations_of
from .explanation.html import STYLE, card_body, table_html
from .explanation.symbols import changing
from .explanation.verdict import Verdict, measured_of, payback, verdict_of
from .words import count, duration, here

__all__ = [
    "Card",
    "CompileTotals",
    "Status",
    "VariantReport",
    "card_of",
    "compile_totals",
    "ledger_lines",
    "ledger_of",
    "listed_handles",
    "status",
    "variants_of",
]


COLUMNS = ("tagged", "state", "speed", "variants", "calls", "compiled in", "paid back after")


_UNCALLED = "not called yet"


@dataclass(frozen=True, slots=True)
class VariantReport:
    """One compiled variant of a function.

    hits: calls that ran it; None after it was evicted
    seconds: wall time of compiling it, backward included; kernels: number of generated kernels
    missed: (number of an earlier variant, the guard that its first call failed)
    changing: dynamic sizes and numbers, and those that were specialised
    inlined: names of tagged functions that were inlined into it
    loaded: when another process compiled it (seconds since the epoch); None: this one did
    """

    number: int
    outcome: Outcome
    hits: int | None
    seconds: float
    kernels: int
    at: float
    called_from: UserLine | None
    missed: Missed
    measured: Measured | None
    changing: tuple[str, ...] = ()
    inlined: tuple[str, ...] = ()
    loaded: float | None = None


@dataclass(frozen=True, slots=True)
class CompileTotals:
    """Totals over all compiles of a function, its resume functions and backwards.

    variants: of the function alone; seconds: wall time
    """

    variants: int
    graphs: int
    kernels: int
    seconds: float
    verdict: Verdict


@dataclass(frozen=True, slots=True, repr=False)
class Card:
    """A summary of one tagged function, shown as a line or a box.

    seconds: wall time of all compiles so far, resume functions included
    payback: the number of calls after which that time has been saved, in words
    """

    name: str
    state: str
    calls: int
    variants: tuple[VariantReport, ...]
    seconds: float
    verdict: Verdict
    payback: str
    backend: str = "native"  # or the name of the user's backend
    is_building: bool = False  # kernels are compiled in the background; calls run as eager

    @property
    def facts(self) -> tuple[str, ...]:
        """Figures shown after the state, the speed first."""
        if not self.variants and not self.calls:
            return ()
        parts = list(self._worth)
        parts += [count(len(self.variants), "variant"), count(self.calls, "call")]
        if self.variants:
            parts.append(f"{duration(self.seconds)} compiled")
        return (*parts, self.payback) if self._is_measured else tuple(parts)

    @property
    def _worth(self) -> tuple[str, ...]:
        """The speed, and the share of a call that graph breaks take."""
        if not self.variants or self.verdict.tone == "plain":
            return ()
        return tuple(filter(None, (self.verdict.speed, self.verdict.breaks)))

    @property
    def _is_measured(self) -> bool:
        return any(variant.measured is not None for variant in self.variants)

    def __str__(self) -> str:
        head = f"{self.name}: {self.state}"
        return f"{head}: {', '.join(self.facts)}" if self.facts else head

    __repr__ = __str__

    @property
    def ledger(self) -> list[str]:
        """The variants as lines of the recompile ledger."""
        return ledger_lines(self.variants)

    def cells(self) -> tuple[str, ...]:
        """Return the card as a row of a table with COLUMNS."""
        return (
            self.name,
            self.state,
            "; ".join(self._worth),
            f"{len(self.variants):,}",
            f"{self.calls:,}",
            duration(self.seconds) if self.variants else "",
            self.payback.rpartition(" after ")[2] if self._is_measured else "",
        )

    def _repr_html_(self) -> str:
        return STYLE + card_body(self)


@dataclass(frozen=True, slots=True, repr=False)
class Status:
    """The cards of tagged functions and modules; `notes`: problems that slow compiling down."""

    cards: tuple[Card, ...]
    notes: tuple[str, ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        """The table's column headings."""
        return COLUMNS

    def __str__(self) -> str:
        cards = tuple(map(str, self.cards)) or ("nothing is tagged",)
        return "\n".join((*cards, *self.notes))

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return table_html(self)


def status(*targets: object, all_ranks: bool = False) -> Any:
    """Report calls, compiles and speed of `targets`, or of everything tagged that is alive.

    all_ranks: report everything that is tagged in each process of a program of torch.distributed;
        one rank asks, and the others need not call anything.
    Raises TypeError if a target is not tagged.
    """
    if all_ranks:
        return load("diagnostics.all_ranks").status_of_all_ranks()
    chosen = listed_handles() if not targets else map(tagged_handle, targets)
    return Status(tuple(map(card_of, chosen)), tuple(map(_without_header, refusals())))


def _without_header(why: str) -> str:
    reason = why.strip().partition("\n")[0]
    return f"C++ kernels are compiled without a precompiled header: {reason}"


def listed_handles() -> list[Handle]:
    """Return the handles of the user's functions and modules, sorted by name."""
    users = [handle for handle in handles() if handle.family.compiler.is_listed]
    return sorted(users, key=lambda handle: handle.label)


def card_of(handle: Handle) -> Card:
    """Return the card of one tagged function."""
    handle = _acting(handle)
    chosen = handle.options.backend
    backend = (
        chosen if isinstance(chosen, str) else getattr(chosen, "__name__", type(chosen).__name__)
    )
    verdict = verdict_of(handle)
    return Card(
        handle.label,
        _state(handle),
        handle.ledger.calls,
        variants_of(handle),
        seconds=sum(record.seconds for record in handle.journal),
        verdict=verdict,
        payback=payback(handle, verdict, measured_of(handle)),
        backend=backend,
        is_building=handle.building is not None,
    )


def _acting(handle: Handle) -> Handle:
    """Return the handle that answers the calls of a tagged function: that of the hook, if its frame
    runs below hooks that run as eager, as those of FSDP2 do.
    """
    code = handle.original.code
    called = (one for one in handle.family.members if one.original.is_alive and one.ledger.calls)
    hooked = (one for one in called if one.original.code is code)
    return handle if handle.ledger.calls else next(hooked, handle)


def _state(handle: Handle) -> str:
    if handle.pieces:
        states = [_state(p) for p in handle.pieces if p.given_up or p.dispatcher.entries]
        compiled = any(piece.ledger.is_compiled for piece in handle.pieces)
        return "compiled between its suspension points" if compiled else [*states, _UNCALLED][0]
    if handle.given_up is not None and not handle.ledger.is_compiled:
        return f"plain Python, because {handle.given_up.why}"
    if handle.building is not None and not handle.ledger.is_compiled:
        return "plain Python, while it is being compiled"
    if handle.pay_back.is_costly and not handle.dispatcher.entries:
        return "plain Python, until a compile pays"
    if not handle.dispatcher.entries:
        # A compiled caller may have inlined it; then only the caller's counter increases.
        whole = ", ".join(
            "a cell" if name == RUN_NAME else name for name in handle.ledger.inlined_in
        )
        return f"compiled as part of {whole}" if whole else _UNCALLED
    if not handle.ledger.is_compiled:
        outcome = handle.dispatcher.entries[0].notes.outcome
        return f"plain Python, because {outcome.why}"
    if handle.given_up is not None:
        why = handle.given_up.why
        return f"compiled; calls that fit no variant are plain Python, because {why}"
    return "compiled"


def variants_of(handle: Handle) -> tuple[VariantReport, ...]:
    """Return the variants of the function itself, oldest first; resume functions have their own."""
    used = {entry.notes.number: entry for entry in handle.dispatcher.entries}
    own = by_variant(record for record in handle.journal if record.frame == handle.serial)
    return tuple(_variant(n, records, used.get(n)) for (_, n), records in sorted(own.items()))


def _variant(number: int, records: list[CompileRecord], entry: Entry | None) -> VariantReport:
    first = next((r for r in records if r.occasion.at), records[0])
    traced = first.result("trace")
    return VariantReport(
        number=number,
        outcome=first.outcome,
        hits=None if entry is None else entry.hits,
        seconds=sum(record.seconds for record in records),
        kernels=sum(record.kernels for record in records),
        at=first.occasion.at,
        called_from=first.occasion.called_from,
        missed=_missed(first, traced),
        measured=first.measured,
        changing=() if traced is None else tuple(dict.fromkeys(changing(traced))),
        inlined=() if entry is None else entry.notes.inlined,
        loaded=first.loaded,
    )


def _missed(record: CompileRecord, traced: Trace | None) -> Missed:
    """Return the failed guards; for numbers that this compile specialised, suggest one value."""
    constants = set() if traced is None else {constant.origin for constant in traced.specialized}

    def known(why: Difference) -> Difference:
        if not isinstance(why.source, Source) or why.source not in constants:
            return why
        return replace(why, edit=one_value(describe(why.source)))

    return tuple((number, known(why)) for number, why in record.occasion.missed)


def compile_totals(handle: Handle) -> CompileTotals:
    """Return totals over everything compiled for a tagged function so far."""
    records = [record for record in handle.journal if isinstance(record.outcome, Compiled)]
    return CompileTotals(
        variants=len({r.number for r in records if r.frame == handle.serial}),
        graphs=sum(_has_graph(record) for record in records),
        kernels=sum(record.kernels for record in records),
        seconds=sum(record.seconds for record in records),
        verdict=verdict_of(handle),
    )


def _has_graph(record: CompileRecord) -> bool:
    traced = record.result("trace")
    if traced is None:  # a backward has no trace of its own
        return False
    return bool(operations_of(traced.graph.graph))


def ledger_of(handle: Handle) -> tuple[str, ...]:
    """Return the ledger lines of a function and its resume functions that have several variants."""
    own = variants_of(handle)
    lines = ledger_lines(own) if len(own) > 1 else []
    if own and handle.given_up is not None:
        plain = handle.ledger.calls - sum(variant.hits or 0 for variant in own)
        calls = f"{count(plain, 'call')} fitted no variant" if plain > 0 else "further calls"
        lines.append(f"{calls}: plain Python, because {handle.given_up.why}")
    for part in handle.family.members:
        known = variants_of(part)
        if len(known) > 1:
            where = UserLine(part.original.code.co_filename, part.original.first_line)
            lines += ledger_lines(known, f" of {part.label} from {where.file}:{where.lineno} on")
    return tuple(lines)


def ledger_lines(variants: Iterable[VariantReport], of: str = "") -> list[str]:
    """Return for each variant when, for which call, why and in what time it was compiled.

    of: text after the variant's number that names the resume function
    """
    lines: list[str] = []
    for variant in variants:
        lines.append(_headline(variant, of))
        for number, difference in variant.missed[:1]:  # the last one used shows the user's change
            lines.append(f"    not variant {number}: {difference.what}")
            if difference.where is not None:
                lines.append(f"      needed by {here(difference.where)}")
            if difference.edit:
                lines.append(f"      to stop it: {difference.edit}")
        lines.extend(f"    {line}" for line in variant.changing)
    return lines


def _headline(variant: VariantReport, of: str) -> str:
    at = time.strftime("%H:%M:%S", time.localtime(variant.at))
    caller = f", for the call at {here(variant.called_from)}" if variant.called_from else ""
    used = "not in use any more" if variant.hits is None else count(variant.hits, "call")
    state = "" if isinstance(variant.outcome, Compiled) else f" ({variant.outcome})"
    timed = f", {variant.measured}" if variant.measured else ""
    made = "compiled"
    if variant.loaded is not None:
        when = time.strftime("%d %b %H:%M", time.localtime(variant.loaded))
        made = f"loaded (compiled {when} by another run)"
    return (
        f"variant {variant.number}{of}{state}: {made} in {duration(variant.seconds)} at {at}"
        f"{caller}; {used}{timed}"
    )
