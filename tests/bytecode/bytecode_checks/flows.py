"""Control flow, stack depth, liveness, definite assignment and dead code on known functions."""

# These run without pytest.
# ruff: noqa: PT017, PT018

from __future__ import annotations

import types

from jitmagic.bytecode import (
    RUNNING,
    Body,
    Instruction,
    assemble,
    basic_blocks,
    build,
    decode,
    drop_unreachable,
    live_locals,
    liveness,
    reachable,
    secure_loads,
    show,
    stack_depths,
    successors,
)
from jitmagic.errors import BytecodeError

from . import corpus

CHECKS = {}


def check(function):
    CHECKS[function.__name__] = function
    return function


def raises(fragment, function, *arguments):
    try:
        function(*arguments)
    except BytecodeError as error:
        assert fragment in str(error), error
    else:
        raise AssertionError(f"no error with {fragment!r}")


def at_line(body, offset):
    """The first instruction of a line, counted from the def."""
    line = body.firstlineno + offset
    return next(i for i in body.instructions if i.lineno == line and i.op != "RESUME")


def straight(a, b):
    c = a + 1
    d = b + c
    return d


@check
def liveness_of_straight_code():
    body = decode(straight.__code__)
    assert live_locals(body, at_line(body, 1)) == {"a", "b"}
    assert live_locals(body, at_line(body, 2)) == {"b", "c"}
    assert live_locals(body, at_line(body, 3)) == {"d"}


def loop(n, unused):
    total = 0
    for i in range(n):
        total += i
    return total


@check
def liveness_around_a_loop():
    body = decode(loop.__code__)
    live = liveness(body)
    assert live[body.instructions[0]] == {"n"}
    assert live[at_line(body, 3)] == {"total", "i"}
    head = next(i for i in body.instructions if i.op == "FOR_ITER")
    assert live[head] == {"total"}
    assert live[at_line(body, 4)] == {"total"}


def handled(a, b):
    c = 1
    try:
        c = a.x
        c = a.y
    except AttributeError:
        return b, c
    return a


@check
def liveness_through_a_handler():
    body = decode(handled.__code__)
    # `c` is overwritten next, but if that raises the handler reads the old one.
    assert live_locals(body, at_line(body, 3)) == {"a", "b", "c"}
    assert live_locals(body, at_line(body, 1)) == {"a", "b"}
    assert live_locals(body, at_line(body, 7)) == {"a"}


def celled(a, b):
    def inner():
        return a

    b = 1
    a = b
    return inner


@check
def liveness_of_cells():
    body = decode(celled.__code__)
    assert live_locals(body, at_line(body, 4)) == {"a", "inner"}
    assert "a" in live_locals(body, at_line(body, 5))
    assert live_locals(body, at_line(body, 6)) == {"inner"}


def frame_reader(a, b):
    c = 1
    return locals()


@check
def builtins_that_read_the_frame_keep_all_alive():
    body = decode(frame_reader.__code__)
    assert live_locals(body, at_line(body, 1)) >= {"a", "b"}
    assert live_locals(body, at_line(body, 2)) == {"a", "b", "c"}


class Base:
    def f(self):
        return 1


class Derived(Base):
    def f(self):
        x = 1
        return super().f() + x


@check
def super_reads_the_first_argument():
    body = decode(Derived.f.__code__)
    assert live_locals(body, at_line(body, 2)) == {"self", "__class__", "x"}


@check
def liveness_agrees_with_paths():
    """Live before an instruction exactly if some path reads before it writes, by brute force."""
    for function, _ in list(corpus.CASES.values())[:60]:
        body = decode(function.__code__)
        live, ways = liveness(body), successors(body)
        plain = set(body.varnames) - set(body.cellvars)
        if len(body.instructions) > 300 or {"locals", "vars", "eval", "super"} & set(body.names):
            continue
        for instruction in body.instructions[::5]:
            for name in plain:
                assert (name in live[instruction]) == _path_reads(instruction, name, ways), (
                    function.__name__,
                    instruction,
                    name,
                )


def _path_reads(start, name, ways):
    # The handler of an instruction that writes is reached before the write.
    seen, work = set(), [start]
    while work:
        instruction = work.pop()
        if instruction in seen:
            continue
        seen.add(instruction)
        if instruction.arg == name and RUNNING.kind(instruction.op).value in ("local", "cell"):
            if instruction.op != "STORE_FAST":
                return True
            work.extend(ways[instruction][1:])
        else:
            work.extend(ways[instruction])
    return False


@check
def depths_fit_the_stack_of_the_compiler():
    for function, _ in corpus.CASES.values():
        body = decode(function.__code__)
        depths = stack_depths(body)
        assert set(depths) == reachable(body)
        assert max(depths.values()) <= function.__code__.co_stacksize
        for instruction, depth in depths.items():
            if instruction.op in ("RETURN_VALUE", "RETURN_CONST"):
                assert depth == (instruction.op == "RETURN_VALUE"), function.__name__


@check
def depth_inside_a_loop():
    body = decode(loop.__code__)
    depths = stack_depths(body)
    assert depths[body.instructions[0]] == 0
    assert depths[at_line(body, 3)] == 1
    assert depths[at_line(body, 4)] == 0


@check
def uneven_depths_are_refused():
    end = Instruction("RETURN_VALUE")
    code = [*build.prologue(), *build.load_const(1), *build.pop_jump_if_false(end)]
    code += [*build.load_const(1), end]
    raises("values on the stack", stack_depths, Body(code))
    raises("empty stack", stack_depths, Body([*build.prologue(), *build.pop_top(), end]))
    raises("runs off the end", stack_depths, Body(build.prologue()))
    raises("runs off the end", successors, Body(build.prologue()))


@check
def blocks_partition_the_code():
    for function, _ in corpus.CASES.values():
        body = decode(function.__code__)
        blocks = basic_blocks(body)
        assert [i for block in blocks for i in block.instructions] == body.instructions
        heads = {block.instructions[0] for block in blocks}
        for i in body.instructions:
            assert i.target is None or i.target in heads
        for block in blocks:
            assert all(i.target is None for i in block.instructions[:-1])


@check
def unreachable_code_goes():
    kept = build.load_const(1)
    body = Body(
        [*build.prologue(), *build.jump(kept[0]), *build.load_const(2), *build.return_value()]
    )
    body.instructions += [*kept, *build.return_value()]
    before = len(body.instructions)
    drop_unreachable(body)
    assert len(body.instructions) == before - 2
    assert types.FunctionType(assemble(body), {})() == 1


@check
def dropping_nothing_reachable_keeps_behaviour():
    for name in ("nested_try", "finally_in_loop", "with_return", "try_else_finally", "while_true"):
        function, calls = corpus.CASES[name]
        body = decode(function.__code__)
        dead = Instruction("RETURN_VALUE")
        body.instructions.append(dead)
        drop_unreachable(body)
        assert dead not in body.instructions
        new = types.FunctionType(
            assemble(body), function.__globals__, name, None, function.__closure__
        )
        for arguments in calls:
            assert new(*arguments) == function(*arguments)


@check
def a_loop_that_never_ends_keeps_its_landing():
    body = decode(loop.__code__)
    drop_unreachable(body)
    assert types.FunctionType(assemble(body), {"range": range})(5, 0) == 10


@check
def unbound_loads_are_secured():
    body = decode(straight.__code__)
    body.instructions = [
        i for i in body.instructions if not (i.op == "STORE_FAST" and i.arg == "d")
    ]
    at = next(
        k for k, i in enumerate(body.instructions) if i.op.startswith("LOAD_FAST") and i.arg == "d"
    )
    body.instructions.insert(at, Instruction("POP_TOP"))
    secure_loads(body)
    ops = {i.arg: i.op for i in body.instructions if i.op.startswith("LOAD_FAST")}
    if "LOAD_FAST_CHECK" in RUNNING.opcodes:
        assert ops == {"a": "LOAD_FAST", "b": "LOAD_FAST", "c": "LOAD_FAST", "d": "LOAD_FAST_CHECK"}
    try:
        types.FunctionType(assemble(body), {})(1, 2)
    except UnboundLocalError as error:
        assert "'d'" in str(error)
    else:
        raise AssertionError("no UnboundLocalError")


@check
def securing_compiled_code_changes_no_result():
    for name, (function, calls) in corpus.CASES.items():
        if name in ("many_locals", "very_long_jump"):
            continue
        body = decode(function.__code__)
        secure_loads(body)
        assemble(body)


@check
def clones_are_independent():
    body = decode(handled.__code__)
    before = show(body)
    copy, copies = body.clone()
    assert show(copy) == before
    assert all(copies[old] is new for old, new in zip(body.instructions, copy.instructions))
    copy.instructions[1].arg = 5
    copy.regions[0].depth = 9
    copy.varnames.append("more")
    assert show(body) == before
