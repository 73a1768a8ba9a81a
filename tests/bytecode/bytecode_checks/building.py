"""Emission helpers, assembler refusals, stubs, snapshots and listings, executed."""

# These run without pytest.
# ruff: noqa: PT017, PT018

from __future__ import annotations

import functools
import gc
import inspect
import traceback
import types
import weakref

from jitmagic.bytecode import (
    RUNNING,
    Body,
    ExceptionRegion,
    FrameSnapshot,
    Instruction,
    Position,
    assemble,
    build,
    call_stub,
    decode,
    show,
)
from jitmagic.errors import BytecodeError

CHECKS = {}


def check(function):
    CHECKS[function.__name__] = function
    return function


def run(*code, args=None, namespace=None, returns=True):
    """Execute instructions as the body of a function and return the value left on the stack."""
    args = args or {}
    instructions = [*build.prologue(), *(i for part in code for i in part)]
    instructions += build.return_value() if returns else []
    names = list(args)
    for instruction in instructions:
        is_variable = RUNNING.kind(instruction.op).value in ("local", "cell")
        if is_variable and instruction.arg not in names:
            names.append(instruction.arg)
    body = Body(instructions, name="made", argcount=len(args), varnames=names)
    return types.FunctionType(assemble(body), {"__builtins__": __builtins__, **(namespace or {})})(
        *args.values()
    )


def raises(kind, fragment, function, *arguments, **keywords):
    try:
        function(*arguments, **keywords)
    except kind as error:
        assert fragment in str(error), error
    else:
        raise AssertionError(f"no {kind.__name__} with {fragment!r}")


def const(value):
    return build.load_const(value)


def op(name, arg=None):
    return [Instruction(name, arg)]


def jump_if(condition, target):
    """A conditional jump of any kind; the package itself writes only POP_JUMP_IF_FALSE."""
    is_truth = condition in ("TRUE", "FALSE") and "TO_BOOL" in RUNNING.opcodes
    convert = op("TO_BOOL") if is_truth else []
    return [*convert, Instruction(f"POP_JUMP_IF_{condition}", target=target)]


def for_loop(body):
    """Run `body` (item ->) for each item: iterator ->"""
    landing = [Instruction(name) for name in RUNNING.loop_landing] or build.nop()
    head = Instruction("FOR_ITER", target=landing[0])
    return [head, *body, *build.jump(head), *landing]


# ---------------------------------------------------------------------- emission


@check
def constants_of_any_kind():
    marker = object()
    assert run(const(marker)) is marker
    assert run(const([1, 2])) == [1, 2]
    values = run(const(0.0), const(-0.0), const(1), const(True), const(1.0), build.build_tuple(5))
    assert repr(values) == "(0.0, -0.0, 1, True, 1.0)"


@check
def locals_and_globals():
    assert (
        run(build.load_fast("x"), build.store_fast("y"), build.load_fast("y"), args={"x": 3}) == 3
    )
    code = [build.load_fast("x"), build.delete_fast("x"), build.pop_top(), build.load_fast("x")]
    raises(UnboundLocalError, "x", run, *code, args={"x": 3})
    space = {"g": 4}
    kept = [const(5), op("STORE_GLOBAL", "h"), build.load_global("g"), op("DELETE_GLOBAL", "g")]
    assert run(*kept, namespace=space) == 4


@check
def cells_in_plain_slots():
    cell = types.CellType(5)
    code = [op("LOAD_DEREF", "c"), const(1), op("BINARY_OP", "+"), op("STORE_DEREF", "c")]
    assert run(*code, op("LOAD_DEREF", "c"), args={"c": cell}) == 6
    assert cell.cell_contents == 6
    assert run(build.load_closure("c"), args={"c": cell}) is cell
    raises(NameError, "c", run, op("DELETE_DEREF", "c"), op("LOAD_DEREF", "c"), args={"c": cell})
    made = run(op("MAKE_CELL", "x"), build.load_closure("x"), args={"x": 7})
    assert made.cell_contents == 7


@check
def own_cells_and_free_variables():
    body = Body(varnames=["x"], argcount=1, cellvars=["x", "y"], freevars=["z"])
    body.instructions = [
        *build.prologue(["z"], ["x", "y"]),
        *const(1),
        *op("STORE_DEREF", "y"),
        *op("LOAD_DEREF", "x"),
        *op("LOAD_DEREF", "y"),
        *op("LOAD_DEREF", "z"),
        *build.load_closure("z"),
        *build.build_tuple(4),
        *build.return_value(),
    ]
    cell = types.CellType("z")
    function = types.FunctionType(assemble(body), {}, "f", None, (cell,))
    assert function(5) == (5, 1, "z", cell)


def _callee(*args, **kwargs):
    return args, kwargs


@check
def calls_in_one_piece():
    assert run(build.call(_callee)) == ((), {})
    assert run(build.call(_callee, const(1), const(2))) == ((1, 2), {})
    named = build.push_callable_then(
        const(_callee), const(1), const(2), const(3), kw_names=("a", "b")
    )
    assert run(named) == ((1,), {"a": 2, "b": 3})


@check
def calls_in_pieces():
    assert run(build.push_callable(const(_callee)), const(1), build.call_function(1)) == ((1,), {})
    pieces = [build.push_callable(const(_callee)), const(1), build.call_function(1, ("k",))]
    assert run(*pieces) == ((), {"k": 1})
    pieces = [build.load_global("f", push_null=True), const(2), build.call_function(1)]
    assert run(*pieces, namespace={"f": _callee}) == ((2,), {})


@check
def stack_shuffles():
    two = [const(1), const(2)]
    assert run(*two, build.swap(), build.build_tuple(2)) == (2, 1)
    two = [const(1), const(2)]
    assert run(*two, build.copy(2), build.build_tuple(3)) == (1, 2, 1)
    assert run(const(1), build.swap(1), build.nop(), const(2), build.pop_top()) == 1


@check
def containers():
    assert run(const(1), const(2), build.build_list(2)) == [1, 2]
    assert run(const(1), const(2), build.build_set(2)) == {1, 2}
    assert run(const("a"), const(2), build.build_map(1)) == {"a": 2}
    assert run(const(1), const(2), build.build_slice(2)) == slice(1, 2)
    assert run(const(1), const(2), const(3), build.build_slice(3)) == slice(1, 2, 3)


@check
def attributes_and_items():
    o = types.SimpleNamespace(a=1, b=2)
    assert run(const(o), build.load_attr("a")) == 1
    run(const(9), const(o), build.store_attr("a"), const(o), build.delete_attr("b"), const(None))
    assert vars(o) == {"a": 9}
    d = {"k": 1, "z": 2}
    assert run(const(d), const("k"), build.binary_subscr()) == 1
    code = [const(5), const(d), const("n"), build.store_subscr()]
    run(*code, const(d), const("z"), build.delete_subscr(), const(None))
    assert d == {"k": 1, "n": 5}


@check
def branches():
    jumps = {"TRUE": [1, "x"], "FALSE": [0, "", None], "NONE": [None], "NOT_NONE": [0, 1, "", "x"]}
    values = [v for taken in jumps.values() for v in taken]
    for condition, taken in jumps.items():
        for value in values:
            target = const("jumped")
            jump = jump_if(condition, target[0])
            code = [const(value), jump, const("fell"), build.return_value(), target]
            assert (run(*code) == "jumped") == any(value is v for v in taken), (condition, value)


@check
def backward_branches():
    head = build.load_fast("n")
    step = [*const(1), *op("BINARY_OP", "-"), *build.copy(), *build.store_fast("n")]
    assert run(head, step, jump_if("TRUE", head[0]), const("end"), args={"n": 400}) == "end"
    filler = [i for _ in range(300) for i in [*const(0), *build.pop_top()]]
    head = build.load_fast("n")
    step = [*const(1), *op("BINARY_OP", "-"), *build.copy(), *build.store_fast("n"), *filler]
    assert run(head, step, jump_if("TRUE", head[0]), const("end"), args={"n": 4}) == "end"
    head = build.nop()
    done = const("done")
    count = [
        *build.load_fast("n"),
        *const(1),
        *op("BINARY_OP", "-"),
        *build.copy(),
        *build.store_fast("n"),
    ]
    code = [head, count, jump_if("FALSE", done[0]), build.jump(head[0]), done]
    assert run(*code, args={"n": 5}) == "done"


@check
def loops():
    body = [*build.load_fast("t"), *op("BINARY_OP", "+"), *build.store_fast("t")]
    code = [
        const(0),
        build.store_fast("t"),
        const([1, 2, 3]),
        op("GET_ITER"),
        for_loop(body),
    ]
    assert run(*code, build.load_fast("t")) == 6
    nested = for_loop([*const((10, 20)), *op("GET_ITER"), *for_loop(body), *build.pop_top()])
    code = [const(0), build.store_fast("t"), const([1, 2]), op("GET_ITER"), nested]
    assert run(*code, build.load_fast("t")) == 60


@check
def raising_and_handling():
    raises(ValueError, "v", run, const(ValueError("v")), op("RAISE_VARARGS", 1), returns=False)
    guarded = [*const(1), *const(0), *op("BINARY_OP", "/"), *build.return_value()]
    handler = [
        Instruction("PUSH_EXC_INFO"),
        *build.pop_top(),
        Instruction("POP_EXCEPT"),
        *const("caught"),
    ]
    body = Body([*build.prologue(), *guarded, *handler, *build.return_value()])
    body.regions = [ExceptionRegion(guarded[0], guarded[-1], handler[0], 0)]
    assert types.FunctionType(assemble(body), {})() == "caught"


@check
def nested_regions_the_innermost_counts():
    def handler(word):
        push = Instruction("PUSH_EXC_INFO")
        return [
            push,
            *build.pop_top(),
            Instruction("POP_EXCEPT"),
            *const(word),
            *build.return_value(),
        ]

    inner = [*const(1), *const(0), *op("BINARY_OP", "/"), *build.pop_top()]
    outer = [*build.load_global("nothing_like_this"), *build.return_value()]
    first, second = handler("inner"), handler("outer")
    for skip, expected in ((False, "inner"), (True, "outer")):
        body = Body([*build.prologue(), *inner, *outer, *first, *second])
        around = ExceptionRegion(inner[0], outer[-1], second[0], 0)
        within = ExceptionRegion(inner[0], inner[-1], first[0], 0)
        body.regions = [around] if skip else [within, around]
        assert types.FunctionType(assemble(body), {})() == expected


@check
def positions_reach_tracebacks():
    code = [*const(1), *const(0), *op("BINARY_OP", "/"), *build.return_value()]
    placed = build.placed([*build.prologue(), *code], Position(41, 42, 3, 9))
    body = Body(placed, name="where", filename="<made>", firstlineno=40)
    try:
        types.FunctionType(assemble(body), {})()
    except ZeroDivisionError as error:
        frame = traceback.TracebackException.from_exception(error).stack[-1]
    found = frame.filename, frame.name, frame.lineno, frame.end_lineno, frame.colno, frame.end_colno
    assert found == ("<made>", "where", 41, 42, 3, 9)


@check
def edits_are_possible():
    """A call is put in front of every return of a compiled function."""

    def f(x):
        for i in range(3):
            if i == x:
                return "found"
        return "lost"

    log = []
    body = decode(f.__code__)
    edited = []
    for instruction in body.instructions:
        if instruction.op in ("RETURN_VALUE", "RETURN_CONST"):
            extra = [
                *build.push_callable_then(const(log.append), const(instruction.lineno)),
                *build.pop_top(),
            ]
            edited += build.placed(extra, instruction.position)
        edited.append(instruction)
    body.instructions = edited
    new = types.FunctionType(assemble(body), {"range": range})
    assert [new(1), new(7)] == ["found", "lost"]
    assert len(log) == 2 and log[0] < log[1]


# ------------------------------------------------------------------------ refusals


@check
def malformed_bodies_are_refused():
    def refused(fragment, *code, **fields):
        body = Body([*build.prologue(), *(i for part in code for i in part)], **fields)
        raises(BytecodeError, fragment, assemble, body)

    end = [*const(1), *build.return_value()]
    outside = build.nop()[0]
    refused("no target", build.jump(outside), end)
    refused("no target", [Instruction("JUMP_FORWARD")], end)
    refused("no such local", build.load_fast("unknown"), build.return_value())
    refused("no such cell", op("LOAD_DEREF", "unknown"), build.return_value())
    refused("wrong kind", [Instruction("BUILD_LIST", "x")], build.return_value())
    refused("no such binary", const(1), const(2), op("BINARY_OP", "?"), build.return_value())
    refused("wrong kind", [Instruction("NOP", 3)], end)
    refused("there is no", [Instruction("NO_SUCH_OPCODE")], end)
    refused("runs off the end", const(1))
    refused("two variables", end, varnames=["a", "a"])
    refused("parameters", end, argcount=2, varnames=["a"])
    refused("free variables", [Instruction("COPY_FREE_VARS", 1)], end, freevars=["a", "b"])
    region = ExceptionRegion(outside, outside, outside, 0)
    refused("outside of the body", end, regions=[region])
    if RUNNING.loop_landing:
        loop = [Instruction("FOR_ITER", target=end[0]), *build.pop_top()]
        refused("FOR_ITER has to jump", const(()), op("GET_ITER"), loop, end)


# --------------------------------------------------------------------------- stubs


def _shapes():
    free = 10

    def nothing(): ...
    def plain(a, b=2): ...
    def everything(a, /, b, *args, c, d=4, **kw):
        "Has a docstring."
        unused = [a for a in args]
        return lambda: (unused, b)

    def closed(a, *, k):
        return free, a, k, lambda: (free, a, k)

    def generator(a):
        yield a

    return [
        (nothing, [((), {})]),
        (plain, [((1,), {}), ((), {"a": 1, "b": 3})]),
        (everything, [((1, 2), {"c": 3}), ((1, 2, 5, 6), {"c": 3, "z": 9})]),
        (closed, [((1,), {"k": 2})]),
        (generator, [((1,), {})]),
        (lambda x=3: x, [((), {}), ((4,), {})]),
    ]


@check
def stubs_hand_everything_on():
    for function, calls in _shapes():
        stub = call_stub(function.__code__, lambda *received: received)
        copied = types.FunctionType(
            stub,
            function.__globals__,
            function.__name__,
            function.__defaults__,
            function.__closure__,
        )
        copied.__kwdefaults__ = function.__kwdefaults__
        for args, kwargs in calls:
            expected = FrameSnapshot.of_call(function, args, kwargs)
            assert copied(*args, **kwargs) == (*expected.args, *expected.cells), function


@check
def stubs_look_like_the_original():
    for function, _ in _shapes():
        code = function.__code__
        stub = call_stub(code, print)
        copied = types.FunctionType(stub, {}, None, function.__defaults__, function.__closure__)
        copied.__kwdefaults__, copied.__annotations__ = (
            function.__kwdefaults__,
            function.__annotations__,
        )
        assert inspect.signature(copied) == inspect.signature(function)
        assert copied.__doc__ == function.__doc__
        for field in ("name", "qualname", "filename", "firstlineno", "freevars", "argcount"):
            assert getattr(stub, f"co_{field}") == getattr(code, f"co_{field}")
        assert stub.co_cellvars == ()
        assert not inspect.isgeneratorfunction(copied)
        assert not stub.co_flags & inspect.CO_GENERATOR
        assert set(stub.co_varnames) <= set(code.co_varnames)
        assert {line for _, _, line in stub.co_lines()} - {None} == {code.co_firstlineno}


@check
def stubs_raise_as_a_call_does():
    function, _ = _shapes()[1]
    copied = types.FunctionType(
        call_stub(function.__code__, print), {}, None, function.__defaults__
    )
    for args, kwargs in [((), {}), ((1, 2, 3), {}), ((1,), {"a": 2}), ((), {"z": 1})]:
        messages = []
        for f in (function, copied):
            try:
                f(*args, **kwargs)
            except TypeError as error:
                messages.append(str(error))
        assert len(messages) == 2 and messages[0] == messages[1]


@check
def the_callee_lives_and_dies_with_the_stub():
    class Callee:
        def __call__(self, *args):
            return args

    callee = Callee()
    stub = call_stub((lambda a: a).__code__, callee)
    gone = weakref.ref(callee)
    del callee
    assert types.FunctionType(stub, {})(3) == (3,)
    del stub
    gc.collect()
    assert gone() is None


@check
def stubs_can_replace_the_code_of_a_function():
    function, _ = _shapes()[3]
    function.__code__ = call_stub(function.__code__, lambda *received: received)
    a, k, cell = function(1, k=2)
    assert (a, k, cell.cell_contents) == (1, 2, 10)


# ----------------------------------------------------------------------- snapshots


@check
def snapshots_bind_like_a_call():
    def f(a, b=2, *args, c=3, **kw): ...

    @functools.wraps(lambda something, else_: None)
    def g(a): ...

    assert FrameSnapshot.of_call(f, (1,)).args == (1, 2, 3, (), {})
    assert FrameSnapshot.of_call(f, (1, 5, 6), {"z": 7, "c": 8}).args == (1, 5, 8, (6,), {"z": 7})
    assert FrameSnapshot.of_call(g, (1,)).args == (1,)
    raises(TypeError, "missing", FrameSnapshot.of_call, f)
    snapshot = FrameSnapshot.of_call(f, (1,))
    assert snapshot.globals is globals() and snapshot.builtins["len"] is len
    assert snapshot.qualname == f.__qualname__ and snapshot.cells == ()


# ------------------------------------------------------------------------ listings


@check
def listings_say_everything():
    def f(a):
        try:
            return a.b < 1.5
        except AttributeError:
            return "nothing"

    text = show(f.__code__)
    assert text == show(decode(f.__code__)) == show(assemble(decode(f.__code__)))
    for part in (
        "f(a)",
        "LOAD_ATTR",
        " b",
        "1.5",
        "<",
        "L1:",
        "regions:",
        "AttributeError",
        "depth 0",
    ):
        assert part in text, text
    assert " at 0x" not in show(call_stub(f.__code__, object()))
    assert "<function f>" not in text
    assert "frozenset({1, 2})" in show((lambda x: x in {1, 2}).__code__)
