"""page: arranges the report of explain as data, which html.py and report.py only render.

Input: Findings. Output: a `Page` (page_model.py): verdict, four chips, the user's code with times,
modules as a tree, kernels by time, sections to unfold, and notes on how it was measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...figures import count, duration, size
from ...records import CompileRecord
from .breaks import distinct
from .findings import Findings
from .gutter import listings
from .module_tree import module_tree
from .page_code import code_and_modules, kernel_bars
from .page_model import RECOMPILES, Chip, Flame, Fold, Page
from .verdict import BREAKS_COST, PLAIN, compiled_in, shown_name

__all__ = ["page_of"]


def page_of(found: Findings) -> Page:
    """Arrange findings as a page."""
    kernels, number_of = kernel_bars(found)
    shown = listings(found)
    tree = module_tree(found.costs.modules)
    codes, modules = code_and_modules(shown, tree, number_of, found)
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
        if (name, outcome.why) != (found.name, found.verdict.details):  # shown as title
            yield f"{shown_name(name)} ran as plain Python: {outcome.why}"
    for line in found.ledger:
        if not line.startswith(("variant ", " ")) and found.verdict.tone != PLAIN:
            yield line
    yield from found.untuned
    yield from found.notes
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
        title = f"{name}, variant {record.number}" if several and record.number else name
        flames.append(Flame(title, record.seconds, tuple(stages.items())))
    return tuple(flames)
