"""The Source family: where a value of the traced frame came from, as data.

A source is a path from one of the frame's roots. It is read by separate functions: `describe`
(Python text for people), the reference implementation in `check.py`, and `frame/native.py` which
lowers it to a native guard program. Following a source never runs user code: attributes are read
out of instance dictionaries and tuples, never through `__getattr__` or properties.

    Source = Argument(index, name)           i-th value handed to the dispatcher: arguments, then
                                             cells
           | Held(index, name)               i-th object that a call holds for its backwards; a
                                             root of what those rely on (trace/backward_facts.py)
           | Global(name) | Builtin(name)    the frame's f_globals / f_builtins
           | ImportedModule(name)            sys.modules[name] (import statements inside functions)
           | CellContents(base)              what a closure cell holds
           | InstanceDict(base)              base.__dict__
           | Item(base, key)                 base[key] of an exact list, tuple or dict, key constant
           | DictEntry(base, key)           the same of an object whose class inherits from dict
           | DictKeyAt(base, index)          the index-th key of a dict (keys that are no constants)
           | DictValueAt(base, index)        the value beside that key
           | TypeOf(base)                    type(base)
           | TypeAttr(base, name)            name found on the MRO of the type `base`, no __get__
           | SlotAttr(base, name)            a C-level member/getset of a known built-in type
           | FunctionPart(base, part)        __code__, __closure__, __defaults__, __kwdefaults__ or
                                             __globals__ of a Python function; __self__ or
                                             __func__ of a bound method
           | ModuleAttr(base, name)          base.__dict__[name] of a Python module
           | Contents(base)                  what a set or deque holds, as a tuple in its order
           | Length(base)                    len() of a list, tuple, dict, set or deque: an int
           | IntOf(base)                     the int that an integer of numpy is
           | ItemAt(base, index)             base[i] of a list or tuple, or of a dict whose keys are
                                             str: i is where `index` leads
           | AttributeAt(base, index, tables)  base.name, where the class has no such name: `index`
                                             leads to it, `tables` are searched after `__dict__`
           | Joined(base, before, after)     before + base + after, of a str
           | Part(base, start, stop)         base[start:stop] of an exact list or tuple, made anew
           | Reduced(base, function)         sum, min or max of a list or tuple of floats and ints
           | Gradient(base)                  base.grad of a leaf tensor
           | IteratorParts(base)             what a built-in iterator still has: iterator_parts.py
           | Referent(base)                  what a weakref.ref or mappingproxy leads to, or None
           | CacheEntry(base, key)           the result that a functools.lru_cache holds for a key
           | ArrayMemory(base)               a tensor of the memory of a numpy array
           | Drawn(index, name)              what a draw before the graph gave (trace/result.py); no
                                             guard reads it
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

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
    "Held",
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
    "SlotAttr",
    "Source",
    "TypeAttr",
    "TypeOf",
    "describe",
    "has_users_name",
]


_MODULE_TABLES = ("_parameters", "_buffers", "_modules")  # where nn.Module keeps its parts


@dataclass(frozen=True, slots=True)
class Source:
    """Base of the family; never made itself."""


@dataclass(frozen=True, slots=True)
class Argument(Source):
    """The index-th value the call stub hands to the dispatcher: parameters in order, then cells."""

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class Held(Argument):
    """An object that a call keeps for its backwards: what `ctx` leads to."""


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


UNNAMED = ".stack"  # and a number: a parameter of a resume function that no variable holds


def has_users_name(source: Source) -> bool:
    """Whether the path begins with something that the user's code can be written with."""
    at: Any = source
    while not isinstance(at, Argument):
        at = getattr(at, "base", None)
        if at is None:
            return True
    return at.name.isidentifier()


def describe(source: Source) -> str:
    """Python text for the path, as a person would write it: `self.fc1.weight`, `cfg['n']`."""
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
