"""The instruction model: symbolic instructions, exception regions, and the body of a code object.

`decode` and `build` make it, `flow` analyses it, `assemble` encodes it. Invariant: it has no
indices and no offsets. Arguments are the objects themselves, and jumps and regions refer to
instructions (compared by identity), so instructions can be inserted, moved and dropped freely.

`Instruction.arg` by opcode family: constants: the object; names, locals, cells and free variables:
the `str`; COMPARE_OP and BINARY_OP: the operator ("<", "+", "+="); jumps: None, see `target`; all
other opcodes with an argument: the plain `int`; opcodes without one: None.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection
from enum import IntEnum
from typing import NamedTuple

from ..lazy_dataclass import dataclass, field, replace

__all__ = ["LOCAL_TWIN", "Body", "ExceptionRegion", "Instruction", "Intrinsic", "Position"]

LOCAL_TWIN = "@local"
"""Suffix of a local with a free variable's name; see Body. Not an identifier, so it is unique."""


class Intrinsic(IntEnum):
    """Arguments of CALL_INTRINSIC_1, equal from 3.12 to 3.14 (pycore_intrinsics.h)."""

    STOPITERATION_ERROR = 3
    ASYNC_GEN_WRAP = 4
    UNARY_POSITIVE = 5
    LIST_TO_TUPLE = 6


class Position(NamedTuple):
    """The source position of an instruction (PEP 657); columns are in utf-8 bytes."""

    lineno: int
    end_lineno: int | None = None
    col: int | None = None
    end_col: int | None = None


@dataclass(eq=False, slots=True)
class Instruction:
    """One instruction without caches, prefixes or superinstructions; equality is identity."""

    op: str
    arg: object = None
    flag: bool = field(default=False, kw_only=True)
    """LOAD_GLOBAL: a NULL is pushed for a call; LOAD_ATTR (3.12+), LOAD_SUPER_ATTR: load as a
    method; COMPARE_OP (3.13+): turn the result into a bool."""
    explicit: bool = field(default=False, kw_only=True)
    """LOAD_SUPER_ATTR only: super() was written with two arguments."""
    target: Instruction | None = field(default=None, kw_only=True)
    position: Position | None = field(default=None, kw_only=True)
    offset: int | None = field(default=None, kw_only=True)
    """Byte offset in the code it was decoded from (of the opcode itself, after its prefixes, as in
    `frame.f_lasti`); None for new instructions."""

    @property
    def lineno(self) -> int | None:
        """The source line, if known."""
        return self.position.lineno if self.position else None

    def copy(self) -> Instruction:
        """Return an instruction like this one; `dataclasses.replace` takes three times as long."""
        return Instruction(
            self.op,
            self.arg,
            flag=self.flag,
            explicit=self.explicit,
            target=self.target,
            position=self.position,
            offset=self.offset,
        )

    def __repr__(self) -> str:
        text = (
            self.op if self.arg is None and self.op != "LOAD_CONST" else f"{self.op} {self.arg!r}"
        )
        if self.flag:
            text += " [flag]"
        if self.target is not None:
            text += f" -> {self.target.op}@{self.target.offset}"
        return f"<{text}>"


@dataclass(eq=False, slots=True)
class ExceptionRegion:
    """Instructions start..end_inclusive unwind to `target` with the stack cut to `depth` entries.

    The handler then finds the index of the raising instruction (if `lasti`) and the exception on
    top. Regions may nest: the innermost (shortest) one applies.
    """

    start: Instruction
    end_inclusive: Instruction
    target: Instruction
    depth: int
    lasti: bool = False


@dataclass(eq=False)
class Body:
    """Everything needed to rebuild a code object.

    `varnames` lists the parameters first (positional, keyword-only, *args, **kwargs), then the
    other locals. A name in both varnames and cellvars is one slot. If CPython uses a name for two
    slots (a local of an inlined comprehension and a free variable), the local's name has the suffix
    LOCAL_TWIN here, which the assembler removes.
    """

    instructions: list[Instruction] = field(default_factory=list)
    regions: list[ExceptionRegion] = field(default_factory=list)
    name: str = "<body>"
    qualname: str = "<body>"
    filename: str = "<jitmagic>"
    firstlineno: int = 1
    argcount: int = 0
    posonlyargcount: int = 0
    kwonlyargcount: int = 0
    flags: int = inspect.CO_OPTIMIZED | inspect.CO_NEWLOCALS
    varnames: list[str] = field(default_factory=list)
    cellvars: list[str] = field(default_factory=list)
    freevars: list[str] = field(default_factory=list)
    consts: tuple[object, ...] = (None,)
    """The first entries of co_consts (a docstring comes first); others are added when used."""
    names: tuple[str, ...] = ()
    """The first entries of co_names."""

    @property
    def parameter_count(self) -> int:
        """Number of slots bound by the caller, *args and **kwargs included."""
        stars = bool(self.flags & inspect.CO_VARARGS) + bool(self.flags & inspect.CO_VARKEYWORDS)
        return self.argcount + self.kwonlyargcount + stars

    @property
    def parameters(self) -> list[str]:
        """Names of the slots bound by the caller."""
        return self.varnames[: self.parameter_count]

    def slots(self) -> list[str]:
        """Return the localsplus layout: locals, cells that are not locals, free variables."""
        own = set(self.varnames)
        return [
            *self.varnames,
            *(name for name in self.cellvars if name not in own),
            *self.freevars,
        ]

    def regions_within(self, keep: Collection[Instruction]) -> list[ExceptionRegion]:
        """Return copies of the regions, shrunk to the instructions that are kept."""
        if not self.regions:
            return []
        index = {instruction: i for i, instruction in enumerate(self.instructions)}
        regions = []
        for region in self.regions:
            inside = self.instructions[index[region.start] : index[region.end_inclusive] + 1]
            kept = [instruction for instruction in inside if instruction in keep]
            if kept and region.target in keep:
                regions.append(replace(region, start=kept[0], end_inclusive=kept[-1]))
        return regions

    def clone(
        self, keep: Collection[Instruction] | None = None
    ) -> tuple[Body, dict[Instruction, Instruction]]:
        """Return an independent copy and the map from old to new instructions.

        `keep`: the only instructions to copy; a jump to another one has no target in the copy.
        """
        kept = self.instructions if keep is None else [i for i in self.instructions if i in keep]
        copies = {old: old.copy() for old in kept}
        for new in copies.values():
            if new.target is not None:
                new.target = copies.get(new.target)
        regions = [
            replace(
                r,
                start=copies[r.start],
                end_inclusive=copies[r.end_inclusive],
                target=copies[r.target],
            )
            for r in (self.regions if keep is None else self.regions_within(keep))
        ]
        copied = replace(
            self,
            instructions=list(copies.values()),
            regions=regions,
            varnames=list(self.varnames),
            cellvars=list(self.cellvars),
            freevars=list(self.freevars),
        )
        return copied, copies
