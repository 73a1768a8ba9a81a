"""Objects, classes, functions and containers of the user's that change between calls."""

from __future__ import annotations

import dataclasses
import enum
import functools
import types
import weakref
from collections.abc import Callable
from typing import Any

import torch

from .mutation import Build, Change, Program, add, both, entry, mutation, put, switched, without


class Thing:
    scale = 2.0
    step = 1.0

    def __init__(self) -> None:
        self.own = 2.0
        self.items = [1.0, 2.0]
        self.table = {"a": 1.0, "b": 2.0}

    def act(self, x: Any) -> Any:
        return x * 2

    @property
    def size(self) -> float:
        return 2.0

    @staticmethod
    def plain(x: Any) -> Any:
        return x * 3

    @classmethod
    def of_class(cls, x: Any) -> Any:
        return x * cls.scale

    def __add__(self, x: Any) -> Any:
        return x + 2

    def __call__(self, x: Any) -> Any:
        return x + 3

    def __len__(self) -> int:
        return 2

    def __getitem__(self, key: Any) -> float:
        return 2.0

    def __contains__(self, key: Any) -> bool:
        return True

    def __bool__(self) -> bool:
        return True


class Given:
    """A data descriptor."""

    def __get__(self, owner: Any, kind: Any = None) -> Any:
        return 7.0

    def __set__(self, owner: Any, value: Any) -> None: ...


_ON_THINGS: dict[str, Any] = {
    "own": lambda thing, x: x * thing.own,
    "scale": lambda thing, x: x * thing.scale,
    "act": lambda thing, x: thing.act(x),
    "size": lambda thing, x: x * thing.size,
    "plain": lambda thing, x: thing.plain(x),
    "of_class": lambda thing, x: thing.of_class(x),
    "__add__": lambda thing, x: thing + x,
    "__call__": lambda thing, x: thing(x),
    "__len__": lambda thing, x: x * len(thing),
    "__getitem__": lambda thing, x: x * thing["a"],
    "__contains__": lambda thing, x: x * (2 if 1 in thing else 3),
    "__bool__": lambda thing, x: x * (2 if thing else 3),
}
_OTHERS: dict[str, Any] = {
    "own": Given(),
    "scale": 5.0,
    "act": lambda self, x: x * 9,
    "size": property(lambda self: 5.0),
    "plain": staticmethod(lambda x: x * 9),
    "of_class": classmethod(lambda cls, x: x * 9),
    "__add__": lambda self, x: x * 9,
    "__call__": lambda self, x: x * 9,
    "__len__": lambda self: 5,
    "__getitem__": lambda self, key: 5.0,
    "__contains__": lambda self, key: False,
    "__bool__": lambda self: False,
}


def _of_class(name: str, on: str) -> Build:
    def build() -> tuple[Program, Change]:
        own = {k: v for k, v in vars(Thing).items() if k not in ("__dict__", "__weakref__")}
        base = type("Base", (), own)
        kind = type("Derived", (base,), {})
        thing, program = kind(), _ON_THINGS[name]
        owner = base if on == "base" else kind
        return lambda x: program(thing, x), lambda: put(owner, name, _OTHERS[name])

    return build


for _name in _ON_THINGS:
    for _on in ("base", "class"):
        add(f"{_on} attribute {_name}", _of_class(_name, _on))


@mutation
def an_instance_loses_an_attribute() -> tuple[Program, Change]:
    thing = Thing()
    thing.scale = 9.0
    return lambda x: x * thing.scale, lambda: without(thing, "scale")


@mutation
def the_class_of_an_instance() -> tuple[Program, Change]:
    class Other(Thing):
        def act(self, x: Any) -> Any:
            return x * 9

    thing = Thing()
    return lambda x: thing.act(x), lambda: switched(
        lambda kind: setattr(thing, "__class__", kind), Other, Thing
    )


@mutation
def the_bases_of_a_class() -> tuple[Program, Change]:
    class One:
        scale = 1.0

    class Two:
        scale = 2.0

    class Made(One): ...

    made = Made()
    return lambda x: x * made.scale, lambda: switched(
        lambda base: setattr(Made, "__bases__", (base,)), Two, One
    )


@mutation
def a_metaclass() -> tuple[Program, Change]:
    class Meta(type):
        rate = 2.0

    class Made(metaclass=Meta): ...

    return lambda x: x * Made.rate, lambda: put(Meta, "rate", 3.0)


@mutation
def instancecheck_of_a_metaclass() -> tuple[Program, Change]:
    class Meta(type): ...

    class Made(metaclass=Meta): ...

    thing = Thing()
    return lambda x: x * (2 if isinstance(thing, Made) else 3), lambda: put(
        Meta, "__instancecheck__", lambda cls, one: True
    )


@mutation
def the_getter_of_a_descriptor() -> tuple[Program, Change]:
    class Getter:
        def __get__(self, owner: Any, kind: Any = None) -> Any:
            return 2.0

    class Made:
        rate = Getter()

    made = Made()
    return lambda x: x * made.rate, lambda: put(Getter, "__get__", lambda *args: 3.0)


class Slotted:
    __slots__ = ("left", "right")

    def __init__(self) -> None:
        self.left, self.right = 2.0, 3.0


@mutation
def a_slot_is_emptied() -> tuple[Program, Change]:
    made = Slotted()
    change = lambda: both(  # noqa: E731
        lambda: delattr(made, "right"), lambda: setattr(made, "right", 3.0)
    )
    return lambda x: x * (made.right if hasattr(made, "right") else 7.0), change


@dataclasses.dataclass
class Config:
    scale: float = 2.0
    items: list[float] = dataclasses.field(default_factory=lambda: [1.0])


@dataclasses.dataclass(frozen=True)
class Frozen:
    scale: float = 2.0


@mutation
def a_field_of_a_frozen_dataclass() -> tuple[Program, Change]:
    config = Frozen()
    change = lambda value: object.__setattr__(config, "scale", value)  # noqa: E731
    return lambda x: x * config.scale, lambda: switched(change, 3.0, 2.0)


@mutation
def the_default_of_a_dataclass() -> tuple[Program, Change]:
    change = lambda value: setattr(Config.__init__, "__defaults__", value)  # noqa: E731
    old = Config.__init__.__defaults__ or ()
    return lambda x: x * Config().scale, lambda: switched(change, (3.0, *old[1:]), old)


class Color(enum.Enum):
    RED = 2.0
    BLUE = 3.0


class Number(enum.IntEnum):
    ONE = 1
    TWO = 2


class Bits(enum.Flag):
    A = 1
    B = 2


@mutation
def the_members_of_an_enum() -> tuple[Program, Change]:
    table = Color._value2member_map_
    return lambda x: x * (2 if Color(2.0) is Color.RED else 3), lambda: entry(
        table, 2.0, Color.BLUE
    )


_RED = Color.RED
_CHANGES: tuple[tuple[str, Callable[[], Any], Any, Any, str, Any], ...] = (
    # label, what is made, what reads it, whose attribute (None: its own) is what from then on
    ("a class learns getattr", Thing, lambda thing, x: x * getattr(thing, "missing", 2.0),
     Thing, "__getattr__", lambda self, name: 3.0),
    ("a class learns getattribute", Thing, lambda thing, x: x * thing.own,
     Thing, "__getattribute__", lambda self, name: 3.0),
    ("a slot", Slotted, lambda made, x: x * made.left, None, "left", 5.0),
    ("a slot is hidden", Slotted, lambda made, x: x * made.left,
     Slotted, "left", property(lambda self: 9.0)),
    ("a field of a dataclass", Config, lambda config, x: x * config.scale, None, "scale", 3.0),
    ("the value of an enum member", object, lambda _, x: x * Color.RED.value, _RED, "_value_", 9.0),
    ("the value of a member of an argument", lambda: types.SimpleNamespace(color=_RED),
     lambda holder, x: x * holder.color.value, _RED, "_value_", 9.0),
    ("the value of a member found by value", object, lambda _, x: x * Color(2.0).value,
     _RED, "_value_", 9.0),
    ("the value of members in a loop", object, lambda _, x: sum(x * one.value for one in Color),
     _RED, "_value_", 9.0),
    ("the name of an enum member", object, lambda _, x: (x, Color.RED.name),
     _RED, "_name_", "SCARLET"),
    ("the text of an enum member", object, lambda _, x: (x, str(Color.RED)),
     _RED, "_name_", "SCARLET"),
    ("the value of an int member", object, lambda _, x: x * Number.TWO.value,
     Number.TWO, "_value_", 9),
    ("the value of a flag", object, lambda _, x: x * (Bits.A | Bits.B).value,
     Bits.A, "_value_", 2),
    ("whether a flag is set", object, lambda _, x: x * (2 if Bits.A in Bits.B else 3),
     Bits.A, "_value_", 2),
    *((f"instance attribute {name}", Thing, _ON_THINGS[name], None, name, value)
      for name, value in (("own", 5.0), ("scale", 5.0),
                          ("act", lambda x: x * 9), ("plain", lambda x: x * 9))),
    *((f"instance attribute becomes {label}", Thing, _ON_THINGS["own"], None, "own", value)
      for label, value in (("int", 3), ("bool", True), ("nan", float("nan")), ("-0.0", -0.0))),
)  # fmt: skip


def _changed(make: Callable[[], Any], reads: Any, owner: Any, name: str, value: Any) -> Build:
    def build() -> tuple[Program, Change]:
        made = make()
        target = made if owner is None else owner
        return lambda x: reads(made, x), lambda: put(target, name, value)

    return build


for _label, *_row in _CHANGES:
    add(_label, _changed(*_row))


# ------------------------------------------------------------------------------------- functions


def _of_function(label: str, part: str, value: Any) -> None:
    def build() -> tuple[Program, Change]:
        def callee(x: Any, scale: Any = 2.0, *, step: Any = 1.0) -> Any:
            return x * scale + step

        old = getattr(callee, part)
        return lambda x: callee(x), lambda: switched(
            lambda one: setattr(callee, part, one), value, old
        )

    add(label, build)


_of_function("defaults of a callee", "__defaults__", (5.0,))
_of_function("keyword defaults of a callee", "__kwdefaults__", {"step": 5.0})


@mutation
def an_entry_of_keyword_defaults() -> tuple[Program, Change]:
    def callee(x: Any, *, step: Any = 1.0) -> Any:
        return x + step

    return lambda x: callee(x), lambda: entry(callee.__kwdefaults__, "step", 4.0)


@mutation
def a_mutable_default() -> tuple[Program, Change]:
    def callee(x: Any, steps: Any = [1.0]) -> Any:  # noqa: B006
        return x + steps[0]

    steps = (callee.__defaults__ or ())[0]
    return lambda x: callee(x), lambda: switched(lambda v: steps.__setitem__(0, v), 4.0, 1.0)


@mutation
def an_attribute_of_a_function() -> tuple[Program, Change]:
    def callee(x: Any) -> Any:
        return x * callee.scale  # type: ignore[attr-defined]

    callee.scale = 2.0  # type: ignore[attr-defined]
    return lambda x: callee(x), lambda: put(callee, "scale", 3.0)


@mutation
def a_closure() -> tuple[Program, Change]:
    scale = 2.0

    def change(value: float) -> None:
        nonlocal scale
        scale = value

    return lambda x: x * scale, lambda: switched(change, 3.0, 2.0)


@mutation
def a_closure_of_a_callee() -> tuple[Program, Change]:
    scale = 2.0

    def callee(x: Any) -> Any:
        return x * scale

    cell = (callee.__closure__ or ())[0]
    return lambda x: callee(x), lambda: switched(
        lambda value: setattr(cell, "cell_contents", value), 3.0, 2.0
    )


@mutation
def a_function_in_a_closure() -> tuple[Program, Change]:
    act: Any = torch.sin

    def change(value: Any) -> None:
        nonlocal act
        act = value

    return lambda x: act(x), lambda: switched(change, torch.cos, torch.sin)


@mutation
def the_keywords_of_a_partial() -> tuple[Program, Change]:
    made = functools.partial(lambda x, scale: x * scale, scale=2.0)
    return lambda x: made(x), lambda: entry(made.keywords, "scale", 3.0)


@mutation
def the_function_of_a_partial() -> tuple[Program, Change]:
    made = functools.partial(lambda scale, x: x * scale, 2.0)
    state = (made.func, made.args, made.keywords, {})
    other = (lambda scale, x: x + scale, (7.0,), {}, {})
    return lambda x: made(x), lambda: switched(made.__setstate__, other, state)  # type: ignore[attr-defined]


@mutation
def the_method_of_a_bound_method() -> tuple[Program, Change]:
    class Made:
        rate = 2.0

        def act(self, x: Any) -> Any:
            return x * self.rate

    made = Made()
    act = made.act
    return lambda x: act(x), lambda: put(made, "rate", 3.0)


@mutation
def a_cached_property() -> tuple[Program, Change]:
    class Made:
        @functools.cached_property
        def rate(self) -> float:
            return 2.0

    made = Made()
    assert made.rate == 2.0
    return lambda x: x * made.rate, lambda: put(made, "rate", 3.0)


@mutation
def the_target_of_a_weak_reference() -> tuple[Program, Change]:
    thing, other = Thing(), Thing()
    other.own = 9.0
    held = types.SimpleNamespace(ref=weakref.ref(thing), keep=(thing, other))
    return lambda x: x * held.ref().own, lambda: put(held, "ref", weakref.ref(other))


@mutation
def what_a_weak_reference_leads_to_changes() -> tuple[Program, Change]:
    thing = Thing()
    ref = weakref.ref(thing)
    return lambda x: x * ref().own, lambda: put(thing, "own", 3.0)  # type: ignore[union-attr]
