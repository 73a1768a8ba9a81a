"""Rewrites a tagged generator, coroutine or async generator: its frame calls compiled pieces.

Its frame stays the real frame of a real generator: `send`, `throw`, `close`, `yield from`, `await`,
`gi_frame` and the handlers around a `yield` work as CPython defines them. Between two suspension
points (`bytecode/suspension.py`) the frame calls a *piece*, a plain function that is compiled like
any other:

    piece(variables that it reads, stack) -> (number of the exit, variables that it may have set,
                                              stack)

The frame stores these, and executes the `yield`, `await` or `return` of that exit itself. All
pieces are resume functions of one Root, whose body has a return in the place of each exit, so graph
breaks inside a piece work as in other functions.

An exception that a piece does not handle leaves the frame. One whose handler may suspend the frame
(`finally: await ...`) is the result of the piece, and the frame raises it again at the handler.

A variable that a piece may set is moved into it, so that the frame does not keep its old object
alive. Variables that the rest of the generator does not read are returned too, except tensors: a
dead tensor would have to be written to memory at each `yield`. Once a piece has made an object with
a finalizer, pieces give back what they are called with, and the frame runs their code itself: a
call keeps its arguments alive until it ends.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from types import CodeType

from ...bytecode import (
    Body,
    ExceptionRegion,
    Instruction,
    assemble,
    build,
    decode,
    drop_unreachable,
    secure_loads,
)
from ...bytecode.stub import report_error
from ...bytecode.suspension import HERE, LEAVES, Split, converts, split
from ...bytecode.versions import RUNNING
from ..builtins.registry import handles
from ..state import Interpreter
from ..values.base import Args, Kwargs, Value
from ..values.containers.sequences import TupleValue
from .call_forms import bind_method, nothing, pop_null
from .emit import declare_temporaries
from .finalizers import is_plain_tensor, may_be_freed
from .generator_facts import PieceFacts, returns
from .resume import FlatCode, ResumeKey, Root, spell_out_super

__all__ = ["Unbound", "rewrite_generator"]

Code = list[Instruction]
_MOST_EXITS = 256  # numbers of exits are compared by identity


class Unbound:
    """The class itself stands for a variable without a value among the arguments and results of
    pieces, and in the frame for the value of a dead variable that was freed early. (The tracer
    knows classes as constants.)
    """


def rewrite_generator(
    code: CodeType,
    make_piece: Callable[[FlatCode], Callable[..., object]],
    on_error: Callable[[BaseException], None],
) -> CodeType | None:
    """Return code of the same kind that calls a piece at each entry; None if no piece does work.

    `make_piece` returns the dispatcher of a piece; `on_error` gets each exception that leaves one.
    """
    body = decode(code)
    spell_out_super(body)
    found = split(body)
    while unknown := _bindable(found):
        for load in unknown:
            bind_method(body, load)
        found = split(body)
    if not found.entries or len(found.exits) + len(found.left) >= _MOST_EXITS:
        return None
    facts = PieceFacts(body, found)
    if not facts.entries:
        return None
    root, entered = _pieces(facts)
    keys = {entry: facts.key(entry, root, first) for entry, first in entered.items()}
    pieces = {entry: root.resume(key, make_piece) for entry, key in keys.items()}
    return _frame_code(facts, keys, pieces, on_error)


def _bindable(found: Split) -> list[Instruction]:
    """Return the loads of methods whose result is on the stack where the frame is suspended."""
    loads: dict[Instruction, None] = {}
    for one in found.outside:
        for slot in found.stacks.get(one, ()):
            if isinstance(slot, Instruction) and slot.op in _BINDABLE and not _is_bound(slot):
                loads[slot] = None
    return list(loads)


_BINDABLE = frozenset({"LOAD_METHOD", "LOAD_ATTR", "LOAD_SUPER_ATTR", *RUNNING.expansions})


def _is_bound(load: Instruction) -> bool:
    return load.op in ("LOAD_ATTR", "LOAD_SUPER_ATTR") and not load.flag


# --------------------------------------------------------------------------------- rewritten bodies


class _Rewriting:
    """A copy of the body under construction; `first` has the code that replaced a jump target."""

    def __init__(self, facts: PieceFacts) -> None:
        self.facts = facts
        self.copies = {one: one.copy() for one in facts.body.instructions}
        self.first: dict[Instruction, Instruction] = {}
        self.code: Code = []
        self.last: Code = []  # follows the rest
        self.regions: list[ExceptionRegion] = []

    def load(self, name: str, *, bound: bool, depth: int, moves: bool = False) -> Code:
        """Return code that pushes a variable (Unbound if it has no value) at this stack depth."""
        taken = build.delete_fast(name) if moves else []
        if bound:
            return [*build.load_fast(name, bound=True), *taken]
        loads, after = build.load_fast(name), build.nop()
        unbound = [*build.pop_top(), *build.load_const(Unbound), *build.jump(after[0])]
        self.last += unbound
        self.regions.append(ExceptionRegion(loads[0], loads[-1], unbound[0], depth))
        return [*loads, *taken, *after]

    def where(self, target: Instruction) -> Instruction:
        """Return where a jump to an instruction of the original leads now."""
        return self.first.get(target, self.copies[target])

    def keep_regions(self) -> None:
        """Cover the instructions that are still there by the regions of the original."""
        here = set(self.code)
        instructions = self.facts.body.instructions
        index = {one: place for place, one in enumerate(instructions)}
        for region in self.facts.body.regions:
            inside = instructions[index[region.start] : index[region.end_inclusive] + 1]
            kept = [copy for one in inside if (copy := self.copies[one]) in here]
            target = self.where(region.target)
            if kept and (target in here or target in self.last):
                self.regions.append(
                    ExceptionRegion(kept[0], kept[-1], target, region.depth, region.lasti)
                )

    def finish(self) -> Body:
        """Return the body, with its temporaries declared."""
        for one, copy in self.copies.items():
            if one.target is not None:
                copy.target = self.where(one.target)
        body = self.facts.body
        made = replace(
            body,
            instructions=[*self.code, *self.last],
            regions=self.regions,
            varnames=list(body.varnames),
            cellvars=list(body.cellvars),
            freevars=list(body.freevars),
        )
        declare_temporaries(made)
        return made


def _pop_stack(nulls: tuple[bool, ...]) -> tuple[Code, list[str]]:
    """Return code that empties the stack, and the temporaries with its values, bottom first."""
    code: Code = []
    names: list[str] = []
    for place in reversed(range(len(nulls))):
        if nulls[place]:
            code += pop_null()
        else:
            names.append(f".s{place}")
            code += build.store_fast(names[-1])
    return code, names[::-1]


def _take(names: Iterable[str]) -> list[Code]:
    """Return code for each temporary that pushes and deletes it."""
    return [[*build.load_fast(name, bound=True), *build.delete_fast(name)] for name in names]


# -------------------------------------------------------------------------------------- the pieces


def _pieces(facts: PieceFacts) -> tuple[Root, dict[Instruction, Instruction]]:
    """Return the root of all pieces, and the first instruction of each in its body."""
    made, found = _Rewriting(facts), facts.found
    exits, outside = set(found.exits), found.outside
    for one in facts.body.instructions:
        leaves = one in exits or (returns(one) and one not in outside)
        if one not in found.stacks or (one in outside and not leaves):
            continue
        code = _leave(facts, made, one) if leaves else [made.copies[one]]
        made.first[one] = code[0]
        made.code += build.placed(code, one.position)
    for handler in found.left:
        code = [*build.load_const(LEAVES), *build.pop_top(), *_leave(facts, made, handler)]
        made.first[handler] = code[0]
        made.last += build.placed(code, handler.position)
    made.keep_regions()
    entered = {entry: _enter(facts, made, entry) for entry in facts.entries}
    # Entered from a common start, so that the analyses of the root see all pieces.
    switch = [Instruction("POP_JUMP_IF_NONE", target=first) for first in entered.values()]
    made.code[:0] = switch
    body = made.finish()
    body.flags &= ~_SUSPENDABLE
    root = Root.of(body)
    root.is_suspended = True
    return root, entered


_SUSPENDABLE = (
    inspect.CO_GENERATOR
    | inspect.CO_COROUTINE
    | inspect.CO_ASYNC_GENERATOR
    | inspect.CO_ITERABLE_COROUTINE
)


def _enter(facts: PieceFacts, made: _Rewriting, entry: Instruction) -> Instruction:
    """Return where a piece begins: at code that unbinds variables which had no value."""
    code: Code = []
    read = facts.live[entry] & facts.may_be_bound(entry) & facts.own
    for name in sorted(name for name in read if not facts.is_bound(name, entry)):
        after = build.nop()
        code += [
            *build.load_fast(name, bound=True),
            *build.load_const(Unbound),
            Instruction("IS_OP", 0),
            *build.pop_jump_if_false(after[0]),
            *build.delete_fast(name),
            *after,
        ]
    if not code:
        return made.where(entry)
    made.last += build.placed([*code, *build.jump(made.where(entry))], entry.position)
    return code[0]


def _leave(facts: PieceFacts, made: _Rewriting, end: Instruction) -> Code:
    """Return code that ends a piece with the number of the exit, variables and stack."""
    number = build.load_const(facts.number(end))
    if returns(end):
        value = build.load_const(end.arg) if end.op == "RETURN_CONST" else []
        return [*value, *number, *build.swap(2), *build.build_tuple(2), *build.return_value()]
    nulls = facts.stack(end)
    code, temporaries = _pop_stack(nulls)
    if end in facts.found.left and facts.region_of(end).lasti:
        code[1:1] = build.pop_top()
    later, dead = facts.read_later(end), facts.dead(end)
    code += number
    for count, name in enumerate(later, 1):
        code += made.load(name, bound=facts.is_bound(name, end), depth=count)
    if dead:
        code += build.push_callable(build.load_const(still_referenced))
        for place, name in enumerate(dead):
            depth = 3 + len(later) + place
            code += made.load(name, bound=facts.is_set(name, end), depth=depth)
        code += build.call_function(len(dead))
    values = _take(reversed(temporaries))
    code += [one for value in values for one in value]
    count = 1 + len(later) + bool(dead) + len(values)
    return [*code, *build.build_tuple(count), *build.return_value()]


def still_referenced(*values: object) -> tuple[object, ...] | None:
    """Return the values of dead variables, Unbound for those that are freed; None if all are."""
    kept = tuple(Unbound if is_plain_tensor(value) else value for value in values)
    return None if all(value is Unbound for value in kept) else kept


@handles(still_referenced, lazy=True)
def _still_referenced(machine: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    unbound = machine.constant(Unbound)
    kept = [unbound if may_be_freed(machine, value) else value for value in args]
    if all(value is unbound for value in kept):
        return machine.constant(None)
    return TupleValue(kept)


@handles(nothing)
def _nothing(machine: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    return machine.constant(None)


# ------------------------------------------------------------------------ the generator's own code


def _frame_code(
    facts: PieceFacts,
    keys: Mapping[Instruction, ResumeKey],
    pieces: Mapping[Instruction, Callable[..., object]],
    on_error: Callable[[BaseException], None],
) -> CodeType:
    """Return the code of the generator's frame, which calls the pieces."""
    made = _Rewriting(facts)
    for one in facts.body.instructions:
        if one in pieces:
            lead = build.placed(build.jump(one), one.position)  # its target is set below
            made.first[one] = lead[0]
            made.code += lead
        made.code.append(made.copies[one])
    made.keep_regions()
    ends = {end: None for entry in pieces for end in facts.ends(entry)}
    landings = {facts.number(end): end for end in ends}
    restored = {number: _restore(facts, made, end) for number, end in landings.items()}
    for code in restored.values():
        made.last += code
    for entry, piece in pieces.items():
        key = keys[entry]
        called = _call(facts, made, entry, key, piece, on_error)
        here = _give_back(facts, made, entry, key)
        numbers = dict.fromkeys(facts.number(end) for end in facts.ends(entry))
        ways = [(HERE, here[0]), *((number, restored[number][0]) for number in numbers)]
        made.first[entry].target = called[0]
        made.last += build.placed([*called, *_choose(ways), *here], entry.position)
    body = made.finish()
    _convert_stop_iteration(facts, made, body)
    drop_unreachable(body)
    secure_loads(body)
    return assemble(body)


def _call(
    facts: PieceFacts,
    made: _Rewriting,
    entry: Instruction,
    key: ResumeKey,
    piece: Callable[..., object],
    on_error: Callable[[BaseException], None],
) -> Code:
    """Return code that calls a piece with variables and stack: stack -> result"""
    code, temporaries = _pop_stack(key.nulls)
    code += build.push_callable(build.load_const(piece))
    for place, name in enumerate(key.names):
        if name not in facts.own:
            code += build.load_closure(name)
            continue
        bound, moves = facts.is_bound(name, entry), name in facts.sets(entry)
        code += made.load(name, bound=bound, depth=2 + place, moves=moves)
    code += [one for value in _take(temporaries) for one in value]
    call = build.call_function(len(key.names) + len(temporaries))
    handler = report_error(on_error)
    made.last += build.placed(handler, entry.position)
    made.regions.append(ExceptionRegion(call[0], call[-1], handler[0], 0))
    return [*code, *call]


def _give_back(facts: PieceFacts, made: _Rewriting, entry: Instruction, key: ResumeKey) -> Code:
    """Return code that restores what a piece was called with, and runs its instructions here."""
    count = 1 + len(key.names) + key.nulls.count(False)
    code = [Instruction("UNPACK_SEQUENCE", count), *build.pop_top()]
    for name in key.names:
        if name in facts.own:
            code += _store(name, bound=facts.is_bound(name, entry))
        else:
            code += build.pop_top()
    code += _push_stack(key.nulls, is_reversed=True)
    code.append(Instruction("JUMP_BACKWARD_NO_INTERRUPT", target=made.copies[entry]))
    return code


def _push_stack(nulls: tuple[bool, ...], *, is_reversed: bool) -> Code:
    """Return code that puts NULLs between values; `is_reversed`: the top is the first of them."""
    if is_reversed or any(nulls):
        names = [f".s{place}" for place, null in enumerate(nulls) if not null]
        first = names if is_reversed else names[::-1]
        values = iter(_take(names))
        code = [one for name in first for one in build.store_fast(name)]
        for null in nulls:
            code += [Instruction("PUSH_NULL")] if null else next(values)
        return code
    return []


def _choose(ends: list[tuple[int, Instruction]]) -> Code:
    """Return code that jumps to the code for the number of the exit: result -> result"""
    code: Code = []
    for number, target in ends[:-1]:
        after = build.nop()
        code += [
            *build.copy(),
            *build.load_const(0),
            *build.binary_subscr(),
            *build.load_const(number),
            Instruction("IS_OP", 0),
            *build.pop_jump_if_false(after[0]),
            *build.jump(target),
            *after,
        ]
    return [*code, *build.jump(ends[-1][1])]


def _restore(facts: PieceFacts, made: _Rewriting, end: Instruction) -> Code:
    """Return code that unpacks a result and continues at the exit."""
    if returns(end):
        code = [Instruction("UNPACK_SEQUENCE", 2), *build.pop_top(), *build.return_value()]
        return build.placed(code, end.position)
    nulls, later, dead = facts.stack(end), facts.read_later(end), facts.dead(end)
    count = 1 + len(later) + bool(dead) + nulls.count(False)
    code = [Instruction("UNPACK_SEQUENCE", count), *build.pop_top()]
    for name in later:
        code += _store(name, bound=facts.is_bound(name, end))
    if dead:
        none, after = build.pop_top(), build.nop()
        code += [*build.copy(), Instruction("POP_JUMP_IF_NONE", target=none[0])]
        code.append(Instruction("UNPACK_SEQUENCE", len(dead)))
        code += [one for name in dead for one in build.store_fast(name)]
        code += [*build.jump(after[0]), *none]
        for name in dead:  # bound, because the next piece takes it
            code += [*build.load_const(Unbound), *build.store_fast(name)]
        code += after
    code += _push_stack(nulls, is_reversed=False)
    if end in facts.found.left:
        region = facts.region_of(end)
        again = Instruction("RERAISE", 0)
        made.regions.append(
            replace(region, start=again, end_inclusive=again, target=made.where(end))
        )
        code.append(again)
    else:  # no interrupt may be raised here, outside of the handlers of the program
        code.append(Instruction("JUMP_BACKWARD_NO_INTERRUPT", target=made.where(end)))
    return build.placed(code, end.position)


def _store(name: str, *, bound: bool) -> Code:
    """Return code that stores a result in its variable, unless it is Unbound: value ->"""
    if bound:
        return build.store_fast(name)
    unbound, after = build.pop_top(), build.nop()
    return [
        *build.copy(),
        *build.load_const(Unbound),
        Instruction("IS_OP", 0),
        Instruction("POP_JUMP_IF_TRUE", target=unbound[0]),
        *build.store_fast(name),
        *build.jump(after[0]),
        *unbound,
        *after,
    ]


def _convert_stop_iteration(facts: PieceFacts, made: _Rewriting, body: Body) -> None:
    """Edit: cover the added code by 3.12's handler, which turns StopIteration into RuntimeError."""
    for region in facts.body.regions:
        if converts(region.target):
            first, last, target = made.last[0], made.last[-1], made.where(region.target)
            body.regions.append(ExceptionRegion(first, last, target, 0, lasti=True))
            return
