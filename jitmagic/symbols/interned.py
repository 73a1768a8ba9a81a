"""Interns expression nodes: equal nodes are one object, so equality is identity and hashing free.

In: a class of frozen nodes whose `__match_args__` are all their state. Out: constructor calls
return the existing node. Nodes without other references are dropped.
"""

from __future__ import annotations

from _weakref import _remove_dead_weakref  # type: ignore[attr-defined]
from typing import Any
from weakref import ref

__all__ = ["Interned"]

_NUMBERS = frozenset((bool, int, float))


class _Reference(ref[Any]):
    """A reference that knows its key. A WeakValueDictionary does the same with four Python calls
    for each new node; a traced layer makes thousands.
    """

    __slots__ = ("key",)
    key: tuple[object, ...]


_NODES: dict[tuple[object, ...], _Reference] = {}


def _forget(reference: _Reference) -> None:
    """Remove a dead entry, unless another thread has replaced it since."""
    _remove_dead_weakref(_NODES, reference.key)


class Interned(type):
    """The metaclass of interned nodes."""

    def __call__(cls, *args: object, **kwargs: object) -> object:
        names: tuple[str, ...] = cls.__match_args__  # type: ignore[attr-defined]
        if kwargs or len(args) != len(names):
            node = super().__call__(*args, **kwargs)
            args = tuple([getattr(node, name) for name in names])
        else:  # most exist already: allocate nothing
            node = None
        key = (cls, *(args if _NUMBERS.isdisjoint(map(type, args)) else map(_key, args)))
        held = _NODES.get(key)
        if held is not None and (known := held()) is not None:
            return known
        node = super().__call__(*args) if node is None else node
        reference = _Reference(node, _forget)
        reference.key = key
        while (known := (held := _NODES.setdefault(key, reference))()) is None:
            _forget(held)  # a dead node whose callback has not run yet
        return known


def _key(part: object) -> object:
    """Return a key in which 1, 1.0, True, 0.0 and -0.0 are five constants."""
    return (type(part), repr(part)) if type(part) in _NUMBERS else part
