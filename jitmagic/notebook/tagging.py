"""tagging: tags the functions, classes and methods of a cell, and restores the originals.

Input: the object that a definition bound in the notebook. Output: its tagged form, and a `Mark`
with which `%unload_ext` restores the original.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable
from types import FunctionType
from typing import Any

from ..api import handle_of, jit, original_of, tag_once, untag
from ..errors import TaggingError
from ..lazy_dataclass import dataclass
from ..torch_types import AnyFunction
from .display import DimLine

__all__ = ["Mark", "Tagger", "tag_methods"]


@dataclass(frozen=True, slots=True)
class Mark:
    """A tagged function or module class with its name, or the tagged methods of a plain class."""

    name: str
    target: weakref.ref[object]
    methods: tuple[tuple[str, weakref.ref[AnyFunction]], ...] = ()

    def remove(self, namespace: dict[str, object]) -> None:
        """Restore the original, unless the user rebound the name."""
        target = self.target()
        if target is None:
            return
        for name, method in self.methods:
            if (tagged := vars(target).get(name)) is not None and tagged is method():
                setattr(target, name, original_of(tagged))
        if not self.methods and isinstance(target, type):
            untag(target)
        elif not self.methods and namespace.get(self.name) is target:
            namespace[self.name] = original_of(target)


@dataclass(slots=True)
class Tagger:
    """Tags with the options of one cell; warnings of `jit` are issued once and for the cell."""

    filename: str
    options: dict[str, Any]
    display: Callable[[object], object] | None  # IPython's; None: no messages
    has_warned: bool = False

    def tag(self, target: AnyFunction, *, once: bool = False) -> AnyFunction:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            tagged = tag_once(target, self.options) if once else jit(target, **self.options)
        for warning in caught if not self.has_warned else ():
            warnings.warn_explicit(warning.message, warning.category, self.filename, 1)
        self.has_warned = True
        return tagged

    def tag_or_explain(self, target: AnyFunction, name: str) -> AnyFunction | None:
        """Return the tagged target; if it cannot be tagged (a generator), display why."""
        try:
            return self.tag(target)
        except TaggingError as error:
            if self.display is not None:
                self.display(DimLine(f"%%compile: {name} runs as it is: {error}"))
            return None


def tag_methods(cls: type, tagger: Tagger) -> dict[str, AnyFunction]:
    """Tag the methods of a class that is not a module, except special ones; return them by name."""
    methods: dict[str, AnyFunction] = {}
    for name, method in list(vars(cls).items()):
        if not isinstance(method, FunctionType) or name.startswith("__") or handle_of(method):
            continue
        tagged = tagger.tag_or_explain(method, f"{cls.__qualname__}.{name}")
        if tagged is not None:
            setattr(cls, name, tagged)
            methods[name] = tagged
    return methods
