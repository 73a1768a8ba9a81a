"""Guard programs: which values each step accepts and refuses, and that no user code ever runs."""

from __future__ import annotations

import collections
import functools
import gc
import sys
import types
import weakref

from jitmagic._frame import GuardProgram

from .rig import assert_no_growth, raises, registry

CHECKS, check = registry()
ANY = object()  # stands for whatever key is there


def passes(*steps, args=()):
    return GuardProgram(tuple(steps)).check(tuple(args))


def first(value, *steps):
    """Steps over register 0, which holds the value."""
    return passes(("ARGUMENT", 0, 0), *steps, args=(value,))


class Hostile:
    """Its comparisons, hash and attributes all fail the check that runs them."""

    def __eq__(self, other):
        raise SystemExit("user code ran")

    def __hash__(self):
        return hash("name")

    def __getattr__(self, name):
        raise SystemExit("user code ran")


@check
def malformed_steps_are_refused():
    bad = [
        ("NO_SUCH",),
        ("ARGUMENT", 0),
        ("ARGUMENT", -1, 0),
        ("ARGUMENT", 0, -1),
        ("ARGUMENT", 70000, 0),
        ("ARGUMENT", "0", 0),
        ("EQUALS", 0, 1),  # register 0 was never written
        (),
        "ARGUMENT",
        ("NAMESPACE_ITEM", 0, [], "name"),
        ("NAMESPACE_ITEM", 0, {}, 3),
        ("NO_OVERLAP", (0,)),
        ("NO_OVERLAP", 5),
    ]
    for step in bad:
        raises(ValueError, GuardProgram, (step,))
    load = ("ARGUMENT", 0, 0)
    after_load = [
        load,
        ("SAME", 0, 1),
        ("ITEM", 1, 2, "key"),
        ("FUNCTION_PART", 1, 0, "__nothing__"),
        ("TYPE_IS", 0, 3),
        ("DICT_KEYS", 0, ["a"], ANY),
        ("GRADIENT", 1, 0, None, ()),
        ("ENTRIES_EMPTY", 0, (), None),
    ]
    for step in after_load:
        raises(ValueError, GuardProgram, (load, step))
    raises(TypeError, GuardProgram, [load])
    raises(TypeError, GuardProgram(()).check, [1])
    raises(RuntimeError, GuardProgram, (("STATE", 1, 0, None, None, None, 0, 0, 0, 0, None),))


@check
def constants_compare_by_type_and_bits():
    nan, other_nan = float("nan"), float("nan")
    same = [
        (3, 3),
        (10**30, 10**30),
        ("ab", "".join(["a", "b"])),
        (b"x", bytes([120])),
        (None, None),
        (True, True),
        (1.5, 3.0 / 2),
        (nan, other_nan),
        (-0.0, -0.0),
        (1j, complex(0, 1)),
        ((1, (2.0, "x")), (1, (2.0, "x"))),
        (slice(1, None), slice(1, None)),
        (frozenset({1, "a"}), frozenset({"a", 1})),
        (range(3), range(0, 3)),
        (..., ...),
    ]
    different = [
        (1, True), (1, 1.0), (0.0, -0.0), (0j, -0j), ("a", b"a"), ((1, 2), (1, 2, 3)), (None, 0),
        ((1,), (True,)), (slice(1), slice(2)), (frozenset({1}), frozenset({True})), ([1], [1]),
        (10**30, 10**30 + 1), ((0.0,), (-0.0,)),
    ]  # fmt: skip
    for value, wanted in same:
        assert first(value, ("EQUALS", 0, wanted)), (value, wanted)
    for value, wanted in different:
        assert not first(value, ("EQUALS", 0, wanted)), (value, wanted)


@check
def named_tuples_compare_by_their_items():
    Point = collections.namedtuple("Point", "x y")
    assert first(Point(1, 2), ("EQUALS", 0, Point(1, 2)))
    assert not first((1, 2), ("EQUALS", 0, Point(1, 2)))
    assert not first(Point(1, 3), ("EQUALS", 0, Point(1, 2)))


@check
def no_user_code_runs():
    hostile = Hostile()
    table = {hostile: 1, "other": 2, 5: 3}
    loads = [("ARGUMENT", 0, 0)]
    assert not first(hostile, ("EQUALS", 0, "name"))
    assert first(table, ("ITEM", 1, 0, "other"), ("EQUALS", 1, 2))
    assert not first(table, ("ITEM", 1, 0, "name"))
    assert first(table, ("KEY_ABSENT", 0, "name"))
    assert not first(table, ("DICT_KEYS", 0, ("name", "other", 5), ANY))
    assert not passes(*loads, ("INSTANCE_ITEM", 1, 0, "x"), args=(hostile,))
    assert first(hostile, ("INSTANCE_ABSENT", 0, "x"))
    assert not first(hostile, ("ITEM", 1, 0, 0))

    class Text(str):
        __eq__ = Hostile.__eq__
        __hash__ = str.__hash__

    assert not first("a", ("EQUALS", 0, Text("a")))
    assert not first(Text("a"), ("EQUALS", 0, "a"))
    odd = Hostile()
    odd.__dict__[Text("name")] = 1  # an instance dictionary with a key of a user's type
    odd.__dict__["x"] = 2
    assert first(odd, ("INSTANCE_ITEM", 1, 0, "x"), ("EQUALS", 1, 2))
    assert first(odd, ("INSTANCE_ABSENT", 0, "name"))


@check
def namespaces_are_looked_up_by_identity_of_the_dictionary():
    space = {"x": 1}
    program = GuardProgram((("NAMESPACE_ITEM", 0, space, "x"), ("EQUALS", 0, 1)))
    assert program.check(())
    space["x"] = 2
    assert program.first_failure(()) == 1
    del space["x"]
    assert program.first_failure(()) == 0
    absent = GuardProgram((("NAMESPACE_ABSENT", space, "x"),))
    assert absent.check(())
    space["x"] = 3
    assert not absent.check(())


@check
def instances_are_read_without_making_dictionaries():
    class Plain:
        def __init__(self):
            self.a, self.b = 1, 2

    class Slots:
        __slots__ = ("a",)

    plain = Plain()
    size = sys.getsizeof(plain)
    assert first(plain, ("INSTANCE_ITEM", 1, 0, "b"), ("EQUALS", 1, 2))
    assert first(plain, ("INSTANCE_ABSENT", 0, "c"))
    assert not first(plain, ("INSTANCE_ABSENT", 0, "a"))
    assert sys.getsizeof(plain) == size
    del plain.b
    assert first(plain, ("INSTANCE_ABSENT", 0, "b"))
    assert plain.__dict__ == {"a": 1}  # now there is a dictionary
    plain.c = 3
    assert first(plain, ("INSTANCE_ITEM", 1, 0, "c"), ("EQUALS", 1, 3))
    assert first(plain, ("INSTANCE_DICT", 1, 0), ("LENGTH", 1, 2))
    assert first(Plain(), ("INSTANCE_DICT", 1, 0), ("DICT_KEYS", 1, ("a", "b"), ANY))
    slots = Slots()
    assert not first(slots, ("SLOT", 1, 0, "a"))
    slots.a = [7]
    assert first(slots, ("SLOT", 1, 0, "a"), ("ITEM", 2, 1, 0), ("EQUALS", 2, 7))
    assert first(slots, ("INSTANCE_ABSENT", 0, "a"))
    number = type("Number", (int,), {})(5)
    number.tag = "t"
    assert first(number, ("INSTANCE_ITEM", 1, 0, "tag"), ("EQUALS", 1, "t"))
    many = type("Many", (), {})()
    for i in range(60):  # more than share their keys
        setattr(many, f"x{i}", i)
    assert all(first(many, ("INSTANCE_ITEM", 1, 0, f"x{i}"), ("EQUALS", 1, i)) for i in range(60))
    spelled = "".join(["a"])
    assert first(Plain(), ("INSTANCE_ITEM", 1, 0, spelled), ("EQUALS", 1, 1))


@check
def containers_are_read_as_stored():
    assert first([1, (2, 3)], ("ITEM", 1, 0, 1), ("ITEM", 2, 1, -1), ("EQUALS", 2, 3))
    assert not first([1], ("ITEM", 1, 0, 1)) and not first([1], ("ITEM", 1, 0, -2))
    assert not first([1], ("ITEM", 1, 0, "0")) and not first("text", ("ITEM", 1, 0, 0))
    assert not first([1], ("ITEM", 1, 0, 10**40))
    assert first({10**40: 1}, ("ITEM", 1, 0, 10**40))
    assert first({True: "t"}, ("ITEM", 1, 0, 1), ("EQUALS", 1, "t"))
    assert first({(1, 2): 3}, ("ITEM", 1, 0, (1, 2)), ("EQUALS", 1, 3))
    for value in ([1, 2], (1, 2), {1: 1, 2: 2}, {1, 2}, frozenset({1, 2})):
        assert first(value, ("LENGTH", 0, 2)) and not first(value, ("LENGTH", 0, 3))
    assert not first("ab", ("LENGTH", 0, 2))


@check
def key_order_counts_for_ordered_dicts_too():
    for kind in (dict, collections.OrderedDict, functools.partial(collections.defaultdict, int)):
        table = kind({"a": 1, "b": 2})
        assert first(table, ("DICT_KEYS", 0, ("a", "b"), ANY))
        assert not first(table, ("DICT_KEYS", 0, ("b", "a"), ANY))
        assert first(table, ("DICT_KEY", 1, 0, 1), ("EQUALS", 1, "b"))
        assert not first(table, ("DICT_KEY", 1, 0, 2))
    table = collections.OrderedDict(a=1, b=2)
    table.move_to_end("a")
    assert first(table, ("DICT_KEYS", 0, ("b", "a"), ANY))
    assert first(table, ("DICT_KEY", 1, 0, 0), ("EQUALS", 1, "b"))
    odd = type("Odd", (collections.OrderedDict,), {"__iter__": Hostile.__eq__})(a=1)
    assert first(odd, ("DICT_KEYS", 0, ("a",), ANY))  # and the class is not asked
    assert not first(odd, ("DICT_KEYS", 0, ("b",), ANY))


@check
def items_of_sets():
    for kind in (set, frozenset):
        assert first(kind(["a", int]), ("SET_HAS", 0, "a", 1), ("SET_HAS", 0, int, 1))
        assert first(kind(["a", int]), ("SET_HAS", 0, "b", 0), ("SET_HAS", 0, str, 0))
        assert not first(kind(["a"]), ("SET_HAS", 0, "a", 0))
        assert not first(kind(), ("SET_HAS", 0, "a", 1))
    for other in (["a"], {"a": 1}, "a"):
        assert not first(other, ("SET_HAS", 0, "a", 1))
        assert not first(other, ("SET_HAS", 0, "b", 0))


@check
def empty_tables():
    table = {"hooks": {}, "pre": {}, "forward": 1}
    assert first(table, ("ENTRIES_EMPTY", 0, ("hooks", "pre", "none"), ("call",)))
    assert not first(table, ("ENTRIES_EMPTY", 0, ("hooks",), ("forward",)))
    table["pre"][1] = 2
    assert not first(table, ("ENTRIES_EMPTY", 0, ("hooks", "pre"), ()))
    assert not first({"hooks": []}, ("ENTRIES_EMPTY", 0, ("hooks",), ()))
    assert not first([], ("ENTRIES_EMPTY", 0, (), ()))


@check
def any_change_invalidates_cached_lookups():
    """One program over the same dictionary, before and after changes that are undone."""
    changes = {
        "set": (lambda d: d.__setitem__("a", 2), lambda d: d.__setitem__("a", 1)),
        "del": (lambda d: d.__delitem__("a"), lambda d: d.setdefault("a", 1)),
        "pop": (lambda d: d.pop("a"), lambda d: d.update(a=1)),
        "clear": (lambda d: d.clear(), lambda d: d.update(a=1)),
        "popitem": (lambda d: d.popitem(), lambda d: d.__ior__({"a": 1})),
    }
    for kind in (dict, collections.OrderedDict, functools.partial(collections.defaultdict, int)):
        table = kind(a=1)
        item = GuardProgram((("ARGUMENT", 0, 0), ("ITEM", 1, 0, "a"), ("EQUALS", 1, 1)))
        absent = GuardProgram((("ARGUMENT", 0, 0), ("KEY_ABSENT", 0, "a")))
        empty = GuardProgram((("ARGUMENT", 0, 0), ("ENTRIES_EMPTY", 0, (), ("a",))))
        for name, (do, undo) in changes.items():
            for _ in range(2):
                assert item.check((table,)) and not absent.check((table,)), name
                assert not empty.check((table,)), name
                do(table)
                assert not item.check((table,)), name
                assert absent.check((table,)) is empty.check((table,)) is ("a" not in table), name
                undo(table)
        assert item.check((kind(a=1),)) and not item.check((kind(a=2),))


@check
def attributes_and_globals_are_looked_up_again():
    class Plain:
        pass

    thing = Plain()
    thing.a = 1
    attribute = GuardProgram((("ARGUMENT", 0, 0), ("INSTANCE_ITEM", 1, 0, "a"), ("EQUALS", 1, 1)))
    missing = GuardProgram((("ARGUMENT", 0, 0), ("INSTANCE_ABSENT", 0, "b")))
    for touch in (lambda: None, lambda: thing.__dict__):  # without a dictionary, and with one
        touch()
        for _ in range(2):
            assert attribute.check((thing,)) and missing.check((thing,))
            thing.a, thing.b = 2, 3
            assert not attribute.check((thing,)) and not missing.check((thing,))
            thing.a = 1
            del thing.b
    thing.__dict__ = {"a": 2}
    assert not attribute.check((thing,))
    thing.__dict__ = {"a": 1}
    assert attribute.check((thing,))

    space: dict[str, object] = {}
    exec("def bump():\n    global a\n    a = 2", space)
    space["a"] = 1
    known = GuardProgram((("NAMESPACE_ITEM", 0, space, "a"), ("EQUALS", 0, 1)))
    assert known.check(()) and known.check(())
    for _ in range(20):  # often enough for the interpreter to specialise the store
        space["a"] = 1
        assert known.check(())
        space["bump"]()
        assert not known.check(())


@check
def specialised_stores_are_seen():
    class Plain:
        pass

    def store(target, value):
        target.a = value

    thing = Plain()
    thing.__dict__["a"] = 0  # a dictionary of its own
    attribute = GuardProgram((("ARGUMENT", 0, 0), ("INSTANCE_ITEM", 1, 0, "a"), ("EQUALS", 1, 1)))
    for _ in range(100):
        store(thing, 1)
        assert attribute.check((thing,))
        store(thing, 2)
        assert not attribute.check((thing,))


@check
def tables_are_measured_at_every_check():
    table = {"hooks": {}, "pre": {}}
    program = GuardProgram((("ARGUMENT", 0, 0), ("ENTRIES_EMPTY", 0, ("hooks", "pre"), ("f",))))
    for name in table:
        assert program.check((table,))
        table[name][1] = 2
        assert not program.check((table,))
        table[name].clear()
        assert program.check((table,))
        table[name] = {1: 2}
        assert not program.check((table,))
        table[name] = {}


@check
def cells_functions_methods_modules_types():
    hidden = 4

    def function(a, b=2, *, c=3):
        return hidden

    empty = types.CellType()
    cell = function.__closure__[0]
    assert first(cell, ("CELL", 1, 0), ("EQUALS", 1, 4)) and not first(cell, ("CELL_EMPTY", 0))
    assert first(empty, ("CELL_EMPTY", 0)) and not first(empty, ("CELL", 1, 0))
    assert not first(3, ("CELL_EMPTY", 0))
    for part in ("__code__", "__closure__", "__defaults__", "__kwdefaults__", "__globals__"):
        step = ("FUNCTION_PART", 1, 0, part)
        assert first(function, step, ("IS", 1, getattr(function, part))), part
        assert not first(3, step)
    bare = lambda: 0  # noqa: E731
    assert first(bare, ("FUNCTION_PART", 1, 0, "__defaults__"), ("IS", 1, None))
    method = Hostile().__hash__
    assert first(method, ("FUNCTION_PART", 1, 0, "__func__"), ("IS", 1, Hostile.__hash__))
    assert first(method, ("FUNCTION_PART", 1, 0, "__self__"), ("TYPE_IS", 1, Hostile))
    assert first([].append, ("FUNCTION_PART", 1, 0, "__self__"), ("LENGTH", 1, 0))
    assert first(sys, ("MODULE_ITEM", 1, 0, "path"), ("IS", 1, sys.path))
    assert not first(sys, ("MODULE_ITEM", 1, 0, "nothing"))
    assert not first(3, ("MODULE_ITEM", 1, 0, "path"))
    assert first(True, ("TYPE", 1, 0), ("IS_WEAK", 1, bool))
    name = ("TYPE_ATTR", 1, 0, "__hash__")
    assert first(Hostile, name, ("IS", 1, Hostile.__dict__["__hash__"]))
    assert not first(3, name)
    assert first(functools.partial(len, 1), ("SLOT", 1, 0, "func"), ("IS", 1, len))
    assert first(bool, ("SLOT", 1, 0, "__mro__"), ("ITEM", 2, 1, 1), ("IS", 2, int))
    assert not first(Hostile(), ("SLOT", 1, 0, "__hash__"))  # a function is no slot


@check
def identity_and_type():
    one, two = [], []
    assert first(one, ("IS", 0, one)) and not first(one, ("IS", 0, two))
    assert first(True, ("TYPE_IS", 0, bool)) and not first(True, ("TYPE_IS", 0, int))
    loads = (("ARGUMENT", 0, 0), ("ARGUMENT", 1, 1))
    assert passes(*loads, ("SAME", 0, 1), args=(one, one))
    assert not passes(*loads, ("SAME", 0, 1), args=(one, two))
    assert passes(*loads, ("DIFFERENT", (0,), (1,)), args=(one, two))
    assert not passes(*loads, ("DIFFERENT", (0,), (1,)), args=(one, one))


@check
def many_different_objects():
    many = [[] for _ in range(40)]
    for first, count in ((3, 5), (5, 5), (3, 40), (40, 40)):
        loads = [("ARGUMENT", place, place) for place in range(count)]
        registers = tuple(range(count))
        step = ("DIFFERENT", registers[:first], registers[first:])
        assert passes(*loads, step, args=tuple(many[:count]))
        for left, right in ((0, 1), (0, count - 1), (first - 1, first), (count - 2, count - 1)):
            given = many[:count]
            if right < count:
                given[right] = given[left]
                assert passes(*loads, step, args=tuple(given)) is (left >= first)


@check
def weakly_held_objects_may_die():
    class Thing:
        pass

    thing, kind = Thing(), Thing
    program = GuardProgram((("ARGUMENT", 0, 0), ("TYPE_IS", 0, Thing), ("IS_WEAK", 0, thing)))
    before = sys.getrefcount(thing)
    assert program.check((thing,)) and program.alive
    assert sys.getrefcount(thing) == before
    gone = weakref.ref(thing)
    del thing
    assert gone() is None and not program.alive
    assert not program.check((kind(),)) and program.first_failure((kind(),)) == 2
    class_gone = weakref.ref(Thing)
    del Thing, kind
    gc.collect()
    assert class_gone() is None
    raises(TypeError, GuardProgram, (("ARGUMENT", 0, 0), ("IS_WEAK", 0, 3)))


@check
def first_failure_names_the_step():
    program = GuardProgram(
        (("ARGUMENT", 0, 0), ("EQUALS", 0, 1), ("ARGUMENT", 1, 1), ("ITEM", 2, 1, 0))
    )
    assert program.first_failure((1, [0])) == -1
    assert program.first_failure((2, [0])) == 1
    assert program.first_failure((1, [])) == 3
    assert program.first_failure((1,)) == 0  # too few arguments
    assert len(program) == 4


@check
def many_registers():
    steps = tuple(("ARGUMENT", i, i) for i in range(500))
    program = GuardProgram((*steps, ("SAME", 3, 499)))
    mark = object()
    args = [object() for _ in range(500)]
    assert not program.check(tuple(args))
    args[3] = args[499] = mark
    assert program.check(tuple(args))


@check
def nothing_leaks():
    space = {"name": [1]}
    partial = functools.partial(len, [1])
    held = [1, {"k": (1.5, "x")}]

    def once():
        program = GuardProgram(
            (
                ("ARGUMENT", 0, 0),
                ("ITEM", 1, 0, 1),
                ("ITEM", 2, 1, "k"),
                ("EQUALS", 2, (1.5, "x")),
                ("NAMESPACE_ITEM", 3, space, "name"),
                ("ARGUMENT", 4, 1),
                ("SLOT", 5, 4, "args"),
                ("LENGTH", 5, 1),
                ("DICT_KEYS", 1, ("k",), ANY),
            )
        )
        assert program.check((held, partial)) and not program.check((partial, held))
        try:
            GuardProgram((("ARGUMENT", 0, 0), ("IS_WEAK", 0, held), ("NO", held)))
        except (ValueError, TypeError):
            pass

    before = sys.getrefcount(held), sys.getrefcount(space), sys.getrefcount(partial.args)
    assert_no_growth(once)
    assert before == (sys.getrefcount(held), sys.getrefcount(space), sys.getrefcount(partial.args))


@check
def cycles_through_programs_are_collected():
    class Node(dict):
        pass

    node = Node()
    node["program"] = GuardProgram((("NAMESPACE_ITEM", 0, node, "program"),))
    gone = weakref.ref(node)
    del node
    gc.collect()
    assert gone() is None
