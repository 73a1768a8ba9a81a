"""Classes that change between the calls of a tagged function, as they do in notebooks: scenarios,
each run plainly and compiled.
"""

# ruff: noqa: B018
from __future__ import annotations

import abc
import functools
from typing import Any

from ..scenarios import Fixed, Tag, collection, seen, through, two, x3

scenario, test_as_plain = collection(recompile_limit=64)


# -- plain objects -------------------------------------------------------------------------------


@scenario
def reading_attributes(tag: Tag) -> list[Any]:
    class Base:
        default = 1.0

    class Thing(Base):
        def __init__(self):
            self.own, self.default = 2.0, 3.0

    @tag
    def f(thing, t):
        return t * thing.own + thing.default, getattr(thing, "other", 0.0)

    thing = Thing()
    thing.set = None
    return through(
        lambda: seen(f, thing, x3()),
        (Thing, "own", property(two)),
        (Base, "own", property(two)),
        (Thing, "own", Fixed(7.0)),
        (Thing, "own", 5.0),
        (Base, "default", 9.0),
        (Base, "default", property(two)),
        (Thing, "default", Fixed(8.0)),
        (Base, "other", 6.0),
        (Thing, "__getattr__", lambda self, name: 4.0),
        (Base, "__getattribute__", lambda self, name: 11.0),
    )


@scenario
def descriptors_of_ones_own_change(tag: Tag) -> list[Any]:
    class Reader:
        def __get__(self, instance, owner=None):
            return 5.0

    class Quiet: ...

    class Thing:
        hidden, quiet, fixed = Reader(), Quiet(), Fixed(3.0)

    @tag
    def f(thing, t):
        return t * thing.hidden + thing.fixed, thing.quiet is Thing.__dict__["quiet"]

    @tag
    def shown(thing, t):
        return t if thing.quiet else t - 1

    thing = Thing()
    vars(thing).update(hidden=2.0, fixed=20.0)
    return [
        *through(
            lambda: [seen(f, thing, x3()), seen(shown, thing, x3())],
            (Reader, "__set__", lambda self, instance, value: None),
            (Reader, "__delete__", lambda self, instance: None),
            (Quiet, "__get__", lambda self, instance, owner: 0.0),
            (Fixed, "__get__", lambda self, instance, owner: 13.0),
        ),
        _without(Fixed, "__set__", lambda: seen(f, thing, x3())),
    ]


def _without(owner: type, name: str, ask: Any) -> Any:
    """The answer while a class lacks what it has."""
    value = vars(owner)[name]
    delattr(owner, name)
    try:
        return ask()
    finally:
        setattr(owner, name, value)


@scenario
def writing_and_deleting_attributes(tag: Tag) -> list[Any]:
    class Base: ...

    class Thing(Base): ...

    log = []

    @tag
    def f(thing, t):
        thing.own = 3.0
        t = t * getattr(thing, "own", 10.0)
        del thing.gone
        return t, hasattr(thing, "gone")

    def ask():
        thing = Thing()
        vars(thing).update(gone=1.0, set=0.0)
        return seen(f, thing, x3()), dict(vars(thing)), len(log)

    def set_and_tell(self, name, value):
        log.append(name)
        object.__setattr__(self, name, value * 2)

    def delete_and_tell(self, name):
        log.append(name)

    return through(
        ask,
        (Thing, "__setattr__", set_and_tell),
        (Base, "__setattr__", set_and_tell),
        (Thing, "__delattr__", delete_and_tell),
        (Base, "own", property(two, lambda self, value: log.append(value))),
        (Thing, "own", Fixed(7.0)),
        (Thing, "own", property(two)),
        (Thing, "gone", property(two)),
        (Thing, "own", 6.0),
    )


@scenario
def slots(tag: Tag) -> list[Any]:
    class Thing:
        __slots__ = ("one", "two")

    @tag
    def f(thing, t):
        thing.two = 5.0
        return t * thing.one

    thing = Thing()

    def ask():
        thing.one, thing.two = 2.0, 3.0
        return seen(f, thing, x3()), thing.two

    written = property(two, lambda self, value: None)
    return [*through(ask, (Thing, "one", written), (Thing, "two", written)), _swapped(Thing, ask)]


def _swapped(kind: type, ask: Any) -> Any:
    one, other = vars(kind)["one"], vars(kind)["two"]
    kind.one, kind.two = other, one
    return ask()


@scenario
def special_methods_appear(tag: Tag) -> list[Any]:
    class Base: ...

    class Thing(Base):
        def __getitem__(self, index):
            if index > 2:
                raise IndexError
            return index

    def asking(use):
        @tag
        def f(thing, other, t):
            return t + 1 if use(thing, other) else t - 1

        return f

    uses = [
        asking(lambda thing, other: bool(thing)),
        asking(lambda thing, other: thing == other),
        asking(lambda thing, other: thing != other),
        asking(lambda thing, other: callable(thing)),
        asking(lambda thing, other: 2 in thing),
        asking(lambda thing, other: sum(one for one in thing) > 2),
        asking(lambda thing, other: {thing: 1}.get(other, 0) == 1),
        asking(lambda thing, other: hasattr(thing, "__call__")),
    ]
    thing, other = Thing(), Thing()

    def ask():
        return [seen(f, thing, other, x3()) for f in uses]

    return through(
        ask,
        (Thing, "__bool__", lambda self: False),
        (Base, "__len__", lambda self: 0),
        (Base, "__eq__", lambda self, other: True),
        (Base, "__hash__", lambda self: 1),
        (Base, "__ne__", lambda self, other: False),
        (Base, "__call__", lambda self: 1),
        (Base, "__contains__", lambda self, item: False),
        (Base, "__iter__", lambda self: iter([0])),
        (Base, "__getattribute__", lambda self, name: 1),
    )


@scenario
def operators_appear(tag: Tag) -> list[Any]:
    class Base:
        def __add__(self, other):
            return 1.0

        __mul__ = __add__

    class Thing(Base): ...

    @tag
    def f(base, thing, t):
        base += thing
        return t * base + (thing * Base())

    return through(
        lambda: seen(f, Base(), Thing(), x3()),
        (Thing, "__radd__", lambda self, other: 2.0),
        (Base, "__iadd__", lambda self, other: 3.0),
        (Base, "__add__", lambda self, other: 4.0),
        (Thing, "__mul__", lambda self, other: 5.0),
    )


@scenario
def methods_of_all_kinds_are_replaced(tag: Tag) -> list[Any]:
    class Base:
        @staticmethod
        def static():
            return 1.0

        @classmethod
        def made(cls):
            return cls.factor

        def method(self):
            return 2.0

        factor = 3.0

    class Thing(Base): ...

    @tag
    def f(thing, t):
        return t * thing.static() + thing.made() * thing.method() + Thing.made() + Thing.static()

    return through(
        lambda: seen(f, Thing(), x3()),
        (Base, "static", staticmethod(lambda: 5.0)),
        (Thing, "static", classmethod(lambda cls: 6.0)),
        (Base, "made", classmethod(lambda cls: 7.0)),
        (Thing, "made", staticmethod(lambda: 8.0)),
        (Thing, "method", lambda self: 9.0),
        (Thing, "factor", 10.0),
        (Base, "method", property(lambda self: lambda: 11.0)),
        (Base, "method", functools.partial(float, 4)),
    )


@scenario
def what_super_finds(tag: Tag) -> list[Any]:
    class Base:
        def run(self):
            return 1.0

    class Between(Base): ...

    class Thing(Between):
        def __init__(self):
            super().__init__()
            self.kept = 1.0

        def run(self):
            return super().run() * 2

        def __setattr__(self, name, value):
            super().__setattr__(name, value)

        def tried(self):
            try:
                return super().extra
            except AttributeError:
                return 0.5

    @tag
    def f(thing, t):
        thing.written = 4.0
        return t * thing.run() + thing.tried(), Thing().kept, vars(Thing)["run"] is Thing.run

    def written(self, name, value):
        object.__setattr__(self, name, value + 1)

    return through(
        lambda: seen(f, Thing(), x3()),
        (Between, "run", lambda self: 3.0),
        (Base, "run", lambda self: 5.0),
        (Between, "extra", 7.0),
        (Between, "__setattr__", written),
        (Base, "__init__", lambda self: object.__setattr__(self, "seen", 1)),
    )


@scenario
def making_objects(tag: Tag) -> list[Any]:
    class Meta(type): ...

    class Base: ...

    class Thing(Base): ...

    class Made(metaclass=Meta): ...

    class Abstract(abc.ABC):
        value = 1.0

    @tag
    def f(t):
        thing = Thing()
        return t * getattr(thing, "value", 1.0), getattr(Made(), "value", 2.0), Abstract().value

    def new(cls):
        made = object.__new__(cls)
        made.value = 4.0
        return made

    def call(cls):
        made = type.__call__(cls)
        made.value = 5.0
        return made

    return through(
        lambda: seen(f, x3()),
        (Base, "__init__", lambda self: setattr(self, "value", 3.0)),
        (Base, "__new__", staticmethod(new)),
        (Meta, "__call__", call),
        (Abstract, "__abstractmethods__", frozenset({"run"})),
    )
