"""status: a table of everything that is tagged, and the recompile ledger of one function.

Comes in: handles, their entries in use, and their journals. Goes out: frozen rows, readable as text
and as HTML. Every figure has a unit: seconds are wall time of compiles, a speed is the verdict that
explain gives (verdict.py).
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from ..api import handles, tagged_handle
from ..errors import RUN_NAME, UserLine
from ..frame.handle import Handle
from ..frame.native import Entry
from ..guards.source import Source, describe
from ..guards.words import one_value
from ..records import Compiled, CompileRecord, Difference, Measured, Missed, Outcome
from ..runtime.precompiled import refusals
from ..trace.result import Trace
from .explanation.html import STYLE, card_body, table_html
from .explanation.symbols import changing
from .explanation.verdict import Verdict, measured_of, payback, verdict_of
from .words import count, duration, here

__all__ = [
    "Card",
    "Made",
    "Status",
    "VariantReport",
    "card_of",
    "ledger_lines",
    "ledger_of",
    "listed_handles",
    "made_of",
    "status",
    "variants_of",
]


COLUMNS = ("tagged", "state", "speed", "variants", "calls", "compiled in", "paid back after")


@dataclass(frozen=True, slots=True)
class VariantReport:
    """One compile of a function for one kind of call.

    hits: calls that ran it; None once it is not in use any more
    seconds: wall time of compiling it, its backward included; kernels: how many that made
    missed: by number of variant why those before it did not fit the call it was made for
    changing: sizes and numbers that are data of it, or had to be constants
    inlined: the tagged functions that are part of it
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


@dataclass(frozen=True, slots=True)
class Made:
    """What all compiles of a function made, those of its resume functions and backwards included.

    variants: of the function itself; seconds: wall time
    """

    variants: int
    graphs: int
    kernels: int
    seconds: float
    verdict: Verdict


@dataclass(frozen=True, slots=True, repr=False)
class Card:
    """What a tagged function shows of itself. `seconds`: wall time of all compiles so far, those of
    its resume functions included; `payback`: when its calls have saved as much.
    """

    name: str
    state: str
    calls: int
    variants: tuple[VariantReport, ...]
    seconds: float
    verdict: Verdict
    payback: str
    backend: str = "native"  # or the name of what the user gave
    is_building: bool = False  # kernels, in the background; calls that need them run as eager

    @property
    def facts(self) -> tuple[str, ...]:
        """Return what is shown after the state: the speed first, where it is known."""
        if not self.variants and not self.calls:
            return ()
        parts = list(self._worth)
        parts += [count(len(self.variants), "variant"), count(self.calls, "call")]
        if self.variants:
            parts.append(f"{duration(self.seconds)} compiled")
        return (*parts, self.payback) if self._is_measured else tuple(parts)

    @property
    def _worth(self) -> tuple[str, ...]:
        """Return the speed, and what graph breaks take of a call."""
        if not self.variants or self.verdict.tone == "plain":
            return ()
        return tuple(filter(None, (self.verdict.speed, self.verdict.breaks)))

    @property
    def _is_measured(self) -> bool:
        return any(variant.measured is not None for variant in self.variants)

    def __str__(self) -> str:
        told = f"{self.name}: {self.state}"
        return f"{told}: {', '.join(self.facts)}" if self.facts else told

    __repr__ = __str__

    @property
    def ledger(self) -> list[str]:
        """Its variants, in lines."""
        return ledger_lines(self.variants)

    def cells(self) -> tuple[str, ...]:
        """Its row of a table with COLUMNS."""
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
    """All tagged functions and modules that are alive; `notes`: what slows the compiles down."""

    cards: tuple[Card, ...]
    notes: tuple[str, ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        """The heads of the table."""
        return COLUMNS

    def __str__(self) -> str:
        cards = tuple(map(str, self.cards)) or ("nothing is tagged",)
        return "\n".join((*cards, *self.notes))

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return table_html(self)


def status(*targets: Any) -> Status:
    """How often what is tagged was called and compiled, and what that saves: of everything that is
    alive, or of these functions and modules. Raises TypeError for one that is not tagged.
    """
    chosen = listed_handles() if not targets else map(tagged_handle, targets)
    return Status(tuple(map(card_of, chosen)), tuple(map(_without_header, refusals())))


def _without_header(why: str) -> str:
    said = why.strip().partition("\n")[0]
    return f"C++ kernels are compiled without a precompiled header: {said}"


def listed_handles() -> list[Handle]:
    """Of the user's functions and modules, by name."""
    users = [handle for handle in handles() if handle.family.compiler.is_listed]
    return sorted(users, key=lambda handle: handle.label)


def card_of(handle: Handle) -> Card:
    """The card of one tagged function, by its handle."""
    chosen = handle.options.backend
    backend = (
        chosen if isinstance(chosen, str) else getattr(chosen, "__name__", type(chosen).__name__)
    )
    building = handle.building is not None
    variants = variants_of(handle)
    seconds = sum(record.seconds for record in handle.journal)
    calls, verdict = handle.ledger.calls, verdict_of(handle)
    paid = payback(handle, verdict, measured_of(handle))
    shown = handle.label, _state(handle), calls, variants, seconds, verdict, paid
    return Card(*shown, backend, building)


def _state(handle: Handle) -> str:
    if handle.given_up is not None and not handle.ledger.is_compiled:
        return f"plain Python, because {handle.given_up.why}"
    if handle.building is not None and not handle.ledger.is_compiled:
        return "plain Python, while its kernels are being built"
    if not handle.dispatcher.entries:
        # Compiled code that calls it has it inlined: such calls are the caller's.
        whole = ", ".join(
            "a cell" if name == RUN_NAME else name for name in handle.ledger.inlined_in
        )
        return f"compiled as part of {whole}" if whole else "not called yet"
    if not handle.ledger.is_compiled:
        outcome = handle.dispatcher.entries[0].notes.outcome
        return f"plain Python, because {outcome.why}"
    if handle.given_up is not None:
        why = handle.given_up.why
        return f"compiled; calls that fit no variant are plain Python, because {why}"
    return "compiled"


def variants_of(handle: Handle) -> tuple[VariantReport, ...]:
    """The variants of the function itself, in the order in which they were compiled."""
    used = {entry.notes.number: entry for entry in handle.dispatcher.entries}
    by_number: dict[int, list[CompileRecord]] = {}
    for record in handle.journal:
        if record.frame == handle.serial:
            by_number.setdefault(record.number, []).append(record)
    return tuple(_variant(n, records, used.get(n)) for n, records in sorted(by_number.items()))


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
    )


def _missed(record: CompileRecord, traced: Trace | None) -> Missed:
    """Numbers that this compile found to have no use as data are better left alone."""
    constants = set() if traced is None else {constant.origin for constant in traced.specialized}

    def known(why: Difference) -> Difference:
        if not isinstance(why.source, Source) or why.source not in constants:
            return why
        return replace(why, edit=one_value(describe(why.source)))

    return tuple((number, known(why)) for number, why in record.occasion.missed)


def made_of(handle: Handle) -> Made:
    """What has been compiled of a tagged function so far."""
    records = [record for record in handle.journal if isinstance(record.outcome, Compiled)]
    return Made(
        variants=len({r.number for r in records if r.frame == handle.serial}),
        graphs=sum(_has_graph(record) for record in records),
        kernels=sum(record.kernels for record in records),
        seconds=sum(record.seconds for record in records),
        verdict=verdict_of(handle),
    )


def _has_graph(record: CompileRecord) -> bool:
    traced = record.result("trace")
    if traced is None:  # of a backward
        return False
    return any(n.op not in ("placeholder", "output", "get_attr") for n in traced.graph.graph.nodes)


def ledger_of(handle: Handle) -> tuple[str, ...]:
    """The ledger of a function and of what follows its graph breaks, where a part has more than one
    variant.
    """
    own = variants_of(handle)
    lines = ledger_lines(own) if len(own) > 1 else []
    if own and handle.given_up is not None:
        plain = handle.ledger.calls - sum(variant.hits or 0 for variant in own)
        told = f"{count(plain, 'call')} fitted no variant" if plain > 0 else "a call that fits none"
        lines.append(f"{told}: plain Python, because {handle.given_up.why}")
    for part in handle.family.members:
        known = variants_of(part)
        if len(known) > 1:
            where = UserLine(part.original.code.co_filename, part.original.first_line)
            lines += ledger_lines(known, f" of {part.label} from {where.file}:{where.lineno} on")
    return tuple(lines)


def ledger_lines(variants: Iterable[VariantReport], of: str = "") -> list[str]:
    """The recompile ledger: when, for whose call, why, at what cost, and the edit that stops it.
    `of`: of which part of the function they are.
    """
    lines: list[str] = []
    for variant in variants:
        lines.append(_headline(variant, of))
        for number, difference in variant.missed[:1]:  # the one used last: what the user changed
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
    return (
        f"variant {variant.number}{of}{state}: compiled in {duration(variant.seconds)} at {at}"
        f"{caller}; {used}{timed}"
    )
