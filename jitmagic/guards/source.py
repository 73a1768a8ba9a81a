"""The Source family: where a value of the traced frame came from, as data.

A source is a path from one of the frame's roots (an argument, a global, ...). Separate functions
interpret it: `describe` renders it as Python text, `check.py` reads it in the reference
implementation, and `frame/native.py` lowers it to a native guard program. Following a source never
runs user code: attributes are read from instance dictionaries and tuples, never through
`__getattr__` or properties.

    Source = Argument(index, name)           index-th value passed to the dispatcher: arguments,
                                             then cells
           | SavedRef(index, name)           index-th object that a call saves for its backward:
                                             root of the paths in the guards of the backward
                                             (trace/values/autograd/backward_facts.py)
           | Global(name) | Builtin(name)    the frame's f_globals / f_builtins
           | ImportedModule(name)            sys.modules[name] (import statements inside functions)

           | CellContents(base)              the contents of a closure cell
           | InstanceDict(base)              base.__dict__
           | Item(base, key)                 base[key] of an exact list, tuple or dict, key constant

           | DictEntry(base, key)            the same for an object whose class inherits from dict
           | DictKeyAt(base, index)          the index-th key of a dict, if it is no constant
           | DictValueAt(base, index)        the value under that key

           | TypeOf(base)                    type(base)
           | TypeAttr(base, name)            name found on the MRO of the type `base`, no __get__
           | SlotAttr(base, name)            a C-level member/getset of a known built-in type

           | FunctionPart(base, part)        __code__, __closure__, __defaults__, __kwdefaults__ or
                                             __globals__ of a Python function; __self__ or
                                             __func__ of a bound method
           | ModuleAttr(base, name)          base.__dict__[name] of a Python module

           | Contents(base)                  the items of a set or deque, as a tuple in their order
           | Length(base)                    len() of a list, tuple, dict, set or deque: an int
           | IntOf(base)                     the value of a numpy integer
           | ItemAt(base, index)             base[i] of a list or tuple, or of a dict with str keys;
                                             i is the value of the source `index`
           | AttributeAt(base, index, tables)  base.name of a name that the class lacks, read at
                                             `index`; `tables` are searched after `__dict__`
           | Joined(base, before, after)     before + base + after, of a str
           | Part(base, start, stop)         base[start:stop] of an exact list or tuple, a new one
           | Reduced(base, function)         sum, min or max of a list or tuple of floats and ints

           | Gradient(base)                  base.grad of a leaf tensor
           | IteratorParts(base)             the state of a built-in iterator: iterator_parts.py
           | Referent(base)                  the referent of a weakref.ref or mappingproxy, or None

           | CacheEntry(base, key)           the cached result of a functools.lru_cache for a key
           | ArrayMemory(base)               a tensor that shares the memory of a numpy array
           | Drawn(index, name)              a random draw before the graph (trace/result.py); no
                                             guard reads it
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

__all__ = [
    "UNNAMED",
    "Argument",
    "ArrayMemory",
    "AttributeAt",
    "Builtin",
    "CacheEntry",
    "CellContents",
    "Contents",
    "DictEntry",
    "DictKeyAt",
    "DictValueAt",
    "Drawn",
    "FunctionPart",
    "Global",
    "Gradient",
    "ImportedModule",
    "InstanceDict",
    "IntOf",
    "Item",
    "ItemAt",
    "IteratorParts",
    "Joined",
    "Length",
    "ModuleAttr",
    "Part",
    "Reduced",
    "Referent",
    "SavedRef",
    "SlotAttr",
    "Source",
    "TypeAttr",
    "TypeOf",
    "describe",
    "has_users_name",
    "is_input_of_call",
]


_MODULE_TABLES = ("_parameters", "_buffers", "_modules")  # where nn.Module stores its state


@dataclass(frozen=True, slots=True)
class Source:
    """Abstract base of the family."""


@dataclass(frozen=True, slots=True)
class Argument(Source):
    """The index-th value that the stub passes to the dispatcher: parameters, then cells."""

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class SavedRef(Argument):
    """An object that a call saves for its backwards, such as `ctx`."""


@dataclass(frozen=True, slots=True)
class Global(Source):
    name: str


@dataclass(frozen=True, slots=True)
class Builtin(Source):
    name: str


@dataclass(frozen=True, slots=True)
class ImportedModule(Source):
    name: str


@dataclass(frozen=True, slots=True)
class CellContents(Source):
    base: Source


@dataclass(frozen=True, slots=True)
class InstanceDict(Source):
    base: Source


@dataclass(frozen=True, slots=True)
class Item(Source):
    base: Source
    key: object


@dataclass(frozen=True, slots=True)
class DictEntry(Source):
    base: Source
    key: object


@dataclass(frozen=True, slots=True)
class DictKeyAt(Source):
    base: Source
    index: int


@dataclass(frozen=True, slots=True)
class DictValueAt(Source):
    base: Source
    index: int


@dataclass(frozen=True, slots=True)
class TypeOf(Source):
    base: Source


@dataclass(frozen=True, slots=True)
class TypeAttr(Source):
    base: Source
    name: str


@dataclass(frozen=True, slots=True)
class SlotAttr(Source):
    base: Source
    name: str


@dataclass(frozen=True, slots=True)
class FunctionPart(Source):
    base: Source
    part: str


@dataclass(frozen=True, slots=True)
class ModuleAttr(Source):
    base: Source
    name: str


@dataclass(frozen=True, slots=True)
class Contents(Source):
    base: Source


@dataclass(frozen=True, slots=True)
class IntOf(Source):
    base: Source


@dataclass(frozen=True, slots=True)
class Length(Source):
    base: Source


@dataclass(frozen=True, slots=True)
class ItemAt(Source):
    base: Source
    index: Source


@dataclass(frozen=True, slots=True)
class AttributeAt(Source):
    base: Source
    index: Source
    tables: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Joined(Source):
    base: Source
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Part(Source):
    base: Source
    start: int | None
    stop: int | None


@dataclass(frozen=True, slots=True)
class Reduced(Source):
    base: Source
    function: Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Gradient(Source):
    base: Source


@dataclass(frozen=True, slots=True)
class IteratorParts(Source):
    base: Source


@dataclass(frozen=True, slots=True)
class Referent(Source):
    base: Source


@dataclass(frozen=True, slots=True)
class CacheEntry(Source):
    base: Source
    key: object


@dataclass(frozen=True, slots=True)
class ArrayMemory(Source):
    base: Source


@dataclass(frozen=True, slots=True)
class Drawn(Source):
    index: int
    name: str


UNNAMED = ".stack"  # plus a number: a resume function's parameter for a value without a variable


def has_users_name(source: Source) -> bool:
    """Return whether the path starts at a name that the user's code can contain."""
    at: Any = source
    while not isinstance(at, Argument):
        at = getattr(at, "base", None)
        if at is None:
            return True
    return at.name.isidentifier()


def is_input_of_call(source: Source, tensor: torch.Tensor) -> bool:
    """Return whether a tensor is an argument or inside one, and not a parameter.

    The sizes of parameters and of tensors in modules rarely vary.
    """
    at: Any = source
    while isinstance(at, Item | ItemAt | DictEntry | ArrayMemory):
        at = at.base
    return isinstance(at, Argument) and not isinstance(tensor, torch.nn.Parameter)


def describe(source: Source) -> str:
    """Return the path as Python text: `self.fc1.weight`, `cfg['n']`."""
    match source:
        case Argument(name=name) if name.startswith(UNNAMED):
            return f"(unnamed value {int(name.removeprefix(UNNAMED)) + 1})"
        case (
            Argument(name=name) | Global(name=name) | Builtin(name=name) | ImportedModule(name=name)
        ):
            return name
        case Item(base=Item(base=InstanceDict(base=owner), key=table), key=str(key)) if (
            table in _MODULE_TABLES
        ):
            return f"{describe(owner)}.{key}"
        case Item(base=InstanceDict(base=owner), key=str(key)):
            return f"{describe(owner)}.{key}"
        case Contents(base=base):
            return f"tuple({describe(base)})"
        case Item(base=base, key=key) | DictEntry(base=base, key=key):
            return f"{describe(base)}[{key!r}]"
        case ItemAt() | AttributeAt() | Joined() | Part() | Length() | Reduced() | CacheEntry():
            return _describe_contents(source)
        case DictKeyAt(base=base, index=index):
            return f"list({describe(base)})[{index}]"
        case DictValueAt(base=base, index=index):
            return f"list({describe(base)}.values())[{index}]"
        case CellContents(base=base):
            return describe(base)
        case InstanceDict(base=base):
            return f"{describe(base)}.__dict__"
        case TypeOf(base=base) | IntOf(base=base):
            return f"{'type' if isinstance(source, TypeOf) else 'int'}({describe(base)})"
        case FunctionPart(base=base, part=part):
            return f"{describe(base)}.{part}"
        case (
            TypeAttr(base=base, name=name)
            | SlotAttr(base=base, name=name)
            | ModuleAttr(base=base, name=name)
        ):
            return f"{describe(base)}.{name}"
        case Gradient(base=base):
            return f"{describe(base)}.grad"
        case IteratorParts(base=base):
            return f"parts({describe(base)})"
        case Referent(base=base):
            return f"{describe(base)}()"
        case Drawn(name=name):
            return f"{name}()"
        case ArrayMemory(base=base):
            return f"from_numpy({describe(base)})"
    raise TypeError(f"not a source: {source!r}")


def _describe_contents(
    source: ItemAt | AttributeAt | Joined | Part | Length | Reduced | CacheEntry,
) -> str:
    base = describe(source.base)
    match source:
        case AttributeAt(index=index):
            return f"getattr({base}, {describe(index)})"
        case Joined(before=before, after=after):
            first, last = (repr(end) if end else "" for end in (before, after))
            return " + ".join(filter(None, (first, base, last)))
        case ItemAt(index=index):
            return f"{base}[{describe(index)}]"
        case Part(start=start, stop=stop):
            ends = ("" if end is None else str(end) for end in (start, stop))
            return f"{base}[{':'.join(ends)}]"
        case Length():
            return f"len({base})"
        case CacheEntry(key=key):  # the marker of keyword arguments is an object()
            parts = key if isinstance(key, tuple) else (key,)
            return f"{base}({', '.join(repr(p) for p in parts if type(p) is not object)})"
        case Reduced(function=function):
            return f"{function.__name__}({base})"
