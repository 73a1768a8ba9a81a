"""Facts about classes stay right while a class changes; on Pythons with class version tags."""

from __future__ import annotations

import abc
import contextlib
import gc
import sys
import types

from jitmagic._frame import GuardProgram

from .rig import assert_no_growth, raises, registry

CHECKS, check = registry()


class Base:
    def run(self): ...

    size = 1


class Between(Base): ...


class Derived(Between):
    count = 0

    def run(self): ...


def about(kind, *facts):
    """A program that relies on facts about a class."""
    return GuardProgram((("CLASS", kind, kind.__mro__, facts),))


@contextlib.contextmanager
def changed(kind, name, value):
    """A class that has another attribute for a while."""
    old = vars(kind).get(name, kind)
    setattr(kind, name, value)
    try:
        yield
    finally:
        delattr(kind, name) if old is kind else setattr(kind, name, old)


@check
def facts_about_a_class():
    run = vars(Derived)["run"]
    program = about(Derived, ("IS", "run", 0, run), ("ABSENT", "nothing", 0), ("YIELDS", "size"))
    other = about(Derived, ("IS", "size", 0, 1), ("IS", "run", 1, vars(Base)["run"]))
    assert program.check(()) and other.check(()) and program.check(())
    for kind in (Derived, Between, Base):
        with changed(kind, "nothing", 1):
            assert not program.check(()) and not program.check(()) and other.check(())
        assert program.check(()) and other.check(())
        with changed(kind, "size", property()):
            assert not program.check(()) and not other.check(())
        with changed(kind, "size", 2):
            assert program.check(()) and not other.check(())
        with changed(kind, "run", lambda self: 0):
            assert program.check(()) == (kind is not Derived)
            assert other.check(()) == (kind is Derived)
        assert program.check(()) and other.check(())
    del Base.size
    assert program.check(()) and not other.check(())
    Base.size = 1
    assert other.check(())
    assert not about(Derived, ("ABSENT", "__hash__", 0)).check(())  # of object
    assert about(Derived, ("ABSENT", "count", 1)).check(())


@check
def bases_of_a_class():
    class Other(Base): ...

    class Plain(Between): ...

    program = about(Plain, ("ABSENT", "nothing", 0))
    empty = about(Plain)
    assert program.check(()) and empty.check(())
    for kind, bases in ((Plain, (Other,)), (Between, (Other,)), (Plain, (Between, Other))):
        before = kind.__bases__
        kind.__bases__ = bases
        assert not program.check(()) and not empty.check(())
        kind.__bases__ = before
        assert program.check(()) and empty.check(())


@check
def a_class_that_changes_all_the_time():
    program = about(Derived, ("IS", "run", 0, vars(Derived)["run"]), ("YIELDS", "count"))
    for count in range(3000):  # more versions than Python has for one class
        Derived.count = count
        assert program.check(()) and program.check(())
    with changed(Base, "count", property()):
        assert program.check(())  # it is hidden by the other
    with changed(Derived, "run", 1):
        assert not program.check(())
    assert program.check(())
    Derived.count = 0


@check
def descriptors_of_classes_that_may_change():
    class Descriptor:
        def __get__(self, instance, owner): ...

    with changed(Derived, "extra", Descriptor()):
        assert not about(Derived, ("YIELDS", "extra")).check(())
    for plain in (3, "text", staticmethod(len), classmethod(len), lambda self: 0, [1]):
        with changed(Derived, "extra", plain):
            assert about(Derived, ("YIELDS", "extra")).check(()), plain
    for given in (property(), vars(types.FunctionType)["__globals__"], Derived.__weakref__):
        with changed(Derived, "extra", given):
            assert not about(Derived, ("YIELDS", "extra")).check(()), given


@check
def slots_of_a_class():
    class Slotted:
        __slots__ = ("one", "two")

    one, two = vars(Slotted)["one"], vars(Slotted)["two"]
    program = about(Slotted, ("SLOT", "one"))
    assert program.check(()) and not about(Slotted, ("SLOT", "other")).check(())
    for other in (two, property(), 3):
        with changed(Slotted, "one", other):
            assert not program.check(())
        assert program.check(())
    del Slotted.one
    assert not program.check(())
    Slotted.one = one
    assert program.check(())


@check
def facts_keep_nothing_alive():
    class Thing:
        def run(self): ...

    run = Thing.run
    program = about(Thing, ("IS", "run", 0, run), ("IS", "__doc__", 0, None))
    before = sys.getrefcount(Thing), sys.getrefcount(run)
    assert program.check(()) and program.alive
    assert (sys.getrefcount(Thing), sys.getrefcount(run)) == before
    Thing.run = None
    assert not program.check(()) and program.alive
    del run
    assert not program.alive
    program = about(Thing)
    del Thing
    gc.collect()
    assert not program.check(()) and not program.alive


@check
def malformed_facts_are_refused():
    for fact in (
        ("IS", "run", 0), ("IS", "run", -1, 0), ("IS", 3, 0, 0), ("IS", "run", "0", 0),
        ("ABSENT", "run"), ("YIELDS", "run", 0), ("OTHER", "run"), (), ("IS",), 3,
    ):  # fmt: skip
        raises(ValueError, about, Derived, fact)
    raises(ValueError, GuardProgram, (("CLASS", 3, (), ()),))
    raises(ValueError, GuardProgram, (("CLASS", Derived, [], ()),))
    raises(ValueError, GuardProgram, (("STATE_READ", 3, 0, 0),))


@check
def classes_registered_with_an_abc():
    class Abstract(abc.ABC): ...

    program = GuardProgram((("STATE_READ", abc.get_cache_token, abc.get_cache_token(), 1),))
    assert program.check(()) and program.check(()) and program.alive
    Abstract.register(Derived)
    assert not program.check(()) and not program.alive


def names(table, *facts):
    """A program that relies on facts about a namespace."""
    return GuardProgram((("NAMESPACE", table, facts),))


@check
def facts_about_a_namespace():
    def act(): ...

    table = vars(types.ModuleType("space"))
    table.update(act=act, rate=0.5)
    program = names(table, ("IS", "act", act), ("ABSENT", "other"), ("IS", "rate", 0.5))
    for _ in range(3):
        assert program.check(()) and program.check(())
        for change, undo in (
            (lambda: table.update(act=len), lambda: table.update(act=act)),
            (lambda: table.update(other=1), lambda: table.pop("other")),
            (lambda: table.pop("rate"), lambda: table.update(rate=float("0.5"))),
            (lambda: table.update(rate=-0.5), lambda: table.update(rate=0.5)),
            (table.clear, lambda: table.update(act=act, rate=0.5)),
        ):
            change()
            assert not program.check(()) and not program.check(())
            undo()
            assert program.check(()) and program.check(())
        table["unrelated"] = object()
    later = [names(table, ("IS", "act", act)) for _ in range(3)]
    table["act"] = len
    assert not any(one.check(()) for one in (*later, program))


@check
def facts_about_the_dictionary_of_an_instance():
    class Thing: ...

    thing = Thing()
    thing.value = 1
    program = names(vars(thing), ("IS", "value", 1))
    for value in (2, "1", True):
        assert program.check(()) and program.check(())
        thing.value = value
        assert not program.check(()) and not program.check(())
        thing.value = 1
    for _ in range(100):  # through the store that the interpreter specialises
        thing.value = 1
        assert program.check(())
        thing.value = 2
        assert not program.check(())


@check
def namespaces_keep_nothing_of_the_user_alive():
    def act(): ...

    table = {"act": act}
    program = names(table, ("IS", "act", act))
    assert program.check(()) and program.alive
    table.clear()
    del act
    gc.collect()
    assert not program.check(()) and not program.alive


@check
def malformed_facts_about_namespaces_are_refused():
    for fact in (("IS", "a"), ("ABSENT", "a", 1), ("OTHER", "a"), ("ABSENT", 3), (), 3):
        raises(ValueError, names, {}, fact)
    raises(ValueError, GuardProgram, (("NAMESPACE", [], ()),))
    raises(ValueError, GuardProgram, (("NAMESPACE", {}, []),))


@check
def facts_do_not_leak():
    def rely():
        class Thing(Base):
            bound = [].append

        program = about(Thing, ("IS", "bound", 0, Thing.bound), ("ABSENT", "nothing", 0))
        assert program.check(())
        Thing.program = program
        del Thing, program
        gc.collect()

    assert_no_growth(rely)
