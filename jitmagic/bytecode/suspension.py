"""Splits the body of a generator or coroutine into the pieces between its suspension points.

Input: the body of a function with `yield` or `await`. Output: a `Split`, which says what the
generator's own frame has to run (`outside`) and where control passes from there to the other code
and back (entries and exits). Each path from an entry to the exits after it is a *piece*: a function
without suspension points.

The frame itself runs everything that suspends it, a call whose result is awaited at once, and
handlers of exceptions in which it may be suspended: the exception being handled is state of the
frame. It advances the iterators of loops that suspend it, so that the code before a loop and the
loop's body share the piece of the body. It also runs code for which the analysis does not know
which stack entries are NULL, because only known NULLs can be restored.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from ..lazy_dataclass import dataclass, field
from .flow import call_group, regions_by_instruction, stack_effect
from .instruction import Body, ExceptionRegion, Instruction, Intrinsic
from .loops import loops_in
from .versions import RUNNING, Kind

__all__ = ["HERE", "LEAVES", "NULL", "Split", "converts", "split"]

HERE = -1  # the number in the result of a piece that did nothing: its frame runs the code itself
NULL = "NULL"  # a stack entry; None stands for a value, an instruction for an unknown entry
Slot = Instruction | str | None
Stack = tuple[Slot, ...]

_SUSPENDING = frozenset(
    "RETURN_GENERATOR YIELD_VALUE RESUME SEND END_SEND CLEANUP_THROW ASYNC_GEN_WRAP "
    "COPY_FREE_VARS MAKE_CELL".split()
)
_AWAITING = frozenset(
    "GET_AWAITABLE GET_YIELD_FROM_ITER GET_AITER GET_ANEXT BEFORE_ASYNC_WITH "
    "END_ASYNC_FOR LOAD_SPECIAL".split()
)
_CALLS = frozenset({"CALL", "CALL_KW", "CALL_FUNCTION_EX"})
_PAIRS = frozenset({"LOAD_METHOD", "LOAD_ATTR", "LOAD_SUPER_ATTR", "LOAD_SPECIAL"})
_MOVES = frozenset("POP_TOP COPY SWAP NOP PUSH_NULL LOAD_GLOBAL RETURN_VALUE RERAISE".split())


class _Leaves:
    """The type of LEAVES."""

    def __repr__(self) -> str:
        return "<leaves to the generator's frame>"


LEAVES = _Leaves()
"""A handler that begins by loading this constant passes the exception to the generator's frame."""


@dataclass(eq=False)
class Split:
    """Says which part of a body runs where. `stacks` has the stack before each instruction."""

    stacks: dict[Instruction, Stack]
    handling: dict[Instruction, int]  # number of exceptions that are being handled
    outside: set[Instruction]  # the generator's frame runs these
    left: set[Instruction]  # handlers that it runs, for exceptions from inside a piece too
    ways: dict[Instruction, list[Instruction]]  # next instructions, without handlers
    handlers: dict[Instruction, Instruction]  # by each instruction in an exception region
    entries: list[Instruction] = field(default_factory=list)  # first instructions of pieces
    exits: list[Instruction] = field(default_factory=list)  # those outside that follow a piece

    def piece(self, entry: Instruction) -> set[Instruction]:
        """Return the instructions from an entry up to its exits."""
        seen: set[Instruction] = set()
        work = [entry]
        while work:
            one = work.pop()
            if one in seen or one in self.outside:
                continue
            seen.add(one)
            work += self.ways[one]
            if (handler := self.handlers.get(one)) is not None and handler not in self.left:
                work.append(handler)
        return seen

    def ends(self, piece: Iterable[Instruction]) -> set[Instruction]:
        """Return the exits, handlers in `left` and returns that a piece can reach."""
        found: set[Instruction] = set()
        for one in piece:
            found.update(way for way in self.ways[one] if way in self.outside)
            if one.op.startswith("RETURN_"):
                found.add(one)
            if (handler := self.handlers.get(one)) in self.left:
                found.add(handler)
        return found

    def is_certain(self, instruction: Instruction) -> bool:
        """Return whether it is known of each stack entry whether it is NULL."""
        stack = self.stacks.get(instruction)
        return stack is not None and not any(isinstance(one, Instruction) for one in stack)


def split(body: Body) -> Split:
    """Analyse a body; a pair of a method and its object on the stack makes code run outside."""
    regions = regions_by_instruction(body)
    ways = dict(_ways(body))
    stacks, handling = _stacks(body, regions, ways)
    handlers = {i: region.target for i, region in regions.items()}
    outside = set(_suspending(body))
    loops = loops_in(body).items()
    outside |= {head for head, inside in loops if head.op == "FOR_ITER" and inside & outside}
    found = Split(stacks, handling, outside, set(), ways, handlers)
    before = -1
    while before != len(outside):
        before = len(outside)
        _extend(found, regions)
    for one, following in ways.items():
        for way in following:
            if one in outside or one.op == "POP_EXCEPT":
                if _may_enter(found, way):
                    found.entries.append(way)
            elif one not in outside and way in outside and one in stacks:
                found.exits.append(way)
    pieces = {entry: found.piece(entry) for entry in found.entries}
    found.entries = [e for e, piece in pieces.items() if _works(piece) and found.ends(piece)]
    found.exits = list(dict.fromkeys(found.exits))
    return found


def _may_enter(found: Split, one: Instruction) -> bool:
    """Return whether a piece may begin there: with no exception on the stack or being handled."""
    is_plain = one not in found.outside and one.op != "RERAISE"
    return is_plain and not found.handling.get(one, 1) and found.is_certain(one)


def converts(handler: Instruction) -> bool:
    """Return whether it is the handler around all code (3.12) that converts StopIteration."""
    return handler.op == "CALL_INTRINSIC_1" and handler.arg == Intrinsic.STOPITERATION_ERROR


def _works(piece: Iterable[Instruction]) -> bool:
    """Return whether a piece does more than move values."""
    moves = (Kind.LOCAL, Kind.CELL, Kind.CONST, Kind.JUMP)
    return any(
        one.op == "FOR_ITER" or (RUNNING.kind(one.op) not in moves and one.op not in _MOVES)
        for one in piece
    )


def _ways(body: Body) -> Iterator[tuple[Instruction, list[Instruction]]]:
    """Yield each instruction with those after it, where an exhausted loop continues included."""
    index = {one: place for place, one in enumerate(body.instructions)}
    for place, one in enumerate(body.instructions):
        following = [] if one.op in RUNNING.no_fallthrough else [body.instructions[place + 1]]
        if one.target is not None:
            following.append(one.target)
            if one.op == "FOR_ITER" and RUNNING.loop_landing:
                following.append(body.instructions[index[one.target] + len(RUNNING.loop_landing)])
        yield one, following


def _suspending(body: Body) -> Iterator[Instruction]:
    """Yield the instructions that suspend the frame, or prepare that."""
    instructions = body.instructions
    for place, one in enumerate(instructions):
        is_asynchronous = one.op == "CALL_INTRINSIC_1" and one.arg == Intrinsic.ASYNC_GEN_WRAP
        if one.op in _SUSPENDING or one.op in _AWAITING or is_asynchronous or converts(one):
            yield one
        if one.op == "SEND":
            yield instructions[place - 1]  # the None that is sent first
            yield from (other for other in instructions if other.target is one)
        elif one.op == "RETURN_GENERATOR":
            yield instructions[place + 1]  # pops the None that starts the generator
        elif one.op in _AWAITING and instructions[place - 1].op in _CALLS:
            # `await f(x)`: to make a coroutine costs little, and would end the graph.
            yield from call_group(body, instructions[place - 1])


def _extend(found: Split, regions: Mapping[Instruction, ExceptionRegion]) -> None:
    """Add to `outside` what depends on its instructions."""
    outside, length = found.outside, len(RUNNING.loop_landing)
    for target in {region.target for region in regions.values()}:
        body = _handler(found, target)
        if not outside.isdisjoint(body) and not converts(target):
            outside |= body
            found.left.add(target)
    for one, region in regions.items():
        known = found.stacks.get(region.target, ())[: region.depth]
        if region.target in found.left and any(isinstance(slot, Instruction) for slot in known):
            outside.add(one)
    for one, ways in found.ways.items():
        for way in ways:
            if one not in outside and way in outside and not found.is_certain(way):
                outside.add(one)
            if one in outside and way in found.stacks and not found.is_certain(way):
                outside.add(way)
        if one.op == "FOR_ITER" and length:  # the interpreter jumps over the landing
            landing = _landing(found, one, length)
            if one in outside or not outside.isdisjoint(landing):
                outside.update(landing, (one,))


def _landing(found: Split, head: Instruction, length: int) -> list[Instruction]:
    landing: list[Instruction] = []
    following = head.target
    while following is not None and len(landing) < length:
        landing.append(following)
        following = next(iter(found.ways[following]), None)
    return landing


def _handler(found: Split, target: Instruction) -> set[Instruction]:
    """Return the instructions of a handler, up to where its exception is no longer handled."""
    if target not in found.handling:
        return set()
    base, seen, work = found.handling[target], {target}, [target]
    while work:
        one = work.pop()
        following = [*found.ways[one]]
        if one in found.handlers:
            following.append(found.handlers[one])
        for way in following:
            if way not in seen and found.handling.get(way, 0) > base:
                seen.add(way)
                work.append(way)
    return seen


# ------------------------------------------------------------------------------------- the stack


def _stacks(
    body: Body,
    regions: Mapping[Instruction, ExceptionRegion],
    ways: Mapping[Instruction, list[Instruction]],
) -> tuple[dict[Instruction, Stack], dict[Instruction, int]]:
    """Return the stack and the number of handled exceptions before each reachable instruction."""
    stacks: dict[Instruction, Stack] = {}
    handling: dict[Instruction, int] = {}
    work: list[tuple[Instruction, Stack, int]] = [(body.instructions[0], (), 0)]
    while work:
        one, stack, depth = work.pop()
        if one in stacks:
            stack = _merged(one, stacks[one], stack)
            if stack == stacks[one]:
                continue
        stacks[one] = stack
        depth = handling.setdefault(one, depth)
        if (region := regions.get(one)) is not None:
            unwound = (*stack[: region.depth], *(None,) * (region.lasti + 1))
            work.append((region.target, unwound, depth))
        depth += (one.op == "PUSH_EXC_INFO") - (one.op == "POP_EXCEPT")
        for place, way in enumerate(ways[one]):
            jumps = one.target is not None and (place > 0 or one.op in RUNNING.no_fallthrough)
            if way is one.target or not jumps:
                work.append((way, _after(one, stack, jumps), depth))
    return stacks, handling


def _merged(at: Instruction, one: Stack, other: Stack) -> Stack:
    return tuple(a if a is b else at for a, b in zip(one, other, strict=True))


def _after(one: Instruction, stack: Stack, jumps: bool) -> Stack:
    if one.op in _PAIRS and (one.flag or one.op in ("LOAD_METHOD", "LOAD_SPECIAL")):
        return (*stack[: len(stack) + stack_effect(one, jump=False) - 2], one, one)
    if one.op == "SWAP" and isinstance(one.arg, int):
        lower, upper = stack[-one.arg], stack[-1]
        return (*stack[: -one.arg], upper, *stack[1 - one.arg : -1], lower)
    if one.op == "COPY" and isinstance(one.arg, int):
        return (*stack, stack[-one.arg])
    if one.op == "PUSH_NULL":
        return (*stack, NULL)
    if one.op == "LOAD_GLOBAL" and one.flag:
        return (*stack, NULL, None) if RUNNING.null_first else (*stack, None, NULL)
    if one.op == "LOAD_FAST_AND_CLEAR":  # saves a variable, which may be unbound
        return (*stack, one)
    depth = len(stack) + stack_effect(one, jump=jumps)
    kept = stack[:depth]
    if one.op in _CALLS:
        return (*kept[:-1], None)
    pushed: list[Slot] = [None] * (depth - len(kept))
    if one.op in RUNNING.expansions and len(pushed) > 1:  # `with` in 3.14: exit, self or NULL
        return (*kept[:-1], one, one, None)
    return (*kept, *pushed)
