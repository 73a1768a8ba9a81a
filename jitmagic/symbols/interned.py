"""Interns expression nodes: equal nodes are one object, so equality is identity and hashing free.

In: a class of frozen nodes whose `__match_args__` are all their state. Out: constructor calls
return the existing node. Nodes without other references are dropped.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakValueDictionary

__all__ = ["Interned"]

_NODES: WeakValueDictionary[tuple[object, ...], Any] = WeakValueDictionary()
_REFERENCES = _NODES.data  # type: ignore[attr-defined]  # `get` of the dictionary itself is Python, and asked for every node
_NUMBERS = frozenset((bool, int, float))


class Interned(type):
    """The metaclass of interned nodes."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        names: tuple[str, ...] = cls.__match_args__  # type: ignore[attr-defined]
        if not kwargs and len(args) == len(names):  # most exist already: allocate nothing
            key = (cls, *(args if _NUMBERS.isdisjoint(map(type, args)) else map(_key, args)))
            reference = _REFERENCES.get(key)
            known = None if reference is None else reference()
            return known or _NODES.setdefault(key, super().__call__(*args))
        node = super().__call__(*args, **kwargs)
        key = (cls, *(_key(getattr(node, name)) for name in names))
        return _NODES.setdefault(key, node)


def _key(part: object) -> object:
    """Return a key in which 1, 1.0, True, 0.0 and -0.0 are five constants."""
    return (type(part), repr(part)) if type(part) in _NUMBERS else part
