"""Models enum members and enum classes.

Input: a member, guarded by identity, or an enum class. Output: members, folded operations on them
and inlined calls of user-defined methods. A member is a constant only if the user overrides none of
its special methods, since folding would run that code while tracing. Its name and value are guarded
where they are read, because user code can assign `_name_` and `_value_`.
"""

from __future__ import annotations

import enum
import operator
import types
from collections.abc import Iterator
from typing import Any

from ....guards.guard import IdentityIs, KeyAbsent, NameFact, NamespaceFacts, ValueEquals
from ....guards.source import InstanceDict, Item, Source, TypeAttr, TypeOf
from ...result import Constant, Recipe
from ...wrap import by_identity, wraps
from ..base import Args, Builder, Kwargs, Machine, Value
from ..containers.iterators import StepIterator
from ..containers.keys import is_user_code, user_key
from ..containers.mappings import entries_of_live
from ..containers.read_only import ReadOnlyTable
from .class_facts import NOTHING, attribute_of_class, guarded_attribute
from .classes import HEAP_TYPE, ClassValue, bind, models_classes_of
from .constants import ATOMS, BINARY, COMPARE, UNARY, ConstantMethodValue, ConstantValue, fold
from .special_methods import BINARY_METHODS, COMPARE_METHODS, UNARY_METHODS, by_special, implemented

__all__ = ["EnumClassValue", "EnumValue", "without_enum"]

# These run when the class or its members are created, and no folded operation calls them.
# EnumValue.call inlines a member's `__call__`.
_MAKING = frozenset(("__new__", "__init__", "__init_subclass__", "__set_name__", "__call__"))
_C_METHODS = (types.WrapperDescriptorType, types.MethodDescriptorType)


_FOLDED = (
    *(f"__{side}{name}__" for name in BINARY_METHODS.values() for side in ("", "r")),
    *(f"__{name}__" for name in (*COMPARE_METHODS.values(), *UNARY_METHODS.values())),
    *("__hash__", "__bool__", "__len__", "__str__", "__repr__", "__format__", "__index__"),
    *("__int__", "__float__", "__iter__", "__contains__", "__getitem__"),
)


def _folds(machine: Machine, kind: type) -> bool:
    """Return whether members have no user-defined special method; guarded if True."""
    if _has_own_methods(kind):
        return False
    for name in _FOLDED:
        guarded_attribute(machine, kind, name)
    return True


def _has_own_methods(kind: type) -> bool:
    own = [base for base in kind.__mro__ if base.__flags__ & HEAP_TYPE]
    parts = [(name, part) for base in own for name, part in vars(base).items()]
    return any(
        name[:2] == name[-2:] == "__" and name not in _MAKING and is_user_code(part)
        for name, part in parts
    )


def _is_plain(machine: Machine, operand: Value) -> bool:
    """Return whether a method of a built-in class can use the operand without user code."""
    is_atom = isinstance(operand, EnumValue) and isinstance(operand.value, (int, float, str, bytes))
    return is_atom or operand.is_constant(machine)


def _looks_up_plainly(kind: type) -> bool:
    """Return whether `kind(value)` runs no user code."""
    return not is_user_code(attribute_of_class(kind, "_missing_"))


class EnumValue(Value):
    """A member of an enum; `origin` is its source, or else its path through the enum class."""

    __slots__ = ("_folds", "origin", "value")
    by_identity = True

    def __init__(
        self, value: enum.Enum, source: Source | None = None, origin: Source | None = None
    ) -> None:
        super().__init__(source)
        self.value = value
        self.origin = source or origin
        self._folds: bool | None = None  # computed by `is_constant`

    def python_type(self, machine: Machine) -> type:
        return type(self.value)

    def is_constant(self, machine: Machine) -> bool:
        if self._folds is None:
            self._folds = _folds(machine, type(self.value))
        return self._folds

    def as_constant(self, machine: Machine) -> object:
        self._guard_entry(machine, "_name_")
        self._guard_entry(machine, "_value_")
        return self.value

    def _guard_entry(self, machine: Machine, name: str) -> None:
        """Guard an entry of the member's own dictionary."""
        table = vars(self.value)
        if self.origin is None:
            machine.guard(NamespaceFacts(table, (NameFact(name, table[name]),)))
            return
        path = Item(InstanceDict(self.origin), name)
        exact = type(table[name]) in ATOMS
        machine.guard((ValueEquals if exact else IdentityIs)(path, table[name]))

    def identity(self) -> object:
        return self.value

    def hash_key(self, machine: Machine) -> object:
        methods = [
            guarded_attribute(machine, type(self.value), name) for name in ("__hash__", "__eq__")
        ]
        return user_key(machine, self, self) if any(map(is_user_code, methods)) else self.value

    # -- attributes ------------------------------------------------------------------------------

    def cls(self, machine: Machine) -> ClassValue:
        value = machine.class_of(
            type(self.value), None if self.origin is None else TypeOf(self.origin)
        )
        assert isinstance(value, ClassValue)
        return value

    def get_attr(self, machine: Machine, name: str) -> Value:
        if is_user_code(guarded_attribute(machine, type(self.value), "__getattribute__")):
            self.refuse(machine, f"attribute {name!r}")
        raw = guarded_attribute(machine, type(self.value), name)
        # enum.property reads the entries `_name_` and `_value_` of the member.
        if name in ("name", "value") and raw is vars(enum.Enum)[name]:
            name = f"_{name}_"
            raw = guarded_attribute(machine, type(self.value), name)
        if name in vars(self.value) and not isinstance(raw, property):
            return self._part(machine, name)
        if raw is NOTHING:
            return self._missing(machine, name)
        if isinstance(raw, types.MethodDescriptorType) and not name.startswith("__"):
            return ConstantMethodValue(self, name)  # a method of its mixed-in str or int
        if isinstance(raw, _C_METHODS) or getattr(raw, "__module__", None) == "enum":
            if not self.is_constant(machine) or not callable(raw):
                self.refuse(machine, f"attribute {name!r}")
            return ConstantMethodValue(self, name)
        attribute, value = self.cls(machine).find(machine, name)
        return bind(machine, attribute, value, self, self.cls(machine), name)

    def _part(self, machine: Machine, name: str) -> Value:
        """Read the member's own dictionary: atoms are guarded by value, other objects lazily."""
        table = vars(self.value)
        if self.origin is not None:
            entries = entries_of_live(machine, table, InstanceDict(self.origin))
            return entries.store.get(name) or self._missing(machine, name)
        content = table[name]
        if type(content) in ATOMS or isinstance(content, enum.Enum):
            self._guard_entry(machine, name)
            return machine.constant(content)
        self.refuse(machine, f"attribute {name!r}")

    def _missing(self, machine: Machine, name: str) -> Value:
        if guarded_attribute(machine, type(self.value), "__getattr__") is not NOTHING:
            self.refuse(machine, f"attribute {name!r}")
        message = f"'{type(self.value).__name__}' object has no attribute '{name}'"
        raise machine.error(AttributeError, message)

    # -- special methods -------------------------------------------------------------------------

    def special(self, machine: Machine, name: str, *args: Value) -> Value | None:
        """Return `type(self).__name__(self, *args)`, or None if only `object` defines it.

        A user-defined method is inlined; one of a built-in type is folded with constant arguments.
        """
        raw = guarded_attribute(machine, type(self.value), name)
        if raw is NOTHING or raw is attribute_of_class(object, name):
            return None
        if isinstance(raw, _C_METHODS) and all(_is_plain(machine, arg) for arg in args):
            return fold(machine, raw, self, *args)
        if not is_user_code(raw):
            self.refuse(machine, name)
        cls = self.cls(machine)
        found, value = cls.find(machine, name)
        method = bind(machine, found, value, self, cls, name).realize(machine)
        return method.call(machine, list(args), {}).realize(machine)

    def binary(
        self, machine: Machine, op: str, other: Value, *, reflected: bool = False
    ) -> Value | None:
        if not self.is_constant(machine):
            name = f"__{'r' if reflected else ''}{BINARY_METHODS[op]}__"
            return implemented(self.special(machine, name, other))
        if not other.is_constant(machine):
            return None
        # Flag computes `a | b` as `cls(value)`, which calls `_missing_` for a combination without a
        # member. In fold, the user's code would run at trace time.
        if not _looks_up_plainly(type(self.value)):
            self.refuse(machine, f"operator {op}")
        left, right = (other, self) if reflected else (self, other)
        return fold(machine, BINARY[op], left, right)

    def compare(
        self, machine: Machine, op: str, other: Value, *, reflected: bool = False
    ) -> Value | None:
        if not self.is_constant(machine):
            return by_special(machine, self, op, other)
        # Enum has no `__eq__`: members compare by identity, but those of an IntEnum as ints.
        if type(self.value).__eq__ is not object.__eq__ or op not in ("==", "!="):
            return fold(machine, COMPARE[op], self, other) if other.is_constant(machine) else None
        same = isinstance(other, EnumValue) and other.value is self.value
        return (
            None
            if not same and not other.is_constant(machine)
            else machine.constant(same == (op == "=="))
        )

    def unary(self, machine: Machine, op: str) -> Value:
        if self.is_constant(machine) and _looks_up_plainly(type(self.value)):
            return fold(machine, UNARY[op], self)
        result = self.special(machine, f"__{UNARY_METHODS[op]}__")
        if result is None:
            raise machine.error(TypeError, f"bad operand type for unary {op}")
        return result

    def truth(self, machine: Machine) -> bool:
        if self.is_constant(machine):
            return bool(self.as_constant(machine))  # an IntEnum or Flag has the truth of its value
        for name in ("__bool__", "__len__"):
            result = self.special(machine, name)
            if result is not None:
                return result.truth(machine)
        return True

    def contains(self, machine: Machine, item: Value) -> Value:
        if self._is_folded_with(machine, item):
            return fold(machine, operator.contains, self, item)
        result = self.special(machine, "__contains__", item)
        if result is None:
            self.refuse(machine, "`in`")
        return machine.constant(result.truth(machine))

    def get_item(self, machine: Machine, key: Value) -> Value:
        if self._is_folded_with(machine, key):
            return fold(machine, operator.getitem, self, key)
        result = self.special(machine, "__getitem__", key)
        if result is None:
            self.refuse(machine, "indexing")
        return result

    def _is_folded_with(self, machine: Machine, other: Value) -> bool:
        return self.is_constant(machine) and other.is_constant(machine)

    def length(self, machine: Machine) -> int:
        if not self.is_constant(machine):
            self.refuse(machine, "len()")
        return int(fold(machine, len, self).as_constant(machine))

    def iterate(self, machine: Machine) -> Value:
        """Return an iterator over the letters of a StrEnum or the members of a Flag."""
        value: object = self.as_constant(machine)
        if not self.is_constant(machine) or not isinstance(value, str | enum.Flag):
            self.refuse(machine, "iteration")
        return StepIterator(machine, type(iter(value)), (machine.constant(item) for item in value))

    def call(self, machine: Machine, args: Args, kwargs: Kwargs) -> Value:
        cls = self.cls(machine)
        found, value = cls.find(machine, "__call__")
        if not is_user_code(found):
            self.refuse(machine, "a call")
        method = bind(machine, found, value, self, cls, "__call__").realize(machine)
        return method.call(machine, args, kwargs)

    def recipe(self, builder: Builder) -> Recipe:
        return Constant(self.value)

    def describe(self) -> str:
        return f"a member of {type(self.value).__name__}"


def without_enum(constant: object) -> object:
    """Return an IntEnum or StrEnum member as a plain int or str; other constants unchanged."""
    base = next((kind for kind in (int, float, str) if isinstance(constant, kind)), None)
    return base(constant._value_) if base and isinstance(constant, enum.Enum) else constant


@models_classes_of(enum.EnumMeta)
class EnumClassValue(ClassValue):
    """An enum class; its list of members is not guarded."""

    __slots__ = ()
    live: Any

    def get_attr(self, machine: Machine, name: str) -> Value:
        if name == "__members__" and _MEMBERS is guarded_attribute(machine, type(self.live), name):
            return MembersValue(machine, self)
        return super().get_attr(machine, name)

    def _from_metaclass(self, machine: Machine, name: str) -> Value:
        """Raise AttributeError(name) as `EnumMeta.__getattr__` does, which exists until 3.11."""
        looks_up = self.metaclass_attribute(machine, "__getattr__") is _LOOKUP  # finds no dunders
        is_special = name[:2] == name[-2:] == "__"
        if looks_up and is_special and self.metaclass_attribute(machine, name) is NOTHING:
            raise machine.error(AttributeError, name)
        return super()._from_metaclass(machine, name)

    def member(self, member: enum.Enum) -> EnumValue:
        """Return the value of a member, with the path through the class as its origin."""
        # A combination of flags (`A | B`) is not in `_member_map_`, so it has no such path.
        if self.source is None or self.live._member_map_.get(member._name_) is not member:
            return EnumValue(member)
        table = TypeAttr(self.source, "_member_map_")
        return EnumValue(member, origin=Item(table, member._name_))

    def call(self, machine: Machine, args: Args, kwargs: Kwargs) -> Value:
        """Look a member up by its value."""
        plain = len(args) == 1 and not kwargs and self.live._member_names_
        member = args[0].realize(machine) if plain else None
        if isinstance(member, EnumValue) and type(member.value) is self.live:
            return member  # Enum.__new__ tests the class alone
        if member is None or not member.is_constant(machine):
            self.refuse(machine, "such a call")
        key = args[0].realize(machine).as_constant(machine)
        # Enum.__new__ compares an unhashable value with all members; an atom is always hashable.
        known = ATOMS.count(type(key)) and key in self.live._value2member_map_
        if not known and not _looks_up_plainly(self.live):
            self.refuse(machine, "a lookup that calls _missing_")
        self._guard_entry(machine, "_value2member_map_", key)
        return self._member_of(machine, fold(machine, self.live, args[0].realize(machine)))

    def get_item(self, machine: Machine, key: Value) -> Value:
        if not isinstance(key, ConstantValue):
            self.refuse(machine, "subscription")
        self._guard_entry(machine, "_member_map_", key.value)
        return self._member_of(machine, fold(machine, lambda name: self.live[name], key))

    def _guard_entry(self, machine: Machine, table: str, key: object) -> None:
        """Guard the member that a table of the class has under a key, or its absence."""
        if self.source is None or type(key) not in ATOMS:
            return
        path, members = TypeAttr(self.source, table), getattr(self.live, table)
        if key in members:
            machine.guard(IdentityIs(Item(path, key), members[key]))
        else:
            machine.guard(KeyAbsent(path, key))

    def _member_of(self, machine: Machine, found: Value) -> Value:
        return self.member(found.value) if isinstance(found, EnumValue) else found

    def iterate(self, machine: Machine) -> Value:
        def steps() -> Iterator[Value]:
            for member in self.live:
                yield self.member(member)

        return StepIterator(machine, types.GeneratorType, steps())

    def length(self, machine: Machine) -> int:
        return len(self.live)

    def contains(self, machine: Machine, item: Value) -> Value:
        if not isinstance(item, EnumValue):  # CPython before 3.12 raises TypeError for non-members
            self.refuse(machine, "`in`")
        return machine.constant(item.value in self.live)

    def truth(self, machine: Machine) -> bool:
        return True


_MEMBERS = vars(enum.EnumMeta)["__members__"]
_LOOKUP = vars(enum.EnumMeta).get("__getattr__")


class MembersValue(ReadOnlyTable):
    """The mapping `cls.__members__` from names and aliases to members."""

    __slots__ = ("owner",)

    def __init__(self, machine: Machine, owner: EnumClassValue) -> None:
        found = owner.live.__members__.items()
        pairs = ((machine.constant(name), owner.member(member)) for name, member in found)
        super().__init__(machine, pairs)
        self.owner = owner

    def recipe(self, builder: Builder) -> Recipe:
        return builder.invoke(getattr, (builder(self.owner), builder.constant("__members__")))


wraps(enum.Enum, subclasses=True)(by_identity(EnumValue))
