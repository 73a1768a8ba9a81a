"""Text: f-strings, str, repr, format, and the small conversions of constants."""

from __future__ import annotations

from collections.abc import Callable

from ...breaks import GraphBreak, UnsupportedOperation
from ...values.base import Args, Kwargs, Machine, Value
from ...values.containers.mappings import DictValue
from ...values.containers.sequences import SequenceValue
from ...values.objects.constants import fold
from ...values.objects.enums import EnumValue
from ...values.objects.exceptions import ExceptionValue
from ...values.objects.instances import InstanceValue
from ...values.objects.operators import unpack
from ..registry import handles

__all__ = ["formatted"]

_CONVERSIONS: dict[str, Callable[[object], str]] = {"s": str, "r": repr, "a": ascii}


def text_of(machine: Machine, value: Value, how: str) -> Value:
    """Return `str(value)` ("s"), `repr(value)` ("r") or `ascii(value)` ("a")."""
    if value.is_constant(machine):
        return fold(machine, _CONVERSIONS[how], value)
    if isinstance(value, ExceptionValue) and how == "s":
        return machine.constant(value.text(machine))
    if isinstance(value, InstanceValue | EnumValue) and how in "sr":
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
    if conversion:
        value = text_of(machine, value, conversion)
    value = value.format_operand(machine)
    if value.is_constant(machine):
        return fold(machine, format, value, *([] if spec is None else [spec]))
    if isinstance(value, InstanceValue | EnumValue):
        result = value.special(machine, "__format__", spec or machine.constant(""))
        if result is not None:
            return result
    if spec is not None and spec.realize(machine).as_constant(machine):
        raise GraphBreak(UnsupportedOperation.of(what="a format spec", types=value.describe()))
    return text_of(machine, value, "s")


@handles(repr)
def _repr(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    return text_of(machine, args[0], "r")


@handles(ascii)
def _ascii(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    return text_of(machine, args[0], "a")


@handles(str)
def _str(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    if len(args) == 1 and not kwargs:
        return text_of(machine, args[0], "s")
    return fold(machine, str, *args)


@handles(format)
def _format(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    return formatted(machine, args[0], "", args[1] if len(args) > 1 else None)


@handles(chr)
def _chr(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    return fold(machine, chr, *args)


@handles(ord)
def _ord(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    return fold(machine, ord, *args)
