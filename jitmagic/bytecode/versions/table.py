"""VersionTable: all differences between CPython versions, as data.

It has the kind of each opcode's argument, inline cache sizes, jump directions, superinstructions,
comparison encoding and portable names for decode, flow, assemble and build. v311.py is the base;
each later v3xx.py has only the changes to the version before it. Invariant: no other file of
`bytecode/` compares `sys.version_info`. A test checks each table against its interpreter.

A new version is one new module here and one line in `__init__.py`; ARCHITECTURE.md lists what it
needs elsewhere. A new opcode with a plain int argument needs no entry; the handler that traces it
is in `trace/opcodes/`.
"""

from __future__ import annotations

import dis
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import Any

from ...lazy_dataclass import dataclass, field, fields, replace

__all__ = ["COMPARE_OPERATORS", "Kind", "VersionTable"]

COMPARE_OPERATORS = ("<", "<=", "==", "!=", ">", ">=")

# Outcomes (unordered 1, less 2, greater 4, equal 8) that make each comparison true: the low bits of
# COMPARE_OP's argument since 3.12.
_COMPARE_MASKS = (2, 10, 8, 7, 4, 12)


class Kind(Enum):
    """The meaning of `Instruction.arg` for an opcode."""

    NONE = "none"
    INT = "int"
    CONST = "const"
    NAME = "name"
    LOCAL = "local"
    CELL = "cell"
    COMPARE = "compare"
    BINARY = "binary"
    VALUE = "value"
    JUMP = "jump"


@dataclass(frozen=True)
class VersionTable:
    """The facts about one CPython version, by opcode name; the interpreter has the numbers."""

    version: tuple[int, int]
    consts: frozenset[str]
    """Opcodes whose argument indexes co_consts."""
    names: Mapping[str, int]
    """Opcodes whose argument indexes co_names -> number of flag bits below the index."""
    locals: frozenset[str]
    cells: frozenset[str]
    """Opcodes that index localsplus: a plain slot (`locals`), a slot with a cell (`cells`)."""
    directions: Mapping[str, tuple[str | None, str | None]]
    """Jump (real or portable name) -> the real opcodes for a forward and for a backward target."""
    inversions: Mapping[str, str]
    """Conditional jump -> the opposite one with the same stack effect."""
    no_fallthrough: frozenset[str]
    caches: Mapping[str, int]
    superinstructions: Mapping[str, tuple[str, str]]
    compare_shift: int
    """Bits below the comparison's index in COMPARE_OP's argument."""
    compare_coerces: bool
    """COMPARE_OP has a bit that turns the result into a bool."""
    aliases: Mapping[str, str]
    """Portable name -> this version's opcode (LOAD_CLOSURE is LOAD_FAST since 3.13)."""
    operators: tuple[str, ...]
    """The operators of BINARY_OP by argument. "[]" (3.14) has the portable name BINARY_SUBSCR."""
    values: Mapping[str, Sequence[object]]
    """Opcodes whose argument indexes these objects; decoded as LOAD_CONST of the object."""
    borrowed: Mapping[str, tuple[str, ...]]
    """Loads of borrowed references -> the opcodes that they are decoded as. The compiler proves
    that the variable outlives the value on the stack; an edited body voids that proof."""
    expansions: Mapping[str, tuple[tuple[str, int], ...]]
    """Portable opcode -> this version's opcodes and arguments, which decode merges again."""
    loop_landing: tuple[str, ...]
    """Opcodes required at FOR_ITER's target: the interpreter skips them unchecked."""
    effects: Mapping[str, int]
    """Stack effects that dis.stack_effect lacks or gets wrong: it omits the value pushed by a
    resume."""
    null_first: bool
    """A call's NULL goes below the callable (else above it)."""
    call_kw: bool
    """Keyword calls are CALL_KW with the names on the stack (else KW_NAMES before CALL)."""
    spellings: Mapping[str, tuple[str, ...]]
    """Opcode that `build` writes -> this version's opcodes, each with the same argument."""
    opcodes: Mapping[str, int] = field(default_factory=dict)
    """Name -> number for the running interpreter; empty for the others."""

    _kinds: dict[str, Kind] = field(default_factory=dict, init=False, repr=False, compare=False)
    """Cache of `kind`, which a compile calls ten times per instruction."""

    def changed(self, removed: Iterable[str] = (), **changes: Any) -> VersionTable:
        """Return the table of the next version.

        Sets and mappings in `changes` are added to those here, without the opcodes in `removed`;
        other values take the place of those here.
        """
        gone = frozenset(removed)
        result: dict[str, Any] = {}
        for entry in fields(self):
            old, new = getattr(self, entry.name), changes.pop(entry.name, None)
            if isinstance(old, frozenset):
                result[entry.name] = (old - gone) | (new or frozenset())
            elif isinstance(old, Mapping) and entry.init:
                left = {op: value for op, value in old.items() if op not in gone}
                result[entry.name] = {**left, **(new or {})}
            elif new is not None:
                result[entry.name] = new
        assert not changes, f"no such fields: {sorted(changes)}"
        return replace(self, **result)

    def kind(self, op: str) -> Kind:
        """Return the meaning of the argument of `op` (real or portable name)."""
        known = self._kinds.get(op)
        if known is None:
            known = self._kinds[op] = self._find_kind(op)
        return known

    def _find_kind(self, op: str) -> Kind:
        if op in self.directions:
            return Kind.JUMP
        if op in self.consts:
            return Kind.CONST
        if op in self.names:
            return Kind.NAME
        if op in self.cells:
            return Kind.CELL
        if op in self.locals:
            return Kind.LOCAL
        if op == "COMPARE_OP":
            return Kind.COMPARE
        if op == "BINARY_OP":
            return Kind.BINARY
        if op in self.values:
            return Kind.VALUE
        number = self.opcodes.get(op)
        return Kind.NONE if number is None or number < dis.HAVE_ARGUMENT else Kind.INT

    def real_op(self, op: str, *, backward: bool = False) -> str | None:
        """Return this version's opcode for `op`, or None if there is none in that direction."""
        if op in self.directions:
            return self.directions[op][backward]
        op = self.aliases.get(op, op)
        return op if op in self.opcodes else None

    def encode_compare(self, operator: str, coerce: bool) -> int:
        """Return COMPARE_OP's argument."""
        index = COMPARE_OPERATORS.index(operator)
        if self.compare_shift == 0:
            return index
        return index << self.compare_shift | bool(coerce) << 4 | _COMPARE_MASKS[index]

    def decode_compare(self, argument: int) -> tuple[str, bool]:
        """Return the operator and whether the result is turned into a bool."""
        coerce = self.compare_coerces and bool(argument & 16)
        return COMPARE_OPERATORS[argument >> self.compare_shift], coerce
