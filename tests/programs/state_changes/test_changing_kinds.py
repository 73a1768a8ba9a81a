"""What kind of object a class makes changes between the calls of a tagged function: its bases, its
metaclass, what is registered with an ABC, and classes that the standard library shapes.
"""

from __future__ import annotations

import abc
import collections
import collections.abc
import dataclasses
import enum
import functools
import typing
from typing import Any

from ..scenarios import Fixed, Tag, collection, seen, through, two, x3

scenario, test_as_plain = collection(recompile_limit=64)


# -- bases, isinstance ---------------------------------------------------------------------------


class Root: ...


@scenario
def bases_are_swapped(tag: Tag) -> list[Any]:
    class One(Root):
        value = 1.0

    class Two(Root):
        value = 2.0

        def run(self):
            return 3.0

    class Middle(One): ...

    class Thing(Middle):
        def run(self):
            return 4.0

    @tag
    def f(thing, t):
        kinds = [isinstance(thing, kind) for kind in (One, Two, Root)]
        also = issubclass(Thing, (Two, int)), issubclass(Two, Middle), Two in Thing.__mro__
        return t * thing.value + thing.run(), kinds, also

    results = []
    for owner, bases in ((Thing, (Two,)), (Middle, (Two,)), (Middle, (Two, One)), (Two, (One,))):
        before = owner.__bases__
        results.append(seen(f, Thing(), x3()))
        owner.__bases__ = bases
        results.append(seen(f, Thing(), x3()))
        owner.__bases__ = before
        results.append(seen(f, Thing(), x3()))
    results.append([base.__name__ for base in Thing.__bases__])
    return results


@scenario
def classes_are_registered(tag: Tag) -> list[Any]:
    class Abstract(abc.ABC): ...

    class Hooked(abc.ABC):
        @classmethod
        def __subclasshook__(cls, other):
            return "run" in vars(other) or NotImplemented

    class Thing: ...

    class Other: ...

    @tag
    def f(thing, t):
        t = t * 2 if isinstance(thing, Abstract) else t
        t = t + 1 if issubclass(Thing, Abstract) else t
        t = t - 5 if isinstance(thing, Hooked) else t
        return t * 3 if isinstance(thing, collections.abc.Iterable) else t

    def ask():
        return [seen(f, Thing(), x3()), seen(f, Other(), x3()), seen(f, 3, x3())]

    results = [ask()]
    Abstract.register(Thing)
    results.append(ask())
    Other.run = two
    results.append(ask())
    Other.__iter__ = lambda self: iter(())
    results.append(ask())
    Abstract.register(int)
    results.append(ask())
    del Other.__iter__
    return [*results, ask()]


@scenario
def classes_are_registered_for_patterns(tag: Tag) -> list[Any]:
    class Thing: ...

    class Other(Thing): ...

    @tag
    def f(thing, t):
        match thing:
            case {}:
                return t * 2
            case [*_]:
                return t * 3
        return t

    def ask():
        return [seen(f, one, x3()) for one in (Thing(), Other(), 3)]

    results = [ask()]
    collections.abc.Mapping.register(Thing)
    results.append(ask())
    return [*results, seen(f, [1], x3())]


@scenario
def checks_of_metaclasses(tag: Tag) -> list[Any]:
    class Meta(type): ...

    class Kind(metaclass=Meta): ...

    class Thing: ...

    @tag
    def f(thing, t):
        t = t * 2 if isinstance(thing, Kind) else t
        return t + 1 if issubclass(Thing, Kind) else t

    return through(
        lambda: seen(f, Thing(), x3()),
        (Meta, "__instancecheck__", lambda cls, instance: True),
        (Meta, "__subclasscheck__", lambda cls, other: True),
    )


@scenario
def objects_that_say_they_are_others(tag: Tag) -> list[Any]:
    class Abstract(abc.ABC): ...

    class Kind: ...

    class Plain(Root): ...

    class Posing(Root):
        __class__ = property(lambda self: Kind)

    class Thing(Plain): ...

    @tag
    def f(thing, t):
        t = t * 2 if isinstance(thing, Kind) else t
        t = t * 3 if isinstance(thing, Abstract) else t
        return t + 1 if thing.__class__ is Kind else t

    results = [seen(f, Thing(), x3()), seen(f, Posing(), x3())]
    Thing.__bases__ = (Posing,)
    return [*results, seen(f, Thing(), x3())]


@scenario
def the_class_of_an_object_is_assigned(tag: Tag) -> list[Any]:
    class One:
        value = 1.0

    class Two:
        value = 2.0

    @tag
    def f(thing, t):
        return t * thing.value, isinstance(thing, One), type(thing).__name__

    thing = One()
    results = [seen(f, thing, x3())]
    thing.__class__ = Two
    results.append(seen(f, thing, x3()))
    thing.__class__ = One
    return [*results, seen(f, thing, x3())]


@scenario
def attributes_of_classes_and_metaclasses(tag: Tag) -> list[Any]:
    class Meta(type):
        shared = 1.0

    class Other(Meta):
        shared = 4.0

        def __getattribute__(cls, name):
            return 17.0 if name == "value" else type.__getattribute__(cls, name)

    class Thing(metaclass=Meta):
        value = 2.0

    @tag
    def f(t):
        t = t + 1 if Thing else t - 1
        return t * Thing.value + getattr(Thing, "other", 0.0), hasattr(Thing, "late")

    results = through(
        lambda: seen(f, x3()),
        (Thing, "value", 3.0),
        (Thing, "other", 4.0),
        (Meta, "value", property(two)),
        (Meta, "value", 6.0),
        (Meta, "other", 7.0),
        (Meta, "__getattr__", lambda cls, name: 8.0),
        (Meta, "__getattribute__", lambda cls, name: 9.0),
        (Meta, "__bool__", lambda cls: False),
        (Meta, "__len__", lambda cls: 0),
        (Thing, "late", 1),
    )
    Thing.__class__ = Other
    return [*results, seen(f, x3())]


@scenario
def exceptions_of_the_users(tag: Tag) -> list[Any]:
    class Wrong(ValueError): ...

    class Odd(ValueError): ...

    class Failed(Wrong): ...

    @tag
    def f(t):
        try:
            raise Failed(1)
        except Wrong as error:
            return t + 1 if error else t - 1, getattr(error, "note", 0), error == 1
        except ValueError:
            return t * 10

    results = through(
        lambda: seen(f, x3()),
        (Wrong, "__bool__", lambda self: False),
        (Wrong, "__len__", lambda self: 0),
        (Wrong, "note", 5),
        (Wrong, "__getattr__", lambda self, name: 6),
        (Wrong, "__eq__", lambda self, other: True),
        (Wrong, "__init__", lambda self, given: None),
    )
    Failed.__bases__ = (Odd,)
    return [*results, seen(f, x3())]


@scenario
def the_traced_code_changes_the_class(tag: Tag) -> list[Any]:
    class Thing: ...

    @tag
    def f(thing, value, t):
        Thing.own = value
        return t * thing.own

    thing = Thing()
    vars(thing).update(own=2.0, set=None)
    values = (3.0, property(two), Fixed(4.0), functools.partial(two, None))
    return [seen(f, one, value, x3()) for value in values for one in (thing, Thing())]


# -- dataclasses, enums, named tuples ------------------------------------------------------------


@scenario
def dataclasses_change(tag: Tag) -> list[Any]:
    @dataclasses.dataclass
    class Config:
        scale: float = 2.0
        shift: float = 1.0

    @dataclasses.dataclass(frozen=True)
    class Frozen:
        scale: float = 3.0

    @tag
    def f(config, frozen, t):
        made = dataclasses.replace(config, shift=5.0)
        same = config == Config()
        return t * config.scale + made.shift * frozen.scale, same, Config().shift

    config, frozen = Config(), Frozen()
    return through(
        lambda: seen(f, config, frozen, x3()),
        (Config, "scale", property(two, lambda self, value: None)),
        (Frozen, "scale", property(two)),
        (Config, "shift", 9.0),
        (Config, "__eq__", lambda self, other: False),
        (
            Config,
            "__init__",
            lambda self, scale=4.0, shift=5.0: vars(self).update(scale=1, shift=2),
        ),
        (Config, "__post_init__", lambda self: None),
        (Config, "__getattribute__", lambda self, name: 6.0),
    )


@scenario
def enums_change(tag: Tag) -> list[Any]:
    class Mode(enum.Enum):
        SLOW = 1.0
        FAST = 2.0

    class Level(enum.IntEnum):
        LOW = 1
        HIGH = 2

    @tag
    def f(mode, level, t):
        t = t * mode.value if mode else t
        t = t + 1 if mode == Mode.SLOW else t
        t = t - 1 if level < Level.HIGH else t
        found = {Mode.SLOW: 3.0, Mode.FAST: 4.0}[mode]
        return t * found + level, mode.name, level + 1

    return through(
        lambda: [seen(f, Mode.SLOW, Level.LOW, x3()), seen(f, Mode.FAST, Level.HIGH, x3())],
        (Mode, "value", property(two)),
        (Mode, "name", property(two)),
        (Mode, "__bool__", lambda self: False),
        (Mode, "__len__", lambda self: 0),
        (Mode, "__eq__", lambda self, other: True),
        (Mode, "__hash__", lambda self: 0),
        (Level, "__lt__", lambda self, other: True),
        (Level, "__add__", lambda self, other: 10),
    )


class Pair(typing.NamedTuple):
    first: float
    second: float


@scenario
def named_tuples_change(tag: Tag) -> list[Any]:
    Triple = collections.namedtuple("Triple", "first second third")

    class Known(Triple):
        @property
        def third(self):
            return 30.0

    @tag
    def f(pair, triple, t):
        first, _ = pair
        t = t + 1 if pair else t
        t = t + len(triple) if 1.0 in triple else t
        return t * pair.first + triple.third + pair[0], first, pair == (1.0, 2.0)

    return [
        *through(
            lambda: seen(f, Pair(1.0, 2.0), Triple(1.0, 2.0, 3.0), x3()),
            (Pair, "first", property(two)),
            (Triple, "third", 5.0),
            (Pair, "__bool__", lambda self: False),
            (Pair, "__iter__", lambda self: iter((7.0, 8.0))),
            (Pair, "__getitem__", lambda self, index: 9.0),
            (Pair, "__eq__", lambda self, other: True),
            (Triple, "__len__", lambda self: 1),
            (Triple, "__contains__", lambda self, item: False),
            (Triple, "__getattribute__", lambda self, name: 6.0),
        ),
        seen(f, Pair(1.0, 2.0), Known(1.0, 2.0, 3.0), x3()),
    ]


@scenario
def another_kind_of_argument_comes(tag: Tag) -> list[Any]:
    """What a compile looks at of it is not to run its methods."""
    told = []

    class Noisy:
        def __getitem__(self, key):
            told.append(key)
            return x3()

        @property
        def size(self):
            told.append("size")
            return x3()

    @tag
    def f(given):
        if isinstance(given, Noisy):
            return 0.0
        return given["a"] * 2 if isinstance(given, dict) else given[0] + len(given)

    calls = {"a": x3()}, [x3()], (x3(), 2), {"a": x3()[:2]}, [x3()[:2]]
    return [(seen(f, given), seen(f, Noisy()), list(told)) for given in calls]
