"""Holds what users register under names, in the order of registration.

Input: a name and a value. Output: a `Registration`, which removes it again, by `.remove()` or at
the end of a `with` block. A name that is taken is refused, whoever took it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Generic, TypeVar

from ..errors import UsageError

__all__ = ["Registration", "Registry"]

T = TypeVar("T")


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
    """Values by name. `on_change` is called after each change."""

    __slots__ = ("_kind", "_lock", "_rows", "on_change")

    def __init__(self, kind: str) -> None:
        self._kind = kind  # "pass", for messages
        self._rows: Mapping[str, T] = MappingProxyType({})
        self._lock = threading.Lock()
        self.on_change: Callable[[], None] = _nothing

    @property
    def rows(self) -> Mapping[str, T]:
        """Return the present rows, as a mapping that later changes leave as it is."""
        return self._rows

    def add(self, name: str, value: T) -> Registration:
        """Add a row. Raises UsageError if the name is taken."""
        if not name or not isinstance(name, str):
            raise UsageError(f"the name of a {self._kind} is a string, not {name!r}")
        with self._lock:
            if name in self._rows:
                raise UsageError(
                    f"there is a {self._kind} {name!r} already: choose another name, or remove it "
                    f"with jitmagic.extend.unregister({name!r})"
                )
            self._rows = MappingProxyType({**self._rows, name: value})
        self.on_change()
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
        self.on_change()
        return True


def _nothing() -> None:
    """Stand in for a listener."""
