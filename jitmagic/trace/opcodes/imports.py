"""Import statements inside functions: modules that are loaded already are read from sys.modules."""

from __future__ import annotations

import sys
from types import ModuleType

from ...bytecode.instruction import Instruction
from ...guards.source import ImportedModule
from ..breaks import GraphBreak, UnsupportedOpcode
from ..builtins.registry import load_named
from ..state import Frame
from ..values.base import Machine, ObservedError, Value
from .registry import opcode

__all__: list[str] = []


def _module(machine: Machine, name: str) -> Value:
    """Return the Value of a loaded module; an import that would run code is a graph break."""
    # torch imports some of its modules when a program reads them (`__getattr__`); so does this.
    load_named(name)
    module = sys.modules.get(name)
    # Subclasses of ModuleType may compute attributes in code of their own (lazy loaders).
    if type(module) is not ModuleType:
        why = f"module {name!r} is not loaded yet"
        raise GraphBreak(UnsupportedOpcode.of(opcode="IMPORT_NAME", why=why))
    value: Value = machine.wrap(module, ImportedModule(name))
    return value


@opcode("IMPORT_NAME")
def import_name(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    """Import a module: `import a.b` gives a, `from a.b import c` gives a.b.

    Relative names count from the package.
    """
    names = frame.pop(machine).as_constant(machine)
    level = frame.pop(machine).as_constant(machine)
    name = str(instruction.arg)
    if level:
        name = _absolute(machine, frame, name, level)
    # With a `from` list IMPORT_FROM reads attributes, so the innermost module is pushed.
    target = _module(machine, name)
    # Without a `from` list the statement binds the top-level package.
    if not names:
        target = _module(machine, name.partition(".")[0])
    frame.push(target)


def _absolute(machine: Machine, frame: Frame, name: str, level: int) -> str:
    found = frame.globals.store.get("__package__")
    package = found.realize(machine).as_constant(machine) if found is not None else None
    if not isinstance(package, str) or not package:
        raise GraphBreak(UnsupportedOpcode.of(opcode="IMPORT_NAME", why="no __package__"))
    # One dot is the package itself; each further dot removes a component.
    base = package.rsplit(".", level - 1)[0]
    return f"{base}.{name}" if name else base


@opcode("IMPORT_FROM")
def import_from(machine: Machine, frame: Frame, instruction: Instruction) -> None:
    """Load a name of the module, which stays on the stack; a missing name may be a submodule."""
    module = frame.peek(1, machine)
    name = str(instruction.arg)
    try:
        frame.push(module.get_attr(machine, name))
    except ObservedError:
        # CPython's fallback for circular imports: `from package import module` reads sys.modules.
        package = module.get_attr(machine, "__name__").realize(machine).as_constant(machine)
        frame.push(_module(machine, f"{package}.{name}"))
