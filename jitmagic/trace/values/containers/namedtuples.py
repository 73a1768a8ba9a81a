"""Models named tuples and the struct sequences of torch.return_types.

Input: a live instance of a class that `namedtuple`, `typing.NamedTuple` or torch's C code defines,
or a call of `tuple.__new__` with such a class. Output: fields by name, and inlined methods.
"""

from __future__ import annotations

import collections
import typing
from collections.abc import Iterable
from typing import Any

from ....guards.guard import TypeIs
from ....guards.source import Source, TypeOf
from ...breaks import GraphBreak, UnknownCFunction
from ...result import Recipe
from ...wrap import wraps
from ..base import Args, Builder, Kwargs, Machine, Value
from ..objects.class_facts import NOTHING, attribute_of_class, guard_attribute, is_standard
from ..objects.classes import ClassValue, bind, constructs
from ..objects.opaque import OpaqueValue
from .list_store import wrap_items
from .sequences import StructuredTuple, TupleValue

__all__ = ["NamedTupleValue", "is_named_tuple"]

# The private C descriptor of the fields, `_tuplegetter`. A property that hides a field is not one,
# and is bound like any other attribute.
_FIELD = type(vars(collections.namedtuple("_Pair", "a b"))["a"])
_BASES = (tuple, object, typing.Generic)
# Special names in the classes that `namedtuple` and `typing.NamedTuple` create.
# `__replace__`, `__firstlineno__` and `__static_attributes__` exist since Python 3.13, those of
# deferred annotations since 3.14.
_USUAL = frozenset(
    "__annotate_func__ __annotations__ __annotations_cache__ __class_getitem__ __classdictcell__ "
    "__dict__ __doc__ __firstlineno__ __getnewargs__ __match_args__ __module__ __new__ "
    "__orig_bases__ __parameters__ __qualname__ __replace__ __repr__ __slots__ __slotnames__ "
    "__static_attributes__ __str__ __weakref__".split()
)


# Special methods that the model assumes to be those of tuple.
_PROTOCOLS = (
    "__getattribute__", "__getattr__", "__getitem__", "__iter__", "__len__", "__bool__",
    "__contains__", "__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__hash__",
    "__add__", "__radd__", "__mul__", "__rmul__", "__class__",
)  # fmt: skip


def is_named_tuple(kind: type) -> bool:
    """Return whether the class is a named tuple that overrides no special method of tuple."""
    if not issubclass(kind, tuple) or not isinstance(getattr(kind, "_fields", None), tuple):
        return False
    own = [base for base in kind.__mro__ if base not in _BASES]
    names = {name for base in own for name in vars(base)}
    return all(name in _USUAL for name in names if name.startswith("__") and name.endswith("__"))


def _is_structure(kind: Any) -> bool:
    """Return whether it is a struct sequence (torch.return_types) whose fields are all items."""
    # time.struct_time has 11 fields, of which 9 are items; os.stat_result has 3 without a name.
    known = "n_sequence_fields" in vars(kind) and kind.__mro__ == (kind, tuple, object)
    return known and kind.n_fields == kind.n_sequence_fields and not kind.n_unnamed_fields


class NamedTupleValue(TupleValue):
    __slots__ = ("cls",)

    def __init__(
        self, cls: ClassValue, items: Iterable[Value], source: Source | None = None
    ) -> None:
        super().__init__(items, source)
        self.cls = cls

    def python_type(self, machine: Machine) -> type:
        return self.cls.live

    def as_constant(self, machine: Machine) -> object:
        parts = [item.as_constant(machine) for item in self.realized(machine)]
        return tuple.__new__(self.cls.live, parts)

    def get_attr(self, machine: Machine, name: str) -> Value:
        kind = self.cls.live
        raw = attribute_of_class(kind, name)
        if isinstance(raw, _FIELD):
            guard_attribute(machine, kind, name, raw)
            item: Value = self.items[kind._fields.index(name)]  # type: ignore[attr-defined]
            return item
        raw, value = self.cls.find(machine, name)
        if raw is NOTHING or name in vars(tuple):
            return super().get_attr(machine, name)
        return bind(machine, raw, value, self, self.cls, name)

    def recipe(self, builder: Builder) -> Recipe:
        # The trace has inlined a `__new__` in Python already; a call of the class would repeat it.
        return builder.invoke(tuple.__new__, (builder(self.cls), super().recipe(builder)))

    def describe(self) -> str:
        return self.cls.live.__name__


def _guard_protocols(machine: Machine, kind: type) -> None:
    for name in _PROTOCOLS:
        assert is_standard(machine, kind, name)


@constructs(is_named_tuple)
def _construct(machine: Machine, cls: ClassValue, args: Args, kwargs: Kwargs) -> Value:
    raw, value = cls.find(machine, "__new__")
    if raw is tuple.__dict__["__new__"]:
        raise GraphBreak(UnknownCFunction.of(name=cls.live.__name__))
    _guard_protocols(machine, cls.live)
    function: Value = bind(machine, raw, value, None, cls, "__new__").realize(machine)
    return function.call(machine, [cls, *args], kwargs)


@wraps(tuple, subclasses=True)
def _wrap_named_tuple(machine: Machine, obj: tuple[object, ...], source: Source) -> Value:
    kind = type(obj)
    machine.guard(TypeIs(source, kind))
    if _is_structure(kind):
        return StructuredTuple(kind, wrap_items(machine, obj, source), source)
    if not is_named_tuple(kind):
        return OpaqueValue(kind, source, obj)
    _guard_protocols(machine, kind)
    return NamedTupleValue(
        machine.class_of(kind, TypeOf(source)), wrap_items(machine, obj, source), source
    )
