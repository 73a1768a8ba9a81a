"""Computes tokens: the objects that the tracer's models of dicts and sets use as their keys.

Input: a value that becomes a key, or a live key. Output: a token that hashes and compares as the
object does, so that a Python dict of tokens behaves like the program's dict. It is one of

  * the Value, if its class compares by identity,
  * the object, if C code alone hashes and compares its immutable parts,
  * a UserKey, if its class defines `__hash__` or `__eq__` in Python; their code is inlined.
"""

from __future__ import annotations

import enum
import types
from collections.abc import Sequence

from ....guards.guard import IdentityIs
from ....protocols import Protocol
from ..base import Machine, Value
from ..objects.class_facts import attribute_of_class, guarded_attribute, may_change
from ..objects.constants import ATOMS
from ..objects.operators import equal

__all__ = [
    "UserKey",
    "has_stable_hash",
    "hashes_unchanged",
    "identity_key",
    "is_plain_key",
    "is_user_code",
    "pure_key",
    "user_key",
]

_BY_IDENTITY = (types.FunctionType, types.BuiltinFunctionType)


class _HasSpecialMethods(Protocol):
    """A value whose special methods are inlined."""

    def special(self, machine: Machine, name: str, *args: Value) -> Value | None: ...
    def python_type(self, machine: Machine) -> type: ...


class UserKey:
    """A key whose class defines `__hash__` and `__eq__` in Python; `__eq__` is inlined when needed.

    As in a dict, the hash is computed once, when the object becomes a key.
    """

    __slots__ = ("_hash", "_machine", "_value")

    def __init__(self, machine: Machine, value: Value, hashed: int) -> None:
        self._machine = machine
        self._value = value
        self._hash = hashed

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        token = other._value if isinstance(other, UserKey) else other
        value = token if isinstance(token, Value) else self._machine.constant(token)
        # Like the lookup of a dict, `equal` finds an identical key without a call of its `__eq__`.
        return equal(self._machine, self._value, value)


def identity_key(machine: Machine, value: Value) -> Value | None:
    """Return the value if its class inherits `__hash__` and `__eq__` from object, else None."""
    kind = value.python_type(machine)
    hashes, compares = (guarded_attribute(machine, kind, name) for name in ("__hash__", "__eq__"))
    # CPython stores `__hash__ = None` in a class that defines `__eq__` without `__hash__`.
    if hashes is None:
        raise machine.error(TypeError, f"unhashable type: '{kind.__name__}'")
    if hashes is not object.__hash__ or compares is not object.__eq__:
        return None
    machine.guard_distinct_key(value)
    return value


def user_key(machine: Machine, value: Value, methods: _HasSpecialMethods) -> UserKey:
    """Return the token of an object whose class defines `__hash__` in Python, which is inlined."""
    hashed = methods.special(machine, "__hash__")
    if hashed is None or not hashed.is_constant(machine):
        value.refuse(machine, "hash()")
    number = hashed.as_constant(machine)
    if not isinstance(number, int):
        raise machine.error(TypeError, "__hash__ method should return an integer")
    # hash() reduces a result beyond Py_ssize_t, and does so for the UserKey, too.
    return UserKey(machine, value, number)


def pure_key(machine: Machine, value: Value, live: object) -> object:
    """Return the token of an object hashed by C code only; break if hashing may run user code."""
    if value.source is None or not _is_pure(live):
        value.refuse(machine, "hash()")
    machine.guard(IdentityIs(value.source, live))
    return live


def is_plain_key(key: object) -> bool:
    """Return whether a guard may look up the key: its hash and equality run no user code."""
    if type(key) is tuple:
        return all(is_plain_key(part) for part in key)
    if isinstance(key, type):
        # A metaclass may define `__hash__` or `__eq__` for its classes.
        return _compares_by_identity(type(key))
    if isinstance(key, enum.Enum):
        methods = (attribute_of_class(type(key), name) for name in ("__hash__", "__eq__"))
        return not any(map(is_user_code, methods))
    return type(key) in ATOMS or type(key) in _BY_IDENTITY


def is_user_code(part: object) -> bool:
    """Return whether an attribute of an enum class is a Python function of the user."""
    function = getattr(part, "__func__", part)
    return isinstance(function, types.FunctionType) and function.__module__ != "enum"


def has_stable_hash(token: object) -> bool:
    """Return whether the token has the object's hash in every call that passes the guards.

    False for a hash derived from an address, if the next call may have another object.
    """
    if isinstance(token, tuple | frozenset):
        return all(map(has_stable_hash, token))
    return isinstance(token, UserKey | type) or is_plain_key(token) or _is_pure(token)


def hashes_unchanged(table: object, keys: Sequence[object], tokens: Sequence[object]) -> bool:
    """Return whether a live dict or set stores its keys under the hashes of their tokens.

    A lookup does not find a key whose hash has changed since its insertion. frozenset(table) copies
    the stored hashes of an exact dict or set without calling user code, and its own hash shows
    them. Returns True where that does not work: with equal hashes, frozenset(dict) compares keys.
    """
    if not any(map(_may_change_hash, tokens)):
        return True
    hashes = [_hash_of(key, token) for key, token in zip(keys, tokens, strict=True)]
    unseen = type(table) is not dict or len(set(hashes)) < len(hashes)
    if None in hashes or (isinstance(table, dict) and unseen):
        return True
    return hash(frozenset(table)) == hash(frozenset(map(_FixedHash, hashes)))  # type: ignore[arg-type, call-overload]


def _may_change_hash(token: object) -> bool:
    if isinstance(token, tuple):
        return any(map(_may_change_hash, token))
    return isinstance(token, UserKey | Value)


def _hash_of(key: object, token: object) -> int | None:
    """Return the hash of a token's object, or None if it is unknown."""
    if type(token) is tuple and type(key) is tuple:
        parts = [_hash_of(*both) for both in zip(key, token, strict=True)]
        return None if None in parts else hash(tuple(map(_FixedHash, parts)))  # type: ignore[arg-type]
    if isinstance(token, Value):
        return object.__hash__(key)
    return hash(token) if has_stable_hash(token) else None


class _FixedHash:
    """An object with a given hash that is equal to no other."""

    __slots__ = ("_hash",)

    def __init__(self, hashed: int) -> None:
        self._hash = hashed

    def __hash__(self) -> int:
        return self._hash


def _compares_by_identity(kind: type) -> bool:
    hashes, compares = (attribute_of_class(kind, name) for name in ("__hash__", "__eq__"))
    return hashes is object.__hash__ and compares is object.__eq__


def _is_pure(obj: object) -> bool:
    """Return whether a built-in class created the object from pure parts (Decimal, datetime).

    The parts are those that pickle would save. Such an object is immutable, and hashing and
    comparing it runs only C code.
    """
    if type(obj) is tuple:
        return all(map(_is_pure, obj))
    if isinstance(obj, type) or type(obj) in ATOMS:
        return is_plain_key(obj)
    # Parts count, too: the hash of a datetime calls utcoffset() of its tzinfo, whose class may be
    # written in Python.
    if may_change(type(obj)):
        return False
    try:
        reduced = obj.__reduce_ex__(2)
    except TypeError:  # it cannot be pickled
        return False
    if not isinstance(reduced, tuple) or reduced[0] is not type(obj):
        return False
    return _is_pure(reduced[1]) and all(state is None for state in reduced[2:])
