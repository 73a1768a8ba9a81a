"""What a cell tags: functions, classes and methods, with the options of the cell, and back.

Comes in: what a definition bound in the notebook's namespace. Goes out: its tagged form, and a Mark
by which `%unload_ext` gives the plain one back.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from types import FunctionType
from typing import Any

from ..api import handle_of, jit, original_of, tag_once, untag
from ..errors import TaggingError
from .display import DimLine

__all__ = ["Mark", "Tagged", "Tagger", "tag_methods"]

Tagged = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Mark:
    """What a cell tagged: a function or module class by its name, or methods of a plain class."""

    name: str
    target: weakref.ref[Any]
    methods: tuple[tuple[str, weakref.ref[Any]], ...] = ()

    def remove(self, namespace: dict[str, Any]) -> None:
        """Put the plain self back, unless the user rebound the name."""
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
    """Tags with one cell's options; what jit warns of is said once, and of the cell."""

    filename: str
    options: dict[str, Any]
    display: Callable[[Any], Any] | None  # IPython's; None: nothing is told
    told: bool = False

    def tag(self, target: Any, *, once: bool = False) -> Any:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            tagged = tag_once(target, self.options) if once else jit(target, **self.options)
        for warning in caught if not self.told else ():
            warnings.warn_explicit(warning.message, warning.category, self.filename, 1)
        self.told = True
        return tagged

    def tag_or_tell(self, target: Any, name: str) -> Any:
        """None, and a word about it, for what cannot be tagged: a generator, say."""
        try:
            return self.tag(target)
        except TaggingError as error:
            if self.display is not None:
                self.display(DimLine(f"%%compile: {name} runs as it is: {error}"))
            return None


def tag_methods(cls: type, tagger: Tagger) -> dict[str, Tagged]:
    """Plain methods of a plain class; special methods stay as they are."""
    made: dict[str, Tagged] = {}
    for name, method in list(vars(cls).items()):
        if not isinstance(method, FunctionType) or name.startswith("__") or handle_of(method):
            continue
        tagged = tagger.tag_or_tell(method, f"{cls.__qualname__}.{name}")
        if tagged is not None:
            setattr(cls, name, tagged)
            made[name] = tagged
    return made
