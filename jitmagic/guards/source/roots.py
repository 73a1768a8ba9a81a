"""Roots of paths: values that the call, the function's namespaces or the interpreter hold."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import NoReturn

from ...bytecode import FrameSnapshot, build
from ...lazy_dataclass import dataclass, field
from .row import Code, Registers, Residual, Source, Step

__all__ = [
    "UNNAMED",
    "Argument",
    "Builtin",
    "Drawn",
    "Global",
    "Globals",
    "HeldObject",
    "ImportedModule",
    "SavedRef",
    "drawn_variable",
    "has_users_name",
]

UNNAMED = ".stack"  # plus a number: a resume function's parameter for a value without a variable


@dataclass(frozen=True, slots=True)
class Argument(Source):
    """The index-th value that the stub passes to the dispatcher: parameters, then cells."""

    index: int
    name: str

    def describe(self) -> str:
        if self.name.startswith(UNNAMED):
            return f"(unnamed value {int(self.name.removeprefix(UNNAMED)) + 1})"
        return self.name

    def read(self, frame: FrameSnapshot) -> object:
        return (*frame.args, *frame.cells)[self.index]

    def load(self, registers: Registers) -> Step:
        return ("ARGUMENT", self.index)

    def emit(self, residual: Residual) -> Code:
        return build.load_fast(residual.parameters[self.index], bound=True)


@dataclass(frozen=True, slots=True)
class SavedRef(Argument):
    """The index-th object that a call saves for its backwards, such as `ctx`.

    The root of paths in the guards of a backward (trace/values/autograd/backward_facts.py).
    """


@dataclass(frozen=True, slots=True)
class _Entry(Source):
    """Abstract base of the entries of a namespace."""

    name: str

    def describe(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Global(_Entry):
    """An entry of the frame's `f_globals`."""

    def read(self, frame: FrameSnapshot) -> object:
        return frame.globals[self.name]

    def load(self, registers: Registers) -> Step:
        return ("NAMESPACE_ITEM", registers.namespace, self.name)

    def emit(self, residual: Residual) -> Code:
        return build.load_global(self.name)


@dataclass(frozen=True, slots=True)
class Globals(Source):
    """The dictionary of the frame's globals."""

    def describe(self) -> str:
        return "globals()"

    def read(self, frame: FrameSnapshot) -> object:
        return frame.globals

    def load(self, registers: Registers) -> Step:
        # No step loads an object of the program itself.
        return ("NAMESPACE_ITEM", {"globals": registers.namespace}, "globals")

    def emit(self, residual: Residual) -> Code:
        return build.call(globals)


@dataclass(frozen=True, slots=True)
class Builtin(_Entry):
    """An entry of the frame's `f_builtins`."""

    def read(self, frame: FrameSnapshot) -> object:
        return frame.builtins[self.name]

    def load(self, registers: Registers) -> Step:
        return ("NAMESPACE_ITEM", registers.builtins, self.name)

    def emit(self, residual: Residual) -> Code:
        return _entry(residual.builtins, self.name)


@dataclass(frozen=True, slots=True)
class ImportedModule(_Entry):
    """An entry of `sys.modules`, which import statements in functions read."""

    def read(self, frame: FrameSnapshot) -> object:
        return sys.modules[self.name]

    def load(self, registers: Registers) -> Step:
        return ("NAMESPACE_ITEM", sys.modules, self.name)

    def emit(self, residual: Residual) -> Code:
        return _entry(sys.modules, self.name)


@dataclass(frozen=True, slots=True)
class HeldObject(_Entry):
    """The only entry of `table`: an object to which no path of the frame leads, such as a function
    that is traced in place of another.
    """

    table: Mapping[str, object] = field(hash=False)

    def read(self, frame: FrameSnapshot) -> object:
        return self.table[self.name]

    def load(self, registers: Registers) -> Step:
        return ("NAMESPACE_ITEM", self.table, self.name)

    def emit(self, residual: Residual) -> Code:
        return _entry(self.table, self.name)


@dataclass(frozen=True, slots=True)
class Drawn(Source):
    """A random draw before the graph (trace/result.py), which no guard reads."""

    index: int
    name: str

    def describe(self) -> str:
        return f"{self.name}()"

    def read(self, frame: FrameSnapshot) -> NoReturn:
        raise TypeError("a random draw exists in compiled code only")

    def load(self, registers: Registers) -> NoReturn:
        raise TypeError("a random draw exists in compiled code only")

    def emit(self, residual: Residual) -> Code:
        return build.load_fast(drawn_variable(self.index), bound=True)


def drawn_variable(index: int) -> str:
    """Return the name of the residual's variable that holds the index-th draw."""
    return f".drawn{index}"


def has_users_name(source: Source) -> bool:
    """Return whether the path starts at a name that the user's code can contain."""
    root = source.root
    return not isinstance(root, Argument) or root.name.isidentifier()


def _entry(table: Mapping[str, object], name: str) -> Code:
    return [*build.load_const(table), *build.load_const(name), *build.binary_subscr()]
