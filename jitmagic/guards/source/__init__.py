"""The Source family: where a value of the traced frame came from, as data; one class per kind.

A source is a path from one of the frame's roots (an argument, a global, ...). Its class is the one
place that knows the kind: its text for the user, how it is read in a live frame, the native step
that loads it, and the bytecode that reads it again (row.py). Following a source never runs user
code: attributes are read from instance dictionaries and tuples, never through `__getattr__` or
properties.

    roots         arguments, objects saved for a backward, globals, builtins, imported modules,
                  objects that no path of the frame leads to
    objects       attributes and parts of one object: cells, dictionaries, classes, functions
    containers    items, keys, lengths and slices of containers; the state of iterators

A new kind is a class in one of these files and a LOAD row in extensions/frame/guard_steps.h.
"""

from .containers import (
    Contents,
    DictEntry,
    DictKeyAt,
    DictValueAt,
    Item,
    ItemAt,
    IteratorParts,
    Joined,
    Length,
    Part,
    Reduced,
)
from .objects import (
    ArrayMemory,
    AttributeAt,
    CacheEntry,
    CellContents,
    FunctionPart,
    Gradient,
    InstanceDict,
    ModuleAttr,
    NumberOf,
    Referent,
    SlotAttr,
    TypeAttr,
    TypeOf,
)
from .roots import (
    UNNAMED,
    Argument,
    Builtin,
    Drawn,
    Global,
    Globals,
    HeldObject,
    ImportedModule,
    SavedRef,
    drawn_variable,
    has_users_name,
)
from .row import Derived, Registers, Source, Step, describe

__all__ = [
    "UNNAMED",
    "Argument",
    "ArrayMemory",
    "AttributeAt",
    "Builtin",
    "CacheEntry",
    "CellContents",
    "Contents",
    "Derived",
    "DictEntry",
    "DictKeyAt",
    "DictValueAt",
    "Drawn",
    "FunctionPart",
    "Global",
    "Globals",
    "Gradient",
    "HeldObject",
    "ImportedModule",
    "InstanceDict",
    "Item",
    "ItemAt",
    "IteratorParts",
    "Joined",
    "Length",
    "ModuleAttr",
    "NumberOf",
    "Part",
    "Reduced",
    "Referent",
    "Registers",
    "SavedRef",
    "SlotAttr",
    "Source",
    "Step",
    "TypeAttr",
    "TypeOf",
    "describe",
    "drawn_variable",
    "has_users_name",
]
