"""decode -> assemble unchanged: what comes out has the same instructions, tables and behaviour."""

# These run without pytest.
# ruff: noqa: PT017, PT018

from __future__ import annotations

import copy
import dataclasses
import sys
import traceback
import types

from jitmagic.bytecode import RUNNING, Body, assemble, decode

from . import corpus, scenarios

CHECKS = {}


def check(function):
    CHECKS[function.__name__] = function
    return function


# ------------------------------------------------------------------ rebuilding


def rebuilt(code):
    """The code through decode and assemble, nested functions included."""
    body = decode(code)
    nested = {id(c): rebuilt(c) for c in code.co_consts if isinstance(c, types.CodeType)}
    body.consts = tuple(nested.get(id(c), c) for c in body.consts)
    for instruction in body.instructions:
        instruction.arg = nested.get(id(instruction.arg), instruction.arg)
    return assemble(body)


def all_codes(code):
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from all_codes(constant)


def functions_of(module):
    """All Python functions that a module and its classes define."""
    seen = {}
    work = list(vars(module).values())
    classes = set()
    while work:
        value = work.pop()
        if isinstance(value, (staticmethod, classmethod)):
            value = value.__func__
        if isinstance(value, property):
            work += [value.fget, value.fset, value.fdel]
        elif (
            isinstance(value, type) and value.__module__ == module.__name__ and value not in classes
        ):
            classes.add(value)
            work += list(vars(value).values())
        elif isinstance(value, types.FunctionType) and value.__module__ == module.__name__:
            seen[id(value)] = value
    return list(seen.values())


# ------------------------------------------------------------------- structure


def facts(body: Body):
    """A body as plain data: instructions by index instead of identity."""
    index = {instruction: i for i, instruction in enumerate(body.instructions)}
    rows = [
        (i.op, _const(i.arg), i.flag, i.explicit, i.target and index[i.target], i.position)
        for i in body.instructions
    ]
    regions = [
        (index[r.start], index[r.end_inclusive], index[r.target], r.depth, r.lasti)
        for r in body.regions
    ]
    skip = {"instructions", "regions", "consts"}
    rest = {f.name: getattr(body, f.name) for f in dataclasses.fields(body) if f.name not in skip}
    return rows, regions, rest


def _const(value):
    """Types matter (1, True, 1.0) and so does the sign of zero."""
    return (
        (type(value), repr(value)) if not isinstance(value, types.CodeType) else value.co_qualname
    )


def assert_same_structure(code):
    body = decode(code)
    expected = facts(body)  # before `assemble` has the body
    new = assemble(body)
    assert facts(decode(new)) == expected, code
    assert new.co_consts == code.co_consts, code
    if len(new.co_code) == len(code.co_code):
        # CPython now and then keeps a prefix that is no longer needed, we never do.
        assert new.co_code == _without_borrowing(code.co_code), code
        assert new.co_exceptiontable == code.co_exceptiontable, code
        assert list(new.co_positions()) == list(code.co_positions()), code
    else:
        assert len(new.co_code) < len(code.co_code), code
    return len(new.co_code) == len(code.co_code)


def _without_borrowing(code):
    """Replace loads of borrowed references, which the assembler never writes, by plain ones."""
    plain = {
        RUNNING.opcodes[op]: RUNNING.opcodes[op.replace("_BORROW", "")] for op in RUNNING.borrowed
    }
    return bytes(plain.get(byte, byte) if i % 2 == 0 else byte for i, byte in enumerate(code))


@check
def corpus_is_large_enough():
    assert len(corpus.CASES) >= 100
    assert sum(len(functions_of(m)) for ms, _ in scenarios.SCENARIOS.values() for m in ms) >= 500


@check
def own_functions_keep_their_structure():
    functions = [f for f, _ in corpus.CASES.values()] + list(corpus.ASYNC.values())
    for function in functions:
        for code in all_codes(function.__code__):
            assert_same_structure(code)


@check
def standard_library_keeps_its_structure():
    exact = total = 0
    for modules, _ in scenarios.SCENARIOS.values():
        for module in modules:
            with open(module.__file__, encoding="utf-8") as file:
                top = compile(file.read(), module.__file__, "exec")
            for code in all_codes(top):
                exact += assert_same_structure(code)
                total += 1
    assert total >= 1000 and exact > 0.99 * total, (exact, total)


@check
def stack_size_is_never_larger_than_the_compilers():
    for function, _ in corpus.CASES.values():
        for code in all_codes(function.__code__):
            # The compiler also counts code that cannot be reached.
            assert assemble(decode(code)).co_stacksize <= max(1, code.co_stacksize), code


# ------------------------------------------------------------------- behaviour


def outcome(function, arguments):
    """Result, or exception with the lines and positions it came through."""
    try:
        result = function(*copy.deepcopy(arguments))
        return "value", list(result) if isinstance(result, types.GeneratorType) else shown(result)
    except Exception as error:
        return "error", *_error(error)


def _error(error):
    places = [
        (frame.filename, frame.lineno, frame.end_lineno, frame.colno, frame.end_colno, frame.name)
        for frame in traceback.TracebackException.from_exception(error).stack
        if not frame.filename.endswith("roundtrip.py")
    ]
    chain = [error.__cause__, error.__context__]
    return type(error).__name__, str(error), places, [e and _error(e) for e in chain]


def shown(value):
    """Instances of classes made on the way compare by their type's name."""
    if isinstance(value, (tuple, list)):
        return type(value).__name__, [shown(part) for part in value]
    if isinstance(value, dict):
        return [(key, shown(part)) for key, part in value.items()]
    plain = isinstance(
        value, (str, bytes, int, float, complex, set, frozenset, type(None), type(...))
    )
    return (type(value).__name__, repr(value)) if plain else type(value).__name__


def with_code(function, code):
    new = types.FunctionType(
        code, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    new.__kwdefaults__ = function.__kwdefaults__
    return new


def _own_case(function, calls):
    def run():
        copied = with_code(function, rebuilt(function.__code__))
        for arguments in calls:
            expected, got = outcome(function, arguments), outcome(copied, arguments)
            assert got == expected, f"{arguments}\nexpected {expected}\ngot      {got}"

    return run


for _name, (_function, _calls) in corpus.CASES.items():
    CHECKS[f"own_{_name}"] = _own_case(_function, _calls)


def drive(coroutine):
    """Run a coroutine to its end by hand."""
    pauses = 0
    try:
        while True:
            assert coroutine.send(None) == "pause"
            pauses += 1
    except StopIteration as stop:
        return stop.value, pauses


def _own_async(function):
    def run():
        arguments = (1,) * function.__code__.co_argcount
        copied = with_code(function, rebuilt(function.__code__))
        assert drive(copied(*arguments)) == drive(function(*arguments))

    return run


for _name, _function in corpus.ASYNC.items():
    CHECKS[f"async_{_name}"] = _own_async(_function)


RAN = set()


def _scenario(modules, use):
    def run():
        expected = use()
        functions = [f for module in modules for f in functions_of(module)]
        originals = [f.__code__ for f in functions]
        replacements = [rebuilt(code) for code in originals]
        mine = {id(code) for code in replacements}
        try:
            for function, code in zip(functions, replacements):
                function.__code__ = code
            sys.setprofile(lambda frame, event, _: _note(frame, mine))
            try:
                got = use()
            finally:
                sys.setprofile(None)
        finally:
            for function, code in zip(functions, originals):
                function.__code__ = code
        assert got == expected
        assert replacements

    return run


def _note(frame, mine):
    if id(frame.f_code) in mine:
        RAN.add((frame.f_code.co_filename, frame.f_code.co_qualname))


for _name, (_modules, _use) in scenarios.SCENARIOS.items():
    CHECKS[f"stdlib_{_name}"] = _scenario(_modules, _use)


@check
def many_library_functions_ran():
    """Comes after the scenarios: at least this many different rebuilt functions were executed."""
    assert len(RAN) >= 300, len(RAN)
