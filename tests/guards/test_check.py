"""The native guard program agrees with the reference implementation; `why` names the difference."""

from __future__ import annotations

import abc
import collections
import dataclasses
import itertools
import math
import random
import types
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from jitmagic import _frame
from jitmagic.bytecode import FrameSnapshot
from jitmagic.frame.native import GuardProgram, lower_guards
from jitmagic.guards import contents
from jitmagic.guards import guard as g
from jitmagic.guards import source as s
from jitmagic.guards.check import holds, show_guard, why
from jitmagic.guards.constants import same_constant
from jitmagic.guards.function_cache import cache_key
from jitmagic.guards.read import read_source
from jitmagic.guards.state import read_autocast_details, read_state
from jitmagic.spec import spec_of
from jitmagic.symbols.expr import Integer, mod, mul
from jitmagic.symbols.interval import ANY_FLOAT, INT64, Interval
from jitmagic.symbols.size import OffsetOf, SizeOf, StrideOf
from jitmagic.symbols.symbolic_numbers import Apply, Number, Symbol

from .leaf_hooks import HOOKS
from .world import (
    CACHES,
    COUNTS,
    NAMESPACES,
    SIMPLE,
    SPACE,
    TEXTS,
    Point,
    Slotted,
    Thing,
    World,
    act,
    made_caches,
    make_world,
)
from .wrapper_guards import WRAPPERS, guards_on_wrapper

X, CFG, THING, REST, FN, CELL = (
    s.Argument(i, name) for i, name in enumerate(("x", "cfg", "thing", "rest", "fn", "cell"))
)


def entry(name: object) -> s.Source:
    return s.Item(CFG, name)


def attr(base: s.Source, name: str) -> s.Source:
    return s.Item(s.InstanceDict(base), name)


PLAIN, LIMITED = entry("plain cache"), entry("limited cache")
PARAMETERS = attr(entry("model"), "_parameters")
WEIGHT = s.Item(PARAMETERS, "weight")
TABLES = ("_parameters", "_buffers", "_modules")
SOURCES: tuple[s.Source, ...] = (
    X, CFG, THING, REST, FN, CELL, WEIGHT, s.CellContents(CELL), s.Global("FACTOR"),
    s.Global("helper"), s.Globals(), s.Builtin("len"), s.ImportedModule("math"),
    s.HeldObject("held", {"held": act}),
    s.ModuleAttr(s.Global("torch"), "float32"),
    *(entry(key) for key in ("n", "rate", "count", "on", "none", "dims", "point", "layers")),
    entry("ordered"), entry(5), entry("output"), entry("names"), entry("queue"), entry("leaf"),
    s.Contents(entry("few")), s.Contents(entry("queue")), s.Item(s.Contents(entry("queue")), 1),
    s.SlotAttr(entry("queue"), "maxlen"), s.DictKeyAt(entry("output"), 1),
    s.DictEntry(entry("output"), "b"), s.Item(s.CacheEntry(PLAIN, ((1, 2),)), 0),
    s.Item(entry("layers"), 1), s.Item(s.Item(entry("layers"), 1), 0), s.Item(entry("dims"), -1),
    s.Item(entry("ordered"), "b"), s.DictKeyAt(entry("ordered"), 1), s.DictKeyAt(CFG, 0),
    s.DictValueAt(entry("ordered"), 1), s.DictValueAt(entry("output"), 0),
    attr(THING, "size"), attr(THING, "name"), s.InstanceDict(THING), s.TypeOf(THING),
    s.TypeAttr(s.TypeOf(THING), "scale"), s.SlotAttr(entry("slotted"), "tag"),
    s.SlotAttr(entry("partial"), "func"), s.Item(s.SlotAttr(s.TypeOf(THING), "__mro__"), 1),
    s.FunctionPart(FN, "__code__"), s.FunctionPart(FN, "__defaults__"),
    s.FunctionPart(FN, "__kwdefaults__"), s.FunctionPart(FN, "__closure__"),
    s.Item(s.FunctionPart(FN, "__globals__"), "FACTOR"), s.FunctionPart(FN, "__annotations__"),
    s.ArrayMemory(entry("array")), s.NumberOf(entry("whole")), s.NumberOf(entry("single")),
    s.Referent(entry("weak")), s.Referent(entry("dead")), s.Item(s.Referent(entry("shown")), "a"),
    *(s.Length(entry(name)) for name in ("layers", "few", "queue", "output", "dims")),
    s.ItemAt(entry("layers"), s.Item(entry("dims"), 0)),
    s.ItemAt(entry("dims"), s.Length(entry("few"))), s.ItemAt(PARAMETERS, entry("key")),
    s.AttributeAt(entry("model"), entry("key"), TABLES), s.Joined(entry("key"), "m.", ""),
    s.AttributeAt(THING, s.Joined(entry("part"), "", "me"), ()),
    s.Part(entry("layers"), -1, None), s.Part(entry("dims"), None, -1),
    s.Part(s.Contents(entry("queue")), 1, 2), s.Item(s.Part(entry("layers"), 0, 1), 0),
    s.Length(s.Part(entry("layers"), -9, None)), entry("wrapper"), s.Reduced(entry("dims"), sum),
    s.Reduced(s.Contents(entry("few")), max), s.Reduced(s.Part(entry("dims"), -1, None), min),
    s.CacheEntry(LIMITED, cache_key(made_caches()["limited cache"], (2,), {"more": 3})),
    s.Gradient(entry("leaf")), *(s.Item(REST, n) for n in (0, 1)), s.CacheEntry(PLAIN, "a"),
)  # fmt: skip


def guards_about(source: s.Source, value: Any) -> list[g.Guard]:
    made: list[g.Guard] = [g.TypeIs(source, type(value)), g.IdentityIs(source, value)]
    if isinstance(value, torch.Tensor):
        keys = torch._C._dispatch_keys(value).raw_repr()
        match = g.TensorMatch(source, spec_of(value), keys)
        made += [match, dataclasses.replace(match, hiding=("relu",))]
        made += [g.TensorKind(source, type(value), keys), g.InRange(source, 0.0, 10.0)]
    elif isinstance(value, int | float | str | tuple | type(None)):
        made.append(g.ValueEquals(source, value))
        made += [g.InRange(source, 0.5, 1.0), g.InRange(source, 0.6, 1.0)]
    if isinstance(value, tuple | list | dict | collections.deque):
        made.append(g.LengthIs(source, len(value)))
    if isinstance(value, set):
        made += [g.SetHas(source, "a", present=True), g.SetHas(source, str, present=False)]
        made.append(g.SetHas(source, "b", present=True))
    if isinstance(value, dict):
        made += [g.DictKeysAre(source, tuple(value)), g.KeyAbsent(source, "absent")]
        made.append(g.DictKeysAre(source, (g.ANY_KEY, *tuple(value)[1:])))
        made.append(g.KeyAbsent(source, "n"))
    return made


RATE = Symbol("rate", float, ANY_FLOAT, entry("rate"))
COUNT = Symbol("n", int, INT64, entry("n"))
ROWS = Symbol("rows", int, Interval(2, 64), SizeOf(X, 0))


def all_guards(world: World) -> list[g.Guard]:
    frame = world.snapshot()
    made = [guard for src in SOURCES for guard in guards_about(src, read_source(src, frame))]
    hooks = s.InstanceDict(entry("model"))
    return [
        *made,
        *(g.GlobalMissing(of(name)) for of in (s.Global, s.Builtin) for name in ("len", "FACTOR")),
        g.ClassFacts.about(Thing, g.ClassFact("absent", "other")),
        g.ClassFacts.about(Thing, g.ClassFact("absent", "__hash__")),
        g.StateRead(abc.get_cache_token, abc.get_cache_token(), True),
        g.StateRead(torch.get_num_threads, torch.get_num_threads()),
        g.StateRead(torch.get_num_threads, -1),
        g.NamespaceFacts(SPACE, (g.NameFact("act", act), g.NameFact("none", absent=True))),
        g.NamespaceFacts(SPACE, (g.NameFact("rate", 0.5), g.NameFact("act", act))),
        g.NamespaceFacts(SPACE, (g.NameFact("act", absent=True),)),
        g.KeyAbsent(s.InstanceDict(THING), "other"),
        g.KeyAbsent(s.InstanceDict(entry("slotted")), "other"),
        g.HasKeyAt(PARAMETERS, entry("key"), there=True),
        g.HasKeyAt(CFG, s.Joined(entry("key"), "", "s"), there=False),
        g.HasKeyAt(CFG, entry("key"), there=True),
        g.EntriesEmpty(hooks, ("_forward_hooks", "_backward_hooks"), ("forward",)),
        g.SameObject(X, X),
        g.SameObject(s.Item(REST, 0), s.Item(REST, 1)),
        g.DifferentObjects((s.Item(REST, 0), s.Item(REST, 1))),
        g.DifferentObjects((X,), (s.Item(REST, 0), s.Item(REST, 1))),
        g.DifferentObjects((s.Item(REST, 0),), (X, X)),
        g.NoOverlap((X, s.Item(REST, 0), s.Item(REST, 1))),
        g.SizesRelate(">=", ROWS, Integer(2)),
        g.SizesRelate("<", mul(ROWS, 7), Integer(12)),
        g.SizesRelate("==", Symbol("stride", int, INT64, StrideOf(X, 0)), Integer(1)),
        g.SizesRelate("==", Symbol("offset", int, INT64, OffsetOf(s.Item(REST, 1))), Integer(4)),
        g.SizesRelate("<=", ROWS, Symbol("n", int, INT64, entry("n"))),
        g.SizesRelate("!=", mod(Symbol("n", int, INT64, entry("n")), 2), Integer(0)),
        g.NumbersRelate("<", RATE, Number(0.75)),
        g.NumbersRelate("<=", Apply("-", (RATE, Apply("float", (COUNT,)))), Number(-2.5)),
        g.NumbersRelate(">", Apply("/", (Number(1.0), RATE)), Apply("abs", (RATE,))),
        g.NumbersRelate("==", Apply("floor", (Apply("*", (RATE, Number(4.5))),)), COUNT),
        *guards_on_wrapper(entry("wrapper"), entry("slotted")),
        *map(g.Unhooked, (entry("leaf"), X)),
        g.CellEmpty(CELL),
        *(g.CacheLacks(PLAIN, *rest) for rest in [("b",), ("a",), ("a", ("a",)), (3, (3.0,))]),
        g.GlobalState(read_state()),
    ]


def set_entry(key: object, value: object):
    return lambda w: w.cfg.__setitem__(key, value)


def set_world(name: str, value: object):
    return lambda w: setattr(w, name, value() if callable(value) else value)


def share(world: World) -> None:
    both = torch.zeros(8)
    world.rest = (both[:5], both[4:])


def neighbours(world: World) -> None:
    both = torch.zeros(8)
    world.rest = (both[:4], both[4:])


def same_twice(world: World) -> None:
    world.rest = (world.x, world.x)


def rehook(world: World) -> None:
    world.cfg["model"].register_forward_hook(lambda *a: None)


def own_forward(world: World) -> None:
    world.cfg["model"].forward = lambda x: x


def reorder(world: World) -> None:
    world.cfg["ordered"].move_to_end("a")


PERTURBATIONS = {
    **{**SIMPLE, **CACHES, **WRAPPERS},
    "other values": set_world("x", lambda: torch.randn(2, 4)),
    "another whole number": set_entry("whole", np.int64(4)),
    "the same as another class": set_entry("whole", np.int32(3)),
    "whole is an int": set_entry("whole", 3),
    "shape": set_world("x", lambda: torch.randn(3, 4)),
    "rank": set_world("x", lambda: torch.randn(2, 4, 1)),
    "stride": set_world("x", lambda: torch.randn(4, 2).t()),
    "dtype": set_world("x", lambda: torch.randn(2, 4).double()),
    "grad": set_world("x", lambda: torch.randn(2, 4, requires_grad=True)),
    "parameter": set_world("x", lambda: torch.nn.Parameter(torch.randn(2, 4), False)),
    "conjugate": set_world("x", lambda: torch.randn(2, 4, dtype=torch.cfloat).conj()),
    "meta": set_world("x", lambda: torch.randn(2, 4, device="meta")),
    "sparse": set_world("x", lambda: torch.randn(2, 4).to_sparse()),
    "empty": set_world("x", lambda: torch.randn(0, 4)),
    "no tensor": set_world("x", 3),
    "inference": set_world("x", lambda: _in_inference_mode()),
    "int": set_entry("n", 4),
    "bool for int": set_entry("n", True),
    "int of more bits": set_entry("n", 2**64 + 3),
    "float for int": set_entry("n", 3.0),
    "nan": set_entry("rate", float("nan")),
    "one more": set_entry("new", 1),
    "absent": set_entry("absent", 1),
    "tuple": set_entry("dims", (1, 2, 3)),
    "list for tuple": set_entry("dims", [1, 2]),
    "named tuple for tuple": set_entry("dims", Point(1, 2)),
    "tuple for named tuple": set_entry("point", (1, 2)),
    "int key": set_entry(5, "six"),
    "key order": reorder,
    "dict for ordered": set_entry("ordered", {"a": 1, "b": 2}),
    "frozen items": set_entry("names", frozenset(["a"])),
    "no set": set_entry("names", ["a"]),
    "no dict": set_world("cfg", lambda: [1, 2]),
    "other class": set_world("thing", Slotted),
    "instance": set_world("thing", Thing),
    "slot": lambda w: setattr(w.cfg["slotted"], "tag", "u"),
    "slot empty": lambda w: delattr(w.cfg["slotted"], "tag"),
    "global": lambda w: w.space.__setitem__("FACTOR", 3),
    "global gone": lambda w: w.space.pop("FACTOR"),
    "global over builtin": lambda w: w.space.__setitem__("len", len),
    "cell": lambda w: setattr(w.cell, "cell_contents", 8),
    "cell empty": set_world("cell", lambda: types.CellType()),
    "no cell": set_world("cell", 7),
    "other function": set_world("fn", lambda: all_guards),
    "method": lambda w: setattr(w, "fn", types.MethodType(w.fn, 1)),
    "defaults": lambda w: setattr(w.fn, "__defaults__", (6,)),
    "annotations": lambda w: w.fn.__annotations__.update(a=int),
    "no function": set_world("fn", 5),
    "rate above": set_entry("rate", 1.5),
    "rate is no number": set_entry("rate", math.nan),
    "rate in a tensor": set_entry("rate", torch.tensor(0.75)),
    **COUNTS,
    **TEXTS,
    "hook": rehook,
    "own forward": own_forward,
    "weight": lambda w: setattr(
        w.cfg["model"], "weight", torch.nn.Parameter(torch.ones(2, 2, dtype=torch.double))
    ),
    "frozen weight": lambda w: w.cfg["model"].weight.requires_grad_(False),
    "grad gone": lambda w: setattr(w.cfg["leaf"], "grad", None),
    "no leaf": set_entry("leaf", torch.ones(3, requires_grad=True) * 2),
    **HOOKS,
    **NAMESPACES,
    "shared memory": share,
    "neighbours": neighbours,
    "one object": same_twice,
}


def _in_inference_mode() -> torch.Tensor:
    with torch.inference_mode():
        return torch.randn(2, 4)


def native(guards: list[g.Guard], world: World, frame: FrameSnapshot) -> GuardProgram:
    steps, _ = lower_guards(guards, (), world.space, frame.builtins)
    return GuardProgram(steps)


@pytest.mark.parametrize("name", PERTURBATIONS)
def test_native_and_reference_agree(name: str) -> None:
    world = make_world()
    frame = world.snapshot()
    guards = all_guards(world)
    programs = [native([guard], world, frame) for guard in guards]
    for guard, program in zip(guards, programs, strict=True):
        assert program.check((*frame.args, *frame.cells)) == holds(guard, frame), guard
    PERTURBATIONS[name](world)
    after = world.snapshot()
    values = (*after.args, *after.cells)
    failing = 0
    for guard, program in zip(guards, programs, strict=True):
        assert program.check(values) == holds(guard, after), (name, guard, why(guard, after))
        failing += not holds(guard, after)
    harmless = {"nothing", "neighbours"}
    assert failing > (0 if name.startswith(("namespace", "hook ")) else 3) or name in harmless, (
        f"{name} is noticed by no guard"
    )


STATES = {
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "autocast half": lambda: torch.autocast("cpu", torch.float16),
    "no autocast": lambda: torch.autocast("cpu", enabled=False),
    "no autocast, half": lambda: torch.autocast("cuda", torch.bfloat16, enabled=False),
    "no cache of casts": lambda: torch.autocast("cpu", torch.bfloat16, cache_enabled=False),
    "disabled functions": torch._C.DisableTorchFunctionSubclass,
    "function mode": torch.overrides.TorchFunctionMode,
    "dispatch mode": torch.utils._python_dispatch.TorchDispatchMode,
    "device": lambda: torch.device("meta"),
}


@pytest.mark.parametrize("blocks", [False, True], ids=["", "with blocks of autocast"])
@pytest.mark.parametrize(("made_in", "asked_in"), list(itertools.product(("", *STATES), repeat=2)))
def test_thread_state(made_in: str, asked_in: str, blocks: bool) -> None:
    def inside(name: str) -> Any:
        return STATES[name]() if name else torch.enable_grad()

    if "functions" in made_in:
        pytest.skip("no trace begins there")
    with inside(made_in):
        rest = read_autocast_details() if blocks else None
        guard = g.GlobalState(replace(read_state(), autocast_details=rest))
        program = GuardProgram(lower_guards((guard,), (), {}, {})[0])
        assert program.check(())
    with inside(asked_in):
        frame = make_world().snapshot() if "mode" not in asked_in and asked_in != "device" else None
        assert program.check(()) == holds(guard, frame)
        alike = [{made_in}]
        if not blocks:
            off = {"", "no autocast", "no autocast, half"}
            alike += [off, {"autocast", "no cache of casts"}]
        assert program.check(()) == any({made_in, asked_in} <= same for same in alike)


def test_process_state() -> None:
    guard = g.GlobalState(read_state())
    program = GuardProgram(lower_guards((guard,), (), {}, {})[0])
    for change, undo in (
        (
            lambda: torch.set_default_dtype(torch.double),
            lambda: torch.set_default_dtype(torch.float),
        ),
        (
            lambda: torch.use_deterministic_algorithms(True),
            lambda: torch.use_deterministic_algorithms(False),
        ),
    ):
        change()
        try:
            assert not program.check(()) and not holds(guard, make_world().snapshot())
        finally:
            undo()
        assert program.check(())


def test_constants() -> None:
    nan = float("nan")
    values = [
        0, 0.0, -0.0, False, None, 1, True, 1.0, 1j, "1", b"1", (1,), (True,), (1.0,), nan, (nan,),
        torch.float32, torch.float64, torch.device("cpu"), torch.device("meta"), slice(1), slice(2),
        torch.Size([1]), Point(1, 2), (1, 2), frozenset({1}), frozenset({True}), range(2), ...,
        10**40,
    ]  # fmt: skip
    for left, right in itertools.product(values, repeat=2):
        guard = g.ValueEquals(s.Argument(0, "a"), right)
        program = GuardProgram(lower_guards((guard,), (), {}, {})[0])
        assert program.check((left,)) == same_constant(left, right) == (left is right), (
            left,
            right,
        )
    assert same_constant(torch.device("cpu"), torch.device("cpu"))
    program = GuardProgram(lower_guards((g.ValueEquals(X, torch.device("cuda:1")),), (), {}, {})[0])
    assert program.check((torch.device("cuda", 1),)) and not program.check((torch.device("cuda"),))


def test_why_sentences() -> None:
    world = make_world()
    frame = world.snapshot()
    guards = {show_guard(guard): guard for guard in all_guards(world)}
    world.x = torch.randn(3, 4)
    world.cfg["n"] = 4
    del world.cfg["rate"]
    world.thing.size = 5
    world.space["FACTOR"] = "two"
    world.rest = (world.x, world.x)
    after = world.snapshot()
    said = {why(guard, after) for guard in guards.values() if not holds(guard, after)}
    for expected in (
        "x.shape is (3, 4), was (2, 4)",
        "cfg['n'] is 4, was 3",
        "cfg['rate'] no longer exists",
        "thing.size is 5, was 4",
        "FACTOR is 'two', was 2",
        "type(FACTOR) is str, was int",
        "rest[0] and rest[1] are one object, were two",
        "x and rest[0] may share memory",
        "x is a Tensor, was another Tensor",
    ):
        assert expected in said, sorted(said)
    assert why(g.ValueEquals(X, 1), frame) == "x is a Tensor, was 1"


def test_one_line_per_guard() -> None:
    guards = all_guards(make_world())
    lines = [show_guard(guard) for guard in guards]
    assert not any("0x" in line or "\n" in line for line in lines)
    for expected in (
        "x: float32[2, 4] cpu",
        "cfg['n'] == 3",
        f"type(thing) is {Thing.__module__}.Thing",
        "len(rest) == 2",
        "rest[0] is not rest[1]",
        "'absent' not in cfg",
        "no global len",
        "'a' in cfg['names']",
        "str not in cfg['names']",
        "cell is an empty cell",
        "x, rest[0], rest[1] share no memory",
    ):
        assert expected in lines, expected
    assert lines[-1].startswith("torch state: grad_enabled=True")


def test_guards_are_lowered_with_shared_registers_and_cheap_ones_first() -> None:
    guards = (
        g.GlobalState(read_state()),
        g.ValueEquals(s.Item(s.Item(entry("layers"), 1), 0), 20),
        g.LengthIs(entry("layers"), 2),
        g.TypeIs(X, torch.Tensor),
    )
    steps, registers = lower_guards(guards, (s.Item(entry("layers"), 0), X), {}, {})
    names = [step[0] for step in steps]
    assert names.count("ARGUMENT") == 2 and names[1] == "TYPE_IS"
    assert sum(step[0] == "ITEM" and step[3] == "layers" for step in steps) == 1
    assert len(set(registers)) == 2


@pytest.mark.parametrize("seed", range(20))
def test_comparisons_of_numbers_are_python_s(seed: int) -> None:
    draw = random.Random(seed)
    a, b = (Symbol(name, float, ANY_FLOAT, s.Argument(i, name)) for i, name in enumerate("ab"))
    n = Symbol("n", int, INT64, s.Argument(2, "n"))
    odd = (0.0, -0.0, 0.5, 1.5, -2.5, 1e-310, 1e300, -1e300, math.inf, -math.inf, math.nan)

    def expression(depth: int) -> Any:
        if not depth or draw.random() < 0.2:
            return draw.choice([a, b, Apply("float", (n,)), Number(draw.choice(odd))])
        if draw.random() < 0.4:
            op = draw.choice(["neg", "abs", "sqrt", "float"])
            return Apply(op, (expression(depth - 1),))
        op = draw.choice(["+", "-", "*", "/", "min", "max"])
        return Apply(op, (expression(depth - 1), expression(depth - 1)))

    def whole(depth: int) -> Any:
        return Apply(draw.choice(["floor", "ceil", "trunc", "round"]), (expression(depth),))

    for _ in range(60):
        op = draw.choice(["<", "<=", ">", ">=", "==", "!="])
        left = (whole if draw.random() < 0.2 else expression)(3)
        guard = g.NumbersRelate(op, left, expression(2))
        if not guard.symbols:
            continue
        steps, _ = lower_guards((guard,), (), {}, {})
        for _ in range(10):
            values = draw.choice(odd), draw.choice(odd), draw.choice([0, 3, -7, 2**53, 2**60])
            frame = FrameSnapshot.of_call(_numbers, values)
            assert GuardProgram(steps).check(values) == holds(guard, frame), (guard, values)


def _numbers(a: float, b: float, n: int) -> None: ...


@pytest.mark.parametrize("function", [contents.rounded_sum, contents.sum_compensation])
def test_sums_of_floats_agree(function: Any) -> None:
    native = getattr(_frame, function.__name__)
    inf = float("inf")
    lists = ([], [0.1] * 10, [1e16, 1.0, -1e16], (-0.0,), [1e308, 1e308], [inf, 1.0, -inf], (inf,))
    for numbers in lists:
        assert repr(native(numbers)) == repr(function(numbers))
    for numbers in ([1], [0.5, True], (0.5, "a")):
        for one in (native, function):
            with pytest.raises(TypeError):
                one(numbers)
