"""Records how an executable was made, so that another process makes it again.

A factory calls `made_by(executable, "its name", *arguments)` with arguments that are data or
executables. `construction_of` returns the record. artifact/executables.py writes it, and calls the
factory of that name with the arguments that it has read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

from .errors import CannotKeep
from .lazy_dataclass import dataclass

__all__ = ["Construction", "StoredBy", "construction_of", "made_by", "nothing"]

E = TypeVar("E")


def nothing() -> None:
    """Do nothing."""


@dataclass(slots=True, eq=False)
class Construction:
    """The factory of an executable, by its name, and the arguments of the call that made it.

    `on_change` is called when an argument has grown, such as the templates of `by_sizes`.
    """

    factory: str
    arguments: tuple[Any, ...]
    on_change: Callable[[], None] = nothing


class StoredBy:
    """Base of objects in constructions that a method of the writer stores: the one named `WRITER`.

    The writer does not import their classes, which belong to the compiler.
    """

    __slots__ = ()
    WRITER: ClassVar[str]


def made_by(executable: E, factory: str, *arguments: object) -> E:
    """Record the call that made an executable; return the executable."""
    executable.construction = Construction(factory, arguments)  # type: ignore[attr-defined]
    return executable


def construction_of(executable: object) -> Construction:
    """Return the record of an executable. Raises CannotKeep if it has none."""
    found = getattr(executable, "construction", None)
    if not isinstance(found, Construction):
        name = getattr(executable, "__qualname__", type(executable).__qualname__)
        raise CannotKeep(f"an executable of a kind that only this process has ({name})")
    return found
