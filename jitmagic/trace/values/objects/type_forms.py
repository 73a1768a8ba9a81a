"""Models type forms, the objects in annotations: `list[int]`, `int | None`, `Optional[Tensor]`.

Input: a live form, guarded by identity, or one that the traced code creates by a subscript. Output:
a constant. Forms are immutable and subscripts of them are pure.
"""

from __future__ import annotations

import operator
import types
import typing

from ...wrap import by_identity, wraps
from ..base import Args, Kwargs, Machine, Value
from .callables import BuiltinValue
from .constants import fold

__all__ = ["TYPE_FORMS", "TypeFormValue"]

# Base classes, because typing has private subclasses for some forms (Literal).
TYPE_FORMS: tuple[type, ...] = (
    types.GenericAlias,
    types.UnionType,
    typing._SpecialForm,
    typing._BaseGenericAlias,  # type: ignore[attr-defined]
    # A def in the traced code evaluates annotations such as `*args: P.args`.
    typing.TypeVar,
    typing.ParamSpec,
    typing.ParamSpecArgs,
    typing.ParamSpecKwargs,
)
_ALIASES = (type(typing.List), type(typing.Callable))  # noqa: UP006  (without parts)
_PLAIN = (dict, frozenset, list, set, tuple)
_PARTS = ("__args__", "__metadata__", "__origin__", "__parameters__", "args", "kwargs")


class TypeFormValue(BuiltinValue):
    """A type form, which is equal to others with the same parts."""

    __slots__ = ()

    def is_constant(self, machine: Machine) -> bool:
        return True

    def as_constant(self, machine: Machine) -> object:
        return self.obj

    @property
    def classes(self) -> list[type] | None:
        """The classes that isinstance() tests for this form; None if the test breaks the graph."""
        form: typing.Any = self.obj
        if isinstance(form, types.UnionType):
            return list(form.__args__)
        # `isinstance(x, typing.List)` tests for list, but `typing.List[int]` raises TypeError.
        return [form.__origin__] if type(form) in _ALIASES else None

    def get_attr(self, machine: Machine, name: str) -> Value:
        if name not in _PARTS:
            return super().get_attr(machine, name)
        if not hasattr(self.obj, name):
            message = f"'{type(self.obj).__name__}' object has no attribute '{name}'"
            raise machine.error(AttributeError, message, exact=True)
        return machine.constant(getattr(self.obj, name))

    def get_item(self, machine: Machine, key: Value) -> Value:
        if key.is_constant(machine):
            return fold(machine, operator.getitem, self, key)
        self.refuse(machine, "subscription")

    def call(self, machine: Machine, args: Args, kwargs: Kwargs) -> Value:
        form: typing.Any = self.obj
        # Such objects have no attributes, so Python does not leave the form on them.
        if isinstance(form, types.GenericAlias) and form.__origin__ in _PLAIN:
            return machine.constant(form.__origin__).call(machine, args, kwargs)
        return super().call(machine, args, kwargs)

    def compare(
        self, machine: Machine, op: str, other: Value, *, reflected: bool = False
    ) -> Value | None:
        if not isinstance(other, TypeFormValue):
            return None
        if op not in ("==", "!="):
            self.refuse(machine, f"comparison {op}")
        return machine.constant((self.obj == other.obj) is (op == "=="))


wraps(*TYPE_FORMS, subclasses=True)(by_identity(TypeFormValue))
