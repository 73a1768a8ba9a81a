"""Models functools.partial objects.

Input: live partial objects or those that the traced code makes. Output: calls of their function
with the stored arguments before those of the call.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping

from ....guards.guard import TypeIs
from ....guards.source import SlotAttr, Source
from ...result import Recipe
from ...wrap import wraps
from ..base import Args, Builder, Kwargs, Machine, Value
from ..containers.keys import identity_key
from ..containers.mappings import DictValue, WithAttributes
from ..containers.sequences import TupleValue
from .class_facts import NOTHING, attribute_of_class, is_data_descriptor

__all__ = ["PartialValue", "refuse_placeholders"]

_PLACEHOLDER: object = getattr(functools, "Placeholder", None)  # since 3.14


def refuse_placeholders(machine: Machine, args: Args) -> None:
    """Break if an argument of a partial object is functools.Placeholder, which a call fills."""
    for arg in args if _PLACEHOLDER is not None else ():
        value = arg.realize(machine)
        if value.python_type(machine) is type(_PLACEHOLDER):
            value.refuse(machine, "functools.partial")


class PartialValue(WithAttributes):
    """A functools.partial object."""

    __slots__ = ("args", "function", "kwargs", "live")
    always_true = True

    def __init__(
        self,
        function: Value,
        args: Args,
        kwargs: Mapping[str, Value],
        *,
        live: functools.partial[object] | None = None,
        source: Source | None = None,
    ) -> None:
        super().__init__(source)
        self.function = function
        self.args = tuple(args)
        self.kwargs = dict(kwargs)
        self.live = live

    def python_type(self, machine: Machine) -> type:
        return functools.partial

    def call(self, machine: Machine, args: Args, kwargs: Kwargs) -> Value:
        refuse_placeholders(machine, self.args)
        function = self.function.realize(machine)
        return function.call(machine, [*self.args, *args], {**self.kwargs, **kwargs})

    def get_attr(self, machine: Machine, name: str) -> Value:
        if name == "func":
            return self.function
        if name == "args":
            return TupleValue(self.args)
        if name == "__dict__":
            return self.own_table(machine)
        # A partial has no `__name__` of its own; functools.update_wrapper() may have stored one.
        raw = attribute_of_class(functools.partial, name)
        own = None if is_data_descriptor(raw) else self.table(machine).store.get(name)
        if own is not None:
            return own
        if raw is not NOTHING:
            self.refuse(machine, f"attribute {name!r}")
        message = f"'functools.partial' object has no attribute '{name}'"
        raise machine.error(AttributeError, message)

    def live_table(self) -> dict[str, object]:
        assert self.live is not None
        return self.live.__dict__

    def set_attr(self, machine: Machine, name: str, value: Value) -> None:
        if hasattr(functools.partial, name):
            self.refuse(machine, f"setting attribute {name!r}")
        self.table(machine).set_item(machine, machine.constant(name), value)

    def hash_key(self, machine: Machine) -> object:
        return identity_key(machine, self) or self.refuse(machine, "hash()")

    def recipe(self, builder: Builder) -> Recipe:
        positional = tuple(builder(part) for part in (self.function, *self.args))
        keywords = {name: builder(value) for name, value in self.kwargs.items()}
        return builder.invoke(functools.partial, positional, **keywords)

    def parts(self) -> Iterable[Value]:
        return (self.function, *self.args, *self.kwargs.values(), *self.attribute_parts())


@wraps(functools.partial)
def _wrap_partial(machine: Machine, obj: functools.partial[object], source: Source) -> Value:
    machine.guard(TypeIs(source, functools.partial))
    function = machine.lazy(obj.func, SlotAttr(source, "func"))
    args = machine.wrap(obj.args, SlotAttr(source, "args"))
    keywords = machine.wrap(obj.keywords, SlotAttr(source, "keywords"))
    assert isinstance(args, TupleValue)
    assert isinstance(keywords, DictValue)
    names = keywords.as_names(machine)
    return PartialValue(function, args.items, names, live=obj, source=source)
