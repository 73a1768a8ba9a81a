"""page: the report of explain as a model: what is said, in which order, in which words.

Comes in: Findings. Goes out: a `Page`, plain data without markup, which html.py and report.py (rich
and text) only lay out: verdict, four chips, the user's code with times, modules as a tree, kernels
by time, what else there is to unfold, and how it was measured. No two views can disagree.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ...figures import count, duration, size
from ...records import CompileRecord
from ..words import line_numbers
from .breaks import distinct
from .cost import KernelCost
from .findings import BreakReport, Findings
from .footprint import Footprint
from .gutter import Listing, listings
from .highlight import Piece, highlighted
from .kernels import KernelReport
from .module_tree import Branch, module_tree
from .verdict import BREAKS_COST, PLAIN, Verdict, compiled_in, shown_name

__all__ = [
    "Chip",
    "Code",
    "CodeRow",
    "Flame",
    "Fold",
    "KernelBar",
    "Module",
    "Page",
    "badge",
    "page_of",
]

RECOMPILES = "recompiles, and the edit that stops each"
MOST_OPEN = 4  # functions of the user's that are not folded
_MOST_BADGES = 4
_LIMITED_BY = "of memory speed"


@dataclass(frozen=True, slots=True)
class Chip:
    """One of the four facts below the verdict; tone: "good", "bad" or ""."""

    text: str
    tone: str = ""


@dataclass(frozen=True, slots=True)
class KernelBar:
    """Launches and calls that are alike; `number` is that of their badge.

    share: of the time of the longest; limit: `74 % of memory speed`, `limited by arithmetic` or ""
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
        """Its own function out of the text that it was compiled in; "" of a call of torch's."""
        start = rf'^(?:(?://|@).*\n)*(?:extern "C" .*|def ){re.escape(self.kernel.name)}\('
        body = r".*\n(?:[ \t].*\n|\n)*(?:\}.*)?"
        found = re.search(start + body, self.kernel.text, re.MULTILINE)
        return found[0].rstrip() if found else self.kernel.text

    @property
    def owner(self) -> str:
        """Whose kernel it is: its language, or torch's own operator."""
        kernel = self.kernel
        name = kernel.name.removeprefix("aten.").removesuffix(".default")
        return kernel.language if kernel.is_generated else f"torch's {name}"

    @property
    def size(self) -> str:
        return size(self.kernel.nbytes * self.count) if self.kernel.nbytes else ""


@dataclass(frozen=True, slots=True)
class CodeRow:
    """A line; eager and compiled: its seconds and its parts of the longest bar."""

    number: int
    text: str
    pieces: tuple[Piece, ...]
    eager: float
    compiled: float
    bars: tuple[float, float]
    badges: tuple[int, ...]
    more_badges: int  # that are not shown
    breaks: tuple[BreakReport, ...]

    @property
    def is_telling(self) -> bool:
        """Return whether there is something to be seen beside it."""
        return bool(self.eager or self.compiled or self.breaks)

    @property
    def indent(self) -> int:
        return len(self.text) - len(self.text.lstrip())


@dataclass(frozen=True, slots=True)
class Code:
    """A function's lines; one that is not open is folded."""

    name: str
    rows: tuple[CodeRow, ...]
    is_open: bool
    eager: float
    compiled: float

    @property
    def width(self) -> int:
        """Letters of the longest line: times stand in one column."""
        return max((len(row.text) for row in self.rows), default=0)


@dataclass(frozen=True, slots=True)
class Module:
    """A module of a model, or `count` alike ones: parts of the whole, and its code."""

    name: str
    kind: str
    count: int
    eager: float
    compiled: float
    bars: tuple[float, float]
    part: float  # of compiled time
    codes: tuple[Code, ...]
    inside: tuple[Module, ...]

    @property
    def title(self) -> str:
        """`h (x2, alike)`."""
        many = f" (x{self.count}, alike)" if self.count > 1 else ""
        return f"{self.name}{many}"

    def walk(self, depth: int = 0) -> Iterator[tuple[int, Module]]:
        """It and those in it, with how deep they are."""
        yield depth, self
        for each in self.inside:
            yield from each.walk(depth + 1)


@dataclass(frozen=True, slots=True)
class Fold:
    """Something to unfold: its lines; those that are indented belong to the one above."""

    title: str
    lines: tuple[str, ...]
    number: int | None = None  # behind the title

    @property
    def head(self) -> str:
        return self.title if self.number is None else f"{self.title} ({self.number:,})"


@dataclass(frozen=True, slots=True)
class Flame:
    """Return the stages of each compile, (name, seconds)."""

    name: str
    seconds: float
    stages: tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True)
class Page:
    """All of it, in the order in which it is read."""

    name: str
    verdict: Verdict
    chips: tuple[Chip, ...]
    warnings: tuple[str, ...]  # what runs as eager or was not tried, and why
    codes: tuple[Code, ...]
    is_measured: bool
    elsewhere: tuple[BreakReport, ...]  # breaks on lines that are not shown
    modules: tuple[Module, ...]
    kernels: tuple[KernelBar, ...]
    refused: tuple[str, ...]
    folds: tuple[Fold, ...]
    further: tuple[Fold, ...]  # for those who look at the compiler
    flames: tuple[Flame, ...]
    footprints: tuple[Footprint, ...]
    facts: tuple[str, ...]
    small_print: tuple[str, ...] = ()
    seconds: float = 0.0  # of compiling

    @property
    def last_recompile(self) -> tuple[str, ...]:
        """Return what differed, and the edit that stops it; empty where nothing was recompiled."""
        ledger = next((fold.lines for fold in self.folds if fold.title == RECOMPILES), ())
        told = [line.strip() for line in ledger if line.startswith(("    not ", "      to stop"))]
        last = max((at for at, line in enumerate(told) if line.startswith("not ")), default=None)
        if last is None:
            return ()
        differs = told[last].partition(": ")[2]
        return (f"recompiled because {differs}", *told[last + 1 : last + 2])

    @property
    def sentence(self) -> str:
        """`step is 3.1x faster than eager (...)`."""
        return self.verdict.about(self.name)


def page_of(found: Findings) -> Page:
    """The page of what was found."""
    kernels, number_of = _kernels(found)
    shown = listings(found)
    tree = module_tree(found.costs.modules)
    codes, modules = _arranged(shown, tree, number_of, found)
    seen = {each for listing in shown for row in listing.rows for each in row.breaks}
    return Page(
        name=shown_name(found.name),
        verdict=found.verdict,
        chips=tuple(_chips(found)),
        warnings=tuple(_warnings(found)),
        codes=codes,
        is_measured=bool(found.costs),
        elsewhere=tuple(b for b in distinct(found.break_reasons) if b not in seen),
        modules=modules,
        kernels=kernels,
        refused=tuple(_refused(found)),
        folds=tuple(_folds(found)),
        further=tuple(_further(found)),
        flames=_flames(found.records),
        footprints=found.footprints,
        facts=found.facts,
        small_print=tuple(_small_print(found)),
        seconds=found.seconds,
    )


def badge(number: int) -> str:
    """A number in a circle."""
    if number <= 20:
        return chr(0x2460 + number - 1)
    return chr(0x3251 + number - 21) if number <= 35 else f"({number})"


# -- chips and sentences ---------------------------------------------------------------------------


def _chips(found: Findings) -> Iterator[Chip]:
    breaks = len(distinct(found.break_reasons))
    broken = count(breaks, "break") if breaks else "no breaks"
    variants = f"{count(found.variants, 'variant')}, " if found.variants > 1 else ""
    yield Chip(
        f"{variants}{count(found.graph_count, 'graph')}, {broken}", "bad" if breaks else "good"
    )
    if found.verdict.tone == PLAIN:
        return
    compiled, eager = found.memory
    if eager and size(eager) == size(compiled):
        yield Chip(f"{size(compiled)}, as eager")
    elif eager:
        tone = "good" if eager > compiled else "bad"
        yield Chip(f"{size(compiled)} instead of {size(eager)}", tone)
    else:
        yield Chip(f"at most {size(compiled)}" if compiled else "memory not measured")
    yield Chip(compiled_in(found.seconds, found.cache_hits))
    never = found.payback.startswith("never")
    yield Chip(
        found.payback or "pays back: not known yet",
        "bad" if never else "good" if "back after" in found.payback else "",
    )


def _warnings(found: Findings) -> Iterator[str]:
    for name, outcome in found.outcomes:
        if (name, outcome.why) != (found.name, found.verdict.details):  # the first line says it
            yield f"{shown_name(name)} ran as plain Python: {outcome.why}"
    for line in found.ledger:
        if not line.startswith(("variant ", " ")) and found.verdict.tone != PLAIN:
            yield line
    yield from found.untuned
    if found.waiting:
        waiting = count(found.waiting, "backward")
        yield f"{waiting} not compiled yet: that happens at the first use"
    if not found.costs:
        yield from found.costs.notes


def _refused(found: Findings) -> Iterator[str]:
    for each in sorted(found.refused, key=lambda refusal: -refusal.saves):
        what = f"{each.producer} and {each.consumer} in one kernel"
        yield f"{what} would save {size(each.saves)}: not done, {each.reason}"


def _small_print(found: Findings) -> Iterator[str]:
    measured = found.measured
    if measured is not None:
        yield f"Speed: medians of your own calls, compiled and eager in turns ({measured.times})."
        if found.verdict.breaks:
            yield BREAKS_COST
    costs = found.costs
    if costs:
        yield (
            f"Lines and kernels: each graph ran by itself on made-up tensors of its first call's "
            f"sizes, op by op as eager ({duration(costs.eager)}) and as compiled "
            f"({duration(costs.compiled)}). A line counts what it calls; a kernel of several lines "
            "is divided among them as eager's time is."
        )
        rest = costs.unattributed
        if rest.eager or rest.compiled:
            both = f"{duration(rest.eager)} as eager, {duration(rest.compiled)} compiled"
            yield f"Operations without a line: {both}."
        yield from costs.notes
    compiled, eager = found.memory
    if compiled or eager:
        yield "Memory: at most alive at a time, beside inputs and parameters, of the largest graph."


# -- kernels ---------------------------------------------------------------------------------------


def _kernels(found: Findings) -> tuple[tuple[KernelBar, ...], dict[int, int]]:
    """Alike ones together, the longest first; and by their number in Costs that of the badge."""
    groups: dict[object, list[tuple[int, KernelCost]]] = {}
    for index, cost in enumerate(_costs_of_kernels(found)):
        kernel = cost.kernel
        key = kernel.graph, kernel.title, kernel.language, cost.places, kernel.lines, kernel.variant
        groups.setdefault(key, []).append((index, cost))
    ordered = sorted(groups.values(), key=_seconds_of, reverse=bool(found.costs))
    longest = max(map(_seconds_of, ordered), default=0.0) or 1.0
    bars: list[KernelBar] = []
    number_of: dict[int, int] = {}
    several = found.variants > 1
    for number, group in enumerate(ordered, 1):
        number_of |= {index: number for index, _ in group}
        cost = group[0][1]
        lines = line_numbers(cost.kernel.lines, found.source[0])
        seconds = _seconds_of(group)
        told = f"variant {cost.kernel.variant}: " if several and not found.costs else ""
        bars.append(
            KernelBar(
                number,
                cost.kernel,
                f"{told}{'lines' if ',' in lines else 'line'} {lines}" if lines else told[:-2],
                len(group),
                seconds,
                seconds / longest,
                _limit(cost),
                cost.decisions,
            )
        )
    return tuple(bars), number_of


def _costs_of_kernels(found: Findings) -> Sequence[KernelCost]:
    """Without times where nothing was measured."""
    if found.costs:
        return found.costs.kernels
    calls = [
        KernelReport(op, "", "", (), "", operations=(op.removeprefix("aten."),), why=why)
        for op, why in found.externs
    ]
    return [KernelCost(kernel, 0.0, ()) for kernel in (*found.kernels, *calls)]


def _seconds_of(group: Sequence[tuple[int, KernelCost]]) -> float:
    return sum(cost.seconds for _, cost in group)


def _limit(cost: KernelCost) -> str:
    if cost.limit is not None:
        return f"{cost.limit:.0%} {_LIMITED_BY}".replace("%", " %")
    return "limited by arithmetic" if cost.kernel.is_arithmetic else ""


# -- code and modules ------------------------------------------------------------------------------


def _arranged(
    shown: Sequence[Listing], tree: Sequence[Branch], number_of: dict[int, int], found: Findings
) -> tuple[tuple[Code, ...], tuple[Module, ...]]:
    """Code of a module's own stands at the module, all other code by itself."""
    scale = max((max(r.eager, r.compiled) for each in shown for r in each.rows), default=0.0) or 1.0
    at_module: dict[int, list[Listing]] = {}
    explained = shown[:1] if shown and shown[0].name == found.name else []
    alone = list(explained)
    for listing in shown[len(explained) :]:
        owner = _owner(listing, tree)
        if owner is None:
            alone.append(listing)
        elif not explained and owner is tree[0]:  # what a decorator of a model's forward wraps
            explained = [listing]
            alone.insert(0, listing)
        else:
            at_module.setdefault(id(owner), []).append(listing)
    opened = 0
    codes: list[Code] = []
    for listing in alone:
        is_open = listing in explained or (listing.is_users and opened < MOST_OPEN)
        opened += is_open
        codes.append(_code(listing, number_of, scale, is_open))
    whole = max((max(b.eager, b.compiled) for b in tree), default=0.0) or 1.0
    total = sum(branch.compiled for branch in tree) or 1.0

    def module(branch: Branch) -> Module:
        own = at_module.get(id(branch), ())
        name = found.name if branch.name == "self" else branch.name
        return Module(
            name,
            "" if name == branch.kind else branch.kind,
            branch.count,
            branch.eager,
            branch.compiled,
            (branch.eager / whole, branch.compiled / whole),
            branch.compiled / total,
            tuple(_code(listing, number_of, scale, True) for listing in own),
            tuple(map(module, branch.inside)),
        )

    return tuple(codes), tuple(map(module, tree))


def _owner(listing: Listing, tree: Sequence[Branch]) -> Branch | None:
    """The module that holds all modules whose lines are in the function."""
    if sum(any(map(listing.has, b.places)) for t in tree for b in t.walk()) == 0:
        return None
    holding = [each for each in tree if any(any(map(listing.has, b.places)) for b in each.walk())]
    if len(holding) != 1:
        return None
    (branch,) = holding
    if any(map(listing.has, branch.places)):
        return branch
    return _owner(listing, branch.inside) or branch


def _code(listing: Listing, number_of: dict[int, int], scale: float, is_open: bool) -> Code:
    pieces = highlighted("\n".join(row.text for row in listing.rows))
    rows = []
    for row, parts in zip(listing.rows, pieces, strict=True):
        badges = dict.fromkeys(number_of[each] for each in row.kernels if each in number_of)
        bars = row.eager / scale, row.compiled / scale
        chosen = tuple(sorted(list(badges)[:_MOST_BADGES]))
        times = row.eager, row.compiled, bars
        more = len(badges) - len(chosen)
        rows.append(CodeRow(row.number, row.text, parts, *times, chosen, more, row.breaks))
    return Code(listing.name, tuple(rows), is_open, listing.eager, listing.compiled)


# -- folds -----------------------------------------------------------------------------------------


def _folds(found: Findings) -> Iterator[Fold]:
    if found.ledger:
        heads = [line for line in found.ledger if line.startswith("variant ")]
        again = sum(not line.startswith("variant 1") for line in heads)
        yield Fold(RECOMPILES, found.ledger, again)
    if found.facts or found.other_facts:
        others = count(found.other_facts, "further fact")
        about = "about classes, functions and torch, which do not change between calls"
        more = (f"and {others} {about}: .guards has all",) if found.other_facts else ()
        yield Fold("what must stay the same", (*found.facts, *more), len(found.facts))
    if found.numbers:
        yield Fold("numbers and sizes that vary", found.numbers, len(found.numbers))


def _further(found: Findings) -> Iterator[Fold]:
    if found.guards:
        yield Fold("guards as they are checked", found.guards, len(found.guards))
    if found.decisions:
        yield Fold("fusion decisions", found.decisions, len(found.decisions))
    if found.trials:
        lines = tuple(_trials(found))
        yield Fold("tuning", lines, len(lines))


def _trials(found: Findings) -> Iterator[str]:
    for trial in found.trials:
        taken = f"{trial.seconds * 1e6:.1f} µs" if trial.seconds else "no time"
        earlier = "" if trial.measured else " (in an earlier process)"
        what = f"{trial.graph}: {trial.subject}: {trial.config}"
        yield f"{what}: {taken}: {trial.outcome}{earlier}"


def _flames(records: Sequence[CompileRecord]) -> tuple[Flame, ...]:
    flames = []
    for record in records:
        stages: dict[str, float] = {}
        for stage in record.stages:
            name = stage.stage.rpartition(": ")[2]
            stages[name] = stages.get(name, 0.0) + stage.seconds
        several = sum(each.frame == record.frame for each in records) > 1
        name = shown_name(record.name)
        told = f"{name}, variant {record.number}" if several and record.number else name
        flames.append(Flame(told, record.seconds, tuple(stages.items())))
    return tuple(flames)
