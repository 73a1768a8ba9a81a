"""Instances of plain Python classes: attributes, special methods, construction.

Comes in: a live object (guarded by exact type, attributes read from its `__dict__` or slots) or one
the traced code makes.  Goes out: what its methods, inlined, return; attribute writes as effects.
"""

from __future__ import annotations

import itertools
import types
from collections.abc import Iterable, Iterator

from ...guards.guard import KeyAbsent, TypeIs
from ...guards.source import InstanceDict, Item, SlotAttr, Source, TypeOf
from ..breaks import GraphBreak, UnknownObject
from ..result import Effect, NewInstance, Recipe
from ..tables import Face
from ..wrap import wraps
from .attribute_dicts import NamespaceValue
from .base import Args, Builder, Kwargs, Machine, ObservedError, Value
from .classes import (
    NOTHING,
    PLAIN_BASES,
    ClassValue,
    attribute_of_class,
    bind,
    constructs,
    is_data_descriptor,
    is_plain_class,
)
from .constants import ConstantValue
from .iterators import StepIterator
from .operators import drain, equal

__all__ = ["InstanceValue", "OpaqueValue", "construct"]

_C_METHODS = (types.WrapperDescriptorType, types.MethodDescriptorType)
_OPERATORS = {
    "+": "add", "-": "sub", "*": "mul", "/": "truediv", "//": "floordiv", "%": "mod", "**": "pow",
    "@": "matmul", "&": "and", "|": "or", "^": "xor", "<<": "lshift", ">>": "rshift",
}  # fmt: skip
_COMPARISONS = {"==": "eq", "!=": "ne", "<": "lt", "<=": "le", ">": "gt", ">=": "ge"}
_UNARY = {"-": "neg", "+": "pos", "~": "invert"}


class _Sequence:
    def __getitem__(self, index: int) -> None: ...


class InstanceValue(Value):
    """An object of a plain class. `attrs` holds what is known or written; None: deleted."""

    __slots__ = ("_namespace", "attrs", "cls", "live")

    def __init__(self, cls: ClassValue, live: object = None, source: Source | None = None) -> None:
        super().__init__(source)
        self.cls = cls
        self.live = live
        self.attrs: dict[str, Value | None] = {}
        self._namespace: NamespaceValue | None = None

    def python_type(self, machine: Machine) -> type:
        return self.cls.live

    def hash_key(self, machine: Machine) -> object:
        if attribute_of_class(self.cls.live, "__hash__") is not object.__hash__:
            self.refuse(machine, "hash()")
        for name in ("__hash__", "__eq__"):
            self.cls.find_surely(machine, name)
        machine.keep_apart(self)
        return self

    # -- attributes ------------------------------------------------------------------------------

    def get_attr(self, machine: Machine, name: str) -> Value:
        """`type(self).__getattribute__`, and where that finds nothing `__getattr__`."""
        try:
            if _is_plain(self.cls.live, "__getattribute__"):
                return self.plain_attr(machine, name)
            return self._by_class(machine, "__getattribute__", name)
        except ObservedError as observed:
            if not issubclass(observed.error.python_type(machine), AttributeError):
                raise
            if self.cls.find_surely(machine, "__getattr__")[0] is NOTHING:
                raise
        return self._by_class(machine, "__getattr__", name)

    def _by_class(self, machine: Machine, method: str, name: str) -> Value:
        """What a method of the class, written in Python, makes of an attribute's name."""
        raw, value = self.cls.find(machine, method)
        bound = bind(machine, raw, value, self, self.cls, method).realize(machine)
        return bound.call(machine, [machine.constant(name)], {})

    def plain_attr(self, machine: Machine, name: str) -> Value:
        """`object.__getattribute__(self, name)`."""
        if name == "__class__":
            return self.cls
        if name == "__dict__":
            return self.namespace(machine)
        raw, value = self.cls.find(machine, name)
        if raw is not NOTHING and is_data_descriptor(raw):
            return self._slot_or_bound(machine, raw, value, name)
        own = self.own(machine, name)
        if own is not None:
            return own
        if raw is not NOTHING:
            return bind(machine, raw, value, self, self.cls, name)
        raise self._missing(machine, name)

    def namespace(self, machine: Machine) -> Value:
        """`self.__dict__`."""
        kind = self.cls.live
        parts = (part for base in kind.__mro__ for part in vars(base).values())
        if not kind.__dictoffset__ or any(isinstance(p, types.MemberDescriptorType) for p in parts):
            self.refuse(machine, "attribute '__dict__'")
        if self._namespace is None:
            self._namespace = NamespaceValue(machine, self)
        return self._namespace

    def dict_entry(self, machine: Machine, name: str) -> Value | None:
        """`self.__dict__.get(name)`."""
        return self.own(machine, name)

    def _slot_or_bound(self, machine: Machine, raw: object, value: Value, name: str) -> Value:
        if not isinstance(raw, types.MemberDescriptorType):
            return bind(machine, raw, value, self, self.cls, name)
        own = self.own(machine, name)
        if own is None:
            raise self._missing(machine, name)
        return own

    def _missing(self, machine: Machine, name: str) -> ObservedError:
        self.cls.find_surely(machine, name)
        message = f"'{self.cls.live.__name__}' object has no attribute '{name}'"
        return machine.error(AttributeError, message)

    def own(self, machine: Machine, name: str) -> Value | None:
        """The instance's own entry under `name` (dictionary or slot), if it has one."""
        if name not in self.attrs:
            self.attrs[name] = self._live_entry(machine, name)
        return self.attrs[name]

    def _live_entry(self, machine: Machine, name: str) -> Value | None:
        if self.source is None:
            return None
        slot = attribute_of_class(self.cls.live, name)
        if isinstance(slot, types.MemberDescriptorType):
            try:
                content = slot.__get__(self.live)
            except AttributeError:
                raise GraphBreak(
                    UnknownObject.of(what="an empty slot", type=self.describe())
                ) from None
            return machine.lazy(content, SlotAttr(self.source, name), certain=False)
        if not self.cls.live.__dictoffset__:
            return None
        table = self.use_table(machine)
        if name not in table:
            machine.guard(KeyAbsent(InstanceDict(self.source), name))
            return None
        return machine.lazy(table[name], Item(InstanceDict(self.source), name), certain=False)

    def use_table(self, machine: Machine, *, changing: bool = False) -> dict[str, object]:
        """The live object's dictionary, about to be read or changed."""
        table: dict[str, object] = object.__getattribute__(self.live, "__dict__")
        machine.tables.use(id(table), Face.NAMESPACE, changing=changing)
        return table

    def set_attr(self, machine: Machine, name: str, value: Value) -> None:
        if not _is_plain(self.cls.live, "__setattr__"):
            raw, setter = self.cls.find(machine, "__setattr__")
            bound = bind(machine, raw, setter, self, self.cls, "__setattr__").realize(machine)
            bound.call(machine, [machine.constant(name), value], {})
            return
        self.store_attr(machine, name, value)

    def store_attr(self, machine: Machine, name: str, value: Value | None) -> None:
        """`object.__setattr__` (None: `__delattr__`): data descriptors first, then the own
        entry."""
        raw, descriptor = self.cls.find(machine, name)
        member = isinstance(raw, types.MemberDescriptorType)
        if raw is not NOTHING and is_data_descriptor(raw) and not member:
            self._through_descriptor(machine, raw, descriptor, name, value)
            return
        if not member and not self.cls.live.__dictoffset__:
            message = f"'{self.cls.live.__name__}' object has no attribute '{name}'"
            raise machine.error(AttributeError, message)
        if self.source is not None and not member:
            self.use_table(machine, changing=True)
        if value is None:
            if (old := self.own(machine, name)) is None:
                raise machine.error(AttributeError, name)
            old.realize(machine)  # the guard that there is one: nobody else looks at it
            del self.attrs[name]  # a new object sees its keys in the order they were set last
            if self.source is not None:
                self.attrs[name] = None
            machine.effects.del_attr(self, name)
        else:
            self.attrs[name] = value
            machine.effects.set_attr(self, name, value)

    def _through_descriptor(
        self, machine: Machine, raw: object, descriptor: Value, name: str, value: Value | None
    ) -> None:
        if not isinstance(raw, property) or descriptor.source is None:
            self.refuse(machine, f"setting attribute {name!r}")
        part = "fdel" if value is None else "fset"
        function = getattr(raw, part)
        if function is None:
            message = f"property '{name}' of '{self.cls.live.__name__}' object has no setter"
            raise machine.error(AttributeError, message)
        descriptor.realize(machine)
        method = machine.wrap(function, SlotAttr(descriptor.source, part))
        method.call(machine, [self] if value is None else [self, value], {})

    def del_attr(self, machine: Machine, name: str) -> None:
        if not _is_plain(self.cls.live, "__delattr__"):
            self.refuse(machine, f"deleting attribute {name!r}")
        self.store_attr(machine, name, None)

    # -- special methods -------------------------------------------------------------------------

    def special(self, machine: Machine, name: str, *args: Value) -> Value | None:
        """`type(self).__name__(self, *args)`, realized; None: the class has none that Python code
        wrote."""
        raw, value = self.cls.find_surely(machine, name)
        if isinstance(raw, _C_METHODS) and raw.__objclass__ is not object:
            self.refuse(machine, name)
        if raw is NOTHING or isinstance(raw, _C_METHODS):
            return None
        method = bind(machine, raw, value, self, self.cls, name).realize(machine)
        return method.call(machine, list(args), {}).realize(machine)

    def _required(self, machine: Machine, name: str, *args: Value) -> Value:
        result = self.special(machine, name, *args)
        if result is None:
            message = f"'{self.cls.live.__name__}' object has no {name}"
            raise machine.error(TypeError, message)
        return result

    def call(self, machine: Machine, args: Args, kwargs: Kwargs) -> Value:
        raw, value = self.cls.find_surely(machine, "__call__")
        if raw is NOTHING:
            message = f"'{self.cls.live.__name__}' object is not callable"
            raise machine.error(TypeError, message)
        method = bind(machine, raw, value, self, self.cls, "__call__").realize(machine)
        return method.call(machine, args, kwargs)

    def get_item(self, machine: Machine, key: Value) -> Value:
        return self._required(machine, "__getitem__", key)

    def set_item(self, machine: Machine, key: Value, value: Value) -> None:
        self._required(machine, "__setitem__", key, value)

    def del_item(self, machine: Machine, key: Value) -> None:
        self._required(machine, "__delitem__", key)

    def length(self, machine: Machine) -> int:
        found = self._required(machine, "__len__").as_constant(machine)
        if not isinstance(found, int) or found < 0:
            self.refuse(machine, "len()")
        return int(found)

    def contains(self, machine: Machine, item: Value) -> Value:
        result = self.special(machine, "__contains__", item)
        if result is not None:
            return machine.constant(result.truth(machine))
        items = drain(machine, self.iterate(machine).realize(machine))
        return machine.constant(any(equal(machine, one, item) for one in items))

    def iterate(self, machine: Machine) -> Value:
        result = self.special(machine, "__iter__")
        if result is not None:
            return result
        if self.cls.find(machine, "__getitem__")[0] is NOTHING:
            self.refuse(machine, "iteration")
        return StepIterator(
            machine, type(iter(_Sequence())), self._items(machine, itertools.count())
        )

    def backwards(self, machine: Machine) -> Value:
        """What `reversed` makes of the object."""
        result = self.special(machine, "__reversed__")
        if result is not None:
            return result
        last = self.length(machine) - 1
        return StepIterator(machine, reversed, self._items(machine, range(last, -1, -1)))

    def _items(self, machine: Machine, indices: Iterable[int]) -> Iterator[Value]:
        """The sequence protocol: items until there is none."""
        for index in indices:
            try:
                yield self.get_item(machine, machine.constant(index))
            except ObservedError as observed:
                if observed.error.python_type(machine) in (IndexError, StopIteration):
                    return
                raise

    def next(self, machine: Machine) -> Value | None:
        try:
            return self._required(machine, "__next__")
        except ObservedError as observed:
            if observed.error.python_type(machine) is StopIteration:
                return None
            raise

    def truth(self, machine: Machine) -> bool:
        for name in ("__bool__", "__len__"):
            result = self.special(machine, name)
            if result is not None:
                return result.truth(machine)
        return True

    def binary(
        self, machine: Machine, op: str, other: Value, *, reflected: bool = False
    ) -> Value | None:
        name = f"__{'r' if reflected else ''}{_OPERATORS[op]}__"
        return _implemented(self.special(machine, name, other))

    def inplace(self, machine: Machine, op: str, other: Value) -> Value | None:
        return _implemented(self.special(machine, f"__i{_OPERATORS[op]}__", other))

    def compare(
        self, machine: Machine, op: str, other: Value, *, reflected: bool = False
    ) -> Value | None:
        result = _implemented(self.special(machine, f"__{_COMPARISONS[op]}__", other))
        if result is None and op == "!=":  # object.__ne__ inverts __eq__
            same = _implemented(self.special(machine, "__eq__", other))
            return None if same is None else machine.constant(not same.truth(machine))
        return result

    def unary(self, machine: Machine, op: str) -> Value:
        return self._required(machine, f"__{_UNARY[op]}__")

    def enter(self, machine: Machine) -> tuple[Value, Value]:
        raw, value = self.cls.find(machine, "__exit__")
        if raw is NOTHING:
            self.refuse(machine, "with")
        leave = bind(machine, raw, value, self, self.cls, "__exit__").realize(machine)
        return leave, self._required(machine, "__enter__")

    # -- exits -----------------------------------------------------------------------------------

    def recipe(self, builder: Builder) -> Recipe:
        built_in = next(base for base in self.cls.live.__mro__ if base in PLAIN_BASES)
        if built_in is object:
            return NewInstance(builder(self.cls))
        return builder.invoke(built_in.__new__, (builder(self.cls),))

    def fill(self, builder: Builder) -> Iterable[Effect]:
        """The attributes of a new object."""
        for name, value in self.attrs.items():
            if value is not None:
                yield builder.set_attr(self, name, value)

    def parts(self) -> Iterable[Value]:
        return [value for value in self.attrs.values() if value is not None]

    def describe(self) -> str:
        return f"{self.cls.live.__name__} object"


def _is_plain(kind: type, name: str) -> bool:
    """Whether the class leaves attribute access to C code that does what object's does."""
    bases = (*PLAIN_BASES, dict)
    return attribute_of_class(kind, name) in [vars(base).get(name) for base in bases]


def _implemented(result: Value | None) -> Value | None:
    if isinstance(result, ConstantValue) and result.value is NotImplemented:
        return None
    return result


class OpaqueValue(Value):
    """An object of a type nobody models: it can be passed on and compared by identity, no more."""

    __slots__ = ("kind",)
    opaque = True

    def __init__(self, kind: type, source: Source | None = None) -> None:
        super().__init__(source)
        self.kind = kind

    def python_type(self, machine: Machine) -> type:
        return self.kind

    def binary(
        self, machine: Machine, op: str, other: Value, *, reflected: bool = False
    ) -> Value | None:
        self.refuse(machine, f"operator {op}")

    def compare(
        self, machine: Machine, op: str, other: Value, *, reflected: bool = False
    ) -> Value | None:
        self.refuse(machine, f"comparison {op}")

    def describe(self) -> str:
        return f"{self.kind.__module__}.{self.kind.__qualname__} object"


@wraps(object, subclasses=True)
def _wrap_instance(machine: Machine, obj: object, source: Source) -> Value:
    kind = type(obj)
    machine.guard(TypeIs(source, kind))
    if not is_plain_class(kind):
        return OpaqueValue(kind, source)
    return InstanceValue(machine.class_of(kind, TypeOf(source)), obj, source)


@constructs(is_plain_class)
def _construct(machine: Machine, cls: ClassValue, args: Args, kwargs: Kwargs) -> Value:
    return construct(machine, cls, args, kwargs, InstanceValue)


def construct(
    machine: Machine, cls: ClassValue, args: Args, kwargs: Kwargs, model: type[InstanceValue]
) -> Value:
    """`cls(*args, **kwargs)` as type.__call__ does it; `model` is what such objects become."""
    if attribute_of_class(type(cls.live), "__call__") is not type.__call__:
        raise GraphBreak(UnknownObject.of(what="a call", type=f"metaclass of {cls.live.__name__}"))
    made = _new(machine, cls, args, kwargs, model)
    if not issubclass(made.python_type(machine), cls.live):
        return made
    raw, value = cls.find(machine, "__init__")
    if raw is not object.__init__:
        method = bind(machine, raw, value, made, cls, "__init__").realize(machine)
        method.call(machine, args, kwargs)
    elif (args or kwargs) and attribute_of_class(cls.live, "__new__") is object.__new__:
        raise machine.error(TypeError, f"{cls.live.__name__}() takes no arguments")
    return made


def _new(
    machine: Machine, cls: ClassValue, args: Args, kwargs: Kwargs, model: type[InstanceValue]
) -> Value:
    raw, value = cls.find(machine, "__new__")
    if isinstance(raw, types.BuiltinFunctionType):  # a built-in base's own
        if getattr(cls.live, "__abstractmethods__", None):
            message = f"Can't instantiate abstract class {cls.live.__name__}"
            raise machine.error(TypeError, message)
        return model(cls)
    function = bind(machine, raw, value, None, cls, "__new__").realize(machine)
    return function.call(machine, [cls, *args], kwargs).realize(machine)
