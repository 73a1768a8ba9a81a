"""Text: f-strings, str, repr, format, small conversions of constants, and regular expressions.

Matches of constant patterns and texts are computed while tracing, and so are the results of their
methods. A match that outlives the trace is rebuilt by the call that found it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

from ....guards.guard import TypeIs, ValueEquals
from ....guards.source import SlotAttr, Source
from ...breaks import GraphBreak, UnsupportedArguments, UnsupportedOperation
from ...result import Recipe
from ...values.base import Args, Builder, Kwargs, Machine, Value
from ...values.containers.mappings import DictValue
from ...values.containers.sequences import SequenceValue
from ...values.objects.callables import bind_builtin
from ...values.objects.constants import fold
from ...values.objects.enums import EnumValue
from ...values.objects.exceptions import ExceptionValue
from ...values.objects.instances import InstanceValue
from ...values.objects.operators import unpack
from ...wrap import wraps
from ..registry import AS_GIVEN, calls, handles, method

__all__ = ["formatted"]


_CONVERSIONS: dict[str, Callable[[object], str]] = {"s": str, "r": repr, "a": ascii}


def text_of(machine: Machine, value: Value, how: str) -> Value:
    """Return `str(value)` ("s"), `repr(value)` ("r") or `ascii(value)` ("a")."""
    if value.is_constant(machine):
        return fold(machine, _CONVERSIONS[how], value)
    if isinstance(value, ExceptionValue) and how == "s":
        return machine.constant(value.text(machine))
    if isinstance(value, InstanceValue | EnumValue) and how in "sr":
        # object.__str__ calls repr(), so `__repr__` also serves str() if the class has no
        # `__str__`.
        result = value.special(machine, "__str__") if how == "s" else None
        result = result or value.special(machine, "__repr__")
        if result is not None:
            return result
    if isinstance(value, SequenceValue | DictValue) and how in "sr":
        return machine.constant(_container_text(machine, value))
    raise GraphBreak(UnsupportedOperation.of(what="conversion to text", types=value.describe()))


def _container_text(machine: Machine, value: SequenceValue | DictValue) -> str:
    """Return the text of a list, tuple or dict; one that contains itself breaks."""

    def text(part: Value) -> str:
        # str() of a container shows its items by repr().
        return str(text_of(machine, part.realize(machine), "r").as_constant(machine))

    kind = value.python_type(machine)
    if kind is dict and isinstance(value, DictValue):
        pairs = zip(value.keys(), value.values(), strict=True)
        return "{" + ", ".join(f"{text(key)}: {text(held)}" for key, held in pairs) + "}"
    if kind not in (list, tuple):
        raise GraphBreak(UnsupportedOperation.of(what="conversion to text", types=value.describe()))
    inside = ", ".join(map(text, unpack(machine, value)))
    if kind is list:
        return f"[{inside}]"
    return f"({inside},)" if value.length(machine) == 1 else f"({inside})"


def formatted(machine: Machine, value: Value, conversion: str, spec: Value | None) -> Value:
    """Return the text of a replacement field of an f-string."""
    # The spec applies to the text that a conversion (`!r`) makes, not to the value.
    if conversion:
        value = text_of(machine, value, conversion)
    value = value.format_operand(machine)
    if value.is_constant(machine):
        return fold(machine, format, value, *([] if spec is None else [spec]))
    if isinstance(value, InstanceValue | EnumValue):
        result = value.special(machine, "__format__", spec or machine.constant(""))
        if result is not None:
            return result
    # object.__format__ raises a TypeError for a spec that is not empty.
    if spec is not None and spec.realize(machine).as_constant(machine):
        raise GraphBreak(UnsupportedOperation.of(what="a format spec", types=value.describe()))
    return text_of(machine, value, "s")


# str(errors="x") is "", which the defaults of the other parameters do not give.
@handles(str, like=lambda object, encoding="utf-8", errors="strict": None)
def _str(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    if len(args) == 1:
        return text_of(machine, args[0], "s")
    return fold(machine, str, *args)


calls(
    {
        repr: lambda machine, value: text_of(machine, value, "r"),
        ascii: lambda machine, value: text_of(machine, value, "a"),
        format: lambda machine, value, spec=None: formatted(machine, value, "", spec),
        chr: lambda machine, number: fold(machine, chr, number),
        ord: lambda machine, text: fold(machine, ord, text),
    }
)


# -- the re module ---------------------------------------------------------------------------------


_SEARCHES = ("match", "fullmatch", "search")
_TEXTS = ("findall", "sub", "subn", "split")
_PATTERN_FACTS = ("pattern", "flags", "groups")
_MATCH_FACTS = ("string", "pos", "endpos", "lastindex", "lastgroup")
_MATCH_CALLS = ("group", "groups", "groupdict", "start", "end", "span", "expand")


class PatternValue(Value):
    """A compiled pattern whose text and flags are known."""

    __slots__ = ("live",)
    always_true = True

    def __init__(self, live: re.Pattern[Any], source: Source | None = None) -> None:
        super().__init__(source)
        self.live = live

    def python_type(self, machine: Machine) -> type:
        return re.Pattern

    def identity(self) -> object:
        return self.live

    def get_attr(self, machine: Machine, name: str) -> Value:
        if name in _PATTERN_FACTS:
            return machine.constant(getattr(self.live, name))
        return bind_builtin(machine, self, re.Pattern, name)

    def compare(
        self, machine: Machine, op: str, other: Value, *, reflected: bool = False
    ) -> Value | None:
        self.refuse(machine, f"comparison {op}")

    def recipe(self, builder: Builder) -> Recipe:
        # re.compile caches 512 patterns, so this is mostly the object that eager has.
        text, flags = builder.constant(self.live.pattern), builder.constant(self.live.flags)
        return builder.invoke(re.compile, (text, flags))

    def describe(self) -> str:
        return "a pattern"


class MatchValue(Value):
    """The match that `pattern.how(*given)` found."""

    __slots__ = ("given", "how", "live", "pattern")
    always_true = True

    def __init__(
        self, pattern: PatternValue, how: str, given: tuple[object, ...], live: re.Match[Any]
    ) -> None:
        super().__init__()
        self.pattern, self.how, self.given, self.live = pattern, how, given, live

    def python_type(self, machine: Machine) -> type:
        return re.Match

    def get_attr(self, machine: Machine, name: str) -> Value:
        if name == "re":
            return self.pattern
        if name in _MATCH_FACTS:
            return machine.constant(getattr(self.live, name))
        return bind_builtin(machine, self, re.Match, name)

    def get_item(self, machine: Machine, key: Value) -> Value:
        return _folded(machine, self.live.__getitem__, [key], {})

    def recipe(self, builder: Builder) -> Recipe:
        found = builder.invoke(getattr, (builder(self.pattern), builder.constant(self.how)))
        return builder.call(found, *map(builder.constant, self.given))

    def parts(self) -> tuple[Value, ...]:
        return (self.pattern,)

    def describe(self) -> str:
        return "a match"


def _constants(machine: Machine, args: Args, kwargs: Kwargs, name: str) -> tuple[Any, Any]:
    values = [value.realize(machine) for value in (*args, *kwargs.values())]
    if not all(value.is_constant(machine) for value in values):
        what = "arguments that are not constants"
        raise GraphBreak(UnsupportedArguments.of(name=f"re.{name}", what=what))
    named = {key: value.realize(machine).as_constant(machine) for key, value in kwargs.items()}
    return tuple(value.realize(machine).as_constant(machine) for value in args), named


def _folded(machine: Machine, function: Callable[..., object], args: Args, kwargs: Kwargs) -> Value:
    """Evaluate a pure call on constants; an error is raised in the traced program."""
    positional, named = _constants(machine, args, kwargs, function.__name__)
    return machine.constant(_run(machine, function, positional, named))


def _run(machine: Machine, function: Callable[..., object], positional: Any, named: Any) -> Any:
    try:
        return function(*positional, **named)
    except (IndexError, TypeError, ValueError) as error:
        raise machine.error(type(error), *error.args, exact=True) from None
    # re.error has attributes (`msg`, `pattern`, `pos`) that the model of an exception lacks, so
    # plain Python raises it.
    except re.error:
        raise GraphBreak(UnsupportedArguments.of(name="re", what="an invalid pattern")) from None


def _searched(
    machine: Machine, pattern: PatternValue, how: str, args: Args, kwargs: Kwargs
) -> Value:
    positional, named = _constants(machine, args, kwargs, how)
    if named:
        raise GraphBreak(UnsupportedArguments.of(name=f"re.{how}", what="keywords"))
    match = _run(machine, getattr(pattern.live, how), positional, {})
    return machine.constant(None) if match is None else MatchValue(pattern, how, positional, match)


def _call_method(name: str, machine: Machine, owner: Value, args: Args, kwargs: Kwargs) -> Value:
    assert isinstance(owner, PatternValue | MatchValue)
    if name in _SEARCHES and isinstance(owner, PatternValue):
        return _searched(machine, owner, name, args, kwargs)
    return _folded(machine, getattr(owner.live, name), args, kwargs)


for _owner, _names in ((re.Pattern, (*_SEARCHES, *_TEXTS)), (re.Match, _MATCH_CALLS)):
    for _name in _names:
        method(_owner, _name, like=AS_GIVEN)(partial(_call_method, _name))


def _compiled(machine: Machine, pattern: Value, flags: Value | None = None) -> PatternValue:
    given = pattern.realize(machine)
    if isinstance(given, PatternValue):
        if flags is not None:
            given.refuse(machine, "flags")
        return given
    parts = [given] if flags is None else [given, flags]
    text, _ = _constants(machine, parts, {}, "compile")
    return PatternValue(_run(machine, re.compile, text, {}))


_LIKE: dict[int, Callable[..., None]] = {
    2: lambda pattern, string, *rest, **named: None,
    3: lambda pattern, repl, string, *rest, **named: None,
}


def _register(name: str, count: int) -> None:
    """Register `re.name(pattern, ...)`; flags come after `count` other arguments, or by name."""
    function = getattr(re, name)

    # Since 3.13 a positional flag or count warns; the handler leaves those to Python.
    @handles(function, like=_LIKE[count])
    def call(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
        if len(args) > count or kwargs.keys() - {"flags"}:
            raise GraphBreak(UnsupportedArguments.of(name=f"re.{name}", what="such arguments"))
        pattern = _compiled(machine, args[0], kwargs.get("flags"))
        return pattern.call_method(machine, name, args[1:], {})


for _name in (*_SEARCHES, "findall", "split"):
    _register(_name, 2)
for _name in ("sub", "subn"):
    _register(_name, 3)


calls(
    {
        re.compile: _compiled,
        re.escape: lambda machine, text: _folded(machine, re.escape, [text], {}),
    }
)


@wraps(re.Pattern)
def _wrap_pattern(machine: Machine, obj: re.Pattern[Any], source: Source) -> Value:
    machine.guard(TypeIs(source, re.Pattern))
    # Not by identity: an equal pattern matches alike, and a program may compile it anew in each
    # call.
    for name in ("pattern", "flags"):
        machine.guard(ValueEquals(SlotAttr(source, name), getattr(obj, name)))
    return PatternValue(obj, source)
