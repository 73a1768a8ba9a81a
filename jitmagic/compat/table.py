"""Looks up private names of torch, and records those that the installed torch does not have.

Each row of the table is an assignment in a module of this package:

    function_mode_depth: Callable[[], int] = private("torch._C._len_torch_function_stack")
    boxed: type = private("torch._C.Boxed", since=(2, 14), otherwise=object)

A missing name does not fail the import: a class stands for it that has no instances, so only what
needs the name fails, with an `UnsupportedTorch` that says which name it was.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any, NoReturn

import torch

from ..errors import UnsupportedTorch
from ..lazy_dataclass import dataclass
from .versions import OLDEST, REMEDY, Release, is_newer, release

__all__ = ["HERE", "ROWS", "Row", "missing", "private", "summary"]

HERE = release(torch.__version__)


@dataclass(frozen=True, slots=True)
class Row:
    """Describes a private name: the versions that have it (`until` is the first without)."""

    name: str
    since: Release
    until: Release | None
    is_found: bool

    @property
    def is_expected(self) -> bool:
        """Return whether this torch should have the name."""
        return self.since <= HERE and (self.until is None or self.until > HERE)


ROWS: list[Row] = []
"""Rows of the modules that are imported so far."""


class _Missing(type):
    """The type of the stand-ins. They are classes, so that `isinstance` and `class` accept them."""

    dotted: str

    def __call__(cls, *args: object, **kwargs: object) -> NoReturn:
        raise UnsupportedTorch(torch.__version__, cls.dotted, REMEDY)

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _stand_in(f"{cls.dotted}.{name}")


def _stand_in(dotted: str) -> Any:
    return _Missing("Missing", (), {"dotted": dotted})


def private(
    name: str, *, since: Release = OLDEST, until: Release | None = None, otherwise: Any = None
) -> Any:
    """Return the object with this dotted name.

    Versions before `since`, and from `until` on, do not have it: there it is `otherwise`, or a
    stand-in that raises UnsupportedTorch when called.
    """
    try:
        found = _look_up(name)
        row = Row(name, since, until, True)
    except (ImportError, AttributeError):
        row = Row(name, since, until, False)
        found = _stand_in(name) if otherwise is None or row.is_expected else otherwise
    ROWS.append(row)
    return found


def _look_up(name: str) -> Any:
    """Import as much of the dotted name as is a module, and read the rest as attributes."""
    first, *rest = name.split(".")
    found, path = importlib.import_module(first), first
    for part in rest:
        path = f"{path}.{part}"
        # torch.optim deletes the attribute `optimizer` that its import of this module has set.
        loaded = sys.modules.get(path)
        if loaded is None and hasattr(found, "__path__") and not hasattr(found, part):
            loaded = importlib.import_module(path)
        found = getattr(found, part) if loaded is None else loaded
    return found


def missing() -> list[str]:
    """Return the names that this torch should have and does not."""
    return [row.name for row in ROWS if row.is_expected and not row.is_found]


def summary() -> str:
    """Return one line if this torch is unknown or lacks a name, else an empty string."""
    absent = missing()
    if not absent and not is_newer(torch.__version__):
        return ""
    lacks = f"lacks {', '.join(absent)}" if absent else f"has all {len(ROWS)} private names it uses"
    return f"torch {torch.__version__} {lacks}; {REMEDY}"
