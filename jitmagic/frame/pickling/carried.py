"""Lets pickles of tagged functions and modules carry their compiled code: `pickle="artifact"`.

pickle writes a function by the names of its module and its own, a bound method by its object and
name, and calls no method of either. But from protocol 4 on it pickles those names as any value, and
the reader takes them from its stack. So `__module__` and `__name__` of a stub are strings whose
reduction registers the code and returns the plain name. (`__qualname__` does not do: the C pickler
splits it first.) A tagged module has a `CarriedTag` among its attributes.

Out: `take`, the code by the key of its function; artifact/library.py stores it when the first call
of the function looks for an entry. Copies by `copy` carry nothing.
"""

from __future__ import annotations

import types
import weakref
from collections.abc import Callable
from typing import Any

from ..handle import Handle

__all__ = ["CarriedTag", "carry_by_names", "receive", "take"]

_received: dict[str, bytes] = {}  # bundles, by the key of the function
_seen: dict[str, int] = {}


def receive(key: str, data: bytes) -> None:
    """Register the compiled code of a function, which each task of a pool brings again."""
    if _seen.get(key) != (digest := hash(data)):
        _seen[key], _received[key] = digest, data


def take(key: str) -> bytes | None:
    """Return the code of a function that pickles have brought since it was last taken."""
    return _received.pop(key, None)


def _name(name: str, key: str, data: bytes) -> str:
    receive(key, data)
    return name


class _CarryingName(str):
    """Is a name of a tagged function that brings the function's compiled code when pickled."""

    __slots__ = ("_handle",)
    _handle: weakref.ref[Handle]

    def __new__(cls, name: str, handle: Handle) -> _CarryingName:
        made = super().__new__(cls, name)
        made._handle = weakref.ref(handle)
        return made

    def __reduce_ex__(self, protocol: object) -> tuple[Any, ...]:
        handle = self._handle()
        carried = None if handle is None else handle.family.compiler.carry(handle)
        return (str, (str(self),)) if carried is None else (_name, (str(self), *carried))

    def __copy__(self) -> str:
        return str(self)

    def __deepcopy__(self, memo: object) -> str:
        return str(self)


def carry_by_names(stub: types.FunctionType, handle: Handle) -> None:
    """Give a stub names that carry its code if the options ask for it, else plain ones."""
    if handle.options.pickle == "artifact":
        stub.__name__ = _CarryingName(stub.__name__, handle)
        stub.__module__ = _CarryingName(stub.__module__, handle)
    elif type(stub.__name__) is _CarryingName:
        stub.__name__, stub.__module__ = str(stub.__name__), str(stub.__module__)


class CarriedTag:
    """Is an attribute of a tagged module. Reading a pickle of it calls `tag` with the new module,
    the options, the compiler and the compiled code; its result is the attribute of that module.
    """

    def __init__(
        self, module: object = None, handle: Handle | None = None, tag: Any = None
    ) -> None:
        self._module = None if module is None else weakref.ref(module)
        self._handle = None if handle is None else weakref.ref(handle)
        self._tag: Callable[..., CarriedTag] = tag

    def __reduce__(self) -> tuple[Any, ...]:
        module = None if self._module is None else self._module()
        handle = None if self._handle is None else self._handle()
        if module is None or handle is None:
            return CarriedTag, ()
        family = handle.family
        return self._tag, (module, family.options, family.compiler, family.compiler.carry(handle))

    def __deepcopy__(self, memo: object) -> CarriedTag:
        return CarriedTag()
