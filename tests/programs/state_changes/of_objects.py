"""Objects, classes, functions and containers of the user's that change between calls."""

from __future__ import annotations

import dataclasses
import enum
import functools
import types
import weakref
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


def _of_instance(name: str, value: Any) -> Build:
    def build() -> tuple[Program, Change]:
        thing, program = Thing(), _ON_THINGS[name]
        return lambda x: program(thing, x), lambda: put(thing, name, value)

    return build


for _name, _value in {
    "own": 5.0, "scale": 5.0, "act": lambda x: x * 9, "plain": lambda x: x * 9,
}.items():  # fmt: skip
    add(f"instance attribute {_name}", _of_instance(_name, _value))
for _label, _value in {"int": 2, "bool": True, "nan": float("nan"), "-0.0": -0.0}.items():
    add(f"instance attribute becomes {_label}", _of_instance("own", _value if _value != 2 else 3))


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
def a_class_learns_getattr() -> tuple[Program, Change]:
    thing = Thing()
    return lambda x: x * getattr(thing, "missing", 2.0), lambda: put(
        Thing, "__getattr__", lambda self, name: 3.0
    )


@mutation
def a_class_learns_getattribute() -> tuple[Program, Change]:
    thing = Thing()
    return lambda x: x * thing.own, lambda: put(Thing, "__getattribute__", lambda self, name: 3.0)


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
def a_slot() -> tuple[Program, Change]:
    made = Slotted()
    return lambda x: x * made.left, lambda: put(made, "left", 5.0)


@mutation
def a_slot_is_emptied() -> tuple[Program, Change]:
    made = Slotted()
    change = lambda: both(  # noqa: E731
        lambda: delattr(made, "right"), lambda: setattr(made, "right", 3.0)
    )
    return lambda x: x * (made.right if hasattr(made, "right") else 7.0), change


@mutation
def a_slot_is_hidden() -> tuple[Program, Change]:
    made = Slotted()
    return lambda x: x * made.left, lambda: put(Slotted, "left", property(lambda self: 9.0))


@dataclasses.dataclass
class Config:
    scale: float = 2.0
    items: list[float] = dataclasses.field(default_factory=lambda: [1.0])


@dataclasses.dataclass(frozen=True)
class Frozen:
    scale: float = 2.0


@mutation
def a_field_of_a_dataclass() -> tuple[Program, Change]:
    config = Config()
    return lambda x: x * config.scale, lambda: put(config, "scale", 3.0)


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
def the_value_of_an_enum_member() -> tuple[Program, Change]:
    return lambda x: x * Color.RED.value, lambda: put(Color.RED, "_value_", 9.0)


@mutation
def the_value_of_a_member_of_an_argument() -> tuple[Program, Change]:
    holder = types.SimpleNamespace(color=Color.RED)
    return lambda x: x * holder.color.value, lambda: put(Color.RED, "_value_", 9.0)


@mutation
def the_value_of_a_member_found_by_value() -> tuple[Program, Change]:
    return lambda x: x * Color(2.0).value, lambda: put(Color.RED, "_value_", 9.0)


@mutation
def the_value_of_members_in_a_loop() -> tuple[Program, Change]:
    return lambda x: sum(x * one.value for one in Color), lambda: put(Color.RED, "_value_", 9.0)


@mutation
def the_name_of_an_enum_member() -> tuple[Program, Change]:
    return lambda x: (x, Color.RED.name), lambda: put(Color.RED, "_name_", "SCARLET")


@mutation
def the_text_of_an_enum_member() -> tuple[Program, Change]:
    return lambda x: (x, str(Color.RED)), lambda: put(Color.RED, "_name_", "SCARLET")


@mutation
def the_value_of_an_int_member() -> tuple[Program, Change]:
    return lambda x: x * Number.TWO.value, lambda: put(Number.TWO, "_value_", 9)


@mutation
def the_value_of_a_flag() -> tuple[Program, Change]:
    return lambda x: x * (Bits.A | Bits.B).value, lambda: put(Bits.A, "_value_", 2)


@mutation
def whether_a_flag_is_set() -> tuple[Program, Change]:
    return lambda x: x * (2 if Bits.A in Bits.B else 3), lambda: put(Bits.A, "_value_", 2)


@mutation
def the_members_of_an_enum() -> tuple[Program, Change]:
    table = Color._value2member_map_
    return lambda x: x * (2 if Color(2.0) is Color.RED else 3), lambda: entry(
        table, 2.0, Color.BLUE
    )


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
