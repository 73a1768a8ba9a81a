"""Makes dataclasses whose methods are written at their first use.

`dataclasses.dataclass` compiles four to seven functions for each class: 0.5 ms, which was two
thirds of the package's import. The decorator here takes the same arguments and makes the same
classes, for which `dataclasses.fields`, `replace` and `asdict` work, in 0.02 ms: `__repr__`,
`__eq__` and `__hash__` are compiled when an instance first needs them, `__init__` after some.

There are no `order`, `init`, `unsafe_hash` and `InitVar`, and annotations are strings. On every
Python, instances are equal if the tuples of their fields are: Python 3.13 compares field by field,
by which nan differs from itself.
"""

from __future__ import annotations

from abc import update_abstractmethods
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import (  # type: ignore[attr-defined]
    _FIELD,
    KW_ONLY,
    MISSING,
    Field,
    FrozenInstanceError,
    field,
    fields,
    replace,
)
from functools import partial
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any

__all__ = ["KW_ONLY", "dataclass", "field", "fields", "replace"]

_Text = tuple[str, str, dict[str, Any]]  # parameters, body, and the names that both read


class _Parameters:
    """Holds what a class was made with, as `__dataclass_params__` of `dataclasses` does."""

    __slots__ = ("eq", "frozen", "init", "order", "repr", "unsafe_hash")

    def __init__(self, repr: bool, eq: bool, frozen: bool) -> None:
        self.repr, self.eq, self.frozen = repr, eq, frozen
        self.init, self.order, self.unsafe_hash = True, False, False


class _Made:
    """The default, in a signature, of a parameter for which a factory makes one."""

    def __repr__(self) -> str:
        return "<factory>"


_MADE = _Made()
# Calls of `__init__` before it is compiled, which takes 80 us; a call of `_initialise` takes 5.
# The first compile of a small function makes instances of 91 classes: of 78, no more than these.
_CALLS = 8


class _WrittenLate:
    """A method that replaces itself by the compiled function when it is first looked up.

    `meanwhile(cls, compiled, instance, *args)` runs instead of the first calls on instances.
    """

    __slots__ = ("_finish", "_left", "_meanwhile", "_name", "_owner", "_text")

    def __init__(
        self,
        text: Callable[[Any], _Text],
        finish: Callable[[Any, Any], Any],
        meanwhile: Any = None,
    ) -> None:
        self._text, self._finish, self._meanwhile = text, finish, meanwhile
        self._left = 0 if meanwhile is None else _CALLS

    def __set_name__(self, owner: Any, name: str) -> None:
        self._owner, self._name = owner, name

    def __get__(self, instance: object, owner: type) -> Any:
        if self._left and instance is not None:
            self._left -= 1
            return partial(self._meanwhile, self._owner, self._compiled, instance)
        return self._compiled().__get__(instance, owner)

    def _compiled(self) -> Any:
        parameters, body, names = self._text(self._owner)
        exec(f"def {self._name}({parameters}):\n {body}", names)
        made = names[self._name]
        made.__qualname__ = f"{self._owner.__qualname__}.{self._name}"
        made.__module__ = self._owner.__module__
        made = self._finish(made, self._owner)
        setattr(self._owner, self._name, made)
        return made


def _unchanged(method: Any, cls: Any) -> Any:
    return method


def _not_recursive(method: Any, cls: Any) -> Any:
    return recursive_repr()(method)


def _annotated(init: Any, cls: Any) -> Any:
    """Annotate the parameters, which `inspect.signature` shows."""
    init.__annotations__ = {one.name: one.type for one in fields(cls) if one.init}
    init.__annotations__["return"] = None
    return init


def _initialise(
    cls: Any, compiled: Callable[[], Any], self: Any, /, *args: Any, **kwargs: Any
) -> Any:
    """Do what the compiled `__init__` does; that one raises for arguments that do not fit."""
    parts = fields(cls)
    positional = [one.name for one in parts if one.init and not one.kw_only]
    given = dict(zip(positional, args, strict=False))
    fits = len(given) == len(args) and given.keys().isdisjoint(kwargs)
    given |= kwargs
    values = {}
    for one in parts:
        if one.init and one.name in given:
            values[one.name] = given.pop(one.name)
        elif one.default_factory is not MISSING:
            values[one.name] = one.default_factory()
        elif one.default is not MISSING:
            values[one.name] = one.default
        elif one.init:
            fits = False
    if given or not fits:
        return compiled()(self, *args, **kwargs)
    assign = object.__setattr__ if cls.__dataclass_params__.frozen else setattr
    for name, value in values.items():
        assign(self, name, value)
    if hasattr(cls, "__post_init__"):
        self.__post_init__()
    return None


def _init_text(cls: Any, *, frozen: bool) -> _Text:
    """Return the text of `__init__`: a parameter for each field, those by keyword alone last."""
    names: dict[str, Any] = {"_set": object.__setattr__, "_MADE": _MADE}
    positional, keywords, body = ["self"], list[str](), list[str]()
    for one in fields(cls):
        parameter, value = one.name, one.name
        if one.default is not MISSING:
            names[f"_default_{one.name}"] = one.default
            parameter += f"=_default_{one.name}"
        elif one.default_factory is not MISSING:
            names[f"_make_{one.name}"] = one.default_factory
            parameter += "=_MADE"
            value = f"_make_{one.name}() if {one.name} is _MADE else {one.name}"
        if one.init:
            (keywords if one.kw_only else positional).append(parameter)
        elif one.default_factory is not MISSING:
            value = f"_make_{one.name}()"
        elif one.default is not MISSING:
            value = f"_default_{one.name}"
        else:  # `__post_init__` assigns it
            continue
        body.append(
            f"_set(self, {one.name!r}, {value})" if frozen else f"self.{one.name} = {value}"
        )
    if hasattr(cls, "__post_init__"):
        body.append("self.__post_init__()")
    parameters = [*positional, *(["*", *keywords] if keywords else [])]
    return ", ".join(parameters), "\n ".join(body) or "pass", names


def _repr_text(cls: Any) -> _Text:
    shown = (f"{one.name}={{self.{one.name}!r}}" for one in fields(cls) if one.repr)
    return "self", f'return f"{{self.__class__.__qualname__}}({", ".join(shown)})"', {}


def _tuple(owner: str, parts: Iterable[Field[Any]]) -> str:
    return f"({''.join(f'{owner}.{one.name}, ' for one in parts)})"


def _eq_text(cls: Any) -> _Text:
    compared = [one for one in fields(cls) if one.compare]
    equal = f"{_tuple('self', compared)} == {_tuple('other', compared)}"
    body = f"return {equal} if other.__class__ is self.__class__ else NotImplemented"
    return "self, other", body, {}


def _hash_text(cls: Any) -> _Text:
    hashed = [one for one in fields(cls) if (one.compare if one.hash is None else one.hash)]
    return "self", f"return hash({_tuple('self', hashed)})", {}


def _refuse_setattr(self: Any, name: str, value: object) -> None:
    """Refuse to assign to a field; what subclasses add that are no dataclasses may change."""
    _check_frozen(self, name, "assign to")
    object.__setattr__(self, name, value)


def _refuse_delattr(self: Any, name: str) -> None:
    _check_frozen(self, name, "delete")
    object.__delattr__(self, name)


def _check_frozen(self: Any, name: str, verb: str) -> None:
    if "__dataclass_fields__" in vars(type(self)) or name in self.__dataclass_fields__:
        raise FrozenInstanceError(f"cannot {verb} field {name!r}")


def _getstate(self: Any) -> list[Any]:
    return [getattr(self, one.name) for one in fields(self)]


def _setstate(self: Any, state: list[Any]) -> None:
    """Fill a frozen instance with slots, which `copy` and `pickle` could not."""
    for one, value in zip(fields(self), state, strict=True):
        object.__setattr__(self, one.name, value)


def _own_fields(cls: Any, kw_only: bool) -> Iterator[Field[Any]]:
    """Yield a field for each annotation of the class, whose attributes become the defaults."""
    for name, annotation in list(cls.__annotations__.items()):
        kind = str(annotation).partition("[")[0].rpartition(".")[2]
        if kind == "KW_ONLY":
            kw_only = True
        elif kind != "ClassVar":
            given = cls.__dict__.get(name, MISSING)
            one: Any = given if isinstance(given, Field) else field(default=given)
            if one.default is MISSING and given is not MISSING:
                delattr(cls, name)
            elif given is not MISSING:
                setattr(cls, name, one.default)
            one.name, one.type, one._field_type = name, annotation, _FIELD
            one.kw_only = kw_only if one.kw_only is MISSING else one.kw_only
            yield one


def _with_slots(cls: Any, names: Sequence[str], methods: Mapping[str, object]) -> Any:
    """Return the class with these slots and methods: it is made again, as slots cannot be added."""
    inherited = {name for base in cls.__mro__[1:] for name in vars(base).get("__slots__", ())}
    slots = tuple(name for name in names if name not in inherited)
    gone = {"__dict__", "__weakref__", *names}  # names: the defaults, which the fields have too
    namespace = {name: value for name, value in vars(cls).items() if name not in gone}
    namespace |= {"__slots__": slots, **methods}
    made = type(cls)(cls.__name__, cls.__bases__, namespace)
    made.__qualname__ = cls.__qualname__
    return made


_FROZEN = {"__setattr__": _refuse_setattr, "__delattr__": _refuse_delattr}
_COPIED = {"__getstate__": _getstate, "__setstate__": _setstate}
_INIT, _FROZEN_INIT = partial(_init_text, frozen=False), partial(_init_text, frozen=True)


def _methods(frozen: bool, eq: bool, repr: bool, slots: bool) -> Iterator[tuple[str, object]]:
    yield "__init__", _WrittenLate(_FROZEN_INIT if frozen else _INIT, _annotated, _initialise)
    if repr:
        yield "__repr__", _WrittenLate(_repr_text, _not_recursive)
    if eq:
        yield "__eq__", _WrittenLate(_eq_text, _unchanged)
        yield "__hash__", _WrittenLate(_hash_text, _unchanged) if frozen else None
    if frozen:
        yield from (_FROZEN | _COPIED if slots else _FROZEN).items()


def _made(
    cls: Any,
    *,
    frozen: bool,
    eq: bool,
    repr: bool,
    slots: bool,
    kw_only: bool = False,
    weakref_slot: bool = False,
) -> Any:
    own = vars(cls)
    # A class with an `__eq__` has a `__hash__` of None.
    methods = {
        name: method for name, method in _methods(frozen, eq, repr, slots) if own.get(name) is None
    }
    bases = [vars(base).get("__dataclass_fields__", {}) for base in reversed(cls.__mro__[1:])]
    known = {name: one for base in bases for name, one in base.items()}
    known |= {one.name: one for one in _own_fields(cls, kw_only)}
    cls.__dataclass_fields__ = known
    cls.__dataclass_params__ = _Parameters(repr, eq, frozen)
    positional = (one.name for one in known.values() if one.init and not one.kw_only)
    cls.__match_args__ = tuple(positional)  # type: ignore[misc]
    if slots:
        # Setting the eight methods of the new class one by one takes 3 more us, of 24.
        slot_names = [*known, *(["__weakref__"] if weakref_slot else [])]
        return update_abstractmethods(_with_slots(cls, slot_names, methods))
    for name, method in methods.items():
        setattr(cls, name, method)
        if isinstance(method, _WrittenLate):
            method.__set_name__(cls, name)
    return update_abstractmethods(cls)


if TYPE_CHECKING:
    from dataclasses import dataclass
else:

    def dataclass(cls=None, /, *, frozen=False, eq=True, repr=True, slots=False, **others):
        """Do what `dataclasses.dataclass` does."""

        def decorate(cls):
            return _made(cls, frozen=frozen, eq=eq, repr=repr, slots=slots, **others)

        return decorate if cls is None else decorate(cls)
