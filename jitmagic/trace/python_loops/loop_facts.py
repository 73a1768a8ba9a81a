"""The loops of a function as its traces have found them: read before a trace, written after it.

The facts are kept in the Root of a function, by instruction, because its resume functions share
them; a trace knows loops by the indices of their heads in its own code.
"""

from __future__ import annotations

from collections.abc import Iterable

from ...bytecode.instruction import Instruction
from ...bytecode.snapshot import FrameSnapshot
from ...guards.source import Argument, Item, Source
from ..assumptions import Assumptions
from ..breaks import FilledList, RolledLoop
from ..residual.resume import STORES, FlatCode, Root, item_name
from ..result import Break, Trace

__all__ = ["ends_at_loop", "known_loops", "learn", "numbers_of_iteration"]


def ends_at_loop(traced: Trace) -> bool:
    """Return whether Python continues with a loop after the trace."""
    exit_ = traced.exit
    return isinstance(exit_, Break) and isinstance(exit_.reason, RolledLoop | FilledList)


# -- before a trace -------------------------------------------------------------------------------


def known_loops(flat: FlatCode, args: tuple[object, ...], *, may_leave: bool) -> Assumptions:
    """Return the assumptions about the loops of a function that is called with `args`.

    Loops of varying length are rolled at once, except in an iteration of another one: whether that
    needs its index as a constant is only seen at its end.
    """
    root, indices = flat.root, {instruction: index for index, instruction in flat.at.items()}

    def numbers(heads: Iterable[Instruction]) -> frozenset[int]:
        return frozenset(indices[head] for head in heads if head in indices)

    filled = frozenset(root.resume_facts.filled)
    if flat.head in root.counting and flat.item is not None:
        filled |= {Argument(-1, flat.item)}
    items = _items_of_iteration(flat, args)
    loops = {head: body for head, body in root.loops.items() if head in indices}
    return Assumptions(
        item_numbers=items,
        may_leave=may_leave,
        rolls=may_leave and not items,
        peels=may_leave,
        rolled=numbers(root.rolled - root.plain),
        unrolled=numbers(root.unrolled),
        plain=numbers(root.plain | root.calling),
        calling=dict.fromkeys(numbers(root.calling), ()),
        recording=numbers(root.recording),
        filled=filled,
        iteration_of=numbers([] if flat.head is None else [flat.head]),
        bodies={indices[head]: numbers(body) for head, body in loops.items()},
        live={indices[head]: root.live[head] for head in loops},
    )


def numbers_of_iteration(flat: FlatCode) -> frozenset[Source]:
    """Return the numbers in older objects that iterations change; empty for other functions."""
    if flat.head not in flat.root.rolled:
        return frozenset()
    return flat.root.resume_facts.changed_in(flat.parameters)


def _items_of_iteration(flat: FlatCode, args: tuple[object, ...]) -> frozenset[Source]:
    """Return the ints in the item of a loop, if the resume function is an iteration of it."""
    if flat.item is None or flat.head not in flat.root.rolled:
        return frozenset()
    index = flat.parameters.index(flat.item)
    return frozenset(_ints(args[index], Argument(index, flat.item)))


def _ints(value: object, source: Source) -> Iterable[Source]:
    """Yield the ints in an item: the item itself, or parts of a tuple from enumerate() or zip()."""
    if type(value) is int:
        yield source
    elif type(value) is tuple:
        for index, part in enumerate(value):
            yield from _ints(part, Item(source, index))


# -- after it -------------------------------------------------------------------------------------


def learn(flat: FlatCode, traced: Trace, assumed: Assumptions, snapshot: FrameSnapshot) -> None:
    """Record for later traces of the function what a trace and its retraces have found."""
    root, at = flat.root, flat.at

    def heads(numbers: Iterable[int]) -> set[Instruction]:
        return {at[number] for number in numbers if number in at}

    # A decision that rests on guards holds for the calls that pass them, not for the function.
    conditional = {head for head, because in assumed.calling.items() if because}
    root.calling |= heads(assumed.calling.keys() - conditional)
    root.plain |= heads(traced.loops.plain - conditional)
    root.recording |= heads(head for head, loop in traced.loops.open.items() if loop.recorded)
    root.unrolled |= heads(assumed.unrolled)
    root.rolled -= heads(assumed.unrolled - assumed.rolled)
    if isinstance(traced.exit, Break):
        if ends_at_loop(traced):
            _roll(root, traced, at[traced.exit.index])
        if not traced.exit.reason.plain_rest:  # else the frame is not cut there
            _record_facts(flat, traced, traced.exit, snapshot)


def _roll(root: Root, traced: Trace, head: Instruction) -> None:
    """Mark the loop that ended a trace as rolled."""
    is_read = isinstance(traced.exit, Break) and isinstance(traced.exit.reason, FilledList)
    if (is_read or head.op.startswith("CALL")) and head.op != "FOR_ITER":
        root.counting.add(head)  # the callee has such a loop, or the call reads a list
    else:
        root.rolled.add(head)
        root.resume_facts.fill(traced)


def _record_facts(flat: FlatCode, traced: Trace, exit_: Break, snapshot: FrameSnapshot) -> None:
    """Record the facts of a graph break for the resume functions after it."""
    root, head, item = flat.root, flat.at[exit_.index], None
    if ends_at_loop(traced):
        root.resume_facts.change(traced, snapshot, _stored_in_loop(root, head))
    if head.op == "FOR_ITER":
        item = item_name(root, head, len(exit_.stack))
    root.resume_facts.add(traced, flat.at, item)


def _stored_in_loop(root: Root, head: Instruction) -> set[object]:
    """Return the live variables that the loop with that head writes to."""
    body = root.body.instructions
    begin = body.index(head)
    jumps = (n for n, one in enumerate(body) if one.target is head and n > begin)
    stores = body[begin : max(jumps, default=begin)]
    return {one.arg for one in stores if one.op in STORES} & root.live[head]
