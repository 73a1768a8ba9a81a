"""page_code: arranges source lines, modules and kernels of explain's report.

Input: listings of source lines, the module tree, and costs of kernels. Output: the `Code`, `Module`
and `KernelBar` entries of a Page. Kernels are numbered by time, and each source line gets the
numbers of its kernels as badges.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..words import line_numbers
from .cost import KernelCost
from .findings import Findings
from .gutter import Listing
from .highlight import highlighted
from .module_tree import Branch
from .page_model import Code, CodeRow, KernelBar, Module

__all__ = ["code_and_modules", "kernel_bars"]

MOST_OPEN = 4  # user functions that are shown unfolded
_MOST_BADGES = 4
_LIMITED_BY = "of memory speed"


def kernel_bars(found: Findings) -> tuple[tuple[KernelBar, ...], dict[int, int]]:
    """Return bars of identical kernels, the slowest first, and badge numbers by index in Costs."""
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
        prefix = f"variant {cost.kernel.variant}: " if several and not found.costs else ""
        bars.append(
            KernelBar(
                number,
                cost.kernel,
                f"{prefix}{'lines' if ',' in lines else 'line'} {lines}" if lines else prefix[:-2],
                len(group),
                seconds,
                seconds / longest,
                _limit(cost),
                cost.decisions,
            )
        )
    return tuple(bars), number_of


def _costs_of_kernels(found: Findings) -> Sequence[KernelCost]:
    """Return the kernels and ATen calls, with no times if nothing was measured."""
    if found.costs:
        return found.costs.kernels
    return [KernelCost(kernel, 0.0, ()) for kernel in (*found.kernels, *found.externs)]


def _seconds_of(group: Sequence[tuple[int, KernelCost]]) -> float:
    return sum(cost.seconds for _, cost in group)


def _limit(cost: KernelCost) -> str:
    if cost.limit is not None:
        return f"{cost.limit:.0%} {_LIMITED_BY}".replace("%", " %")
    return "limited by arithmetic" if cost.kernel.is_arithmetic else ""


# -- code and modules ------------------------------------------------------------------------------


def code_and_modules(
    shown: Sequence[Listing], tree: Sequence[Branch], number_of: dict[int, int], found: Findings
) -> tuple[tuple[Code, ...], tuple[Module, ...]]:
    """Return listings outside of modules, and modules with the listings of their own code."""
    scale = max((max(r.eager, r.compiled) for each in shown for r in each.rows), default=0.0) or 1.0
    at_module: dict[int, list[Listing]] = {}
    explained = shown[:1] if shown and shown[0].name == found.name else []
    alone = list(explained)
    for listing in shown[len(explained) :]:
        owner = _owner(listing, tree)
        if owner is None:
            alone.append(listing)
        elif not explained and owner is tree[0]:  # the forward below a decorator's wrapper
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
    """Return the innermost module that contains all modules with lines in the function."""
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
        chosen = tuple(sorted(list(badges)[:_MOST_BADGES]))
        rows.append(
            CodeRow(
                row.number,
                row.text,
                parts,
                eager=row.eager,
                compiled=row.compiled,
                bars=(row.eager / scale, row.compiled / scale),
                badges=chosen,
                more_badges=len(badges) - len(chosen),
                breaks=row.breaks,
            )
        )
    return Code(listing.name, tuple(rows), is_open, listing.eager, listing.compiled)
