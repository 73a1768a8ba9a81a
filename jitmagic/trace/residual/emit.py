"""Emits the residual function of a frame from its trace.

Takes a Trace, the flat code it was traced from and the compiled graph as a callable. Returns a
Python function of the dispatcher's arguments. It runs the graph, rebuilds the values that are still
needed and replays the effects; then it returns the result. At a graph break it restores variables
and stack instead, executes the breaking instruction inside the user's exception handlers and with
its line number, and continues in the resume function of the edge taken.

The residual does not call a resume function, it returns a `Continue` object that names it. The
dispatcher calls these one after the other, so a loop with a break in it does not grow the stack.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from types import FunctionType, MappingProxyType

from ...bytecode import (
    Body,
    ExceptionRegion,
    Instruction,
    Position,
    assemble,
    build,
    drop_unreachable,
    in_users_order,
    secure_loads,
    with_signature,
)
from ...bytecode.flow import call_group
from ...guards.source import Source
from ...lazy_dataclass import dataclass
from ..breaks import Finalizer
from ..python_loops.exit_edges import (
    ExitEdge,
    exit_edges,
    run_by_python,
    unsettled_names,
)
from ..residual_calls import is_empty
from ..result import Break, CannotEmit, Return, Trace
from .call_forms import absent_null, bind_methods, load_plainly, null_slots, pop_null, pushes_pair
from .rebuild import (
    Code,
    Writer,
    cache_casts,
    draw_numbers,
    make_values,
    replay,
    rewind,
    run_graph,
    with_getattribute,
)
from .resume import FlatCode, ResumeKey, Root, call_release, flatten
from .undo import can_start_over

__all__ = ["FrameScope", "declare_temporaries", "emit"]


@dataclass(frozen=True, slots=True)
class FrameScope:
    """The objects that a residual refers to: the frame's globals and builtins, and callbacks."""

    namespace: dict[str, object]
    builtins: dict[str, object]
    make_resume: Callable[[FlatCode], Callable[..., object]]
    """Makes the dispatcher of a new resume function."""
    continue_with: Callable[..., object]
    """continue_with(dispatcher, *args) makes the `Continue` for the dispatcher's loop."""
    release: Callable[[], None]
    """Called first in a resume function that must hold the only references to its arguments."""
    plain: Callable[..., object]
    """The traced code itself, called with the dispatcher's arguments when the graph raises."""
    renamed: Mapping[Source, Source] = MappingProxyType({})
    """Sources that are read at others, in code for another process."""


def emit(
    trace: Trace, flat: FlatCode, graph: Callable[..., tuple[object, ...]] | None, scope: FrameScope
) -> FunctionType:
    """Return the residual function of a trace; `graph` is None when it has nothing to compute.

    If a draw, a cached cast or the graph raises, the frame runs again from its start as plain
    Python, so that the user gets eager's exception on the user's own line. If the graph's writes to
    inputs cannot be undone, its error is raised instead. Raises CannotEmit if no code can be
    entered at the breaking instruction.
    """
    writer = Writer(flat, scope.builtins, with_getattribute(trace.guards), scope.renamed)
    # First, because until then the dispatcher holds the arguments too, and an object whose last
    # reference the frame drops would outlive it.
    writer.put(call_release(flat.release))
    starts_over = graph is not None and can_start_over(trace)
    before = draw_numbers(writer, trace.draws)
    cache_casts(writer, trace.casts)
    after = len(writer.code)
    run_graph(writer, trace, graph)
    tried = writer.code[before:] if starts_over else writer.code[before:after]
    make_values(writer, trace)
    for effect in trace.effects:
        writer.put(replay(effect, writer))
    if isinstance(trace.exit, Return):
        writer.put(writer.load(trace.exit.value), build.return_value())
        body = _empty_body(flat)
        body.instructions = [*build.prologue(), *writer.code]
    else:
        assert isinstance(trace.exit, Break)
        body = _cut(writer, trace.exit, scope)
    if tried:
        again = [*rewind(trace.draws), *_run_plainly(flat, scope.plain)]
        _start_over_on_error(body, tried[0], tried[-1], flat, again)
    declare_temporaries(body)
    drop_unreachable(body)
    secure_loads(body)
    build.placed(body.instructions, _first_position(flat))
    code = with_signature(assemble(body), flat.parameters, flat.root.body)
    return FunctionType(code, scope.namespace, flat.code.co_name)


def _start_over_on_error(
    body: Body, start: Instruction, end: Instruction, flat: FlatCode, again: Code
) -> None:
    """Edit: on an Exception between `start` and `end` the frame runs `again`."""
    reraise = Instruction("RERAISE", 0)
    handler = [
        Instruction("PUSH_EXC_INFO"),
        # Not BaseException: a KeyboardInterrupt is no error of the graph, and to run the frame
        # again would swallow it.
        *build.load_const(Exception),
        Instruction("CHECK_EXC_MATCH"),
        *build.pop_jump_if_false(reraise),
        *build.pop_top(),
        # The handler is left first, so that eager's exception does not get the graph's as its
        # `__context__`.
        Instruction("POP_EXCEPT"),
        *again,
        reraise,
    ]
    body.instructions += build.placed(handler, _first_position(flat))
    body.regions.append(ExceptionRegion(start, end, handler[0], 0))


def _run_plainly(flat: FlatCode, plain: Callable[..., object]) -> Code:
    """Return code for `return plain(*arguments)`."""
    arguments = [build.load_fast(name, bound=True) for name in flat.parameters]
    return [
        *build.call(plain, *arguments),
        *build.return_value(),
    ]


def _first_position(flat: FlatCode) -> Position | None:
    positions = (i.position for i in flat.root.body.instructions if i.position is not None)
    return next(positions, None)


def _empty_body(flat: FlatCode) -> Body:
    root = flat.root.body
    body = Body(
        name=root.name,
        qualname=root.qualname,
        filename=root.filename,
        firstlineno=root.firstlineno,
    )
    flatten(body, flat.parameters)
    return body


def declare_temporaries(body: Body) -> None:
    """Edit: add the variables that are stored to those of the body."""
    known = set(body.varnames)
    for instruction in body.instructions:
        name = instruction.arg
        if instruction.op == "STORE_FAST" and isinstance(name, str) and name not in known:
            known.add(name)
            body.varnames.append(name)


# ------------------------------------------------------------------------------------------- breaks


def _cut(writer: Writer, exit_: Break, scope: FrameScope) -> Body:
    """Return the root body, entered at the breaking instruction.

    It is left after that instruction, or after the loop that the instruction is the head of if
    Python runs the whole loop.
    """
    flat = writer.flat
    root = flat.root
    if exit_.index not in flat.at or flat.at[exit_.index] in root.handlers:
        # The exception being handled is state of the thread, which no parameter of a resume
        # function can carry.
        raise CannotEmit("the graph breaks while an exception is being handled")
    breaking = flat.at[exit_.index]
    region = run_by_python(root, breaking, exit_.reason.whole_loop)
    body, copies = root.body.clone(_run_here(root, breaking) if len(region) == 1 else None)
    flatten(body, flat.parameters)
    # For all later resume functions too: any of them may hold the object's last reference.
    root.releases_arguments |= isinstance(exit_.reason, Finalizer)
    _restore(writer, exit_, root.live[breaking] | _held(exit_, root))
    writer.put(build.jump(copies[call_group(root.body, breaking)[0]]))
    tails = [
        _leave(body, copies, flat, exit_, way, region, scope)
        for way in exit_edges(root, breaking, region)
    ]
    is_alone = len(region) == 1
    if is_alone and pushes_pair(breaking):
        load_plainly(body, copies[breaking])
    bind_methods(body, calls=is_alone or None in exit_.stack)
    body.instructions = [
        *build.prologue(),
        *writer.code,
        *body.instructions,
        *chain.from_iterable(tails),
    ]
    _name_free_variable(body, copies[breaking], root.body.freevars)
    return body


def _run_here(root: Root, breaking: Instruction) -> set[Instruction]:
    """Return the instructions that a residual may run itself: the breaking one and its handlers.

    Copying the whole root for each of n breaks took n² time: 8 s for 160 breaks.
    """
    group = call_group(root.body, breaking)
    handlers = (root.regions[i].target for i in group if i in root.regions)
    return {*group, *root.reached_from(handlers)}


def _leave(
    body: Body,
    copies: Mapping[Instruction, Instruction],
    flat: FlatCode,
    exit_: Break,
    way: ExitEdge,
    region: frozenset[Instruction],
    scope: FrameScope,
) -> Code:
    """Edit: redirect one exit edge to the returned code, which continues in a resume function."""
    key, absent = _key_of(exit_, way, flat.root, region, scope.release)
    tail = _return_resume(key, absent, flat.resume(key, scope.make_resume), scope.continue_with)
    settled = {**exit_.locals, **exit_.cells}
    doubtful = unsettled_names(region, frozenset(settled)).intersection(key.names)
    if doubtful:
        plainly = copies[way.target]
        tail = [*_check_bound(body, sorted(doubtful), len(key.nulls), plainly), *tail]
    tail = [*(Instruction(op) for op in way.landing), *tail]
    source = copies[way.source]
    if way.jumps:
        source.target = tail[0]
    else:
        after = body.instructions.index(source) + 1
        body.instructions[after:after] = build.placed(build.jump(tail[0]), way.source.position)
    return build.placed(tail, way.source.position)


def _check_bound(body: Body, names: Sequence[str], depth: int, plainly: Instruction) -> Code:
    """Return code that jumps to `plainly`, in the user's code, if one of the variables is unbound.

    After a loop without iterations they are, and a resume function needs a value for each
    parameter.
    """
    reads = [i for name in names for i in (*build.load_fast(name), *build.pop_top())]
    unbound = [*build.pop_top(), *build.jump(plainly)]  # the exception has not been made current
    over = build.nop()
    code = [*reads, *build.jump(over[0]), *unbound, *over]
    body.regions.append(ExceptionRegion(reads[0], reads[-1], unbound[0], depth))
    return code


def _name_free_variable(body: Body, breaking: Instruction, freevars: list[str]) -> None:
    """Edit: raise CPython's error for an empty cell of an enclosing function.

    In flat code all cells are the function's own, for which the interpreter's message differs.
    """
    name = breaking.arg
    if breaking.op not in ("LOAD_DEREF", "DELETE_DEREF") or name not in freevars:
        return
    text = f"cannot access free variable '{name}' where it is not associated with a value"
    make_error = partial(NameError, f"{text} in enclosing scope", name=name)
    cell = build.load_fast(str(name), bound=True)
    check = [
        *build.call(is_empty, cell),
        *build.pop_jump_if_false(breaking),
        *build.push_callable(build.load_const(make_error)),
        *build.call_function(0),
        Instruction("RAISE_VARARGS", 1),
    ]
    for jump in body.instructions:
        if jump.target is breaking:
            jump.target = check[0]
    for region in body.regions:
        if region.start is breaking:
            region.start = check[0]
    position = body.instructions.index(breaking)
    body.instructions[position:position] = build.placed(check, breaking.position)


def _restore(writer: Writer, exit_: Break, live: frozenset[str]) -> None:
    """Restore the variables that are still needed, and the stack."""
    # A parameter that is not restored was deleted by the program: to read it again has to raise
    # UnboundLocalError.
    restored = {**exit_.locals, **exit_.cells}
    for name in writer.flat.parameters:
        if name not in restored and name in live:
            writer.put(build.delete_fast(name))
    for name, recipe in restored.items():
        if name in live:
            writer.put(writer.load(recipe), build.store_fast(name))
    for entry in exit_.stack:
        writer.put([Instruction("PUSH_NULL")] if entry is None else writer.load(entry))
    left = set(writer.flat.parameters).difference(writer.flat.root.body.slots())  # the stack
    if writer.flat.release is not None:  # values that were moved must not stay in another variable
        left.update(name for name in writer.flat.parameters if name not in live)
    for name in (*writer.made.values(), *sorted(left)):  # not the user's variables
        writer.put(build.delete_fast(name))


def _held(exit_: Break, root: Root) -> frozenset[str]:
    """Return the variables that stay bound even if they are not read again."""
    return frozenset(exit_.locals) if root.callees_read_locals else exit_.held


def _key_of(
    exit_: Break,
    way: ExitEdge,
    root: Root,
    region: frozenset[Instruction],
    release: Callable[[], None],
) -> tuple[ResumeKey, int | None]:
    """Return the key of the resume function, and the index of a NULL that it must push."""
    settled = {**exit_.locals, **exit_.cells}
    bound = (*settled, *unsettled_names(region, frozenset(settled)).difference(settled))
    needed = frozenset(bound) if root.callees_read_locals else root.live[way.target] | exit_.held
    nulls = [entry is None for entry in exit_.stack]
    depth = len(nulls) + way.effect
    within = null_slots(root, way.source)
    nulls = [*nulls, *(index in within for index in range(len(nulls), depth))][:depth]
    absent = None
    if len(region) == 1:
        breaking = way.source
        if breaking.op.startswith("DELETE_") and breaking.op != "DELETE_DEREF":
            needed -= {breaking.arg}  # a cell stays
        if breaking.op.startswith("CALL"):  # only calls consume NULLs; their result is the top
            nulls[depth - 1] = False
        if pushes_pair(breaking):
            absent = absent_null(breaking, depth)
            nulls[depth - 2 :] = [index == absent for index in (depth - 2, depth - 1)]
    names = in_users_order((n for n in bound if n in needed), root.body)
    # After a break for a finalizer, all resume functions must hold the only references.
    release_first = release if root.releases_arguments else None
    return ResumeKey(way.target, names, tuple(nulls), release_first), absent


def _return_resume(
    key: ResumeKey,
    absent: int | None,
    dispatcher: Callable[..., object],
    continue_with: Callable[..., object],
) -> Code:
    """Return code for `return continue_with(dispatcher, *variables, *stack values)`."""
    code: Code = []
    names: list[str] = []
    # The stack is emptied from the top; the arguments are passed bottom first.
    for index in reversed(range(len(key.nulls))):
        if not key.nulls[index]:
            names.append(name := f".s{index}")
            code += build.store_fast(name)
        elif index != absent:
            code += pop_null()
    arguments = [build.load_fast(name, bound=True) for name in (*key.names, *reversed(names))]
    callee = build.load_const(continue_with)
    call = build.push_callable_then(callee, build.load_const(dispatcher), *arguments)
    return [*code, *call, *build.return_value()]
