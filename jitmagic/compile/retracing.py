"""Decides whether a frame is traced again with other assumptions, after a finished trace.

`RULES` are the reasons to try, in their order. Each is tried at most once, and its trace replaces
the one before only if the rule accepts it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ..errors import UserLine
from ..lazy_dataclass import dataclass, replace
from ..symbols.size import DataSize, SizeOf, hintless, is_tensor_symbol
from ..trace.assumptions import Assumptions
from ..trace.breaks import RolledLoop
from ..trace.python_loops.loop_facts import ends_at_loop
from ..trace.result import Break, Specialized, Trace
from ..trace.varying.attempt_symbols import specialized
from ..trace.varying.concrete import hints_of, places_of
from ..trace.varying.growing_sizes import resized

__all__ = [
    "RULES", "Rule", "constant_sizes", "has_chosen_symbols", "settle",
]  # fmt: skip

_MOST_TRACES = 5  # of a frame in one attempt to compile it


@dataclass(frozen=True, slots=True)
class Rule:
    """A reason to trace a frame again.

    `propose` returns the other assumptions, or None if another trace is not worth it. `accepts`
    (before, after) says whether the trace with those is better.
    """

    name: str
    propose: Callable[[Trace, Assumptions], Assumptions | None]
    accepts: Callable[[Trace, Trace], bool] = lambda before, after: True


def settle(
    run: Callable[[Assumptions], Trace], assumed: Assumptions
) -> tuple[Trace, Assumptions, tuple[str, ...]]:
    """Trace until no rule proposes anything better, at most `_MOST_TRACES` times.

    Returns the trace, what it assumed, and the names of the rules that were tried.
    """
    traced, tried = run(assumed), list[str]()
    for rule in RULES:
        known = replace(assumed, plain=traced.loops.plain, plain_callees=traced.loops.plain_callees)
        proposed = rule.propose(traced, known)
        if proposed is None or len(tried) + 1 == _MOST_TRACES:
            continue
        other = run(proposed)
        tried.append(rule.name)
        if rule.accepts(traced, other):
            traced, assumed = other, proposed
    return traced, assumed, tuple(tried)


# -- finished traces ------------------------------------------------------------------------------


def has_chosen_symbols(traced: Trace, assumed: Assumptions) -> bool:
    """Return whether sizes became symbols because they changed between calls, not on request."""
    return assumed.sizes is not None and assumed.sizes.are_chosen and _has_symbols(traced)


def _has_symbols(traced: Trace) -> bool:
    """Return whether a size is a symbol that no mark has made unbacked."""
    symbols = filter(is_tensor_symbol, places_of(traced))
    return not all(hintless(one) and not _is_growing(one.origin) for one in symbols)


def _is_growing(origin: object) -> bool:
    return isinstance(origin, SizeOf) and origin.growing


def constant_sizes(
    traced: Trace, assumed: Assumptions, why: str, where: UserLine | None = None
) -> Assumptions:
    """Return the assumptions with the sizes of this call in place of the symbols of a trace."""
    constants = {symbol.origin: specialized(symbol, why, where) for symbol in places_of(traced)}
    constants = {**assumed.constants, **constants}
    return replace(assumed, sizes=None, constants=constants, rolls=False, rolls_tests=False)


def _trip_counts(traced: Trace) -> list[Specialized]:
    """Return the trip counts for which loops were unrolled that could have ended the graph.

    Data-dependent ones are left out: they were speculated, or they ended the graph.
    """
    constants = [one for one in traced.specialized if one.loop is not None]
    return [one for one in constants if not isinstance(one.origin, DataSize)]


def _ends_alike(before: Trace, after: Trace) -> bool:
    """Return whether neither trace has a break, or both break at the same instruction."""
    ends = [one.exit.index if isinstance(one.exit, Break) else None for one in (before, after)]
    return ends[0] == ends[1]


def _has_symbols_and_ends_alike(before: Trace, after: Trace) -> bool:
    return _has_symbols(after) and _ends_alike(before, after)


def _end_is_in_idle_loop(rolled: Trace, unrolled: Trace) -> bool:
    """Return whether a trace ends in a loop that has no tensor work, as another one shows."""
    return bool(rolled.loops.open.keys() & unrolled.loops.idle.keys())


# -- the rules ------------------------------------------------------------------------------------


def _without_ones(traced: Trace, assumed: Assumptions) -> Assumptions | None:
    """Give up unbacked dimensions from one on if they may have added a graph break."""
    sizes = assumed.sizes
    if sizes is None or not sizes.maybe_one or not isinstance(traced.exit, Break):
        return None
    if ends_at_loop(traced) and assumed.may_leave and 1 not in hints_of(traced):
        return None  # a varying trip count ends the graph in any case
    return replace(assumed, sizes=replace(sizes, maybe_one=False))


def _index_is_constant(traced: Trace, assumed: Assumptions) -> Assumptions | None:
    """Unroll the loop of which this frame is an iteration, if that needs the value of its index.

    Rolled, it would need one variant for each iteration.
    """
    if not any(one.origin in assumed.item_numbers for one in traced.specialized):
        return None
    head = assumed.iteration_of
    rolled, unrolled = assumed.rolled - head, assumed.unrolled | head
    return replace(assumed, item_numbers=frozenset(), rolled=rolled, unrolled=unrolled)


def _loop_of_breaks(traced: Trace, assumed: Assumptions) -> Assumptions | None:
    """Leave loops to Python whose iterations consist of graph breaks: no node between two breaks.

    Python runs them as a whole, and functions that they call may be compiled. If the break depends
    on facts of this call, other calls may not break there: only this trace uses the result.
    """
    found = [
        head
        for head, loop in traced.loops.open.items()
        if loop.began_inside and loop.has_iterated and not loop.recorded
    ]
    if not found or not assumed.may_leave:
        return None
    calling = {**assumed.calling, **dict.fromkeys(found, traced.because)}
    return replace(assumed, calling=calling, plain=assumed.plain.union(found))


def _unrolled_to_compare(traced: Trace, assumed: Assumptions) -> Assumptions | None:
    """Unroll a loop that has ended the graph, if it may have no tensor work."""
    around = traced.loops.open.values()
    if not assumed.rolls or not isinstance(traced.exit, Break) or not around:
        return None
    if type(traced.exit.reason) is not RolledLoop or any(loop.recorded for loop in around):
        return None
    sizes = assumed.sizes and replace(assumed.sizes, maybe_one=None)
    return replace(assumed, sizes=sizes, rolls=False)


def _idle_loop(traced: Trace, assumed: Assumptions) -> Assumptions | None:
    """Leave the outermost loop without tensor work to Python if the first varying loop is in it."""
    counts = _trip_counts(traced)
    if not counts or not assumed.may_leave:
        return None
    bodies = {head: (assumed.bodies or {}).get(head, frozenset()) for head in traced.loops.idle}
    around = [head for head, body in bodies.items() if counts[0].loop in body]
    if not around:
        return None
    outermost = max(around, key=lambda head: len(bodies[head]))
    return replace(assumed, plain=assumed.plain | {outermost})


def _roll(traced: Trace, assumed: Assumptions) -> Assumptions | None:
    """Roll a loop that was unrolled although its trip count varies."""
    if not assumed.may_leave or assumed.rolls_tests or not _trip_counts(traced):
        return None
    return replace(assumed, rolls=True, rolls_tests=True)


def _with_ones(traced: Trace, assumed: Assumptions) -> Assumptions | None:
    """Make varying dimensions unbacked from one on: one variant serves whichever is one next."""
    sizes = assumed.sizes
    if sizes is None or sizes.maybe_one is not None or not traced.has_ones:
        return None
    return replace(assumed, sizes=replace(sizes, maybe_one=True))


def _growing(ones: bool, traced: Trace, assumed: Assumptions) -> Assumptions | None:
    """Make dimensions symbols that the frame itself changes, because no later call has them.

    `ones`: those of size one too.
    """
    sizes = assumed.sizes
    if sizes is None or not sizes.are_chosen or sizes.growing is not None:
        return None
    growing = resized(traced, sizes.static)
    if growing is None or (ones and not growing.has_ones):
        return None
    return replace(assumed, sizes=replace(sizes, growing=growing, growing_ones=ones))


def _constants(traced: Trace, assumed: Assumptions) -> Assumptions | None:
    """Use the sizes of this call if the frame breaks only because of symbols that jitmagic chose.

    Symbols that the user did not ask for must not cost more than they save.
    """
    if not isinstance(traced.exit, Break) or not has_chosen_symbols(traced, assumed):
        return None
    if ends_at_loop(traced) or assumed.keeps_symbols:
        return None
    why = f"a graph break: {traced.exit.reason.message}"
    return constant_sizes(traced, assumed, why, traced.exit.where)


RULES = (
    Rule("sizes from one on added a break", _without_ones, lambda a, b: not _ends_alike(a, b)),
    Rule("an iteration needs its index", _index_is_constant),
    Rule("a loop of graph breaks", _loop_of_breaks),
    Rule("a rolled loop may have no tensor work", _unrolled_to_compare, _end_is_in_idle_loop),
    Rule("a loop without tensor work", _idle_loop),
    Rule("a trip count varies", _roll, lambda before, after: ends_at_loop(after)),
    Rule("a size may be one", _with_ones, _ends_alike),
    Rule("the frame changes sizes of one", partial(_growing, True), _has_symbols_and_ends_alike),
    Rule("the frame changes sizes", partial(_growing, False), lambda _, after: _has_symbols(after)),
    Rule("symbols added a break", _constants, lambda _, after: not isinstance(after.exit, Break)),
)
"""The reasons to trace again, in the order in which they are tried: loops before sizes, because
sizes are compared by where the traces end."""
