"""Named tuples: tuples with a class of their own.

Comes in: a live instance of a tuple subclass made by `namedtuple` or `typing.NamedTuple`, or a call of
`tuple.__new__` with such a class.  Goes out: fields by name, and the methods of the class, inlined.
"""

from __future__ import annotations

from collections.abc import Iterable

from ...guards.guard import TypeIs
from ...guards.source import Source, TypeOf
from ..breaks import GraphBreak, UnknownCFunction
from ..result import Recipe
from ..wrap import wraps
from .base import Args, Builder, Kwargs, Machine, Value
from .classes import NOTHING, ClassValue, bind, constructs
from .instances import OpaqueValue
from .sequences import TupleValue, wrap_items

__all__ = ["NamedTupleValue", "is_named_tuple"]

_OWN = ("__getitem__", "__iter__", "__len__", "__contains__", "__eq__", "__getattribute__", "__bool__")


def is_named_tuple(kind: type) -> bool:
    """Whether the class only names the fields of a tuple and leaves its protocols alone."""
    fields = getattr(kind, "_fields", None)
    untouched = all(getattr(kind, name, None) is getattr(tuple, name, None) for name in _OWN)
    return issubclass(kind, tuple) and isinstance(fields, tuple) and untouched


class NamedTupleValue(TupleValue):
    __slots__ = ("cls",)

    def __init__(self, cls: ClassValue, items: Iterable[Value], source: Source | None = None) -> None:
        super().__init__(items, source)
        self.cls = cls

    def python_type(self, machine: Machine) -> type:
        return self.cls.live

    def as_constant(self, machine: Machine) -> object:
        parts = [item.as_constant(machine) for item in self.realized(machine)]
        return tuple.__new__(self.cls.live, parts)

    def get_attr(self, machine: Machine, name: str) -> Value:
        fields = self.cls.live._fields  # type: ignore[attr-defined]
        if name in fields:
            return self.items[fields.index(name)]
        if name == "__class__":
            return self.cls
        raw, value = self.cls.find(machine, name)
        if raw is NOTHING or name in vars(tuple):
            return super().get_attr(machine, name)
        return bind(machine, raw, value, self, self.cls, name)

    def recipe(self, builder: Builder) -> Recipe:
        return builder.invoke(tuple.__new__, (builder(self.cls), super().recipe(builder)))

    def describe(self) -> str:
        return self.cls.live.__name__


@constructs(is_named_tuple)
def _construct(machine: Machine, cls: ClassValue, args: Args, kwargs: Kwargs) -> Value:
    raw, value = cls.find(machine, "__new__")
    if raw is tuple.__dict__["__new__"]:
        raise GraphBreak(UnknownCFunction.of(name=cls.live.__name__))
    function = bind(machine, raw, value, None, cls, "__new__").realize(machine)
    return function.call(machine, [cls, *args], kwargs)


@wraps(tuple, subclasses=True)
def _wrap_named_tuple(machine: Machine, obj: tuple[object, ...], source: Source) -> Value:
    kind = type(obj)
    machine.guard(TypeIs(source, kind))
    if not is_named_tuple(kind):
        return OpaqueValue(kind, source)
    return NamedTupleValue(
        machine.class_of(kind, TypeOf(source)), wrap_items(machine, obj, source), source
    )
