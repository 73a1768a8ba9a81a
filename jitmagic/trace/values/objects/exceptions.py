"""Models exception objects of the traced program.

Input: a call of an exception class, or an error that the machine knows the program would raise.
Output: a value to raise, match and inspect. No exit can rebuild the traceback of a raised
exception, so if one is live at an exit, the graph break moves before the raise.
"""

from __future__ import annotations

import types
from collections.abc import Iterable

from ...breaks import GraphBreak, UnknownObject
from ...result import Recipe
from ..base import Args, Builder, CannotRebuild, Kwargs, Machine, Value
from ..containers.mappings import WithAttributes
from ..containers.sequences import TupleValue
from .class_facts import NOTHING, attribute_of_class, guard_attribute, guard_bases, is_standard
from .classes import HEAP_TYPE, ClassValue, bind, constructs

__all__ = ["ExceptionValue", "TracebackValue"]

_COMPARISONS = ("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__")
# State that raising or handling an exception changes, which the model does not follow.
_HIDDEN = ("__traceback__", "__context__", "with_traceback", "add_note", "__notes__")


class ExceptionValue(WithAttributes):
    """An exception object that the traced program creates."""

    __slots__ = ("args", "cls", "created_at_step", "exact", "raised")

    def __init__(self, machine: Machine, cls: ClassValue, args: Args) -> None:
        super().__init__()
        self.cls = cls
        self.args = tuple(args)
        self.created_at_step = machine.step
        self.raised = False
        self.exact = True  # False: the machine approximated the text of a built-in error

    def python_type(self, machine: Machine) -> type:
        return self.cls.live

    def matches(self, machine: Machine, *kinds: type) -> bool:
        """Return whether `except kinds` catches it; CPython tests the MRO alone."""
        guard_bases(machine, self.cls.live)
        return any(kind in self.cls.live.__mro__ for kind in kinds)

    def hash_key(self, machine: Machine) -> object:
        for name in ("__hash__", "__eq__"):
            self._require_standard(machine, name, "hash()")
        return self

    def truth(self, machine: Machine) -> bool:
        for name in ("__bool__", "__len__"):
            self._require_standard(machine, name, "bool()")
        return True

    def _require_standard(self, machine: Machine, name: str, what: str) -> None:
        """Break the graph if the user's class overrides a special method."""
        if not is_standard(machine, self.cls.live, name):
            self.refuse(machine, what)

    def get_attr(self, machine: Machine, name: str) -> Value:
        for special in ("__getattribute__", "__getattr__"):
            self._require_standard(machine, special, f"attribute {name!r}")
        if name == "__dict__" and is_standard(machine, self.cls.live, name):
            return self.own_table(machine)
        if (own := self.table(machine).store.get(name)) is not None:
            return own
        if not self.exact:
            self.refuse(machine, f"attribute {name!r}")
        if name == "args" and is_standard(machine, self.cls.live, name):
            return TupleValue(self.args)
        # `value` is a C member of StopIteration: the return value of a generator.
        if name == "value" and self.cls.live is StopIteration:
            return self.args[0] if self.args else machine.constant(None)
        raw, value = self.cls.find(machine, name)
        if raw is NOTHING:
            message = f"'{self.cls.live.__name__}' object has no attribute '{name}'"
            raise machine.error(AttributeError, message)
        if name in _HIDDEN or isinstance(
            raw, types.GetSetDescriptorType | types.MemberDescriptorType
        ):
            self.refuse(machine, f"attribute {name!r}")
        return bind(machine, raw, value, self, self.cls, name)

    def set_attr(self, machine: Machine, name: str, value: Value) -> None:
        if attribute_of_class(self.cls.live, name) is not NOTHING:
            self.refuse(machine, f"setting attribute {name!r}")
        guard_attribute(machine, self.cls.live, name, NOTHING)
        self._require_standard(machine, "__setattr__", f"setting attribute {name!r}")
        self.table(machine).put(machine, machine.constant(name), value)

    def compare(
        self, machine: Machine, op: str, other: Value, *, reflected: bool = False
    ) -> Value | None:
        for name in _COMPARISONS:
            self._require_standard(machine, name, f"comparison {op}")
        return None

    def text(self, machine: Machine) -> str:
        """Return `str(exception)`, which a built-in class computes from its arguments alone."""
        self._require_standard(machine, "__str__", "str()")
        kind = self.cls.live
        # Some classes have a `__str__` in C: `str(KeyError("a"))` is the repr of the argument.
        plain = attribute_of_class(kind, "__str__") is BaseException.__str__
        if not self.exact or (not plain and kind.__flags__ & HEAP_TYPE):
            self.refuse(machine, "str()")
        parts = [arg.realize(machine).as_constant(machine) for arg in self.args]
        try:
            return str((BaseException if plain else kind)(*parts))
        except TypeError:  # the class rejects the arguments: the program's constructor raises too
            self.refuse(machine, "str()")

    def recipe(self, builder: Builder) -> Recipe:
        if self.raised:
            raise CannotRebuild("an exception that was raised", self.created_at_step)
        args = tuple(builder(arg) for arg in self.args)
        if not isinstance(attribute_of_class(self.cls.live, "__init__"), types.FunctionType):
            return builder.call(builder(self.cls), *args)
        if _has_c_state(self.cls.live):
            raise CannotRebuild(f"a {self.describe()}", self.created_at_step)
        # The trace has inlined the Python `__init__`, so the exit must not call it again.
        return builder.invoke(BaseException.__new__, (builder(self.cls), *args))

    def parts(self) -> Iterable[Value]:
        return (*self.args, *self.attribute_parts())

    def describe(self) -> str:
        return self.cls.live.__name__


def _has_c_state(kind: type) -> bool:
    """Return whether the built-in base has C fields besides `args`, as OSError has."""
    built_in = next(base for base in kind.__mro__ if not base.__flags__ & HEAP_TYPE)
    return built_in.__basicsize__ > BaseException.__basicsize__


class TracebackValue(Value):
    """The traceback of a raised exception; only its truth and type are known."""

    __slots__ = ("created_at_step",)
    always_true = True

    def __init__(self, machine: Machine) -> None:
        super().__init__()
        self.created_at_step = machine.step

    def python_type(self, machine: Machine) -> type:
        return types.TracebackType

    def recipe(self, builder: Builder) -> Recipe:
        raise CannotRebuild("a traceback", self.created_at_step)


def _is_exception(kind: type) -> bool:
    return issubclass(kind, BaseException)


@constructs(_is_exception)
def _construct(machine: Machine, cls: ClassValue, args: Args, kwargs: Kwargs) -> Value:
    """Create an exception with its arguments; an `__init__` written in Python is inlined."""
    special = cls.metaclass_attribute(machine, "__call__") is not type.__call__
    if special or not is_standard(machine, cls.live, "__new__"):
        raise GraphBreak(UnknownObject.of(what="construction", type=cls.live.__name__))
    # BaseException.__new__ stores the arguments in `args` before `__init__` runs, so an exception
    # whose `__init__` is written in Python and does not call super() has them, too.
    exception = ExceptionValue(machine, cls, args)
    raw, value = cls.find(machine, "__init__")
    if isinstance(raw, types.FunctionType):
        method = bind(machine, raw, value, exception, cls, "__init__").realize(machine)
        method.call(machine, args, kwargs)
    elif kwargs:
        raise GraphBreak(UnknownObject.of(what="keyword arguments", type=cls.live.__name__))
    return exception
