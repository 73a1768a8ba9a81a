"""What stands for an object that is a key of a dict or set in the machine's model.

Comes in: a value about to be a key, or an object that is one. Goes out: a token that hashes and
compares as the object does, so that Python's own dict of tokens answers as the program's dict:
the value itself where objects are told apart by identity, the object where only C code looks at
parts that cannot change, a FollowedKey where a class says in Python what is equal. That code is
interpreted, never run.
"""

from __future__ import annotations

import enum
import types
from collections.abc import Sequence
from typing import Protocol

from ....guards.guard import IdentityIs
from ..base import Machine, Value
from ..objects.class_facts import attribute_of_class, guarded_attribute, may_change
from ..objects.constants import ATOMS
from ..objects.operators import equal

__all__ = [
    "FollowedKey",
    "are_found",
    "followed_key",
    "identity_key",
    "is_fixed_token",
    "is_plain_key",
    "is_users",
    "pure_key",
]

_BY_IDENTITY = (types.FunctionType, types.BuiltinFunctionType)


class _Followed(Protocol):
    """A value whose special methods are interpreted."""

    def special(self, machine: Machine, name: str, *args: Value) -> Value | None: ...
    def python_type(self, machine: Machine) -> type: ...


class FollowedKey:
    """A key whose class has `__hash__` and `__eq__` in Python: asked when Python asks them.

    The hash is the one it had when it became a key, as in a dict: an object whose hash changes
    while it is a key is not hashable.
    """

    __slots__ = ("_hash", "_machine", "_value")

    def __init__(self, machine: Machine, value: Value, hashed: int) -> None:
        self._machine = machine
        self._value = value
        self._hash = hashed

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        token = other._value if isinstance(other, FollowedKey) else other
        value = token if isinstance(token, Value) else self._machine.constant(token)
        return equal(self._machine, self._value, value)


def identity_key(machine: Machine, value: Value) -> Value | None:
    """The value, where its class leaves `__hash__` and `__eq__` to object; None: it does not."""
    kind = value.python_type(machine)
    hashes, compares = (guarded_attribute(machine, kind, name) for name in ("__hash__", "__eq__"))
    if hashes is None:
        raise machine.error(TypeError, f"unhashable type: '{kind.__name__}'")
    if hashes is not object.__hash__ or compares is not object.__eq__:
        return None
    machine.keep_apart(value)
    return value


def followed_key(machine: Machine, value: Value, methods: _Followed) -> FollowedKey:
    """The key of an object whose class has a `__hash__` in Python."""
    hashed = methods.special(machine, "__hash__")
    if hashed is None or not hashed.is_constant(machine):
        value.refuse(machine, "hash()")
    number = hashed.as_constant(machine)
    if not isinstance(number, int):
        raise machine.error(TypeError, "__hash__ method should return an integer")
    return FollowedKey(machine, value, number)


def pure_key(machine: Machine, value: Value, live: object) -> object:
    """The key of an object that C code hashes and compares; breaks where that may reach others."""
    if value.source is None or not _is_pure(live):
        value.refuse(machine, "hash()")
    machine.guard(IdentityIs(value.source, live))
    return live


def is_plain_key(key: object) -> bool:
    """Whether a guard may hold a key of a live dict and look it up: neither its hash nor its
    equality runs code of the user's."""
    if type(key) is tuple:
        return all(is_plain_key(part) for part in key)
    if isinstance(key, type):
        return _compares_by_identity(type(key))
    if isinstance(key, enum.Enum):
        methods = (attribute_of_class(type(key), name) for name in ("__hash__", "__eq__"))
        return not any(map(is_users, methods))
    return type(key) in ATOMS or type(key) in _BY_IDENTITY


def is_users(part: object) -> bool:
    """Whether what a class of enum members has under a name is the user's Python code."""
    function = getattr(part, "__func__", part)
    return isinstance(function, types.FunctionType) and function.__module__ != "enum"


def is_fixed_token(token: object) -> bool:
    """Whether a token's hash is the object's in every call that passes the guards: nothing in it
    is told apart by an identity that may be another's in the next call."""
    if isinstance(token, tuple | frozenset):
        return all(map(is_fixed_token, token))
    return isinstance(token, FollowedKey | type) or is_plain_key(token) or _is_pure(token)


def are_found(table: object, keys: Sequence[object], tokens: Sequence[object]) -> bool:
    """Whether a live dict or set has its keys under the hashes that their tokens have.

    A key whose hash has changed since is there, but not found. Only the hash of a frozenset tells
    what a table holds without asking the keys: it is made of the stored ones, which it takes over
    from an exact dict or a set. True where that cannot be seen: of a dict, equal hashes would have
    the keys compared.
    """
    if not any(map(_may_change_hash, tokens)):
        return True
    hashes = [_hash_of(key, token) for key, token in zip(keys, tokens, strict=True)]
    unseen = type(table) is not dict or len(set(hashes)) < len(hashes)
    if None in hashes or (isinstance(table, dict) and unseen):
        return True
    return hash(frozenset(table)) == hash(frozenset(map(_Filed, hashes)))  # type: ignore[arg-type, call-overload]


def _may_change_hash(token: object) -> bool:
    if isinstance(token, tuple):
        return any(map(_may_change_hash, token))
    return isinstance(token, FollowedKey | Value)


def _hash_of(key: object, token: object) -> int | None:
    """The hash of an object that a token stands for; None: nobody can tell."""
    if type(token) is tuple and type(key) is tuple:
        parts = [_hash_of(*both) for both in zip(key, token, strict=True)]
        return None if None in parts else hash(tuple(map(_Filed, parts)))  # type: ignore[arg-type]
    if isinstance(token, Value):
        return object.__hash__(key)
    return hash(token) if is_fixed_token(token) else None


class _Filed:
    """Has a hash; is equal to no other."""

    __slots__ = ("_hash",)

    def __init__(self, hashed: int) -> None:
        self._hash = hashed

    def __hash__(self) -> int:
        return self._hash


def _compares_by_identity(kind: type) -> bool:
    hashes, compares = (attribute_of_class(kind, name) for name in ("__hash__", "__eq__"))
    return hashes is object.__hash__ and compares is object.__eq__


def _is_pure(obj: object) -> bool:
    """Whether a built-in class made the object of parts that are pure (Decimal, datetime,
    `list[int]`): what pickle would make it of. C code alone hashes and compares it, and nothing can
    change it."""
    if type(obj) is tuple:
        return all(map(_is_pure, obj))
    if isinstance(obj, type) or type(obj) in ATOMS:
        return is_plain_key(obj)
    if may_change(type(obj)):
        return False
    try:
        reduced = obj.__reduce_ex__(2)
    except TypeError:  # pickle refuses it
        return False
    if not isinstance(reduced, tuple) or reduced[0] is not type(obj):
        return False
    return _is_pure(reduced[1]) and all(state is None for state in reduced[2:])
