"""Binds the arguments of an inlined call to the parameters of the function, as CPython does."""

from __future__ import annotations

import inspect
import types
from collections.abc import Iterable

from ..base import Args, Kwargs, Machine, Value
from ..containers.mappings import DictValue
from ..containers.sequences import TupleValue
from .functions import FunctionValue

__all__ = ["bind_arguments"]


def bind_arguments(
    machine: Machine, function: FunctionValue, args: Args, kwargs: Kwargs
) -> dict[str, Value]:
    """Return the Value of each parameter by name; a mismatch is a TypeError of the program."""
    code = function.code
    names = code.co_varnames
    positional = names[: code.co_argcount]
    keyword_only = names[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]
    slots = dict(zip(positional, args, strict=False))
    # A keyword with the name of a positional-only parameter goes to **kwargs (PEP 570): `f(1, a=2)`
    # is valid for `def f(a, /, **kwargs)`.
    by_name = {*positional[code.co_posonlyargcount :], *keyword_only}
    keywords = {name: value for name, value in kwargs.items() if name not in by_name}
    named = {name: value for name, value in kwargs.items() if name in by_name}
    twice = named.keys() & slots.keys()
    slots.update(named)
    is_whole = _collect_extra(machine, function, slots, args[code.co_argcount :], keywords)
    _fill_defaults(machine, function, slots, positional, keyword_only)
    if twice or not is_whole or any(name not in slots for name in (*positional, *keyword_only)):
        refusal = _refusal(machine, function, len(args), kwargs)
        raise machine.error(TypeError, refusal, exact=True)
    return slots


def _collect_extra(
    machine: Machine,
    function: FunctionValue,
    slots: dict[str, Value],
    extra: Args,
    keywords: dict[str, Value],
) -> bool:
    """Store leftover arguments in *args and **kwargs; return False if one has no parameter."""
    code = function.code
    # co_varnames begins with the parameters: positional, keyword-only, `*args`, `**kwargs`.
    at = code.co_argcount + code.co_kwonlyargcount
    takes_extra = bool(code.co_flags & inspect.CO_VARARGS)
    takes_keywords = bool(code.co_flags & inspect.CO_VARKEYWORDS)
    if takes_extra:
        slots[code.co_varnames[at]] = TupleValue(list(extra))
    if takes_keywords:
        pairs = [(machine.constant(name), value) for name, value in keywords.items()]
        slots[code.co_varnames[at + takes_extra]] = DictValue.of(machine, pairs)
    return (takes_extra or not extra) and (takes_keywords or not keywords)


def _fill_defaults(
    machine: Machine,
    function: FunctionValue,
    slots: dict[str, Value],
    positional: tuple[str, ...],
    keyword_only: tuple[str, ...],
) -> None:
    missing = [name for name in positional if name not in slots]
    # `__defaults__` is realized only if an argument is missing, so other calls have no guard on it.
    if missing:
        values = _defaults(machine, function)
        table = dict(zip(positional[len(positional) - len(values) :], values, strict=True))
        slots.update({name: table[name] for name in missing if name in table})
    for name in keyword_only:
        if name not in slots and (value := _named_default(machine, function, name)) is not None:
            slots[name] = value


def _defaults(machine: Machine, function: FunctionValue) -> list[Value]:
    defaults = function.defaults.realize(machine)
    return [*defaults.items] if isinstance(defaults, TupleValue) else []


def _named_default(machine: Machine, function: FunctionValue, name: str) -> Value | None:
    # `__kwdefaults__` is a dict that the program may change: `find` guards the key that is read.
    named = function.kwdefaults.realize(machine)
    return named.find(machine, machine.constant(name)) if isinstance(named, DictValue) else None


def _refusal(machine: Machine, function: FunctionValue, count: int, names: Iterable[str]) -> str:
    """Return the message of CPython's TypeError for the call.

    Calls a function with the same parameters. Its body cannot run, since binding fails.
    """
    code = function.code
    cells = tuple(types.CellType() for _ in code.co_freevars)
    defaults = (None,) * len(_defaults(machine, function))
    probe = types.FunctionType(code, {}, function.name, defaults, cells)
    qualname = function.get_attr(machine, "__qualname__").realize(machine)
    probe.__qualname__ = qualname.as_constant(machine)  # a live function may be renamed
    keyword_only = code.co_varnames[code.co_argcount :][: code.co_kwonlyargcount]
    probe.__kwdefaults__ = {
        name: None for name in keyword_only if _named_default(machine, function, name) is not None
    }
    # The text has singular and plural forms and names all missing parameters, so CPython writes it.
    try:
        probe(*[None] * count, **dict.fromkeys(names))
    except TypeError as refused:
        return str(refused)
    raise AssertionError(f"{function.qualname} takes these arguments")
