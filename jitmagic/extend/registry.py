"""Holds what users register under names, in the order of registration.

Input: a name and a value. Output: a `Registration`, which removes it again, by `.remove()` or at
the end of a `with` block. A name that is taken is refused, whoever took it.

Rows that take part in a compile are part of its key: `Registry(kind, recompiles=True)` calls
`Changes.notify` after each change, which makes tagged functions compile again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from ..errors import UsageError

__all__ = ["REGISTRIES", "Changes", "Registration", "Registry", "as_decorator"]

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., object])


class Changes:
    """Holds the listener of changes that make compiled functions outdated."""

    notify: Callable[[], None] = staticmethod(lambda: None)


class Registration:
    """One registered name. A `with` block removes it at its end."""

    __slots__ = ("_remove", "name")

    def __init__(self, name: str, remove: Callable[[], object]) -> None:
        self.name, self._remove = name, remove

    def remove(self) -> None:
        """Remove it; does nothing if it was removed before."""
        self._remove()

    def __enter__(self) -> Registration:
        return self

    def __exit__(self, *error: object) -> None:
        self.remove()

    def __repr__(self) -> str:
        return f"<registration of {self.name!r}>"


class Registry(Generic[T]):
    """Values by name. `on_remove` is called with the name of each row that is removed."""

    __slots__ = ("_lock", "_on_remove", "_rows", "kind", "recompiles")

    def __init__(
        self,
        kind: str,
        recompiles: bool = True,
        on_remove: Callable[[str], object] | None = None,
    ) -> None:
        self.kind = kind  # "pass", for messages
        self._rows: Mapping[str, T] = MappingProxyType({})
        self._lock = threading.Lock()
        self.recompiles, self._on_remove = recompiles, on_remove
        REGISTRIES.append(self)

    @property
    def rows(self) -> Mapping[str, T]:
        """Return the present rows, as a mapping that later changes leave as it is."""
        return self._rows

    def add(self, name: str, value: T) -> Registration:
        """Add a row. Raises UsageError if the name is taken."""
        if not name or not isinstance(name, str):
            raise UsageError(f"the name of a {self.kind} is a string, not {name!r}")
        with self._lock:
            if name in self._rows:
                raise UsageError(
                    f"there is a {self.kind} {name!r} already: choose another name, or remove it "
                    f"with jitmagic.extend.unregister({name!r})"
                )
            self._rows = MappingProxyType({**self._rows, name: value})
        self._changed()
        return Registration(name, lambda: self._remove(name, value))

    def remove(self, name: str) -> bool:
        """Remove a row by its name; return whether there was one."""
        return name in self._rows and self._remove(name, self._rows[name])

    def _remove(self, name: str, value: T) -> bool:
        with self._lock:
            if self._rows.get(name) is not value:  # removed before, and perhaps added anew
                return False
            left = {known: row for known, row in self._rows.items() if known != name}
            self._rows = MappingProxyType(left)
        if self._on_remove is not None:
            self._on_remove(name)
        self._changed()
        return True

    def _changed(self) -> None:
        if self.recompiles:
            Changes.notify()


REGISTRIES: list[Registry[Any]] = []
"""All registries, in the order of the modules that define them."""


def as_decorator(register: Callable[[F], object]) -> Callable[[F], F]:
    """Return a decorator that registers a function and returns it."""

    def decorate(function: F) -> F:
        register(function)
        return function

    return decorate
