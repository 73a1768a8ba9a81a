"""The instruction model: symbolic instructions, exception regions, and the body of a code object.

Comes in: what decode reads, or what build makes.  Goes out: what flow analyses and assemble
encodes.
Invariant: nothing here is an index or an offset. Arguments are the things themselves, jumps and
regions point at instructions (compared by identity), so instructions can be inserted, moved and
dropped freely.

What `Instruction.arg` is, by opcode family: constants: the object; names, locals, cells and free
variables: the `str`; COMPARE_OP and BINARY_OP: the operator ("<", "+", "+="); jumps: None, see
`target`; all other opcodes with an argument: the plain `int`; opcodes without one: None.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import NamedTuple

__all__ = ["LOCAL_TWIN", "Body", "ExceptionRegion", "Instruction", "Position"]

LOCAL_TWIN = "@local"
"""Ending of a local that has a free variable's name; see Body. No compiler makes such a name."""


class Position(NamedTuple):
    """Where in the source an instruction comes from (PEP 657); columns are in utf-8 bytes."""

    lineno: int
    end_lineno: int | None = None
    col: int | None = None
    end_col: int | None = None


@dataclass(eq=False, slots=True)
class Instruction:
    """One instruction, without caches, prefixes or superinstructions. Equality is identity."""

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
    """Byte offset in the code it was decoded from (of the opcode itself, behind its prefixes, as in
    `frame.f_lasti`); None for new instructions."""

    @property
    def lineno(self) -> int | None:
        """The source line, where it is known."""
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
    top. Regions may nest: the innermost (shortest) one counts.
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
    other locals. A name in both varnames and cellvars is one slot. A name that CPython uses for two
    separate slots (a local of an inlined comprehension and a free variable) has LOCAL_TWIN added to
    the local one here; the assembler drops it again.
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
    """What co_consts begins with, a docstring first. Others are added as they are used."""
    names: tuple[str, ...] = ()
    """What co_names begins with."""

    @property
    def parameter_count(self) -> int:
        """How many slots are bound by the caller, *args and **kwargs included."""
        stars = bool(self.flags & inspect.CO_VARARGS) + bool(self.flags & inspect.CO_VARKEYWORDS)
        return self.argcount + self.kwonlyargcount + stars

    @property
    def parameters(self) -> list[str]:
        """The names of those slots."""
        return self.varnames[: self.parameter_count]

    def slots(self) -> list[str]:
        """The localsplus layout: locals, cells that are not locals, free variables."""
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
        """A copy to be edited alone, and the map from the old instructions to the new ones.

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
