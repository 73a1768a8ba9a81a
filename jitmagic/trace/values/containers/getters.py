"""Models operator.itemgetter, attrgetter and methodcaller.

Input: a live getter, guarded by identity, whose keys and names are constants, or one that the
traced code creates. Output: the item, attribute or method result that a call returns.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ....guards.guard import IdentityIs
from ....guards.source import Source
from ...builtins.registry import AS_GIVEN, handles
from ...result import Recipe
from ...wrap import wraps
from ..base import Args, Builder, Kwargs, Machine, Value
from ..objects.class_facts import NOTHING, attribute_of_class, load_attribute
from ..objects.constants import ATOMS
from .sequences import TupleValue

__all__ = ["GetterValue"]

_KINDS = (operator.itemgetter, operator.attrgetter, operator.methodcaller)


class GetterValue(Value):
    """A getter `kind(*args, **kwargs)`."""

    __slots__ = ("args", "kind", "kwargs")
    always_true = True

    def __init__(
        self,
        kind: Callable[..., object],
        args: Args,
        kwargs: Mapping[str, Value],
        source: Source | None = None,
    ) -> None:
        super().__init__(source)
        self.kind: Any = kind
        self.args, self.kwargs = tuple(args), dict(kwargs)

    def python_type(self, machine: Machine) -> type:
        kind: type = self.kind
        return kind

    def get_attr(self, machine: Machine, name: str) -> Value:
        """Raise AttributeError: a getter has no attributes of its own, such as `__name__`."""
        if attribute_of_class(self.kind, name) is not NOTHING:
            self.refuse(machine, f"attribute {name!r}")
        message = f"'operator.{self.kind.__name__}' object has no attribute '{name}'"
        raise machine.error(AttributeError, message)

    def call(self, machine: Machine, args: Args, kwargs: Kwargs) -> Value:
        if len(args) != 1 or kwargs:
            self.refuse(machine, "such a call")
        target = args[0].realize(machine)
        if self.kind is operator.methodcaller:
            name = self.args[0].realize(machine).as_constant(machine)
            return target.call_method(machine, name, self.args[1:], self.kwargs)
        values = [self._get(machine, target, item.realize(machine)) for item in self.args]
        return values[0] if len(values) == 1 else TupleValue(values)

    def _get(self, machine: Machine, target: Value, what: Value) -> Value:
        if self.kind is operator.itemgetter:
            return target.get_item(machine, what)
        # attrgetter("a.b") reads two attributes, even if setattr() has stored one named "a.b".
        for name in what.as_constant(machine).split("."):
            target = load_attribute(machine, target.realize(machine), name)
        return target

    def recipe(self, builder: Builder) -> Recipe:
        named = {name: builder(value) for name, value in self.kwargs.items()}
        return builder.invoke(self.kind, tuple(builder(item) for item in self.args), **named)

    def parts(self) -> Iterable[Value]:
        return (*self.args, *self.kwargs.values())


def _register(kind: Any) -> None:
    @handles(kind, like=AS_GIVEN if kind is operator.methodcaller else None)
    def make(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
        # An itemgetter takes any key; of a methodcaller only the first argument has to be a name.
        names = {operator.itemgetter: [], operator.attrgetter: args}.get(kind, args[:1])
        if any(name.python_type(machine) is not str for name in names):
            raise machine.error(TypeError, "attribute name must be a string")
        if not args:
            raise machine.error(TypeError, f"{kind.__name__} expected at least 1 argument, got 0")
        return GetterValue(kind, args, kwargs)


for _kind in _KINDS:
    _register(_kind)


@wraps(*_KINDS)
def _wrap_getter(machine: Machine, obj: Any, source: Source) -> Value:
    machine.guard(IdentityIs(source, obj))
    named: Mapping[str, object] = {}
    # No attribute of these C objects shows their arguments, but pickling does.
    constructor, arguments, *_ = obj.__reduce__()
    if constructor is not type(obj):  # a methodcaller with keywords reduces to a partial
        named, arguments = constructor.keywords, (*constructor.args, *arguments)
    # No guard path leads into the getter, so changes of an object in it would not be seen.
    if any(type(argument) not in ATOMS for argument in (*arguments, *named.values())):
        GetterValue(type(obj), (), {}, source).refuse(machine, "keys that are not constants")
    return GetterValue(
        type(obj),
        [machine.constant(argument) for argument in arguments],
        {name: machine.constant(argument) for name, argument in named.items()},
        source,
    )
