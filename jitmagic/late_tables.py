"""Tables whose rows stand in modules that are imported when one of their keys is looked up.

Decorators such as `@handles(len)` or `@lowers("sum.dim_IntList")` add rows while their modules are
imported. `late_rows.json` lists the names of the keys that each module adds. The test of it,
tests/test_late_tables.py, imports all modules; it writes the list with --update-golden.
"""

from __future__ import annotations

import json
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, overload

import torch

from .compat.versions import release
from .late import load_part

__all__ = [
    "EVERY", "ROWS", "VERSION", "VERSIONS", "LateTable", "class_name", "object_name", "package_of",
]  # fmt: skip

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")
ROWS = Path(__file__).with_name("late_rows.json")  # {title of a table: {module: names of keys}}
_ROWS: dict[str, dict[str, str]] = json.loads(ROWS.read_text())
VERSIONS = "versions"  # its title of the versions whose keys it has: {"Python torch": ""}
VERSION = "{}.{} {}.{}".format(*sys.version_info[:2], *release(torch.__version__))
# Other versions may have other functions: their rows are all loaded with the first.
_is_listed = VERSION in _ROWS[VERSIONS]
EVERY = "*"  # the key of rows that are asked about every object
_METHODS = (types.MethodDescriptorType, types.WrapperDescriptorType)
# Not `kind.__name__`, which a metaclass may define.
class_name: Callable[[type], str] = type.__dict__["__name__"].__get__


def package_of(function: types.FunctionType) -> str:
    """Return the top-level package whose code defines a function."""
    module = dict.get(function.__globals__, "__name__")
    return module.partition(".")[0] if type(module) is str else ""


def object_name(obj: Any) -> str:
    """Return the name of a function, class or code object, and of others that of their class.

    That of a Python function begins with its package: a user's `softmax` is not torch's. That of a
    C method begins with a dot: handlers of `sum` are none of `torch.Tensor.sum`. No code of the
    program runs, which `obj.__name__` might do.
    """
    kind = type(obj)
    if kind is types.MethodType:
        return object_name(obj.__func__)
    if kind is types.CodeType:
        return str(obj.co_name)
    if kind in _METHODS:
        return f".{obj.__name__}"
    if kind is types.FunctionType:
        return f"{package_of(obj)}.{obj.__name__}"
    if kind is types.BuiltinFunctionType:
        return str(obj.__name__)
    return class_name(obj if issubclass(kind, type) else kind)


class LateTable(dict[K, V]):
    """A dictionary that imports the modules with rows for a key before it looks the key up.

    `name_of` gives the name of a key. Keys with the same name may differ: all modules that add one
    of them are imported. Iteration shows the rows that were added so far; see `load_all`.
    """

    __slots__ = ("_modules", "name_of", "title")

    def __init__(self, title: str, name_of: Callable[[Any], str] = str) -> None:
        super().__init__()
        self.title, self.name_of = title, name_of
        self._modules: dict[str, list[str]] = {}
        for module, names in _ROWS.get(title, {}).items():
            for name in names.split():
                self._modules.setdefault(name, []).append(module)

    def load(self, name: str) -> None:
        """Import the modules with rows for keys of that name."""
        for one in (name,) if _is_listed else [*self._modules]:
            for module in self._modules.get(one, ()):
                load_part(module)
            # Not before: another thread that looks the name up meanwhile waits for the import.
            self._modules.pop(one, None)

    def load_all(self) -> LateTable[K, V]:
        """Import all modules with rows; return the table."""
        for name in [*self._modules]:
            self.load(name)
        return self

    @overload
    def get(self, key: K, default: None = None, /) -> V | None: ...
    @overload
    def get(self, key: K, default: V, /) -> V: ...
    @overload
    def get(self, key: K, default: T, /) -> V | T: ...
    def get(self, key: Any, default: Any = None, /) -> Any:
        """Return the row of a key."""
        self.load(self.name_of(key))
        return super().get(key, default)

    def __missing__(self, key: K) -> V:
        if key in self:
            return self[key]
        raise KeyError(key)

    def __contains__(self, key: Any) -> bool:
        self.load(self.name_of(key))
        return super().__contains__(key)
