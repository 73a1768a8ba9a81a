"""Weak references from guards to the user's objects, where the type of the object allows it.

Guards must not keep the user's objects alive. A guard whose object has died fails.
"""

from __future__ import annotations

import types
import weakref

__all__ = ["GONE", "WeakField", "can_be_weak", "referent", "weakly"]


class _DeadObject:
    """Stands for an object that died; identical to no other object."""

    def __repr__(self) -> str:
        return "an object that is gone"


GONE = _DeadObject()


class _Ref(weakref.ref):  # type: ignore[type-arg]
    """A private subclass, to tell it from a weakref.ref that is itself the guarded value."""

    __slots__ = ()


def can_be_weak(value: object) -> bool:
    return not isinstance(value, _Ref) and isinstance(weakly(value), _Ref)


def weakly(value: object) -> object:
    """Return a weak reference to `value` if it allows one and may be held weakly.

    Bound methods are created anew for every access, so a weak reference to one dies at once.
    """
    if isinstance(value, (_Ref, types.MethodType, types.MethodWrapperType)):
        return value
    try:
        return _Ref(value)
    except TypeError:
        return value


def referent(held: object) -> object:
    if not isinstance(held, _Ref):
        return held
    value = held()
    return GONE if value is None else value


class WeakField:
    """Mixin for a field `held`: an object, referenced weakly if possible."""

    __slots__ = ()
    held: object

    def __post_init__(self) -> None:
        object.__setattr__(self, "held", weakly(self.held))

    @property
    def value(self) -> object:
        """The object, or `GONE`."""
        return referent(self.held)
