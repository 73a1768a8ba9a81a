"""Names live objects so that another process can find them, and checks what it finds there.

In: an object of the process, such as a module, a function, a class or a descriptor. Out: a path,
and facts. A path is the name of a module in `sys.modules`, then names in dictionaries of modules
and classes. Facts say what kind of object it is: a function is its code, a class its name (guards
check the attributes that a trace read). Following a path calls nothing: it reads `__dict__`, and
imports modules of jitmagic alone. Objects of other kinds raise CannotKeep.
"""

from __future__ import annotations

import enum
import functools
import importlib
import sys
from collections.abc import Iterator
from types import (
    BuiltinFunctionType,
    ClassMethodDescriptorType,
    CodeType,
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodDescriptorType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import Any

from ..errors import CannotKeep
from .fingerprint import fingerprint

__all__ = ["Facts", "Path", "facts_of", "find", "module_of_namespace", "path_of"]

Facts = tuple[Any, ...]  # of strings and Facts
Path = tuple[str, ...]

_DESCRIPTORS = (
    ClassMethodDescriptorType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodDescriptorType,
    WrapperDescriptorType,
)
_OWN = f"{__package__.partition('.')[0]}."
_MRO, _NAMES = (type.__dict__[name].__get__ for name in ("__mro__", "__dict__"))
# Attributes by which a wrapper in a class's dictionary leads to the function inside.
_INSIDE = {
    staticmethod: ("__func__",),
    classmethod: ("__func__",),
    property: ("fget", "fset", "fdel"),
    functools.cached_property: ("func",),
}


# ------------------------------------------------------------------------------------------- facts


def facts_of(value: Any) -> Facts:
    """Return what an object is, in strings. Raises CannotKeep for kinds without an identity that
    another process could recognise.
    """
    kind = type(value)
    match value:
        case None:
            return ("none",)
        case CodeType():
            return "code", fingerprint(value)
        case FunctionType():
            return (
                "function",
                _module(value.__module__),
                value.__qualname__,
                fingerprint(value.__code__),
            )
        case ModuleType():
            return "module", _module(value.__dict__.get("__name__"))
        case enum.Enum():
            return "member", facts_of(kind), value._name_
    if issubclass(kind, type):
        return "class", _module(_NAMES(value).get("__module__", "")), value.__qualname__
    if kind is BuiltinFunctionType:
        owner = value.__self__
        is_pybind = type(owner).__name__ == "PyCapsule" or "pybind11" in type(owner).__name__
        if owner is not None and not isinstance(owner, ModuleType | type) and not is_pybind:
            raise CannotKeep(f"the method {value.__name__} of a {type(owner).__qualname__}")
        return "builtin", _module(value.__module__), value.__qualname__
    if kind in _DESCRIPTORS:
        return "descriptor", kind.__name__, facts_of(value.__objclass__), value.__name__
    if kind in _INSIDE:
        return kind.__name__, *(facts_of(getattr(value, name)) for name in _INSIDE[kind])
    if kind is dict and (name := module_of_namespace(value)) is not None:
        return "namespace", name
    if kind.__module__ == "numpy" and kind.__name__ == "ufunc":
        return "ufunc", value.__name__
    if kind is functools._lru_cache_wrapper:
        return "lru_cache", facts_of(value.__wrapped__)
    raise CannotKeep(f"an object of type {kind.__module__}.{kind.__qualname__}")


def module_of_namespace(table: object) -> str | None:
    """Return the name of the module whose `__dict__` a dictionary is, or None."""
    name = table.get("__name__") if type(table) is dict else None
    module = sys.modules.get(name) if type(name) is str else None
    return _module(name) if getattr(module, "__dict__", None) is table else None


def _module(name: object) -> str:
    """Return the name of a module. A process that multiprocessing has spawned runs the main module
    under another name, and has it under both in `sys.modules`.
    """
    return "__main__" if name == "__mp_main__" else str(name)


# ------------------------------------------------------------------------------------------- paths


def find(path: Path) -> Any:
    """Return the object at a path; raises LookupError if there is none."""
    name, *rest = path
    if name.startswith(_OWN):  # the program imports all others
        importlib.import_module(name)
    at: Any = sys.modules[name]
    for part in rest:
        at = _step(at, part)
    return at


def _step(at: Any, name: str) -> Any:
    kind = type(at)
    if name in _INSIDE.get(kind, ()):
        return getattr(at, name)
    if isinstance(at, ModuleType):
        return vars(at)[name]
    if issubclass(kind, type):
        for each in _MRO(at):
            if name in (names := _NAMES(each)):
                return names[name]
    raise LookupError(name)


def path_of(value: Any) -> Path:
    """Return a path to an object. Raises CannotKeep if none is known."""
    for path in _candidates(value):
        try:
            if find(path) is value:
                return path
        except LookupError:
            continue
    raise CannotKeep(f"{_shown(value)}, which no module names")


def _candidates(value: Any) -> Iterator[Path]:
    kind = type(value)
    if isinstance(value, ModuleType):
        yield (_module(value.__dict__.get("__name__")),)
        return
    if kind in _DESCRIPTORS:
        yield (*path_of(value.__objclass__), value.__name__)
        return
    if isinstance(value, enum.Enum):
        yield (*path_of(kind), value._name_)
        return
    if kind is BuiltinFunctionType and isinstance(value.__self__, type):
        yield (*path_of(value.__self__), value.__name__)  # such as tuple.__new__
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if isinstance(module, str) and type(name) is str and "<" not in name:
        named = (_module(module), *name.split("."))
        yield named
        for inside in ("__func__", "fget"):
            yield (*named, inside)
    if (found := _torch_names().get(id(value))) is not None:
        yield found


@functools.cache
def _torch_names() -> dict[int, Path]:
    """Return the paths of torch's C functions, whose `__module__` is None or another's."""
    modules = (
        *("torch", "torch._C", "torch._C._nn", "torch._C._linalg", "torch._C._fft"),
        *("torch._C._special", "torch.nn.functional", "torch._C._functorch"),
    )
    found: dict[int, Path] = {}
    for module in reversed(modules):
        for name, value in getattr(sys.modules.get(module), "__dict__", {}).items():
            if type(value) is BuiltinFunctionType:
                found[id(value)] = module, name
    return found


def _shown(value: Any) -> str:
    name = getattr(value, "__qualname__", None)
    kind = type(value).__qualname__
    return f"the {kind} {name}" if type(name) is str else f"an object of type {kind}"
